"""Who sends what to whom under a plan: what follows from its shards and the members of the round.

Up to a group's size every contributor brings each owner its chunks, and the owner returns them reduced to all:

    members  --parts-->  owner  --result-->  members

Above that members are cut into groups in canonical order, and each chunk has an owner in every group. One of them
is the chunk's root: the others send it their group's sum and weight, and it sends them the result to pass on.
Chunk c has its root in group c modulo the number of groups, so roots are spread as evenly as owners are:

    group 0  --parts-->  owner  --sum-->  root  --result-->  owner  --result-->  group 0
    group 1  --parts-->  root                                                 -->  group 1

Where everybody gathers everything, each owner gets all parts and reduces them for itself; nothing is returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from atoll.swarm.messages import Contribution, set_id, whole_id
from atoll.swarm.shares import Shard, group_slices

Settled = Sequence[int | None]
"""The serial of each member's contribution; None: it is not in."""


class Sets(NamedTuple):
    """A set of contributions, group by group, and what its parts and the whole are called."""

    within: tuple[tuple[Contribution, ...], ...]
    names: tuple[bytes, ...]
    name: bytes


class Layout:
    """The routes of one plan."""

    def __init__(self, shards: Sequence[Shard], members: Sequence[bytes], *, gather: bool = False) -> None:
        self.gather = gather
        self.chunks = max(shard.first + shard.count for shard in shards)
        self.owners = tuple(dict.fromkeys(shard.owner for shard in shards))
        count = 1 if gather else 1 + max(shard.group for shard in shards)
        self.groups = group_slices(members, count)
        self._shards = shards
        self._last: tuple[Settled, Sets] | None = None

    @cached_property
    def group_of(self) -> dict[bytes, int]:
        """Return each member's group."""
        return {peer: number for number, group in enumerate(self.groups) for peer in group}

    @cached_property
    def _owner(self) -> list[list[bytes]]:
        """Return who owns each chunk in each group."""
        table = [[b""] * self.chunks for _ in self.groups]
        for shard in self._shards:
            table[shard.group][shard.first : shard.first + shard.count] = [shard.owner] * shard.count
        return table

    @cached_property
    def _units(self) -> dict[bytes, list[tuple[int, int]]]:
        units: dict[bytes, list[tuple[int, int]]] = {owner: [] for owner in self.owners}
        for shard in sorted(self._shards, key=lambda shard: (shard.group, shard.first)):
            group = 0 if self.gather else shard.group
            units[shard.owner] += [(group, index) for index in shard.chunks]
        return units

    def units(self, owner: bytes) -> list[tuple[int, int]]:
        """Return the sums an owner makes: (group, chunk), in order."""
        return self._units.get(owner, [])

    @cached_property
    def _indexes(self) -> dict[bytes, frozenset[int]]:
        return {owner: frozenset(index for _, index in units) for owner, units in self._units.items()}

    def indexes(self, owner: bytes) -> frozenset[int]:
        """Return the chunks an owner has to do with, in whatever group."""
        return self._indexes.get(owner, frozenset())

    def parts(self, owner: bytes, contributor: bytes) -> list[int]:
        """Return the chunks of a contribution that an owner gets."""
        group = self.group_of.get(contributor)
        return [index for number, index in self.units(owner) if number == group]

    def owners_for(self, contributor: bytes) -> list[bytes]:
        """Return everybody whom a contributor brings something."""
        return [owner for owner in self.owners if self.parts(owner, contributor)]

    def root(self, index: int) -> bytes:
        """Return who makes the result of a chunk; there is no one root where everybody gathers everything."""
        assert not self.gather
        return self._owner[index % len(self.groups)][index]

    @cached_property
    def _roots(self) -> dict[bytes, list[int]]:
        return {
            owner: [index for index in sorted(indexes) if self.gather or self.root(index) == owner]
            for owner, indexes in self._indexes.items()
        }

    def roots(self, owner: bytes) -> list[int]:
        """Return the chunks whose result an owner makes, in order."""
        return self._roots.get(owner, [])

    def sums(self, owner: bytes) -> dict[bytes, list[tuple[int, int]]]:
        """Return what an owner passes up, and to whom: nothing where there is one group only."""
        up: dict[bytes, list[tuple[int, int]]] = {}
        if len(self.groups) > 1:
            for group, index in self.units(owner):
                if self.root(index) != owner:
                    up.setdefault(self.root(index), []).append((group, index))
        return up

    def returns(self, owner: bytes) -> dict[bytes, set[int]]:
        """Return which chunks an owner returns to whom: to its group's members, and as root to the other owners."""
        if self.gather:
            return {}
        groups = dict.fromkeys(group for group, _ in self.units(owner))
        members = [peer for group in groups for peer in self.groups[group]]
        others = self.owners if len(self.groups) > 1 else ()
        to = {peer: self.returned(owner, peer) for peer in dict.fromkeys((*members, *others))}
        return {peer: chunks for peer, chunks in to.items() if chunks}

    def returned(self, owner: bytes, to: bytes) -> set[int]:
        """Return the chunks that an owner returns to one peer."""
        if self.gather or owner == to:
            return set()
        theirs = set(self.parts(owner, to))
        if len(self.groups) > 1:
            theirs |= {index for index in self.roots(owner) if index in self.indexes(to)}
        return theirs

    def set_of(self, settled: Settled) -> bytes:
        """Return the name of a set of contributions, as results carry it."""
        return self.sets(settled).name

    def sets(self, settled: Settled) -> Sets:
        """Return a set of contributions group by group; the last one asked for is remembered."""
        if self._last is None or self._last[0] != settled:
            serials = iter(settled)
            within = [
                tuple(
                    Contribution(peer, serial)
                    for peer, serial in zip(group, serials, strict=False)
                    if serial is not None
                )
                for group in self.groups
            ]
            names = [set_id(part) for part in within]
            self._last = (settled, Sets(tuple(within), tuple(names), whole_id(names)))
        return self._last[1]


@lru_cache(8)
def layout_of(shards: tuple[Shard, ...], members: tuple[bytes, ...], gather: bool) -> Layout:
    """Return the routes of a plan, made once, however often it is asked for and by however many peers of a process."""
    return Layout(shards, members, gather=gather)
