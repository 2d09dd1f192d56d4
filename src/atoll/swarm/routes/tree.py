"""Trees along which sums travel: each member adds what is its own to what came from below, and passes the sum on up.

    leaf  --its own-->  inner  --sum of those below and its own-->  ...  -->  root

A star, a chain round a ring and anything between are trees. What a sum comes to depends on the order of additions:
those from below come first, in the order of their places, then the member's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from msgspec import Struct

OUT = -1
"""The place above a member that is not in a tree."""


class Tree(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How the sums of some chunks travel, which follow on those of the tree before: who passes them on to whom."""

    chunks: int
    up: tuple[int, ...]
    """For each member of the round the place of the one above it; the root's is its own; -1: it is not in the tree."""


Trees = tuple[Tree, ...]


class Way:
    """A tree as those in it see it, by their places among themselves."""

    def __init__(self, up: Sequence[int], chunks: range) -> None:
        self.up = tuple(up)
        self.chunks = chunks
        self.root = next(place for place, above in enumerate(up) if above == place)

    @cached_property
    def below(self) -> tuple[tuple[int, ...], ...]:
        """Return who passes sums on to each, in the order in which they are added up."""
        below: list[list[int]] = [[] for _ in self.up]
        for place, above in enumerate(self.up):
            if above != place:
                below[above].append(place)
        return tuple(map(tuple, below))

    @cached_property
    def upwards(self) -> list[int]:
        """Return everybody, each after all below it."""
        downwards = [self.root]
        for place in downwards:
            downwards += self.below[place]
        return downwards[::-1]

    @cached_property
    def counts(self) -> list[int]:
        """Return how many contributions are in the sum of each."""
        counts = [1] * len(self.up)
        for place in self.upwards[:-1]:
            counts[self.up[place]] += counts[place]
        return counts


def is_tree(tree: Tree, members: Sequence[bool]) -> bool:
    """Return whether these members, and nobody else, are in a tree with one root that is for something."""
    up, inside = tree.up, [place for place, in_ in enumerate(members) if in_]
    if tree.chunks < 1 or [above != OUT for above in up] != list(members):
        return False
    if any(up[place] not in inside for place in inside) or sum(up[place] == place for place in inside) != 1:
        return False
    return len(Way(_among(up, inside), range(0)).upwards) == len(inside)


def ways_of(trees: Trees, inside: Sequence[int]) -> list[Way]:
    """Return trees as those see them who are in them, given by their places among the members of the round."""
    ways, first = [], 0
    for tree in trees:
        ways.append(Way(_among(tree.up, inside), range(first, first + tree.chunks)))
        first += tree.chunks
    return ways


def _among(up: Sequence[int], inside: Sequence[int]) -> list[int]:
    places = {where: place for place, where in enumerate(inside)}
    return [places[up[where]] for where in inside]


def chains(count: int, chunks: int) -> Iterator[Way]:
    """Return the ways of sums that go round: chunk c ends at place c modulo their number, from the one after it on."""
    for root in range(count):
        up = [(place + 1) % count if place != root else root for place in range(count)]
        yield Way(up, range(root, chunks, count))
