"""In which order sums go round in a ring.

Every hop of a ring carries the same bytes, so what an order decides is how long a chunk is on its way: as long as all
round trips together. Members measure those to each other; the order is a short tour (`tour`), and the canonical one
while that is not clearly longer, so that noise changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

Costs = Sequence[Sequence[float]]

GAIN_MIN = 1.2
"""The canonical order is left when it takes so many times longer than another,"""
GAIN_S_MIN = 0.1
"""and at least so much longer."""
NEVER_S = 1e9
"""What a hop between two costs that do not reach each other."""
BETTER = 1e-9
"""An order must be shorter by so much of a second to be taken for better: the rest is rounding."""


def ring_order(costs: Costs) -> list[int]:
    """Return in which order to go round: the given one unless another is clearly shorter; empty: there is none."""
    given, short = list(range(len(costs))), tour(costs)
    given_s, short_s = length(costs, given), length(costs, short)
    if short_s >= NEVER_S:
        return []
    return short if given_s >= GAIN_MIN * short_s and given_s - short_s >= GAIN_S_MIN else given


def length(costs: Costs, order: Sequence[int]) -> float:
    """Return what going round once costs."""
    return sum(costs[place][order[at - 1]] for at, place in enumerate(order))


def tour(costs: Costs) -> list[int]:
    """Return a short way round, by symmetric costs: to the nearest each time, then untangled until nothing crosses."""
    if not costs:
        return []
    order, left = [0], list(range(1, len(costs)))
    while left:
        nearest = min(left, key=lambda place: (costs[order[-1]][place], place))
        order.append(nearest)
        left.remove(nearest)
    while (better := _untangled(costs, order)) is not None:
        order = better
    return order


def _untangled(costs: Costs, order: list[int]) -> list[int] | None:
    """Return the order with the stretch turned round that this shortens most (2-opt); None: there is none."""
    best, best_gain = None, BETTER
    for first, last in combinations(range(1, len(order)), 2):
        before, start, end, after = order[first - 1], order[first], order[last], order[(last + 1) % len(order)]
        gain = costs[before][start] + costs[end][after] - costs[before][end] - costs[start][after]
        if gain > best_gain:
            best, best_gain = [*order[:first], *reversed(order[first : last + 1]), *order[last + 1 :]], gain
    return best
