"""Leases: ranges of the one global sample order, handed to one peer for one round.

A round takes what earlier rounds gave back first, then fresh positions, and splits them in roster order
by quota. Nothing is sent to agree on this: the log's record of the round is the lease, and its
commit says which leases were used and which went back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter

from msgspec import Struct


class Range(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Positions [first, first + count) of the global order."""

    first: int
    count: int

    @property
    def positions(self) -> range:
        return range(self.first, self.first + self.count)


Lease = tuple[Range, ...]


def size(ranges: Lease) -> int:
    """Return how many positions the ranges hold."""
    return sum(r.count for r in ranges)


def positions(lease: Lease) -> Iterator[int]:
    """Yield a lease's positions in order."""
    for r in lease:
        yield from r.positions


def take(count: int, returned: Lease, fresh: int) -> tuple[Lease, Lease, int]:
    """Return so many positions for a round, what is left of the returned ranges, and the next fresh position."""
    again = min(count, size(returned))
    new = (Range(fresh, count - again),) if count > again else ()
    left = part(returned, again, size(returned) - again)
    return (*part(returned, 0, again), *new), left, fresh + count - again


def part(ranges: Lease, skip: int, count: int) -> Lease:
    """Return the ranges of `count` positions after the first `skip` of some ranges."""
    found: list[Range] = []
    for r in ranges:
        first, end = r.first + min(skip, r.count), r.first + min(skip + count, r.count)
        if first < end:
            found.append(Range(first, end - first))
        skip, count = max(skip - r.count, 0), count - (end - first)
        if not count:
            break
    return tuple(found)


def without(ranges: Lease, others: Lease) -> Lease:
    """Return what is in some ranges and not in others, which are some of them; both sorted and joined."""
    found: list[Range] = []
    rest = list(reversed(others))
    for r in ranges:
        first, end = r.first, r.first + r.count
        while rest and rest[-1].first < end:
            other = rest.pop()
            if first < other.first:
                found.append(Range(first, other.first - first))
            first = other.first + other.count
        if first < end:
            found.append(Range(first, end - first))
    return tuple(found)


def give_back(returned: Lease, leases: Iterable[Lease]) -> Lease:
    """Return the ranges waiting to be handed out again, sorted and joined where they touch."""
    joined: list[Range] = []
    first = end = -1
    for r in sorted(chain(returned, *leases), key=attrgetter("first")):
        if r.first != end:
            if end > first:
                joined.append(Range(first, end - first))
            first = end = r.first
        end += r.count
    if end > first:
        joined.append(Range(first, end - first))
    return tuple(joined)
