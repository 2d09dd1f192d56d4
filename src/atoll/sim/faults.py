"""What goes wrong, as data: a seed expands to an explicit list of faults that can be stored, replayed and shrunk.

Every kind of fault draws from a random stream of its own, named and seeded by that name, so taking one kind out
or adding another never moves the rest. A storm ends: every fault is over, and every crashed peer back, by
`until_s`, because what comes after is the liveness phase. Applying faults is the business of the scenario.
Peers are given by their place in the fleet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

import msgspec
from msgspec import Struct

from atoll.errors import SpecError
from atoll.sim.points import When

LEADER = -1
"""In place of a peer: whoever leads when the fault's time comes, as the logs on the disks say."""


class _Fault(Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of everything that can go wrong."""

    at_s: float


class Crash(_Fault, frozen=True, tag="crash"):
    """The process dies without a word; unsynced bytes are lost or torn. It comes back, or never (None)."""

    peer: int
    restart_after_s: float | None = None


class CrashAt(_Fault, frozen=True, tag="crash-at"):
    """The process dies just before or just after its `nth` send or sync of a kind, if that comes within `for_s`.

    What it sent just before it died arrives; what it synced just before it died is kept.
    """

    peer: int
    what: str
    """A point as `sim.points` names it: "send:control/append", "send:append", "fsync:log", "send:", "fsync:"."""
    when: When = "before"
    nth: int = 1
    for_s: float = 60.0
    restart_after_s: float | None = None


class Leave(_Fault, frozen=True, tag="leave"):
    """The peer is asked to stop and does so in good order. It comes back, or never (None)."""

    peer: int
    restart_after_s: float | None = None


class Pause(_Fault, frozen=True, tag="pause"):
    """The process stands still, as a sleeping laptop does."""

    peer: int
    for_s: float


class Partition(_Fault, frozen=True, tag="partition"):
    """Nothing passes between `side` and the rest; `one_way`: the side is heard by nobody but hears all.

    With `others`, only between the side and those.
    """

    side: tuple[int, ...]
    for_s: float
    one_way: bool = False
    others: tuple[int, ...] = ()


class SlowDisk(_Fault, frozen=True, tag="slow-disk"):
    peer: int
    for_s: float
    factor: float


class FullDisk(_Fault, frozen=True, tag="full-disk"):
    """Every write that makes files grow fails."""

    peer: int
    for_s: float


class SlowLink(_Fault, frozen=True, tag="slow-link"):
    peer: int
    for_s: float
    factor: float


class LossyLink(_Fault, frozen=True, tag="lossy-link"):
    """Packets of a peer are lost, or only those between it and another."""

    peer: int
    for_s: float
    loss: float
    other: int | None = None


class SlowCompute(_Fault, frozen=True, tag="slow-compute"):
    peer: int
    for_s: float
    factor: float


class Skew(_Fault, frozen=True, tag="skew"):
    """The wall clock jumps by so much and stays there; nothing but display may notice."""

    peer: int
    by_s: float


class Vandal(_Fault, frozen=True, tag="vandal"):
    """A stranger with a key of its own says random, mutated and replayed messages to everybody it can reach."""

    for_s: float
    pause_s: float = 0.3
    """Mean time between two of its conversations."""


class Lie(_Fault, frozen=True, tag="lie"):
    """A member sends messages of one kind with their second half overwritten: broken memory, or bad faith.

    It is set aside for that, so nothing more is expected of it, and nothing it contributed is known.
    """

    peer: int
    what: str
    for_s: float


class Reform(_Fault, frozen=True, tag="reform"):
    """The organiser's owner gives the rest of the council up for lost and starts it again with a new one."""


Fault = (
    Crash | CrashAt | Leave | Pause | Partition | SlowDisk | FullDisk | SlowLink | LossyLink | SlowCompute | Skew
    | Vandal | Lie | Reform
)  # fmt: skip


class Weather(Struct, frozen=True, kw_only=True):
    """How many faults of each kind a storm has on average."""

    crashes: float = 2.0
    crash_points: float = 0.0
    """Crashes tied to a send or a sync instead of to a time."""
    leaves: float = 0.0
    pauses: float = 1.0
    partitions: float = 1.0
    slow_disks: float = 0.5
    full_disks: float = 0.0
    slow_links: float = 0.5
    lossy_links: float = 0.5
    slow_computes: float = 0.5
    skews: float = 0.5
    vandals: float = 0.0
    lies: float = 0.0
    of_leader: float = 0.0
    """Part of the crashes, pauses and slow machines that hit whoever leads."""
    gone_for_good: float = 0.0
    """Part of the crashes and leaves from which a peer does not come back."""
    lasts_s: float = 8.0
    """Median length of a fault: some shorter, some longer than it takes to notice."""


def stream(seed: int, name: str) -> Random:
    """Return the random stream of one purpose; streams of other names are independent of it."""
    return Random(f"{seed}/{name}")


def storm(seed: int, peers: int, until_s: float, weather: Weather | None = None) -> tuple[Fault, ...]:
    """Return the faults of one seed in order of time, all over by `until_s`."""
    sky = weather or Weather()
    faults: list[Fault] = []
    for name, mean, draw in _kinds(sky):
        rng = stream(seed, f"storm/{name}")
        for _ in range(_count(rng, mean)):
            at_s = rng.uniform(0.0, 0.9 * until_s)
            for_s = min(sky.lasts_s * math.exp2(rng.uniform(-3.0, 2.0)), until_s - at_s)
            faults.append(draw(rng, peers, round(at_s, 3), round(for_s, 3)))
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, msgspec.json.encode(fault))))


