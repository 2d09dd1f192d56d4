"""Who sends what to whom under a plan: what follows from its shards and the members of the round.

Up to a group's size every contributor brings each owner its chunks, and the owner returns them reduced to all:

    members  --parts-->  owner  --result-->  members

Above that members are cut into groups in canonical order, and each chunk has an owner in every group. One of them
is the chunk's root: the others send it their group's sum and weight, and it sends them the result to pass on.
Chunk c has its root in group c modulo the number of groups, so roots are spread as evenly as owners are:

    group 0  --parts-->  owner  --sum-->  root  --result-->  owner  --result-->  group 0
    group 1  --parts-->  root                                                 -->  group 1

The groups may be regions: then parts stay within them, and of every chunk one sum a region, and one result, crosses.

Where everybody gathers everything, each owner gets all parts and reduces them for itself; nothing is returned.

Where sums are carried each owner is a group by itself, and nobody sends parts: along the ways of the plan (`tree`) each
passes on what came from below it with its own added. In a ring a way leads from whoever comes after the root all round
to it, and the root returns the result to all members. From the root of any other tree the result comes down as the
sums came up:

    after the root  --sum-->  next  --sum of two-->  ...  --sum of all but one-->  root  --result-->  members
    leaves  --own-->  inner  --sum-->  root  --result-->  inner  --result-->  leaves

In a round of circles each of them is such a group by itself: its owners make its result and return it to who takes from
it, and nothing goes from one circle to another. Sums and results are named by cells, (group, chunk); where groups
make one result together its group is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from blake3 import blake3

from atoll.swarm.messages import SET_BYTES, Contribution, set_id, sum_id, whole_id
from atoll.swarm.routes.circles import Circle, result_for, results_of
from atoll.swarm.routes.shares import Shard, by_region, group_slices
from atoll.swarm.routes.tree import Trees, Way, chains, ways_of

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
        trees: Trees = (),
        regions: Sequence[int] = (),
    ) -> None:
        self.gather = gather
        self.circles = circles
        self._made = results_of(tuple(circles))
        self.chunks = max(shard.first + shard.count for shard in shards)
        self.owners = tuple(dict.fromkeys(shard.owner for shard in shards))
        self.carriers = self.owners if ring or trees else ()
        """Who passes sums on; nobody where they are not carried."""
        self.ring = ring
        count = 1 if gather else 1 + max(shard.group for shard in shards)
        own: Sequence[tuple[bytes, ...]] = [(peer,) for peer in self.carriers] or [circle.givers for circle in circles]
        if regions and not own:
            own = by_region(members, regions)
        self.groups: tuple[tuple[bytes, ...], ...] = tuple(own) or group_slices(members, count)
        """Whose contributions are added up together."""
        self._members = members
        self.takers = tuple(frozenset(circle.takers) for circle in circles) or tuple(map(frozenset, self.groups))
        if self.carriers:
            self.takers = (frozenset(members),) * len(self.groups)
        """Who applies what each group makes."""
        self.ways: tuple[Way, ...] = ()
        """The trees of who carries, by their places among themselves."""
        if ring:
            self.ways = tuple(chains(len(self.carriers), self.chunks))
        elif trees:
            self.ways = tuple(ways_of(trees, [members.index(peer) for peer in self.carriers]))
        self.shards = shards
        """Who reduces which runs of chunks, for which group."""
        self._last: tuple[Settled, Sets] | None = None
        self._theirs: dict[tuple[bytes, tuple[bool, ...]], frozenset[Cell]] = {}

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
        for shard in self.shards:
            table[shard.group][shard.first : shard.first + shard.count] = [shard.owner] * shard.count
        return table

    @cached_property
    def _units(self) -> dict[bytes, list[Cell]]:
        units: dict[bytes, list[Cell]] = {owner: [] for owner in self.owners}
        for shard in sorted(self.shards, key=lambda shard: (shard.group, shard.first)):
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
        return self._passed.get(owner, frozenset()) if self.carriers else self._results.get(owner, frozenset())

    @cached_property
    def _passed(self) -> dict[bytes, frozenset[Cell]]:
        """Return the results that each who carries makes, or passes on."""
        return {
            peer: frozenset(
                (0, index)
                for way in self.ways
                if way.root == place or (way.below[place] and not self.ring)
                for index in way.chunks
            )
            for place, peer in enumerate(self.carriers)
        }

    def gives(self, contributor: bytes) -> frozenset[int]:
        """Return the groups that a member gives its contribution to: who gives to the same is asked for the same."""
        return self._gives.get(contributor, frozenset())

    def parts(self, owner: bytes, contributor: bytes) -> list[int]:
        """Return the chunks of a contribution that an owner gets."""
        gives = self.gives(contributor)
        return list(dict.fromkeys(index for number, index in self.units(owner) if number in gives))

    def owners_for(self, contributor: bytes) -> list[bytes]:
        """Return everybody whom a contributor brings something."""
        return [owner for owner in self.owners if self.parts(owner, contributor)]

    def root(self, index: int) -> bytes:
        """Return who makes the one result of a chunk; there is none where everybody gathers, or in circles."""
        assert not self.gather
        assert not self.circles
        if self.carriers:
            return self.carriers[self.way_of[index].root]
        return self._owner[index % len(self.groups)][index]

    @cached_property
    def way_of(self) -> dict[int, Way]:
        """Return the way of every chunk's sum, where sums are carried."""
        return {index: way for way in self.ways for index in way.chunks}

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
                    to = self.carriers[self.way_of[index].up[group]] if self.carriers else self.root(index)
                    up.setdefault(to, []).append((group, index))
        return up

    def sums_along(self, settled: Settled, way: Way) -> list[bytes]:
        """Return what the sums along a way are called when each who carries has added its own.

        The name tells in which order: another one comes to other bits.
        """
        serials = dict(zip(self._members, settled, strict=True))
        names = [b""] * len(self.carriers)
        for place in way.upwards:
            peer = self.carriers[place]
            names[place] = sum_id((names[each] for each in way.below[place]), Contribution(peer, serials[peer] or 0))
        return names

    def returns(self, owner: bytes) -> dict[bytes, set[Cell]]:
        """Return which results an owner returns to whom: to its group's members, and as root to the other owners."""
        if self.gather:
            return {}
        groups = dict.fromkeys(group for group, _ in self.units(owner))
        takers = [peer for group in groups for peer in sorted(self.takers[group])]
        others = self.owners if self.joined else ()
        to = {peer: self.returned(owner, peer) for peer in dict.fromkeys((*takers, *others))}
        return {peer: results for peer, results in to.items() if results}

    def returned(self, owner: bytes, to: bytes) -> set[Cell]:
        """Return the results that an owner returns to one peer."""
        if self.gather or owner == to:
            return set()
        if self.carriers:
            return self._returned(owner, to)
        theirs = set(self._made_for(owner, tuple(self.takes(to, group) for group in range(len(self.groups)))))
        if self.joined:
            theirs |= {unit for unit in self.roots(owner) if unit in self.results(to)}
        return theirs

    def _made_for(self, owner: bytes, takes: tuple[bool, ...]) -> frozenset[Cell]:
        """Return an owner's results for who takes from these groups: the same for all of them."""
        if (owner, takes) not in self._theirs:
            self._theirs[owner, takes] = frozenset(self.result(unit) for unit in self.units(owner) if takes[unit[0]])
        return self._theirs[owner, takes]

    def _returned(self, owner: bytes, to: bytes) -> set[Cell]:
        """Return the results that who carries returns: to those below, and as root to who is in none, or in a ring."""
        if self.ring or to not in self.carriers:
            return set(self.roots(owner))
        above, below = self._place.get(owner), self._place[to]
        theirs = [way for way in self.ways if way.up[below] == above]
        return {(0, index) for way in theirs for index in way.chunks}

    @cached_property
    def _place(self) -> dict[bytes, int]:
        return {peer: place for place, peer in enumerate(self.carriers)}

    def takes(self, peer: bytes, group: int) -> bool:
        """Return whether a peer applies what a group makes."""
        return peer in self.takers[group]

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
        groups = self._made[number].circles
        return [sets.names[group] for group in groups for _ in self.circles[group].chunks(self.chunks)]

    def first_for(self, taker: bytes) -> int:
        """Return where in what is given the result begins that a peer applies: it is about the part that is for it."""
        number = result_for(self._made, taker)
        return 0 if number is None else self.circles[self._made[number].circles[0]].chunks(self.chunks).start

    def sets(self, settled: Settled) -> Sets:
        """Return a set of contributions group by group; the last one asked for is remembered."""
        if self._last is None or self._last[0] != settled:
            serials = dict(zip(self._members, settled, strict=True))
            within = [
                tuple(Contribution(peer, serial) for peer in group if (serial := serials[peer]) is not None)
                for group in self.groups
            ]
            names = [set_id(part) for part in within]
            name = self._carried_id(names) if self.carriers else whole_id(names)
            self._last = (settled, Sets(tuple(within), tuple(names), name))
        return self._last[1]

    def _carried_id(self, names: Sequence[bytes]) -> bytes:
        """Return a short name for what ways make of the sets of who carries: along others it comes to other bits."""
        ways = repr([(len(way.chunks), way.up) for way in self.ways]).encode()
        return blake3(ways + b"".join(names)).digest(length=SET_BYTES)


@lru_cache(8)
def layout_of(
    shards: tuple[Shard, ...],
    members: tuple[bytes, ...],
    gather: bool,
    circles: tuple[Circle, ...] = (),
    ring: bool = False,
    trees: Trees = (),
    regions: tuple[int, ...] = (),
) -> Layout:
    """Return the routes of a plan, made once, however often it is asked for and by however many peers of a process."""
    return Layout(shards, members, gather=gather, circles=circles, ring=ring, trees=trees, regions=regions)
