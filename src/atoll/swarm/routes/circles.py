"""Who exchanges with whom in a round that is not of all: circles, which follow from the round's number and its members.

Each circle has those who give their contribution to it and those who take its result, in canonical order. Mostly these
are the same, and every member is in one circle. Neighbours stand in a ring: everybody takes from a circle of its own
and gives to those next to it too. Everybody works the circles out from the log alone; nobody has to be told.

    lattice, side 3      round 1: | a b c | d e f | g h i |      round 2: | a d g | b e h | c f i |
    drawn, size 2        round 1: | a f | b d | c e |            round 2: | a b | c f | d e |
    neighbours, reach 1  a from (f a b), b from (a b c), c from (b c d), ...
    exponential          round 1: a from (f a), b from (a b), ...   round 2: a from (e a), b from (f b), ...
    segments, sources 1  the first part: a from (a c), b from (b c), ...   the second: a from (a d), ...  (`sources`)
    regions              | a c e | b d f |, as the announcement says who is in which
    mesh                 a from (a b c d e f), b from (a b c d e f), ...   when d teaches: a from (a d), ...

In a mesh a contribution is as many vectors as there are members, one after the other, each for the link to one of them;
a circle is about the part that is its taker's. When one teaches, each takes a mean of its own weights and those.

Beside its model a member may have a mass, at first 1, and weigh by it (push-sum). It gives equal parts of both to all
who take from it, itself among them; who misses a round gives nothing, and adds what comes to what it has. So masses
add up to the same whoever is missing, and the mean by mass of all models is where it was, but for what they learnt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from blake3 import blake3
from msgspec import Struct

from atoll.spec.axes.whom import All, Circles, Drawn, Exponential, Lattice, Mesh, Neighbours, Regions, Segments, Whom
from atoll.swarm.log import CIRCLES, Key
from atoll.swarm.routes.shares import by_region
from atoll.swarm.routes.sources import sources_of

_Turning = Lattice | Drawn | Neighbours | Exponential | Segments | Mesh
"""Patterns by which circles follow from a round's number."""


