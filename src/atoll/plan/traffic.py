"""What a round moves, by formula: the bytes of every member under a recipe, and the least time they take on its lines.

The lengths are the exact ones of the codecs and of the grid; who owns what, in which groups, circles and trees, is what
the exchange itself asks for (`swarm.routes`). With N members, contributions of C bytes that merge into results of R
bytes, and a member that owns the share s:

    butterfly     sends  (1 - s) C + (N - 1) s R       receives  (N - 1) s C + (1 - s) R
    star          as a butterfly with s = 1 for the one in the middle, and 0 for all others
    all-gather    sends  (N - 1) C                     receives  (N - 1) C
    ring          as a butterfly of equal shares: a sum that goes round is as long as a contribution
    trees, rings  for each who is below it and itself below another, C up and R down for the chunks of that tree
    circles       as a butterfly, with N the members of one's own
    regions       of N members in G regions: within a region as a butterfly; between them, of all together, G - 1 sums
                  in fp32 and G - 1 results, however many members each has
    regional      as circles and regions in turn: of K contributions to one region each goes back to all of it, and
                  then what they came to crosses, as one region's sum and the result for all. One member tells for its
                  region; others that try at the same moment send as much within it once more
    mesh          sends  (N - 1) C                     receives  (N - 1) C
                  and when one teaches all others, which is each in its turn, 4 bytes for every parameter to each

Of several channels a round is what theirs are on average.

For equal shares and C = R that is the 2 (N - 1) / N of every all-reduce. Where a round ends with K contributions and
no grace, each member's C counts for K of N rounds, as do its steps; results go to all: for each contribution of its own
a member receives N / K of them, where a server would send it one. With a grace all are taken to come within it.

Heads of messages, digests and control are not counted: together below 2 % from a few million parameters on, more where
a message is only some hundred bytes. Nor is what a member fetches after the commit because it could not be called.
Regions are those that lines name. Fragments are taken to be of the same size. Of factors a round is the mean of the two
that a step takes, of tensors in turn or of moments that of a period; a model whose tensors are not known is taken to be
made of square matrices, and named tensors half of it. What first rounds have in finer forms is left out: it is of a
few. Where a codec sends whatever is large enough, bytes are those of a round in which everything is. Time is a bound:
every line full all the while, nobody waiting for anybody, no latency.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations, product

from msgspec import Struct
from msgspec.structs import replace

from atoll.model.moments import travelling
from atoll.plan.flows import Moves, flows_of, layout_of, lengths_of, regions_of, transfers
from atoll.plan.lines import Line, crowd_of
from atoll.spec.axes.control import Knobs
from atoll.spec.axes.pace import Quorum, Regional, Seconds, StandIn
from atoll.spec.axes.what import LowRank
from atoll.spec.axes.when import Named, TargetBatch, Tensors, WithMoments
from atoll.spec.axes.whom import All, AllGather, Regions, Star, Trees
from atoll.spec.knobs import turned
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.turns import shares
from atoll.swarm.log import ALL, CIRCLES, Key
from atoll.swarm.routes.circles import circles_of, copies_of, of_all
from atoll.swarm.routes.layout import Layout
from atoll.swarm.routes.shares import groups_needed
from atoll.sync.codec import is_exact, wire_bytes
from atoll.sync.factors import Factors
from atoll.sync.grid import Grid, grid_of
from atoll.sync.units import is_embedding, longest, units_in

Shapes = Mapping[str, tuple[int, ...]]
"""The tensors of a model."""
SIDE, MATRICES_MIN, MATRICES_MAX = 1024, 64, 2048
"""Of the matrices that a model is taken to be made of where its own are not known, and how many there are: of a small
model they are smaller, of a very large one larger."""
ROUNDS_FEW, ROUNDS_MAX = 4, 64
"""Rounds of circles that are looked at: each is another draw, or another dimension."""


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
    between_bytes: float = 0.0
    """What all together send from one region to another."""

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


class Kind(Struct, frozen=True, kw_only=True):
    """One kind of round that a recipe has, and how often it comes."""

    channel: Channel
    part: float
    """Of all rounds."""
    flows: dict[tuple[int, int], float]
    """How much goes from one member to another, by their places."""


def traffic(
    recipe: Recipe, parameters: int, lines: Sequence[Line], knobs: Knobs | None = None, shapes: Shapes | None = None
) -> Traffic:
    """Return what a round of a recipe moves for a model of so many parameters, as its knobs stand.

    Of several channels it is the mean round: each moves what its own do, for the part of the rounds that it has.
    """
    kinds = rounds(recipe, parameters, lines, knobs, shapes)
    sent, received, between = [0] * len(lines), [0] * len(lines), 0.0
    for kind in kinds:
        for (sender, receiver), size_bytes in kind.flows.items():
            sent[sender] += round(kind.part * size_bytes)
            received[receiver] += round(kind.part * size_bytes)
        between += kind.part * sum(size for (a, b), size in kind.flows.items() if lines[a].region != lines[b].region)
    return Traffic(
        steps=round_steps(recipe, crowd_of(lines), knobs),
        exact=all(is_exact(kind.channel.what.codec) for kind in kinds),
        between_bytes=between,
        moved=tuple(
            Moved(line=line, sent_bytes=sent[place], received_bytes=received[place]) for place, line in enumerate(lines)
        ),
    )


def rounds(
    recipe: Recipe, parameters: int, lines: Sequence[Line], knobs: Knobs | None = None, shapes: Shapes | None = None
) -> list[Kind]:
    """Return the kinds of rounds that a run under a recipe has, each with what goes from whom to whom in it."""
    known = {number.to_bytes(4, "big"): line for number, line in enumerate(lines)}
    named = recipe.channel if knobs is None else {"": turned(recipe, knobs)}
    parts = shares(recipe) if knobs is None else {"": 1.0}
    return [
        Kind(channel=channel, part=parts[name] * often, flows=_by_place(flows))
        for name, channel in named.items()
        for often, flows in _kinds(channel, _grids(recipe, channel, parameters, shapes), known)
    ]


def round_steps(recipe: Recipe, members: float, knobs: Knobs | None = None) -> float:
    """Return how many local steps a round stands for, of each member on average."""
    named = recipe.channel if knobs is None else {"": turned(recipe, knobs)}
    often = min(named.values(), key=lambda channel: channel.when.round_steps)
    part = contributors(often, members) / members
    if often.regional is not None:
        part *= 1 - _tells(often, often.regional, members)
    return _steps(recipe, often, members) * part / often.phases


def _grids(recipe: Recipe, channel: Channel, parameters: int, shapes: Shapes | None) -> list[Grid]:
    """Return the grids of rounds whose mean is a round of the channel: one, of factors one for either side, ..."""
    transform = channel.what.transform
    if isinstance(transform, LowRank):
        return [unit.grid for unit in Factors(transform, shapes or _squares(parameters), 0).units(channel.what.codec)]
    by_name = isinstance(channel.when, Named) and shapes is not None
    if isinstance(channel.when, Tensors | WithMoments) or by_name:
        vector = travelling(recipe, shapes or _squares(parameters))
        sizes = {name: math.prod(shape) for name, shape in vector.items()}
        return [unit.grid for unit in units_in(channel, sizes)]
    lengths = sum(not is_embedding(name) for name in shapes or _squares(parameters)) if channel.polar else 0
    return [grid_of(-(-(parameters + lengths) // channel.parts), longest(channel))]


def _squares(parameters: int) -> Shapes:
    """Return a model of which only the size is known: square matrices, neither too few nor too many, and a rest."""
    least, most = (math.isqrt(parameters // count) for count in (MATRICES_MAX, MATRICES_MIN))
    side = max(1, least, min(SIDE, most))
    count, rest = divmod(parameters, side * side)
    return {f"layers.{number}.": (side, side) for number in range(count)} | ({"rest": (rest,)} if rest else {})


def _by_place(flows: Sequence[Moves]) -> dict[tuple[int, int], float]:
    """Return how much goes from each to each."""
    found: dict[tuple[bytes, bytes], float] = {}
    for sender, receiver, size_bytes in flows:
        if size_bytes:
            found[sender, receiver] = found.get((sender, receiver), 0.0) + size_bytes
    return {(int.from_bytes(a, "big"), int.from_bytes(b, "big")): size_bytes for (a, b), size_bytes in found.items()}


def _kinds(channel: Channel, grids: Sequence[Grid], known: Mapping[bytes, Line]) -> list[tuple[float, list[Moves]]]:
    """Return how often each kind of round of one channel comes, and what goes over lines in it."""
    if channel.regional is not None:
        return _regional_kinds(channel, channel.regional, grids[0], known)
    members, rounds, crowd = tuple(known), _rounds(channel), crowd_of(known.values())
    part, count = contributors(channel, crowd) / crowd, len(rounds) * len(grids)
    found: list[tuple[float, list[Moves]]] = []
    often = 1 / channel.mesh.teach_every if channel.mesh is not None and channel.mesh.teach_every else 0.0
    for key, (grid, times) in product(rounds, Counter(grids).items()):
        rates = tuple(int(line.up_bytes_s) for line in known.values())
        circles = circles_of(channel.whom, key, members, rates, regions_of(channel, known))
        given = replace(grid, copies=copies_of(channel.whom, key, len(members)))
        layout = layout_of(channel, given, known, circles)
        moved = transfers(layout, lengths_of(channel, given, members), members, part)
        found.append(((1 - often) * times / count, _crowded(channel, layout, moved, known)))
    if often:  # one teaches all others: each in its turn
        weights_bytes = wire_bytes(channel.with_weights().what.codec, grids[0].size)
        found.append((often, [(one, other, weights_bytes / len(members)) for one, other in permutations(members, 2)]))
    return found


def _crowded(channel: Channel, layout: Layout, moved: list[Moves], known: Mapping[bytes, Line]) -> list[Moves]:
    """Return what each member moves where there are more of them than are looked at.

    Who sends to all has more to send to, and so has the root of a tree. What crosses between regions is as much however
    many share it. The parts of a butterfly come to the same, but for the one part in so many that stays at home; so do
    the sums between groups. A circle is as large among many.
    """
    crowd, few = crowd_of(known.values()), len(known)
    if crowd <= few or few < 2 or (layout.circles and channel.mesh is None):
        return moved
    near: Mapping[bytes, object] = {peer: line.region for peer, line in known.items()}
    if channel.mesh is not None or isinstance(channel.whom.route, AllGather | Star | Trees):
        inside = across = (crowd - 1) / (few - 1)  # of a star, what the one in the middle moves
    elif isinstance(channel.whom.route, Regions):
        inside, across = 1.0, few / crowd
    elif layout.joined and not layout.carriers:
        near = {peer: number for number, group in enumerate(layout.groups) for peer in group}
        then = groups_needed(math.ceil(crowd), channel.group_max(math.ceil(crowd)))
        many, some = (_in_groups(layout.chunks, *each) for each in ((crowd, then), (few, len(layout.groups))))
        inside, across = many[0] / some[0], many[1] / some[1]
    else:
        inside = across = (1 - 1 / crowd) / (1 - 1 / few)
    return [
        (one, other, size_bytes * (inside if near[one] == near[other] else across)) for one, other, size_bytes in moved
    ]


def _in_groups(chunks: int, members: float, groups: int) -> tuple[float, int]:
    """Return how many chunks who has most of equal shares sends within its group, and to other groups.

    It sends a sum of each chunk that it owns, and as the root of some, results to all other groups.
    """
    own = math.ceil(chunks * groups / members)
    rooted = math.ceil(own / groups)
    return chunks + own * (members / groups - 2), rooted * (groups - 1) + own - rooted


def _regional_kinds(
    channel: Channel, home: Regional, grid: Grid, known: Mapping[bytes, Line]
) -> list[tuple[float, list[Moves]]]:
    """Return likewise the rounds in which one region takes something in, and those in which one tells."""
    members, regions, crowd = tuple(known), regions_of(channel, known), crowd_of(known.values())
    lengths, tells, count = lengths_of(channel, grid, members), _tells(channel, home, crowd), 1 + max(regions)
    enough = contributors(channel, crowd)
    found: list[tuple[float, list[Moves]]] = []
    for scope, often in ((CIRCLES, 1 - tells), (ALL, tells)):
        circles = circles_of(channel.whom, Key("", 1, scope=scope), members, (), regions)
        part = (enough if circles else 1) / crowd
        parts, sums, returns = flows_of(layout_of(channel, grid, known, circles), lengths)
        comes = min(1.0, enough / count) if circles else 1.0  # back to all regions, or to the one that is concerned
        moved = [
            (sender, receiver, share * size_bytes)
            for flow, share in ((parts, part), (sums, 1 / count), (returns, comes))
            for sender, receiver, size_bytes in flow
        ]
        found.append((often, moved))
    return found


def _tells(channel: Channel, home: Regional, members: float) -> float:
    """Return in which part of the rounds a region tells, taken that no two do at once."""
    enough = contributors(channel, members)
    return enough / (home.pushes + enough)


def _rounds(channel: Channel) -> list[Key]:
    """Return rounds whose mean is a round of the channel: one, or of circles so many that a round of all is due.

    The last round of a run in circles is one of all too, which a long run hardly feels.
    """
    if isinstance(channel.whom, All):
        return [Key("", 1)]
    if channel.mesh is not None:
        return [Key("", 1, scope=CIRCLES)]
    count = min(channel.whom.all_every, ROUNDS_MAX) or ROUNDS_FEW
    return [Key("", v, scope=ALL if of_all(channel.whom, v) else CIRCLES) for v in range(1, count + 1)]


def _steps(recipe: Recipe, channel: Channel, members: float) -> int:
    """Return how many local steps a round stands for; of a batch of all together, for a member of middling speed."""
    if isinstance(channel.when, TargetBatch):
        return max(1, round(channel.when.samples / recipe.work.batch / members))
    return channel.when.round_steps


def contributors(channel: Channel, members: float) -> float:
    """Return how many give something to a round: everybody, unless it ends with fewer, and gives no grace."""
    match channel.barrier:
        case Quorum(contributors=enough, grace=grace) if grace == Seconds() and not isinstance(channel.late, StandIn):
            return min(enough, members)
        case _:
            return members


def every_step_fp32(parameters: int, members: int) -> float:
    """Return what each member sends and receives per step where gradients go round in fp32 (DDP), by formula."""
    return 2 * 2 * (members - 1) / members * parameters * 4
