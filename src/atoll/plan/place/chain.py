"""A chain of layers over unequal peers, one for each stage: the slowest stage or link as fast as can be (FusionAI).

For peers in a given order the best cuts are found exactly, peers that only slow the chain down left out: how many
layers are done, and by whom last, is all that the rest depends on. The order itself is exact for a few peers
(`order`); of more, the best of some orders is improved by moving single peers.

How much a stage holds depends on how many come after it, which cuts that go forward do not know: they are made for so
many micro-batches held by all, and a row that turns out to be deeper is not taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from atoll.plan.place.crew import Crew, Floats, Job
from atoll.plan.place.near import communities, lined, near
from atoll.plan.place.order import EXACT_MAX, best_order
from atoll.plan.place.placement import Part, Placement, Predict, at_once, judged, micro_batches
from atoll.plan.place.spans import hops_of, spans_of

MOVES = 200
"""Moves that are tried for 16 peers or fewer; of more, fewer: each costs more."""


class Row(Struct, frozen=True):
    """Who has which layers, in order, and the slowest of stages and links."""

    parts: tuple[tuple[int, int, int], ...]
    """First layer, the one after the last, and the peer's place."""
    slowest_s: float


def balanced(crew: Crew, job: Job, micro_batch: int = 1, predict: Predict = at_once) -> Placement | None:
    """Return one pipeline over the peers that keep it fastest, in the best order found; None: they cannot hold it."""
    row = best_row(crew, job, micro_batch)
    return None if row is None else placed(crew, job, row, micro_batch, "balance", predict)


def placed(crew: Crew, job: Job, row: Row, micro_batch: int, solver: str, predict: Predict = at_once) -> Placement:
    """Return a row as a placement."""
    parts: list[Part] = [(first, end, (place,)) for first, end, place in row.parts]
    return judged(crew, job, parts, micro_batch, solver, predict)


def best_row(crew: Crew, job: Job, micro_batch: int = 1) -> Row | None:
    """Return the row in the best order found: of all, for a few peers."""
    if len(crew.peers) <= EXACT_MAX:
        found = best_order(crew, job, micro_batch)
        return found and Row(*found)
    return moved(crew, job, micro_batch)


def in_order(crew: Crew, job: Job, order: Sequence[int], micro_batch: int = 1) -> Row | None:
    """Return the best row found in which peers keep a given order; some may be left out."""
    return _Tables(crew, job, micro_batch).row(order)


class _Tables:
    """What peers and links take for a chain, made once and asked for many orders."""

    def __init__(self, crew: Crew, job: Job, micro_batch: int) -> None:
        self._count = micro_batches(job, 1, micro_batch)
        most = min(len(crew.peers), len(job.layers), self._count)
        self._helds = [*(1 << bit for bit in range(most.bit_length()) if 1 << bit < most), most]
        self._spans = {held: spans_of(crew, job, micro_batch, held) for held in self._helds}
        self._hops = hops_of(crew, job, micro_batch)

    def row(self, order: Sequence[int]) -> Row | None:
        """Return the best row for an order, whatever its depth."""
        rows = [row for held in self._helds if (row := self._of_depth(order, held))]
        return min(rows, key=lambda row: row.slowest_s, default=None)

    def _of_depth(self, order: Sequence[int], held: int) -> Row | None:
        """Return the best row where all hold so many micro-batches, unless it is so deep that they hold more."""
        spans, hops = self._spans[held], self._hops
        count = hops.shape[2]
        done_s = np.full((len(order), count), np.inf)
        trail: list[tuple[Floats, Floats]] = []
        for at, place in enumerate(order):
            begun_s, before = np.full(count, np.inf), np.full(count, -1)
            begun_s[0] = 0.0
            if at:
                ways = np.maximum(done_s[:at, 1:], hops[list(order[:at]), place, 1:])
                begun_s[1:], before[1:] = ways.min(axis=0), ways.argmin(axis=0)
            ways = np.maximum(begun_s[:, None], spans[place])
            done_s[at] = ways.min(axis=0)
            trail.append((ways.argmin(axis=0), before))
        row = _traced(done_s, trail, order)
        return row if row and min(len(row.parts), self._count) <= held else None


