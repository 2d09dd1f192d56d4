"""The same training on a central cluster that one rents: what any plan has to be held against."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from atoll.facts.book import Facts
from atoll.facts.rows import Price, Row
from atoll.facts.rows import spread as spread_of
from atoll.model.shape import train_cost
from atoll.plan.carbon.energy import machines_drawn
from atoll.plan.goal import Goal
from atoll.plan.knowledge import Knowledge
from atoll.plan.ranges import Deviations, Ranged, Taken, ranged
from atoll.plan.spread import Spread, spread

GPU = "H100 SXM"
COUNT = 8
"""One server."""
SITE, GRID = "industry", "USA"
HOUR_S = 3600.0


class Central(Ranged, frozen=True, kw_only=True):
    """A rented server of eight, at the middle price of those who rent it out, in time, money, energy and carbon."""

    gpu: str
    count: int
    source: str
    as_of: str


def central(goal: Goal, facts: Facts, seed: int = 0) -> Central:
    """Return what a goal takes on a server of eight that is rented on demand."""
    gpu = facts.gpu(GPU)
    prices = [facts.use(each) for each in facts.prices(GPU, market="on_demand")]
    known = _known(facts, prices)
    flop = goal.tokens / goal.context * train_cost(goal.shape, 1).flop

    def takes(deviations: Deviations) -> Taken:
        at: dict[str, Any] = {name: about.at(deviations.get(name, 0.0))[..., 0] for name, about in known.items()}
        hours = np.asarray(flop / (COUNT * gpu.flop_s * at["computing"]) / HOUR_S)
        drawn = machines_drawn(
            count=COUNT,
            most_w=gpu.power_w or 0.0,
            busy=1.0,
            host_w=at["host"],
            pue=at["building"],
            hours=hours,
            carbon_g_kwh=at["grid"],
            made_g=facts.made(gpu).carbon_g + facts.host(gpu).made_g,
        )
        return Taken(HOUR_S * hours, COUNT * hours * at["rent"], drawn.energy_kwh, drawn.carbon_g)

    return Central(
        **ranged(goal, known, takes, seed),
        gpu=gpu.name,
        count=COUNT,
        source=f"{len(prices)} providers' list prices",
        as_of=min(each.as_of for each in prices),
    )


def _known(facts: Facts, prices: list[Price]) -> Knowledge:
    """Return what is known of such a server, and how well."""
    gpu = facts.gpu(GPU)
    rents = [each.usd_hour for each in prices]
    return {
        "computing": _input(facts.efficiency(gpu), "mfu"),
        "host": _input(facts.host(gpu), "power_w"),
        "building": _input(facts.site(SITE), "pue"),
        "grid": _input(facts.grid(GRID), "carbon_g_kwh"),
        "rent": spread([rents[0]], [median(rents)], [rents[-1]], "providers' list prices"),
    }


def _input(row: Row, column: str) -> Spread:
    low, middle, high = spread_of(row, column)
    return spread([low], [middle], [high], row.source, row.as_of)
