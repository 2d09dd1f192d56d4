"""Who sends what to whom under a plan: what follows from its shards and the members of the round.

Up to a group's size every contributor brings each owner its chunks, and the owner returns them reduced to all:

    members  --parts-->  owner  --result-->  members

Above that members are cut into groups in canonical order, and each chunk has an owner in every group. One of them
is the chunk's root: the others send it their group's sum and weight, and it sends them the result to pass on.
Chunk c has its root in group c modulo the number of groups, so roots are spread as evenly as owners are:

    group 0  --parts-->  owner  --sum-->  root  --result-->  owner  --result-->  group 0
    group 1  --parts-->  root                                                 -->  group 1

Where everybody gathers everything, each owner gets all parts and reduces them for itself; nothing is returned.

In a ring each owner is a group by itself, in the order of the plan, and sums are not sent to the root but passed on
from each to the next, who adds what is its own: from whoever comes after the root all the way round to it. The root
returns the result to all members. Nobody sends parts:

    after the root  --sum-->  next  --sum of two-->  ...  --sum of all but one-->  root  --result-->  members

In a round of circles each of them is such a group by itself: its owners make its result and return it to who takes from
it, and nothing goes from one circle to another. Sums and results are named by cells, (group, chunk); where groups
make one result together its group is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from atoll.swarm.circles import Circle, result_for, results_of
from atoll.swarm.messages import Contribution, ring_id, set_id, whole_id
from atoll.swarm.shares import Shard, group_slices

Settled = Sequence[int | None]
"""The serial of each member's contribution; None: it is not in."""
Cell = tuple[int, int]
"""A chunk in a group: (group, chunk)."""


class Sets(NamedTuple):
    """A set of contributions, group by group, and what its parts and the whole are called."""

    within: tuple[tuple[Contribution, ...], ...]
    names: tuple[bytes, ...]
    name: bytes


