"""Leases: ranges of the one global sample order, handed to one peer for one round.

A round takes what earlier rounds gave back first, then fresh positions, and splits them in roster order
by quota. Nothing is sent to agree on this: the log's record of the round is the lease, and its
commit says which leases were used and which went back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct


class Range(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Positions [first, first + count) of the global order."""

    first: int
    count: int

    @property
    def positions(self) -> range:
        return range(self.first, self.first + self.count)


Lease = tuple[Range, ...]


def size(ranges: Iterable[Range]) -> int:
    """Return how many positions the ranges hold."""
    return sum(r.count for r in ranges)


def positions(lease: Lease) -> Iterator[int]:
    """Yield a lease's positions in order."""
    for r in lease:
        yield from r.positions


def hand_out(quotas: Sequence[int], returned: Lease, fresh: int) -> tuple[tuple[Lease, ...], Lease, int]:
    """Return a lease per quota, what is left of the returned ranges, and the next fresh position."""
    left = list(returned)
    leases: list[Lease] = []
    for quota in quotas:
        lease: list[Range] = []
        while quota:
            if left:
                head = left.pop(0)
                if head.count > quota:
                    left.insert(0, Range(head.first + quota, head.count - quota))
                    head = Range(head.first, quota)
            else:
                head, fresh = Range(fresh, quota), fresh + quota
            lease.append(head)
            quota -= head.count
        leases.append(tuple(lease))
    return tuple(leases), tuple(left), fresh


def give_back(returned: Lease, leases: Iterable[Lease]) -> Lease:
    """Return the ranges waiting to be handed out again, sorted and joined where they touch."""
    joined: list[Range] = []
    for r in sorted([*returned, *(r for lease in leases for r in lease)], key=lambda r: r.first):
        if joined and joined[-1].first + joined[-1].count == r.first:
            joined[-1] = Range(joined[-1].first, joined[-1].count + r.count)
        else:
            joined.append(r)
    return tuple(joined)
