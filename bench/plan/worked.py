"""`python -m bench.plan.worked [NAME]`: questions of money and carbon that no command of Atoll asks yet, worked out.

    hire     a lab with four RTX 4090: how many A100 to hire beside them by when (StellaTrain's question)
    sites    data that stay at three sites: functions or machines at each (Phalak et al., as we read their abstract)
    budget   five sites under a carbon budget, hour by hour (CAFE)
    begin    at what hour a run of a few hours begins best
    step     what an iteration costs over two regions, cut into stages or copied (MLTC, Sailor)

Prices, lines, grids, days and lifetimes are rows of the tables; what is assumed besides stands here. Nothing of it is
validated against anybody's figures: StellaTrain's and Phalak's inputs are not in their abstracts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from atoll.facts.book import Facts, load_facts
from atoll.plan.carbon.cafe import Schedule, schedule
from atoll.plan.carbon.energy import device_w
from atoll.plan.carbon.hours import best_begin_utc_h, carbon_g_kwh, mean_g_kwh
from atoll.plan.carbon.inputs import clock_of
from atoll.plan.money import hybrid
from atoll.plan.money.bill import Bill
from atoll.plan.money.clouds import Choice, Functions, Machines, Site, front
from atoll.plan.money.inputs import tariffs
from atoll.plan.money.iteration import Group, Hop, iteration_bill, pipeline_hops, ring_hops
from atoll.units import say_table

PARAMETERS, CONTEXT, SAMPLES = 1.3e9, 2048, 1e6
"""Of the model that is trained, and sequences to train it on."""
KEPT = 0.01
"""The part of a gradient that is sent, as StellaTrain's 99 % that is left out."""
REGIONS = ("aws:us-east-1", "aws:eu-west-1")
CLEAN_TO_DIRTY = ("SE-SE3", "FR", "US-CAL-CISO", "DE", "PL")
DAYS, NODES = 3, 8
LAMBDA_USD_GB_S = 1.67e-5
"""Assumed: what a large cloud asks for its functions."""


def hiring(facts: Facts, hurry: float) -> hybrid.Decision:
    """Return what to hire where the work has to be done in a part of the time that one's own machines take."""
    own_gpu, gpu = facts.gpu("RTX 4090"), facts.gpu("A100")
    price, lived = facts.price("aws", "A100", "spot"), facts.spot("V100")
    line = facts.home("fibre 500")
    own = hybrid.Own(
        count=4,
        samples_s=_samples_s(facts, "RTX 4090"),
        power_kw=(device_w(float(own_gpu.power_w or 0), 1.0) + facts.host(own_gpu).power_w) / 1e3,
        usd_kwh=facts.electricity("World business").usd_kwh,
    )
    leaving = facts.egress(REGIONS[0], "home").usd_gb
    spot = hybrid.Offer(
        name="spot",
        usd_hour=price.usd_hour,
        samples_s=_samples_s(facts, gpu.name),
        count_max=32,
        up_fraction=lived.up_part,
        usd_gb=leaving,
    )
    steady_usd = facts.price("aws", "A100", "on_demand").usd_hour
    steady = hybrid.Offer(name="on demand", usd_hour=steady_usd, samples_s=spot.samples_s, count_max=32, usd_gb=leaving)
    work = hybrid.Work(
        samples=SAMPLES, round_samples=512, round_bytes=KEPT * PARAMETERS * 4, near_s=0.5, overlapped=True
    )
    between = hybrid.Line(up_bytes_s=line.up_bytes_s, down_bytes_s=line.down_bytes_s, latency_s=line.latency_s)
    alone_h = hybrid.mix(work, own, None, 0, between).hours
    return hybrid.decide(work, own, [spot, steady], between, hurry * alone_h)


def placing(facts: Facts) -> list[Choice]:
    """Return the front of time and money for data at three sites, one of them tiny and behind a slow line.

    The model has a hundred million parameters; what a function reaches of it is assumed.
    """
    homes = [facts.home(name) for name in ("fibre 1000", "fibre 500", "cable")]
    functions = Functions(name="functions", count=4, memory_gb=8, usd_gb_s=LAMBDA_USD_GB_S, samples_s=0.08, start_s=5.0)
    cards = [
        Machines(
            name=f"{count} x {gpu}",
            count=count,
            usd_hour=facts.price("aws", gpu, "on_demand").usd_hour,
            samples_s=_samples_s(facts, gpu) * PARAMETERS / 1e8,
        )
        for gpu in ("T4", "A10G")
        for count in (1, 4)
    ]
    sites = [
        Site(name=home.profile, samples=samples, options=(functions, *cards), up_bytes_s=home.up_bytes_s)
        for home, samples in zip(homes, (2e4, 5e3, 20.0), strict=True)
    ]
    return front(sites, rounds=20, update_bytes=4e8)


