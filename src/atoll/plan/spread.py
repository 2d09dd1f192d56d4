"""Numbers that are not known exactly: a middle, and what it is nine times of ten at least and at most.

Draws follow two half bells on a logarithmic scale, so that a tenth lies below the low end, a tenth above the high one
and half on either side of the middle. All machines are drawn alike from one number: what is wrong about one of them is
mostly wrong about all, and ranges that average it away would be too narrow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TENTH = 1.2815515655446004
"""So many deviations below the mean of a bell a tenth of it begins."""


class Spread(Struct, frozen=True, kw_only=True):
    """One input of a forecast, for every machine, and where it comes from."""

    low: Floats
    middle: Floats
    high: Floats
    source: str
    as_of: str = ""

    def at(self, deviation: Any) -> Floats:
        """Return the input so many deviations from its middle: a number, or a column of them, one row each."""
        if np.ndim(deviation) == 0 and deviation == 0:
            return self.middle  # most of what is looked at is looked at there alone
        above, below = _log_ratio(self.high, self.middle) / TENTH, _log_ratio(self.middle, self.low) / TENTH
        return np.asarray(self.middle * np.exp(deviation * np.where(np.asarray(deviation) > 0, above, below)))

    @property
    def certain(self) -> bool:
        """Return whether there is nothing to draw."""
        return bool(np.all(self.low == self.high))


def _log_ratio(more: Floats, less: Floats) -> Floats:
    """Return how far apart two numbers are on a logarithmic scale; what is nothing stays nothing."""
    return np.log(np.divide(more, less, out=np.ones_like(more), where=less > 0))


def spread(low: Any, middle: Any, high: Any, source: str, as_of: str = "") -> Spread:
    """Return an input; the ends are never beyond the middle."""
    middle = np.asarray(middle, float)
    low, high = np.minimum(low, middle), np.maximum(high, middle)
    return Spread(low=np.asarray(low, float), middle=middle, high=np.asarray(high, float), source=source, as_of=as_of)


class Range(Struct, frozen=True):
    """A number and how far off it may be: nine of ten draws are at least `low`, nine of ten at most `high`."""

    low: float
    middle: float
    high: float


def range_of(draws: Floats, middle: float | None = None) -> Range:
    """Return the ends of what was drawn, and its middle: what is said, or half of the draws."""
    low, half, high = (float(end) for end in np.quantile(np.atleast_1d(draws), (0.1, 0.5, 0.9)))
    told = half if middle is None else middle
    return Range(min(low, told), told, max(high, told))
