"""`python -m bench.plan.markets [trace.csv ...]`: policies on spot markets, beside staying put and hindsight.

Without a file twenty markets are drawn (`atoll.plan.money.draw`: no long price history is shipped). The nine zones are
up as V100 instances were in nine zones of AWS in February and March 2023 (github.com/skypilot-org/spot-traces); usual
prices lie as those of p4d.24xlarge did in the year from August 2025 (cheapest zone 7.24, median 11.5, on demand 25 $/h;
SkyPilot's catalog) and go to zones by lot. What policies gain on AWS prices of 2016, as DeepSpotCloud reports (13 %
more than who moves only when interrupted), cannot be checked on these.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean, median

import numpy as np

from atoll.errors import SpecError
from atoll.facts.book import load_facts
from atoll.plan.money.draw import Zone, draw
from atoll.plan.money.policy import Daily, EagerNext, Interrupted, Migrate, Policy, UniformProgress
from atoll.plan.money.replay import Comparison, Job, Outcome, compared
from atoll.plan.money.trace import Trace, read
from atoll.units import say_table

MEDIANS_H = {
    "us-east-1a": 0.32,
    "us-east-1c": 0.49,
    "us-east-1d": 0.54,
    "us-east-1f": 0.54,
    "us-east-2a": 0.87,
    "us-east-2b": 1.08,
    "us-west-2a": 1.03,
    "us-west-2b": 1.41,
    "us-west-2c": 0.92,
}
"""Half of the runs in these traces were shorter; which part of the time and how long on average the table says."""
ON_DEMAND_USD_HOUR, CHEAPEST_USD_HOUR, DEAREST_USD_HOUR = 25.0, 7.24, 18.3
LASTS_H = median(MEDIANS_H.values())
"""What who minds that zones do not last takes for granted."""
POLICIES: dict[str, Policy] = {
    "interrupted": Interrupted(),
    "eager, next region": EagerNext(),
    "migrate": Migrate(),
    "migrate, zones do not last": Migrate(lasts_h=LASTS_H),
    "daily": Daily(),
    "uniform progress": UniformProgress(),
}
SEEDS, DAYS, STEP_H = 20, 30, 0.25


def market(seed: int) -> Trace:
    """Return a market in which usual prices, spread evenly on a scale of factors, have gone to zones by lot."""
    prices = np.geomspace(CHEAPEST_USD_HOUR, DEAREST_USD_HOUR, len(MEDIANS_H))
    np.random.default_rng(seed).shuffle(prices)
    rows = [load_facts().spot("V100", zone=f"aws:{name}") for name in MEDIANS_H]
    zones = [
        Zone(name=name, usd_hour=float(usd), up_fraction=row.up_part, up_mean_h=row.up_s / 3600, up_median_h=median_h)
        for (name, median_h), row, usd in zip(MEDIANS_H.items(), rows, prices, strict=True)
    ]
    return draw(zones, days=DAYS, on_demand_usd_hour=ON_DEMAND_USD_HOUR, seed=seed, step_h=STEP_H)


def job(trace: Trace) -> Job:
    """Return a fortnight's work, to be done in three quarters of the trace."""
    return Job(
        work_h=0.45 * trace.steps * trace.step_h,
        on_demand_usd_hour=ON_DEMAND_USD_HOUR,
        deadline_h=0.75 * trace.steps * trace.step_h,
        state_gb=100.0,
        egress_usd_gb=dict.fromkeys(trace.zones, 0.02),
        move_h=0.25,
        save_every_h=0.5,
    )


def main(files: list[str]) -> None:
    traces = [read(Path(file), STEP_H) for file in files] or [market(seed) for seed in range(SEEDS)]
    found = [compared(trace, job(trace), list(POLICIES.values())) for trace in traces]
    head = ["policy", "cost / hindsight", "done", "hours", "moves", "sent away", "lost h", "on demand h"]
    lines = [_line(name, found, number) for number, name in enumerate(POLICIES)]
    lines.append(_said("best zone, stayed in", found, [each.best_static for each in found]))
    lines.append(_said("on demand", found, [each.static[-1] for each in found]))
    print("\n".join(say_table([head, *lines])))


def _line(name: str, found: list[Comparison], number: int) -> list[str]:
    return _said(name, found, [each.outcomes[number] for each in found])


def _said(name: str, found: list[Comparison], outcomes: list[Outcome | None]) -> list[str]:
    """Return means over the markets in which it got its work done in time."""
    pairs = [(one, all_.hindsight_usd) for one, all_ in zip(outcomes, found, strict=True) if one and one.is_done]
    done = [one for one, _ in pairs]
    if not done:
        return [name, "-", f"0/{len(found)}", *["-"] * 5]
    return [
        name,
        f"{mean(one.usd / least for one, least in pairs):.2f}",
        f"{len(done)}/{len(found)}",
        f"{mean(one.finish_h for one in done):.0f}",
        f"{mean(one.moves for one in done):.0f}",
        f"{mean(one.sent_away for one in done):.0f}",
        f"{mean(one.lost_h for one in done):.1f}",
        f"{mean(one.on_demand_h for one in done):.1f}",
    ]


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SpecError as error:
        print(f"error: {error.what}\nhint:  {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
