"""From whom everybody takes which part of the model, where it is taken in parts: mostly from who sends it soonest.

A source is worth its line's rate, divided by all that has been asked of it in this round already: so the fast are asked
most, and nobody so often that another would be sooner. Now and then one is drawn by lot instead, however slow it is, so
that nobody is cut off and every line is measured. All of it follows from the round's number, its members and the rates
that the announcement names; whoever works it out gets the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop, heappush

from blake3 import blake3

from atoll.spec.axes.whom import Segments
from atoll.swarm.routes.shares import fill_in


def sources_of(
    pattern: Segments, turn: int, members: Sequence[bytes], rates: Sequence[int]
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield taker, part and sources, each by its place among the members, for every part of everybody."""
    order = sorted(range(len(members)), key=lambda place: _lot(turn, members[place], 0, 0))
    asked = _Asked(order, fill_in([float(rate) for rate in rates] or [0.0] * len(members)))
    for part in range(pattern.count):
        for taker in order:
            chosen: list[int] = []
            while len(chosen) < min(pattern.sources, len(members) - 1):
                lot = _lot(turn, members[taker], part + 1, len(chosen))
                if lot % 2**32 < pattern.explore * 2**32:
                    others = [place for place in order if place != taker and place not in chosen]
                    chosen.append(others[(lot >> 32) % len(others)])
                else:
                    chosen.append(asked.soonest((taker, *chosen)))
                asked.once_more(chosen[-1])
            yield taker, part, chosen


class _Asked:
    """What has been asked of everybody, and who would be soonest with one part more; of equals, the first by lot."""

    def __init__(self, order: Sequence[int], speeds: Sequence[float]) -> None:
        self._speeds = speeds
        self._rank = {place: rank for rank, place in enumerate(order)}
        self._times = [0] * len(order)
        self._offers = [self._offer(place) for place in order]
        heapify(self._offers)

    def _offer(self, place: int) -> tuple[float, int, int, int]:
        times = self._times[place]
        return (times + 1) / self._speeds[place], self._rank[place], place, times

    def once_more(self, place: int) -> None:
        """Note that something is asked of somebody."""
        self._times[place] += 1
        heappush(self._offers, self._offer(place))

    def soonest(self, but: Collection[int]) -> int:
        """Return who would be soonest, but for some."""
        aside = []
        while True:
            offer = heappop(self._offers)
            _, _, place, times = offer
            if times != self._times[place]:
                continue  # an offer from before more was asked of it
            aside.append(offer)
            if place not in but:
                break
        for offer in aside:
            heappush(self._offers, offer)
        return place


def _lot(turn: int, peer: bytes, part: int, number: int) -> int:
    """Return a number by lot, the same for everybody."""
    said = b"".join(each.to_bytes(8, "little") for each in (turn, part, number))
    return int.from_bytes(blake3(said + peer).digest(length=16), "little")
