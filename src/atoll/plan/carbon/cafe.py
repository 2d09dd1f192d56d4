"""CAFE (Bian et al., e-Energy 2024): which sites take part in a round when carbon has a budget.

What the sites' data covers is worth something, with less to gain from each further one (submodular); what they emit
now is a cost that adds up (modular). How dear carbon is says a virtual queue: it grows by what a round emits beyond
its share of the budget. Each round takes the sites that maximise

    weight x coverage(sites) - queue x carbon(sites)

by double greedy: two sets walk towards each other, from nobody and from everybody. Carbon is counted in shares of a
round's budget, so that `weight` has no unit: near 0, while the queue stands, it lets in only what emits nothing, and a
very large one ignores carbon. Nothing of the future is known: intensities are those of the round.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.random import Generator
from numpy.typing import NDArray

from atoll.errors import SpecError
from atoll.plan.money.check import not_negative, positive

Numbers = NDArray[np.float64]
Chosen = NDArray[np.bool_]


class Schedule(Struct, frozen=True, kw_only=True):
    """Who took part in each round, and where the budget stood."""

    chosen: Chosen
    """Rounds x sites."""
    coverage: Numbers
    carbon_g: Numbers
    """Of each round."""
    queue: Numbers
    """After each round, in shares of a round's budget: what has been emitted too much, never below 0."""

    @property
    def total_g(self) -> float:
        """What all rounds emit."""
        return float(self.carbon_g.sum())


def coverage(cover: Numbers, chosen: Chosen) -> float:
    """Return how well the chosen sites stand for all data: of each piece the best likeness among them, on average.

    `cover` is pieces x sites, from 0 (nothing alike) to 1 (this site has it).
    """
    return float(cover[:, chosen].max(axis=1).mean()) if chosen.any() else 0.0


def score(cover: Numbers, cost: Numbers, chosen: Chosen, weight: float) -> float:
    """Return what a choice is worth less what it costs."""
    return weight * coverage(cover, chosen) - float(cost[chosen].sum())


def double_greedy(cover: Numbers, cost: Numbers, weight: float, rng: Generator | None = None) -> Chosen:
    """Return a choice of sites, nobody where that is better.

    With f the score, none and all the empty and the full choice, f(found) >= (f(best) + f(none) + f(all)) / 3; with
    dice, in expectation, (2 f(best) + f(none) + f(all)) / 4: a third and a half where no choice scores below zero
    (Buchbinder et al., FOCS 2012).
    """
    sites = cover.shape[1]
    inside, outside = np.zeros(sites, bool), np.ones(sites, bool)
    low, high = 0.0, score(cover, cost, outside, weight)
    for site in range(sites):
        with_it, without_it = inside.copy(), outside.copy()
        with_it[site], without_it[site] = True, False
        more, less = score(cover, cost, with_it, weight), score(cover, cost, without_it, weight)
        if _takes(more - low, less - high, rng):
            inside, low = with_it, more
        else:
            outside, high = without_it, less
    return inside if low > 0 else np.zeros(sites, bool)


def _takes(gain: float, relief: float, rng: Generator | None) -> bool:
    """Return whether a site is taken: if that gains more than leaving it saves, or by dice in that proportion."""
    if rng is None:
        return gain > relief
    gain, relief = max(gain, 0.0), max(relief, 0.0)
    return bool(gain > 0 and rng.random() < gain / (gain + relief))


def schedule(
    cover: Numbers, carbon_g: Numbers, budget_g: float, weight: float, rng: Generator | None = None
) -> Schedule:
    """Return who takes part round by round; `carbon_g` is rounds x sites, `budget_g` for all rounds together."""
    rounds = len(carbon_g)
    positive(rounds=rounds, budget_g=budget_g)
    not_negative(cover=cover, carbon_g=carbon_g, weight=weight)
    if carbon_g.shape[1:] != cover.shape[1:]:
        raise SpecError(
            f"{carbon_g.shape[1]} sites emit and {cover.shape[1]} cover",
            hint="cover is pieces x sites, carbon_g rounds x sites",
        )
    share_g = budget_g / rounds
    chosen, queue = np.zeros(carbon_g.shape, bool), np.zeros(rounds)
    owed = 0.0
    for number, round_g in enumerate(carbon_g):
        greenest = np.argsort(round_g, kind="stable")  # of sites that would do as well, the first is taken
        cost = owed * round_g / share_g
        chosen[number, greenest] = double_greedy(cover[:, greenest], cost[greenest], weight, rng)
        owed = max(0.0, owed + float(round_g[chosen[number]].sum()) / share_g - 1)
        queue[number] = owed
    return Schedule(
        chosen=chosen,
        coverage=np.array([coverage(cover, each) for each in chosen]),
        carbon_g=(carbon_g * chosen).sum(axis=1),
        queue=queue,
    )
