"""Matchings and paths: in which order groups hand on to each other, and who hands on to whom.

Both are judged as in DT-FM. Two groups are as far apart as the slowest link of the best one-to-one pairing between them
(a bottleneck matching: the smallest threshold under which everybody still finds a partner). Groups then stand in the
order whose links add up to least: exact (Held and Karp) up to twelve, beyond by turning stretches round until nothing
gets shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from atoll.plan.place.crew import Floats

EXACT_MAX = 12
"""So many groups are put in order exactly."""
STARTS, TURNS_MAX = 16, 500
"""Of more groups: points to begin from, and stretches to turn round."""
DENSE_MAX = 32
"""Matchings up to this size are looked for in the full table, larger ones in a sparse graph."""


def matched(costs: Floats) -> tuple[float, list[int]]:
    """Return the largest cost in the pairing of rows with columns that has it smallest, and the column of each row."""
    least = max(costs.min(axis=0).max(), costs.min(axis=1).max())
    pairing = _pairing(costs, least)
    if pairing is not None:
        return float(least), pairing
    steps = np.unique(costs[costs > least])
    low, high = 0, len(steps) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _pairing(costs, steps[middle]) is not None else (middle + 1, high)
    pairing = _pairing(costs, steps[low])
    assert pairing is not None
    return float(steps[low]), pairing


def _pairing(costs: Floats, most: float) -> list[int] | None:
    """Return a pairing in which nothing costs more, or None."""
    assign, sparse, match = _scipy()
    if len(costs) > DENSE_MAX:
        found = match(sparse(costs <= most), perm_type="column")
        return None if (found < 0).any() else found.tolist()
    above = costs > most
    rows, columns = assign(above)
    return None if above[rows, columns].any() else columns.tolist()


@cache
def _scipy() -> tuple[Any, Any, Any]:
    """Return what is taken from scipy, which is slow to load and not needed by everybody."""
    from scipy.optimize import linear_sum_assignment
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    return linear_sum_assignment, csr_array, maximum_bipartite_matching


def path(costs: Floats) -> list[int]:
    """Return a short way past all points, from any to any other; the shortest up to `EXACT_MAX` points."""
    return shortest(costs) if len(costs) <= EXACT_MAX else short(costs)


def path_s(costs: Floats, order: Sequence[int]) -> float:
    """Return how long a way is."""
    return float(costs[list(order[:-1]), list(order[1:])].sum())


def spanned_s(costs: Floats) -> float:
    """Return how much it takes to join all points (a least spanning tree, after Prim): no way past all is shorter."""
    nearest, total_s = costs[0].copy(), 0.0
    nearest[0] = np.inf
    for _ in range(len(costs) - 1):
        at = int(nearest.argmin())
        total_s += float(nearest[at])
        nearest = np.minimum(nearest, costs[at] + np.where(np.isinf(nearest), np.inf, 0.0))
        nearest[at] = np.inf
    return total_s


def shortest(costs: Floats) -> list[int]:
    """Return the shortest way past all points, by which set was visited and where it ended (Held and Karp)."""
    count = len(costs)
    best = np.full((1 << count, count), np.inf)
    before = np.zeros((1 << count, count), dtype=np.int8)
    best[1 << np.arange(count), np.arange(count)] = 0.0
    masks = np.arange(1 << count)
    sizes = sum((masks >> bit) & 1 for bit in range(count))
    for size in range(2, count + 1):
        of_size = masks[sizes == size]
        for last in range(count):
            here = of_size[(of_size >> last) & 1 == 1]
            ways = best[here ^ (1 << last)] + costs[:, last]
            before[here, last] = ways.argmin(axis=1)
            best[here, last] = ways.min(axis=1)
    mask, last = (1 << count) - 1, int(best[-1].argmin())
    order = [last]
    while len(order) < count:
        mask, last = mask ^ (1 << last), int(before[mask, last])
        order.append(last)
    return order


def short(costs: Floats) -> list[int]:
    """Return a short way past all points: to the nearest each time, from some of them, then untangled."""
    starts = np.linspace(0, len(costs) - 1, _starts(len(costs)), dtype=int)
    ways = [_untangled(costs, _nearest(costs, int(start))) for start in starts]
    return min(ways, key=lambda way: path_s(costs, way))


def _starts(count: int) -> int:
    """Return from how many points to begin: fewer where each takes longer."""
    return max(1, min(STARTS, count, 1000 // count))


def _nearest(costs: Floats, start: int) -> list[int]:
    left, order = np.ones(len(costs), dtype=bool), [start]
    for _ in range(len(costs) - 1):
        left[order[-1]] = False
        order.append(int(np.where(left, costs[order[-1]], np.inf).argmin()))
    return order


def _untangled(costs: Floats, order: list[int]) -> list[int]:
    """Return a way with stretches turned round, each time the one that shortens it most (2-opt)."""
    edges = np.zeros((len(order) + 2, len(order) + 2))  # beyond both ends lies nothing, at no cost
    for _ in range(TURNS_MAX):
        edges[1:-1, 1:-1] = costs[np.ix_(order, order)]
        into, out_of = np.diagonal(edges, 1)[:-1], np.diagonal(edges, 1)[1:]
        gains = into[:, None] + out_of[None, :] - edges[:-2, 1:-1] - edges[1:-1, 2:]
        first, last = divmod(int(np.triu(gains, 1).argmax()), len(order))
        if last <= first or gains[first, last] <= 1e-12 * path_s(costs, order):
            break
        order = [*order[:first], *reversed(order[first : last + 1]), *order[last + 1 :]]
    return order