_Draw = Callable[[Random, int, float, float], Fault]


def _kinds(sky: Weather) -> list[tuple[str, float, _Draw]]:
    """Return (name, how many on average, how to draw one) for every kind."""

    def back(rng: Random, for_s: float) -> float | None:
        return None if rng.random() < sky.gone_for_good else for_s

    def who(rng: Random, peers: int) -> int:
        drawn = rng.randrange(peers)
        return LEADER if sky.of_leader and rng.random() < sky.of_leader else drawn

    def crash_at(rng: Random, peers: int, at_s: float, for_s: float) -> Fault:
        what = rng.choice(("send:", "send:", "fsync:"))
        when: When = "before" if rng.random() < 0.5 else "after"
        nth = int(math.exp2(rng.uniform(0.0, 5.0)))
        half_s = round(for_s / 2, 3)
        return CrashAt(
            at_s=at_s,
            peer=who(rng, peers),
            what=what,
            when=when,
            nth=nth,
            for_s=half_s,
            restart_after_s=back(rng, half_s),
        )

    def partition(rng: Random, peers: int, at_s: float, for_s: float) -> Fault:
        side = sorted(rng.sample(range(peers), rng.randint(1, max(1, peers - 1))))
        return Partition(at_s=at_s, side=tuple(side), for_s=for_s, one_way=rng.random() < 0.3)

    return [
        ("crash", sky.crashes, lambda r, n, t, d: Crash(at_s=t, peer=who(r, n), restart_after_s=back(r, d))),
        ("crash-at", sky.crash_points, crash_at),
        ("leave", sky.leaves, lambda r, n, t, d: Leave(at_s=t, peer=r.randrange(n), restart_after_s=back(r, d))),
        ("pause", sky.pauses, lambda r, n, t, d: Pause(at_s=t, peer=who(r, n), for_s=d)),
        ("partition", sky.partitions, partition),
        (
            "slow-disk",
            sky.slow_disks,
            lambda r, n, t, d: SlowDisk(at_s=t, peer=who(r, n), for_s=d, factor=_fold(r)),
        ),
        ("full-disk", sky.full_disks, lambda r, n, t, d: FullDisk(at_s=t, peer=r.randrange(n), for_s=d)),
        (
            "slow-link",
            sky.slow_links,
            lambda r, n, t, d: SlowLink(at_s=t, peer=who(r, n), for_s=d, factor=_fold(r)),
        ),
        (
            "lossy-link",
            sky.lossy_links,
            lambda r, n, t, d: LossyLink(at_s=t, peer=r.randrange(n), for_s=d, loss=round(r.uniform(0.001, 0.1), 4)),
        ),
        (
            "slow-compute",
            sky.slow_computes,
            lambda r, n, t, d: SlowCompute(at_s=t, peer=who(r, n), for_s=d, factor=_fold(r)),
        ),
        (
            "skew",
            sky.skews,
            lambda r, n, t, d: Skew(at_s=t, peer=r.randrange(n), by_s=round(r.uniform(-3600, 3600), 3)),
        ),
        (
            "lie",
            sky.lies,
            lambda r, n, t, d: Lie(at_s=t, peer=r.randrange(n), for_s=d, what=r.choice(("send:part/", "send:fetch/"))),
        ),
        ("vandal", sky.vandals, lambda r, n, t, d: Vandal(at_s=t, for_s=d)),
    ]


def _count(rng: Random, mean: float) -> int:
    """Return a whole number that is `mean` on average and varies: 0 to twice the mean."""
    drawn = rng.uniform(0.0, 2.0 * mean)
    return int(drawn) + (rng.random() < drawn % 1.0)


def _fold(rng: Random) -> float:
    return round(math.exp2(rng.uniform(1.0, 6.0)), 2)


def to_json(faults: Sequence[Fault]) -> bytes:
    """Return a fault list as people store it beside a failing case: one fault a line."""
    return b"[\n" + b",\n".join(msgspec.json.encode(fault) for fault in faults) + b"\n]\n"


def from_json(text: bytes) -> tuple[Fault, ...]:
    """Return the stored fault list; raises `SpecError` when it is none."""
    try:
        return msgspec.json.decode(text, type=tuple[Fault, ...])
    except msgspec.MsgspecError as error:
        raise SpecError(f"not a fault list: {error}", hint="it is a JSON list of faults, each with its kind") from error


def shrink(faults: Sequence[Fault], fails: Callable[[tuple[Fault, ...]], bool]) -> tuple[Fault, ...]:
    """Return a part of `faults` that still fails and of which no single fault can be left out.

    Greedy: whole pieces first, from halves down to single faults, until nothing more can go.
    """
    kept = tuple(faults)
    piece = max(1, len(kept) // 2)
    while True:
        smaller = _without_pieces(kept, piece, fails)
        if piece == 1 and smaller == kept:
            return kept
        kept = smaller
        piece = max(1, min(piece // 2, len(kept) // 2))


def _without_pieces(
    faults: tuple[Fault, ...], piece: int, fails: Callable[[tuple[Fault, ...]], bool]
) -> tuple[Fault, ...]:
    """Return the faults less every piece of this length that the failure does not need."""
    first = 0
    while first < len(faults):
        rest = faults[:first] + faults[first + piece :]
        if fails(rest):
            faults = rest
        else:
            first += piece
    return faults
