"""The best order of a few peers, exactly: the least time within which any order of any of them does the whole chain.

A row is built from its end, so that how many stages come after one, and with it what it holds in memory, is known. For
every set of peers and whoever of them comes first: before which layers they can begin, as the bits of a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from atoll.plan.place.crew import Crew, Floats, Job
from atoll.plan.place.placement import micro_batches
from atoll.plan.place.spans import hops_of, spans_of

EXACT_MAX = 8
"""So many peers are put in order exactly."""
Parts = tuple[tuple[int, int, int], ...]


def best_order(crew: Crew, job: Job, micro_batch: int = 1) -> tuple[Parts, float] | None:
    """Return first layer, end and peer of every stage, and the slowest of stages and links; None: there is no row."""
    depth = min(len(crew.peers), len(job.layers))
    count = micro_batches(job, 1, micro_batch)
    spans = [spans_of(crew, job, micro_batch, min(count, held)) for held in range(1, depth + 1)]
    hops = hops_of(crew, job, micro_batch)
    times = np.unique(np.concatenate([spans[0][np.isfinite(spans[0])], hops[:, :, 1:-1].ravel()]))
    parts = within(spans, hops, times[-1]) if len(times) else None
    if parts is None:
        return None
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        found = within(spans, hops, times[middle])
        parts, low, high = (parts, middle + 1, high) if found is None else (found, low, middle)
    return parts, float(times[low])


def within(spans: Sequence[Floats], hops: Floats, most_s: float) -> Parts | None:
    """Return a row in which nothing takes longer, or None."""
    table = _Table(spans, hops, most_s)
    layers = 1 << table.layers  # standing before layer 0 needs bit 0; after the last, this one
    reach: dict[tuple[int, int], int] = {}
    for members in range(1, 1 << table.peers):
        held = members.bit_count()
        for place in _ones(members) if held <= len(spans) else ():
            after = members ^ 1 << place
            ends = layers if not after else 0
            for follower in _ones(after):
                ends |= reach.get((after, follower), 0) & table.ready[place][follower]
            begins = table.begins(held, place, ends)
            reach[members, place] = begins
            if begins & 1:
                return tuple(table.traced(reach, members, place, layers))
    return None


class _Table:
    """What is possible within a time, as bits."""

    def __init__(self, spans: Sequence[Floats], hops: Floats, most_s: float) -> None:
        self.peers, self.layers = len(hops), spans[0].shape[1] - 1
        self._ends = [[[_bits(row) for row in peer] for peer in kept.transpose(0, 2, 1) <= most_s] for kept in spans]
        self.ready = [[_bits(row) for row in peer] for peer in hops <= most_s]

    def begins(self, held: int, place: int, ends: int) -> int:
        """Return before which layers a peer can begin that may end before any of some."""
        found = 0
        for end in _ones(ends):
            found |= self._ends[held - 1][place][end]
        return found

    def traced(
        self, reach: dict[tuple[int, int], int], members: int, place: int, layers: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the stages of a row that begins with a peer at layer 0."""
        first = 0
        while members:
            end, follower = self._onward(reach, members, place, first, layers)
            yield first, end, place
            members, place, first = members ^ 1 << place, follower, end

    def _onward(
        self, reach: dict[tuple[int, int], int], members: int, place: int, first: int, layers: int
    ) -> tuple[int, int]:
        """Return where a peer ends that begins before a layer, and who follows."""
        after, held = members ^ 1 << place, members.bit_count()
        ways = [(reach[after, each] & self.ready[place][each], each) for each in _ones(after)] or [(layers, -1)]
        for stands, follower in ways:
            for end in _ones(stands):
                if self._ends[held - 1][place][end] >> first & 1:
                    return end, follower
        raise AssertionError("a row was found that cannot be traced")


def _bits(flags: Floats) -> int:
    return sum(1 << int(at) for at in np.flatnonzero(flags))


def _ones(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
