"""Markets made up from what is known of real ones: no long price history is shipped, so this stands in for it.

Prices change once a day by a factor whose logarithm is of Laplace's distribution (half of all days below `change`,
one in twenty beyond 4.3 times that), are drawn back a little to what the zone usually costs, and never exceed what the
same machine costs on demand. Zones are up and down in turn; both runs are log-normal with a heavy tail, given by the
mean and the median of the up-runs and by the part of the time a zone is up. What real markets have and this has not:
zones that move together, weekdays, and a link between price and availability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from atoll.errors import SpecError
from atoll.plan.money.check import not_negative, part, positive
from atoll.plan.money.trace import Trace

CHANGE = 0.009
"""Median daily change of AWS spot prices for GPUs: 0.7 to 1.1 % by kind, a year from 2025-08 (SkyPilot's catalog)."""
BACK = 0.02
"""The part of the way to its usual price that a day takes a price back (our estimate)."""


class Zone(Struct, frozen=True, kw_only=True):
    """A zone as its statistics."""

    name: str
    usd_hour: float
    """What it usually costs."""
    up_fraction: float = 0.8
    up_mean_h: float = 4.0
    up_median_h: float = 1.0
    """Well below the mean: most runs are short, few are very long."""

    def __post_init__(self) -> None:
        part(up_fraction=self.up_fraction)
        positive(up_mean_h=self.up_mean_h, up_median_h=self.up_median_h)
        not_negative(usd_hour=self.usd_hour)
        if self.up_median_h > self.up_mean_h:
            raise SpecError(f"{self.name}: the median run is longer than the mean", hint="give up_median_h below it")


def draw(
    zones: Sequence[Zone],
    *,
    days: int,
    on_demand_usd_hour: float,
    seed: int,
    step_h: float = 0.25,
    change: float = CHANGE,
) -> Trace:
    """Return a market of these zones; the same for the same seed."""
    positive(zones=len(zones), days=days, step_h=step_h)
    each = np.random.default_rng(seed).spawn(2 * len(zones))
    steps, day = round(days * 24 / step_h), round(24 / step_h)
    prices = [_prices(zone, days, change, rng) for zone, rng in zip(zones, each[::2], strict=True)]
    ups = [_ups(zone, steps, step_h, rng) for zone, rng in zip(zones, each[1::2], strict=True)]
    usd = np.minimum(np.repeat(np.array(prices).T, day, axis=0), on_demand_usd_hour)
    return Trace(zones=tuple(zone.name for zone in zones), step_h=step_h, usd_hour=usd, up=np.array(ups).T)


def _prices(zone: Zone, days: int, change: float, rng: np.random.Generator) -> list[float]:
    """Return a price a day."""
    shifts, away, found = rng.laplace(0.0, change / math.log(2), size=days), 0.0, []
    for shift in shifts:
        found.append(zone.usd_hour * math.exp(away))
        away = (1 - BACK) * away + shift
    return found


def _ups(zone: Zone, steps: int, step_h: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return for each step whether the zone is up: runs of either kind in turn."""
    if zone.up_fraction >= 1:
        return np.ones(steps, dtype=bool)
    down_h = (1 - zone.up_fraction) / zone.up_fraction
    wide = math.sqrt(2 * math.log(zone.up_mean_h / zone.up_median_h))
    up, time_h, ends, kinds = bool(rng.random() < zone.up_fraction), 0.0, [], []
    while time_h < steps * step_h:
        run_h = zone.up_median_h * (1.0 if up else down_h) * math.exp(wide * rng.standard_normal())
        time_h += run_h
        ends.append(time_h)
        kinds.append(up)
        up = not up
    at = np.searchsorted(np.array(ends), (np.arange(steps) + 0.5) * step_h)
    return np.array(kinds)[at]
