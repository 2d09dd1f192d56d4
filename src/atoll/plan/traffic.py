"""What a round moves, by formula: the bytes of every member under a recipe, and the least time they take on its lines.

The lengths are the exact ones of the codecs and of the grid; who sends what to whom is what the exchange itself asks
(`swarm.layout`), so there is no second opinion about routes here. With N members, contributions of C bytes that merge
into results of R bytes, and a member that owns the share s:

    butterfly     sends  (1 - s) C + (N - 1) s R       receives  (N - 1) s C + (1 - s) R
    all-gather    sends  (N - 1) C                     receives  (N - 1) C
    ring          as a butterfly of equal shares: a sum that goes round is as long as a contribution
    circles       as a butterfly, with N the members of one's own

which for equal shares and C = R is the 2 (N - 1) / N of every all-reduce. Where a round ends with K contributions and
no grace, each member's C counts for K of N rounds, as do its steps; results go to all: for each contribution of its own
a member receives N / K of them, where a server would send it one. With a grace all are taken to come within it.

Heads of messages, digests and control are not counted: together below 2 % from a few million parameters on, more where
a message is only some hundred bytes. Nor is what a member fetches after the commit because it could not be called.
Fragments are taken to be of the same size. Where a codec sends whatever is large enough, bytes are those of a round in
which everything is. Time is a bound: every line full all the while, nobody waiting for anybody,
no latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from atoll.spec.fleet import Machine
from atoll.spec.knobs import turned
from atoll.spec.recipe import (
    All,
    AllGather,
    Channel,
    Fp32,
    Fragments,
    Knobs,
    Quorum,
    Recipe,
    Ring,
    Seconds,
    StandIn,
    TargetBatch,
)
from atoll.swarm.circles import Circle, circles_of, of_all
from atoll.swarm.layout import Layout
from atoll.swarm.log import ALL, CIRCLES, Key
from atoll.swarm.shares import Shard, Shards, cut, group_slices, groups_needed, solve
from atoll.sync.codec import is_exact, wire_bytes
from atoll.sync.grid import Grid, grid_of

ROUNDS_FEW, ROUNDS_MAX = 4, 64
"""Rounds of circles that are looked at: each is another draw, or another dimension."""


class Line(Struct, frozen=True, kw_only=True):
    """A member as its line: how fast it is, and whether others can call it."""

    name: str = ""
    up_bytes_s: float = 0.0
    down_bytes_s: float = 0.0
    """0: not known; shares are then equal and no time is told."""
    reached: bool = True


class Moved(Struct, frozen=True, kw_only=True):
    """What one member sends and receives in a round."""

    line: Line
    sent_bytes: int
    received_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.sent_bytes + self.received_bytes

    @property
    def least_s(self) -> float:
        """The time its line needs for it, both directions at once; 0 where the line is not known."""
        line = self.line
        if not (line.up_bytes_s and line.down_bytes_s):
            return 0.0
        return max(self.sent_bytes / line.up_bytes_s, self.received_bytes / line.down_bytes_s)


class Traffic(Struct, frozen=True, kw_only=True):
    """A round of a recipe among some members."""

    steps: float
    """Local steps that a round stands for, of each member on average."""
    moved: tuple[Moved, ...]
    exact: bool = True
    """False where what is sent depends on values: it is so much at most."""

    @property
    def worst(self) -> Moved:
        """Who moves most."""
        return max(self.moved, key=lambda each: each.total_bytes)

    @property
    def slowest(self) -> Moved:
        """Whose line needs longest: no round is shorter."""
        return max(self.moved, key=lambda each: each.least_s)

    @property
    def step_bytes(self) -> float:
        """What who moves most sends and receives per local step."""
        return self.worst.total_bytes / self.steps


def lines_of(machines: Sequence[Machine]) -> list[Line]:
    """Return the lines of a fleet's machines."""
    return [
        Line(name=each.name, up_bytes_s=each.up_bytes_s, down_bytes_s=each.down_bytes_s, reached=not each.nat)
        for each in machines
    ]


