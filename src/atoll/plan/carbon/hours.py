"""Grid intensity by place and hour: a yearly mean times the shape of a day, by the place's own clock.

The shipped shapes are estimates (`facts/tables/days.csv`) and know no season; whoever has 24 numbers of their own grid
gives those (`own`). A run of days averages the shape away, so hours matter for what is short or can wait, and for
choosing among places at any one moment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from atoll.errors import SpecError
from atoll.plan.money.check import not_negative, positive

Numbers = NDArray[np.float64]


class Clock(Struct, frozen=True, kw_only=True):
    """A grid through the day."""

    mean_g_kwh: float
    day: tuple[float, ...] = (1.0,) * 24
    """Each hour as a part of the mean, by the local clock, midnight first."""
    utc_h: float = 0.0
    """How far the local clock is ahead."""

    def __post_init__(self) -> None:
        not_negative(mean_g_kwh=self.mean_g_kwh)
        if len(self.day) != 24 or min(self.day) < 0 or not np.isclose(sum(self.day), 24, atol=0.01):
            raise SpecError("a day has 24 parts around 1", hint="give 24 numbers; `own` makes parts of intensities")


def own(hours_g_kwh: Sequence[float], utc_h: float = 0.0) -> Clock:
    """Return the clock of one's own 24 intensities, by the local clock, midnight first."""
    mean = sum(hours_g_kwh) / len(hours_g_kwh) if hours_g_kwh else 0.0
    if len(hours_g_kwh) != 24 or min(hours_g_kwh) < 0 or mean <= 0:
        raise SpecError(f"{len(hours_g_kwh)} intensities", hint="give 24 numbers that are not negative, midnight first")
    return Clock(mean_g_kwh=mean, day=tuple(each / mean for each in hours_g_kwh), utc_h=utc_h)


def carbon_g_kwh(clock: Clock, utc_hour: ArrayLike) -> Numbers:
    """Return the intensity at hours since some midnight in Greenwich."""
    local = np.floor(np.asarray(utc_hour, float) + clock.utc_h).astype(int) % 24
    found: Numbers = clock.mean_g_kwh * np.asarray(clock.day)[local]
    return found


def mean_g_kwh(clock: Clock, begin_utc_h: ArrayLike, hours: ArrayLike) -> Numbers:
    """Return the mean intensity of something that draws evenly for so many hours from there on."""
    positive(hours=hours)
    begin = np.asarray(begin_utc_h, float) + clock.utc_h
    lasting = np.asarray(hours, float)
    found: Numbers = clock.mean_g_kwh * (_until(clock, begin + lasting) - _until(clock, begin)) / lasting
    return found


def best_begin_utc_h(clock: Clock, hours: float) -> float:
    """Return the hour at which something that can wait begins best; only whole hours need to be tried.

    The mean over a window is linear between the moments at which one of its ends passes an hour.
    """
    ends = np.concatenate([np.arange(24.0), np.arange(24.0) - hours]) - clock.utc_h
    begins = np.unique(np.round(ends % 24, 9))
    return float(begins[np.argmin(mean_g_kwh(clock, begins, hours))])


def _until(clock: Clock, local_h: Numbers) -> Numbers:
    """Return the sum of the day's parts from a first midnight until then."""
    sums = np.concatenate([[0.0], np.cumsum(clock.day)])
    days, rest = np.divmod(local_h, 24)
    found: Numbers = days * sums[-1] + np.interp(rest, np.arange(25.0), sums)
    return found
