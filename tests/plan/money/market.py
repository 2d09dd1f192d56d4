"""Small markets for tests: drawn step by step, so that everything can be tried on them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from atoll.plan.money.replay import Job
from atoll.plan.money.trace import Trace


def trace(prices: list[list[float]], ups: list[list[int]], step_h: float = 1.0) -> Trace:
    """Return a trace from a row per step."""
    return Trace(
        zones=tuple(f"zone-{number}a" for number in range(len(prices[0]))),
        step_h=step_h,
        usd_hour=np.array(prices, dtype=float),
        up=np.array(ups, dtype=bool),
    )


@st.composite
def markets(draw: st.DrawFn, steps_max: int = 30, zones_max: int = 4) -> Trace:
    """Draw a market of a few zones."""
    steps, zones = draw(st.integers(4, steps_max)), draw(st.integers(1, zones_max))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return trace(
        (rng.integers(1, 9, (steps, zones)) / 2).tolist(),
        (rng.random((steps, zones)) < rng.uniform(0.3, 1.0)).tolist(),
    )


@st.composite
def jobs(draw: st.DrawFn, market: Trace, *, on_demand: bool | None = None) -> Job:
    """Draw a job for a market; one with on demand can be done by its deadline."""
    move = draw(st.integers(0, 2))
    steady = draw(st.booleans()) if on_demand is None else on_demand
    work = draw(st.integers(1, max(1, market.steps - move)))
    return Job(
        work_h=work,
        machines=draw(st.sampled_from([1, 4])),
        on_demand_usd_hour=draw(st.sampled_from([3.0, 6.0])) if steady else None,
        deadline_h=draw(st.sampled_from([None, float(min(market.steps, work + move + 2))])),
        state_gb=10.0,
        egress_usd_gb={name: draw(st.sampled_from([0.0, 0.1, 0.5])) for name in (*market.zones, "on demand")},
        move_h=move,
        save_every_h=draw(st.integers(1, 4)),
    )
