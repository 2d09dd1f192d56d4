"""The same training on a central cluster that one rents: what any plan has to be held against."""

from __future__ import annotations

from statistics import median

from msgspec import Struct

from atoll.facts.book import Facts
from atoll.facts.rows import spread as spread_of
from atoll.model.shape import train_cost
from atoll.plan.carbon.energy import machines_drawn
from atoll.plan.goal import Goal
from atoll.plan.spread import Range

GPU = "H100 SXM"
COUNT = 8
"""One server."""
SITE, GRID = "industry", "USA"


class Central(Struct, frozen=True, kw_only=True):
    """A rented server of eight, at the middle price of those who rent it out, in time, money, energy and carbon."""

    gpu: str
    count: int
    time_s: Range
    usd: Range
    energy_kwh: Range
    carbon_g: Range
    source: str
    as_of: str


def central(goal: Goal, facts: Facts) -> Central:
    """Return what a goal takes on a server of eight that is rented on demand."""
    gpu = facts.gpu(GPU)
    low, middle, high = spread_of(facts.efficiency(gpu), "mfu")
    prices = sorted(facts.prices(GPU, market="on_demand"), key=lambda each: each.usd_hour)
    host, site, grid = facts.host(gpu), facts.site(SITE), facts.grid(GRID)
    flop = goal.tokens / goal.context * train_cost(goal.shape, 1).flop
    hours = [flop / (COUNT * gpu.flop_s * mfu) / 3600 for mfu in (high, middle, low)]
    usd_hour = prices[0].usd_hour, median(each.usd_hour for each in prices), prices[-1].usd_hour
    drawn = [
        machines_drawn(
            count=COUNT,
            most_w=gpu.power_w or 0.0,
            busy=1.0,
            host_w=host.power_w,
            pue=site.pue,
            hours=each,
            carbon_g_kwh=grid.carbon_g_kwh,
            made_g=facts.made(gpu).carbon_g,
        )
        for each in hours
    ]
    return Central(
        gpu=gpu.name,
        count=COUNT,
        time_s=Range(*(3600 * each for each in hours)),
        usd=Range(*(COUNT * one * price for one, price in zip(hours, usd_hour, strict=True))),
        energy_kwh=Range(*(float(each.energy_kwh) for each in drawn)),
        carbon_g=Range(*(float(each.carbon_g) for each in drawn)),
        source=f"{len(prices)} providers' list prices",
        as_of=min(each.as_of for each in prices),
    )