def _traced(done_s: Floats, trail: Sequence[tuple[Floats, Floats]], order: Sequence[int]) -> Row | None:
    """Return the row that ends with the last layer, from what was noted on the way."""
    at, end = int(done_s[:, -1].argmin()), done_s.shape[1] - 1
    slowest_s = float(done_s[at, end])
    if np.isinf(slowest_s):
        return None
    parts = []
    while end:
        begins, before = trail[at]
        first = int(begins[end])
        parts.append((first, end, order[at]))
        at, end = int(before[first]), first
    return Row(tuple(reversed(parts)), slowest_s)


# orders


def moved(crew: Crew, job: Job, micro_batch: int, orders: Iterable[Sequence[int]] = (), seed: int = 0) -> Row | None:
    """Return the best row of some orders, after moving single peers to where that helps."""
    draw, count = np.random.default_rng(seed), len(crew.peers)
    tables, starts = _Tables(crew, job, micro_batch), [*orders, *_orders(crew, job, micro_batch)]
    rows = [(row, list(order)) for order in starts if (row := tables.row(order))]
    if not rows:
        return None
    best, order = min(rows, key=lambda each: each[0].slowest_s)
    for _ in range(int(MOVES * min(1.0, (16 / count) ** 2))):
        trial = _with_move(order, best, draw)
        row = tables.row(trial)
        if row and row.slowest_s <= best.slowest_s:
            best, order = row, trial
    return best


def _orders(crew: Crew, job: Job, micro_batch: int) -> Iterator[list[int]]:
    """Yield orders worth a try: near ones together, of all and of the fastest half, in clusters, and by speed."""
    by_speed = sorted(range(len(crew.peers)), key=lambda place: -crew.peers[place].flop_s)
    size_bytes = max(layer.out_bytes for layer in job.layers) * micro_batch
    for some in (sorted(by_speed), by_speed[: -(-len(by_speed) // 2)]):
        apart_s = crew.links.among(some).transfer_s(size_bytes)
        yield [some[at] for at in near(apart_s)]
        clustered = [some[at] for cluster in lined(apart_s, communities(apart_s)) for at in cluster]
        yield from (clustered, clustered[::-1])
    yield by_speed


def _with_move(order: list[int], row: Row, draw: np.random.Generator) -> list[int]:
    """Return an order with one peer elsewhere: mostly one that takes part, or one that then may."""
    missing = sorted(set(range(max(order) + 1)) - set(order))
    taking = [place for _, _, place in row.parts]
    place = int(draw.choice(taking if draw.random() < 0.5 else [*order, *missing]))
    rest = [each for each in order if each != place]
    at = int(draw.integers(len(rest) + 1))
    return [*rest[:at], place, *rest[at:]]


# by speed


def proportional(layers: int, speeds: Sequence[float], slack: float = 1.0) -> list[int]:
    """Return how many layers each stage has, in proportion to speed: each layer goes to who would have it done first.

    Of equal layers no other numbers keep the slowest stage faster. With a slack above 1 (Holmes) the faster ones take
    so many times their part, in whole layers, and the slowest what is left.
    """
    found = [0] * len(speeds)
    if slack == 1.0:
        for _ in range(layers):
            found[min(range(len(speeds)), key=lambda place: ((found[place] + 1) / speeds[place], place))] += 1
        return found
    ranked = sorted(range(len(speeds)), key=lambda place: (-speeds[place], place))
    for place in ranked[:-1]:
        found[place] = min(layers - sum(found), int(slack * speeds[place] / sum(speeds) * layers))
    found[ranked[-1]] = layers - sum(found)
    return found