def budgeted(facts: Facts, part: float | None) -> Schedule:
    """Return who takes part hour by hour, with a part of what all would emit as the budget; None: no thought for it.

    Every site has a fifth of the data, and of each other's pieces something alike.
    """
    gpu = facts.gpu("H100")
    hour_kwh = NODES * (device_w(float(gpu.power_w or 0), 1.0) + facts.host(gpu).power_w) * facts.site("aws").pue / 1e3
    hours = np.arange(24.0 * DAYS)
    clocks = [clock_of(facts.grid(code), facts) for code in CLEAN_TO_DIRTY]
    carbon_g = hour_kwh * np.stack([carbon_g_kwh(clock, hours) for clock in clocks], axis=1)
    cover = np.where(np.eye(len(clocks), dtype=bool), 1.0, 0.3)
    weight = 1e9 if part is None else 10.0
    return schedule(cover, carbon_g, (part or 1.0) * float(carbon_g.sum()), weight)


def beginning(facts: Facts, code: str, hours: float) -> tuple[float, float]:
    """Return the hour in Greenwich at which a run begins best, and which part of the mean it emits then."""
    clock = clock_of(facts.grid(code), facts)
    begin = best_begin_utc_h(clock, hours)
    return begin, float(mean_g_kwh(clock, begin, hours)) / clock.mean_g_kwh


def stepping(facts: Facts) -> dict[str, Bill]:
    """Return an iteration on eight A100 in each of two regions: a pipeline cut between them, or a copy in each."""
    price = facts.price("aws", "A100", "on_demand").usd_hour
    groups = [Group(zone=region, count=8, usd_hour=price) for region in REGIONS]
    prices = tariffs([REGIONS, REGIONS[::-1]], facts)
    ways: dict[str, list[Hop]] = {
        "stages": pipeline_hops(REGIONS, boundary_bytes=CONTEXT * 2048 * 2.0, microbatches=64),
        "copies": ring_hops(REGIONS, 2 * PARAMETERS),
    }
    return {name: iteration_bill(groups, 10.0, hops, prices) for name, hops in ways.items()}


def _samples_s(facts: Facts, name: str) -> float:
    gpu = facts.gpu(name)
    return gpu.flop_s * facts.efficiency(gpu).mfu / (6 * PARAMETERS * CONTEXT)


def _hire(facts: Facts) -> list[list[str]]:
    lines = [["in a part of the time", "own", "hired", "of", "hours", "$", "all hired $", "binds"]]
    for hurry in (1.0, 0.5, 0.25):
        found = hiring(facts, hurry)
        best, cloud = found.best, found.cloud_only
        lines.append(
            [
                f"{hurry:g}",
                str(best.own),
                str(best.hired),
                best.offer or "-",
                f"{best.hours:.1f}",
                f"{best.paid.total_usd:.0f}",
                "-" if cloud is None else f"{cloud.paid.total_usd:.0f}",
                best.binds,
            ]
        )
    return lines


def _sites(facts: Facts) -> list[list[str]]:
    head = ["at the three sites", "hours", "$"]
    return [head, *([", ".join(o.name for o in c.options), f"{c.hours:.2f}", f"{c.usd:.2f}"] for c in placing(facts))]


def _budget(facts: Facts) -> list[list[str]]:
    lines = [["budget", *CLEAN_TO_DIRTY, "covered", "kg"]]
    for part in (None, 0.5, 0.25):
        found = budgeted(facts, part)
        often = [f"{share:.0%}" for share in found.chosen.mean(axis=0)]
        name = "none" if part is None else f"{part:.0%}"
        lines.append([name, *often, f"{found.coverage.mean():.2f}", f"{found.total_g / 1e3:,.0f}"])
    return lines


def _begin(facts: Facts) -> list[list[str]]:
    found = [(code, *beginning(facts, code, 6.0)) for code in CLEAN_TO_DIRTY]
    head = ["six hours in", "begin at, UTC", "of the mean"]
    return [head, *([code, f"{hour:.1f}", f"{part:.0%}"] for code, hour, part in found)]


def _step(facts: Facts) -> list[list[str]]:
    found = stepping(facts)
    head = ["two regions", "$ an iteration", "egress's share"]
    return [head, *([name, f"{paid.total_usd:.3f}", f"{paid.share('egress'):.0%}"] for name, paid in found.items())]


WORKED: dict[str, Callable[[Facts], list[list[str]]]] = {
    "hire": _hire,
    "sites": _sites,
    "budget": _budget,
    "begin": _begin,
    "step": _step,
}


def main(names: list[str]) -> int:
    if unknown := set(names) - set(WORKED):
        print(f"error: no example is called {', '.join(sorted(unknown))}\nhint:  there are {', '.join(WORKED)}")
        return 2
    for name in names or WORKED:
        print("\n".join([f"{name}:", *say_table(WORKED[name](load_facts())), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