class Circle(Struct, frozen=True):
    """Some members of a round: whose contributions are merged, and who applies the result."""

    givers: tuple[bytes, ...]
    takers: tuple[bytes, ...]
    part: int = 0
    parts: int = 1
    """What it is about: one of so many parts of what is given."""

    def chunks(self, count: int) -> range:
        """Return which of so many chunks it is about."""
        return range(count * self.part // self.parts, count * (self.part + 1) // self.parts)


class Announced(Protocol):
    """What of an announcement decides who exchanges with whom."""

    @property
    def key(self) -> Key: ...
    @property
    def members(self) -> tuple[bytes, ...]: ...
    @property
    def rates(self) -> tuple[int, ...]: ...
    @property
    def regions(self) -> tuple[int, ...]: ...
    @property
    def best(self) -> bytes: ...


def circles_in(whom: Whom, announced: Announced) -> tuple[Circle, ...]:
    """Return the circles of an announced round; none: it is one of all."""
    return circles_of(whom, announced.key, announced.members, announced.rates, announced.regions, announced.best)


@lru_cache(64)
def circles_of(
    whom: Whom,
    key: Key,
    members: tuple[bytes, ...],
    rates: tuple[int, ...] = (),
    regions: tuple[int, ...] = (),
    best: bytes = b"",
) -> tuple[Circle, ...]:
    """Return the circles of a round, whose members are given in canonical order; none: it is one of all."""
    if isinstance(whom, All) or key.scope != CIRCLES:
        return ()
    if isinstance(whom.pattern, Regions):
        return tuple(_alike(by_region(members, regions)))
    if isinstance(whom.pattern, Mesh) and whom.pattern.teaches(key.version):
        return tuple(Circle(tuple(sorted({peer, best} & {*members})), (peer,)) for peer in members)
    return tuple(_circles(whom.pattern, key.version - 1, members, rates))


def copies_of(whom: Whom, key: Key, members: int) -> int:
    """Return how many vectors a contribution is: one for each member where they go over links of their own."""
    mesh = whom.pattern if isinstance(whom, Circles) and key.scope == CIRCLES else None
    return members if isinstance(mesh, Mesh) and not mesh.teaches(key.version) else 1


def pulled(pull: float, best: bytes, givers: Sequence[bytes]) -> list[float]:
    """Return what weights count for where one teaches: the teacher's so much, one's own the rest; alone all."""
    return [pull if peer == best else 1.0 - pull for peer in givers] if len(givers) > 1 else [1.0]


class Made(Struct, frozen=True):
    """One result: what some apply, and the circles that make it, each a part."""

    takers: tuple[bytes, ...]
    circles: tuple[int, ...]
    """By their numbers."""


@lru_cache(64)
def results_of(circles: tuple[Circle, ...]) -> tuple[Made, ...]:
    """Return the results of a round in circles: those with the same takers make one together."""
    made: dict[tuple[bytes, ...], list[int]] = {}
    for number, circle in enumerate(circles):
        made.setdefault(circle.takers, []).append(number)
    return tuple(Made(takers, tuple(numbers)) for takers, numbers in made.items())


def weighs_lines(whom: Whom) -> bool:
    """Return whether circles depend on how fast lines are."""
    return isinstance(whom, Circles) and isinstance(whom.pattern, Segments)


def of_all(circles: Circles, version: int) -> bool:
    """Return whether a round that is not the last is one of all members."""
    return circles.all_every > 0 and version % circles.all_every == 0


def result_for(results: Sequence[Made], taker: bytes) -> int | None:
    """Return which result a peer applies; None: none."""
    return next((number for number, made in enumerate(results) if taker in made.takers), None)


def _circles(pattern: _Turning, turn: int, members: tuple[bytes, ...], rates: Sequence[int]) -> Iterable[Circle]:
    match pattern:
        case Lattice(side=side, dimensions=dimensions):
            side, dimensions = _fitting(len(members), side, dimensions)
            return _alike(_along(members, side, turn % dimensions))
        case Drawn(size=size):
            return _alike(_cut(_drawn(turn, members), max(1, len(members) // size)))
        case Neighbours(reach=reach):
            return _around(members, reach)
        case Exponential():
            return _onward(members, turn)
        case Segments(count=count):
            return [
                Circle(tuple(members[p] for p in sorted((taker, *sources))), (members[taker],), part, count)
                for taker, part, sources in sources_of(pattern, turn, members, rates)
            ]
        case Mesh():
            return [Circle(members, (taker,), part, len(members)) for part, taker in enumerate(members)]


def _alike(groups: Iterable[Sequence[bytes]]) -> list[Circle]:
    """Return circles in which everybody gives and takes."""
    return [Circle(tuple(sorted(group)), tuple(sorted(group))) for group in groups]


def _fitting(members: int, side: int, dimensions: int) -> tuple[int, int]:
    """Return the lattice that has a place for everybody: of more dimensions for many, with shorter sides for few."""
    while side**dimensions < members:
        dimensions += 1
    while side > 2 and (side - 1) ** dimensions >= members:
        side -= 1
    return side, dimensions


def _along(members: Sequence[bytes], side: int, axis: int) -> list[list[bytes]]:
    """Return those whose places differ along one axis only."""
    stride = side**axis
    lines: dict[tuple[int, int], list[bytes]] = {}
    for place, peer in enumerate(members):
        lines.setdefault((place // (stride * side), place % stride), []).append(peer)
    return list(lines.values())


def _drawn(turn: int, members: Sequence[bytes]) -> list[bytes]:
    """Return the members in an order drawn by lot, the same for everybody whatever its Python."""
    return sorted(members, key=lambda peer: blake3(turn.to_bytes(8, "little") + peer).digest())


def _cut(order: Sequence[bytes], count: int) -> list[Sequence[bytes]]:
    bounds = [len(order) * number // count for number in range(count + 1)]
    return [order[bounds[number] : bounds[number + 1]] for number in range(count)]


def _around(members: Sequence[bytes], reach: int) -> list[Circle]:
    """Return for each member the circle of its neighbours and itself."""
    count = len(members)
    near = [sorted({(place + by) % count for by in range(-reach, reach + 1)}) for place in range(count)]
    return [Circle(tuple(members[p] for p in near[place]), (members[place],)) for place in range(count)]


def _onward(members: Sequence[bytes], turn: int) -> list[Circle]:
    """Return for each member the circle of itself and who is so many places before it: a power of two, by turns."""
    count = len(members)
    hop = 1 << turn % max(1, (count - 1).bit_length())
    back = [sorted({place, (place - hop) % count}) for place in range(count)]
    return [Circle(tuple(members[p] for p in back[place]), (members[place],)) for place in range(count)]


# masses


def reach_of(circles: Sequence[Circle]) -> Mapping[bytes, int]:
    """Return how many take what each member gives."""
    return Counter(giver for circle in circles for giver in circle.givers for _ in circle.takers)


def came(circle: Circle, reach: Mapping[bytes, int], mass: Mapping[bytes, float], in_: Container[bytes]) -> float:
    """Return the mass that comes with a circle's result to each who takes it."""
    total = 0.0
    for giver in circle.givers:
        if giver in in_:
            total += mass.get(giver, 1.0) / reach[giver]
    return total


def passed_on(
    circles: Sequence[Circle], members: Sequence[bytes], mass: Mapping[bytes, float], in_: Container[bytes]
) -> tuple[float, ...]:
    """Return the mass of each member after a round to which some of them contributed."""
    reach = reach_of(circles)
    after = {peer: 0.0 if peer in in_ else mass.get(peer, 1.0) for peer in members}
    for circle in circles:
        more = came(circle, reach, mass, in_)
        for taker in circle.takers:
            after[taker] += more
    return tuple(after[peer] for peer in members)