class Layout:
    """The routes of one plan."""

    def __init__(
        self,
        shards: Sequence[Shard],
        members: Sequence[bytes],
        *,
        gather: bool = False,
        circles: Sequence[Circle] = (),
        ring: bool = False,
    ) -> None:
        self.gather = gather
        self.circles = circles
        self._made = results_of(tuple(circles))
        self.chunks = max(shard.first + shard.count for shard in shards)
        self.owners = tuple(dict.fromkeys(shard.owner for shard in shards))
        self.ring = self.owners if ring else ()
        """Who passes sums on, each to the next and the last to the first; nobody where they do not go round."""
        count = 1 if gather else 1 + max(shard.group for shard in shards)
        own = [(peer,) for peer in self.ring] if ring else [circle.givers for circle in circles]
        self.groups: tuple[tuple[bytes, ...], ...] = tuple(own) or group_slices(members, count)
        """Whose contributions are added up together."""
        self._members = members
        self._takers = tuple(frozenset(circle.takers) for circle in circles) or tuple(map(frozenset, self.groups))
        if ring:
            self._takers = (frozenset(members),) * len(self.groups)
        self._shards = shards
        self._last: tuple[Settled, Sets] | None = None

    @property
    def joined(self) -> bool:
        """Return whether what groups make has still to be brought together."""
        return len(self.groups) > 1 and not self.circles

    @cached_property
    def _gives(self) -> dict[bytes, frozenset[int]]:
        """Return the groups that each member gives its contribution to."""
        gives: dict[bytes, list[int]] = {}
        for number, group in enumerate(self.groups):
            for peer in group:
                gives.setdefault(peer, []).append(number)
        return {peer: frozenset(numbers) for peer, numbers in gives.items()}

    @cached_property
    def _owner(self) -> list[list[bytes]]:
        """Return who owns each chunk in each group."""
        table = [[b""] * self.chunks for _ in self.groups]
        for shard in self._shards:
            table[shard.group][shard.first : shard.first + shard.count] = [shard.owner] * shard.count
        return table

    @cached_property
    def _units(self) -> dict[bytes, list[Cell]]:
        units: dict[bytes, list[Cell]] = {owner: [] for owner in self.owners}
        for shard in sorted(self._shards, key=lambda shard: (shard.group, shard.first)):
            group = 0 if self.gather else shard.group
            units[shard.owner] += [(group, index) for index in shard.chunks]
        return units

    def units(self, owner: bytes) -> list[Cell]:
        """Return the sums an owner makes, in order."""
        return self._units.get(owner, [])

    def result(self, unit: Cell) -> Cell:
        """Return what the result is called that a sum goes into."""
        return unit if self.circles else (0, unit[1])

    @cached_property
    def _results(self) -> dict[bytes, frozenset[Cell]]:
        return {owner: frozenset(map(self.result, units)) for owner, units in self._units.items()}

    def results(self, owner: bytes) -> frozenset[Cell]:
        """Return the results an owner has to do with, made by itself or not."""
        return frozenset(self.roots(owner)) if self.ring else self._results.get(owner, frozenset())

    def parts(self, owner: bytes, contributor: bytes) -> list[int]:
        """Return the chunks of a contribution that an owner gets."""
        gives = self._gives.get(contributor, frozenset())
        return list(dict.fromkeys(index for number, index in self.units(owner) if number in gives))

    def owners_for(self, contributor: bytes) -> list[bytes]:
        """Return everybody whom a contributor brings something."""
        return [owner for owner in self.owners if self.parts(owner, contributor)]

    def root(self, index: int) -> bytes:
        """Return who makes the one result of a chunk; there is none where everybody gathers, or in circles."""
        assert not self.gather
        assert not self.circles
        return self._owner[index % len(self.groups)][index]

    @cached_property
    def _roots(self) -> dict[bytes, list[Cell]]:
        own = self.gather or bool(self.circles)
        return {
            owner: [unit for unit in sorted(results) if own or self.root(unit[1]) == owner]
            for owner, results in self._results.items()
        }

    def roots(self, owner: bytes) -> list[Cell]:
        """Return the results that an owner makes, in order."""
        return self._roots.get(owner, [])

    def sums(self, owner: bytes) -> dict[bytes, list[Cell]]:
        """Return what an owner passes up or on, and to whom: nothing where there is one group only, or circles."""
        up: dict[bytes, list[Cell]] = {}
        if self.joined:
            for group, index in self.units(owner):
                if self.root(index) != owner:
                    to = self.ring[(group + 1) % len(self.ring)] if self.ring else self.root(index)
                    up.setdefault(to, []).append((group, index))
        return up

    def chain(self, index: int) -> tuple[bytes, ...]:
        """Return the ring as the sum of a chunk goes round it: its root comes last."""
        first = (index + 1) % len(self.ring)
        return self.ring[first:] + self.ring[:first]

    def sums_along(self, settled: Settled, index: int) -> list[bytes]:
        """Return what the sum of a chunk is called when each of its chain has added its own.

        The name tells in which order: another one comes to other bits.
        """
        serials = dict(zip(self._members, settled, strict=True))
        along = [Contribution(peer, serials[peer] or 0) for peer in self.chain(index)]
        return [set_id(along[: count + 1]) for count in range(len(along))]

    def returns(self, owner: bytes) -> dict[bytes, set[Cell]]:
        """Return which results an owner returns to whom: to its group's members, and as root to the other owners."""
        if self.gather:
            return {}
        groups = dict.fromkeys(group for group, _ in self.units(owner))
        takers = [peer for group in groups for peer in sorted(self._takers[group])]
        others = self.owners if self.joined else ()
        to = {peer: self.returned(owner, peer) for peer in dict.fromkeys((*takers, *others))}
        return {peer: results for peer, results in to.items() if results}

    def returned(self, owner: bytes, to: bytes) -> set[Cell]:
        """Return the results that an owner returns to one peer."""
        if self.gather or owner == to:
            return set()
        if self.ring:
            return set(self.roots(owner))
        theirs = {self.result(unit) for unit in self.units(owner) if self.takes(to, unit[0])}
        if self.joined:
            theirs |= {unit for unit in self.roots(owner) if unit in self.results(to)}
        return theirs

    def takes(self, peer: bytes, group: int) -> bool:
        """Return whether a peer applies what a group makes."""
        return peer in self._takers[group]

    def set_of(self, settled: Settled, unit: Cell) -> bytes:
        """Return the name of the set of contributions in a result."""
        sets = self.sets(settled)
        return sets.names[unit[0]] if self.circles else sets.name

    def set_for(self, settled: Settled, taker: bytes) -> list[bytes]:
        """Return the name of the set of contributions in each chunk of the result that a peer applies."""
        sets = self.sets(settled)
        number = result_for(self._made, taker)
        if number is None:
            return [sets.name] * self.chunks
        names = [b""] * self.chunks
        for group in self._made[number].circles:
            for index in self.circles[group].chunks(self.chunks):
                names[index] = sets.names[group]
        return names

    def sets(self, settled: Settled) -> Sets:
        """Return a set of contributions group by group; the last one asked for is remembered."""
        if self._last is None or self._last[0] != settled:
            serials = dict(zip(self._members, settled, strict=True))
            within = [
                tuple(Contribution(peer, serial) for peer in group if (serial := serials[peer]) is not None)
                for group in self.groups
            ]
            names = [set_id(part) for part in within]
            name = ring_id(names) if self.ring else whole_id(names)
            self._last = (settled, Sets(tuple(within), tuple(names), name))
        return self._last[1]


@lru_cache(8)
def layout_of(
    shards: tuple[Shard, ...],
    members: tuple[bytes, ...],
    gather: bool,
    circles: tuple[Circle, ...] = (),
    ring: bool = False,
) -> Layout:
    """Return the routes of a plan, made once, however often it is asked for and by however many peers of a process."""
    return Layout(shards, members, gather=gather, circles=circles, ring=ring)