def traffic(recipe: Recipe, parameters: int, lines: Sequence[Line], knobs: Knobs | None = None) -> Traffic:
    """Return what a round of the recipe's channel moves for a model of so many parameters, as its knobs stand."""
    channel = turned(recipe, knobs)
    parts = channel.when.count if isinstance(channel.when, Fragments) else 1
    grid = grid_of(-(-parameters // parts), channel.what.codec)
    members = tuple(number.to_bytes(4, "big") for number in range(len(lines)))
    known = dict(zip(members, lines, strict=True))
    sent, received = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
    rounds = _rounds(channel)
    part = contributors(channel, len(members)) / len(members)
    for key in rounds:
        circles = circles_of(channel.whom, key, members, tuple(int(line.up_bytes_s) for line in lines))
        gather, ring = (isinstance(channel.whom.route, kind) for kind in (AllGather, Ring))
        layout = Layout(_shards(channel, grid, known, circles), members, gather=gather, circles=circles, ring=ring)
        for sender, receiver, size_bytes in _transfers(layout, _lengths(channel, grid), members, part):
            sent[sender] += size_bytes
            received[receiver] += size_bytes
    return Traffic(
        steps=_steps(recipe, channel, len(lines)) * part,
        exact=is_exact(channel.what.codec),
        moved=tuple(
            Moved(line=line, sent_bytes=sent[peer] // len(rounds), received_bytes=received[peer] // len(rounds))
            for peer, line in known.items()
        ),
    )


def _rounds(channel: Channel) -> list[Key]:
    """Return rounds whose mean is a round of the channel: one, or of circles so many that a round of all is due.

    The last round of a run in circles is one of all too, which a long run hardly feels.
    """
    if isinstance(channel.whom, All):
        return [Key("", 1)]
    count = min(channel.whom.all_every, ROUNDS_MAX) or ROUNDS_FEW
    return [Key("", v, scope=ALL if of_all(channel.whom, v) else CIRCLES) for v in range(1, count + 1)]


def _steps(recipe: Recipe, channel: Channel, members: int) -> int:
    """Return how many local steps a round stands for; of a batch of all together, for a member of middling speed."""
    if isinstance(channel.when, TargetBatch):
        return max(1, round(channel.when.samples / recipe.work.batch / members))
    return channel.when.round_steps


def contributors(channel: Channel, members: int) -> int:
    """Return how many give something to a round: everybody, unless it ends with fewer, and gives no grace."""
    match channel.barrier:
        case Quorum(contributors=enough, grace=grace) if grace == Seconds() and not isinstance(channel.late, StandIn):
            return min(enough, members)
        case _:
            return members


def every_step_fp32(parameters: int, members: int) -> float:
    """Return what each member sends and receives per step where gradients go round in fp32 (DDP), by formula."""
    return 2 * 2 * (members - 1) / members * parameters * 4


class _Lengths(Struct, frozen=True):
    """What each chunk is on the wire: in a contribution, as a sum, in a result."""

    part: list[int]
    sum: list[int]
    result: list[int]


def _lengths(channel: Channel, grid: Grid) -> _Lengths:
    counts = [end - first for first, end in map(grid.bounds, range(grid.chunks))]
    what = channel.what
    summed = what.codec if isinstance(channel.whom.route, Ring) else Fp32()
    forms = (what.codec, summed, what.merged())
    return _Lengths(*([wire_bytes(form, count) for count in counts] for form in forms))


def _transfers(
    layout: Layout, lengths: _Lengths, members: Sequence[bytes], part: float
) -> list[tuple[bytes, bytes, int]]:
    """Return everything that goes over a line in a round: from whom, to whom, how much on average.

    Only this part of the members contributes, each as often as any other; a group in which nobody does sends no sum.
    """
    groups = min(1.0, part * len(members) / len(layout.groups))
    found = [
        (member, owner, round(part * sum(lengths.part[index] for index in layout.parts(owner, member))))
        for owner in layout.owners
        for member in members
        if member != owner
    ]
    for owner in layout.owners:
        for root, units in layout.sums(owner).items():
            found.append((owner, root, round(groups * sum(lengths.sum[index] for _, index in units))))
        for to, cells in layout.returns(owner).items():
            found.append((owner, to, sum(lengths.result[index] for _, index in cells)))
    return found


def _shards(channel: Channel, grid: Grid, known: Mapping[bytes, Line], circles: Sequence[Circle]) -> Shards:
    """Return who owns what once everybody's line is known, as the broker shares it out."""
    route, members = channel.whom.route, list(known)
    if isinstance(route, AllGather):
        able = [peer for peer, line in known.items() if line.reached] or members
        return tuple(Shard(peer, 0, grid.chunks, group) for group, peer in enumerate(able))
    if isinstance(route, Ring):
        return tuple(Shard(peer, 0, grid.chunks, place) for place, peer in enumerate(members))
    groups = group_slices(members, groups_needed(len(members), channel.group_max(len(members))))
    among = circles or [Circle(tuple(group), tuple(group)) for group in groups]
    between = 0.0 if circles else 2 * (len(groups) - 1) / len(groups)
    shards: list[Shard] = []
    for number, circle in enumerate(among):
        owners = [peer for peer in circle.takers if known[peer].reached] or list(circle.takers)
        shares = solve([_rate(known[peer]) for peer in owners], len(circle.givers) + between)
        run = circle.chunks(grid.chunks)
        shards += cut(len(run), owners, shares, number, run.start)
    return tuple(shards)


def _rate(line: Line) -> float:
    """Return what decides a member's share: its slower direction, as both carry as much; equal where none is known."""
    return min(line.up_bytes_s, line.down_bytes_s) or 1.0
