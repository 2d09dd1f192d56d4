"""`python -m bench.plan.gaps [SEED]`: how far every solver is from the best there is, on random small fleets.

For each of 50 fleets that can do it at all: brute force, the solver, greedy with swaps, and the mean of 20 draws. Told
is by how much each costs more than the best, on average and at worst. A solver states what it never exceeds; exits with
1 where one does, or where greedy with swaps or luck do better on average.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from math import inf, isinf

import numpy as np
from bench.plan import tries
from bench.plan.tries import Costs, Draw
from msgspec import Struct

from atoll.units import say_table

FLEETS = 50
ROUNDING = 1e-6
"""A linear program's answer is no more exact."""


class Case(Struct, frozen=True, kw_only=True):
    """A solver, how it is tried, and what it promises."""

    name: str
    stated: float
    """No worse than the best by more than so much, on fleets like these."""
    costs: Callable[[Draw], Costs]


class Gaps(Struct, frozen=True, kw_only=True):
    """By how much each costs more than the best, over all fleets."""

    case: Case
    ours: list[float]
    greedy: list[float]
    luck: list[float]
    took_s: float

    @property
    def holds(self) -> bool:
        """Whether the solver keeps its promise, and is worth having."""
        mean = float(np.mean(self.ours)) - ROUNDING
        within = max(self.ours) <= self.case.stated + ROUNDING
        return within and mean <= _mean(self.greedy) and mean <= _mean(self.luck)


def _mean(gaps: Sequence[float]) -> float:
    """Return the mean of what was possible; for ever where nothing was."""
    known = [gap for gap in gaps if not isinf(gap)]
    return float(np.mean(known)) if known else inf


CASES = (
    Case(name="groups (DT-FM)", stated=0.01, costs=tries.groups_costs),
    Case(name="path beyond 12 groups", stated=0.05, costs=tries.path_costs),
    Case(name="chain (FusionAI)", stated=0.0, costs=tries.chain_costs),
    Case(name="chain beyond 8 peers", stated=0.05, costs=tries.moved_costs),
    Case(name="fence (FusionLLM)", stated=0.35, costs=tries.fence_costs),
    Case(name="cuts for given stages", stated=0.0, costs=tries.cuts_costs),
    Case(name="cuts by speed (Holmes)", stated=0.0, costs=tries.proportional_costs),
    Case(name="depth (Varuna)", stated=0.1, costs=tries.depth_costs),
    Case(name="islands (Holmes)", stated=0.1, costs=tries.islands_costs),
    Case(name="clusters (Ravnest)", stated=0.12, costs=tries.clusters_costs),
    Case(name="shares", stated=0.0, costs=tries.shares_costs),
)


def gaps(case: Case, fleets: int = FLEETS, seed: int = 0) -> Gaps:
    """Return the gaps on so many fleets that can do it at all; where there is no way, ours must find none either."""
    found: list[Costs] = []
    began_s = time.process_time()
    while len(found) < fleets:
        costs = case.costs(np.random.default_rng(seed))
        seed += 1
        assert not (isinf(costs[0]) and not isinf(costs[1])), "found what does not exist"
        if not isinf(costs[0]):
            found.append(costs)
    best, ours, greedy, luck = (np.array(column) for column in zip(*found, strict=True))
    return Gaps(
        case=case,
        ours=(ours / best - 1).tolist(),
        greedy=(greedy / best - 1).tolist(),
        luck=(luck / best - 1).tolist(),
        took_s=time.process_time() - began_s,
    )


def main(seed: int = 0) -> int:
    rows, holds = [["solver", "stated", "ours", "worst", "greedy", "worst", "failed", "random", "took"]], True
    for case in CASES:
        found = gaps(case, seed=seed)
        holds &= found.holds
        known = [gap for gap in found.greedy if not isinf(gap)]
        rows.append(
            [
                case.name,
                f"{case.stated:.0%}",
                f"{np.mean(found.ours):.2%}",
                f"{max(found.ours):.2%}",
                f"{_mean(found.greedy):.2%}",
                f"{max(known, default=inf):.2%}",
                f"{len(found.greedy) - len(known)}",
                f"{_mean(found.luck):.0%}",
                f"{found.took_s:.0f} s" + ("" if found.holds else "  DOES NOT HOLD"),
            ]
        )
    print("\n".join(say_table(rows)))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
