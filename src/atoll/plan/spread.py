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
    """What draws come to: nine of ten are at least, half, and nine of ten at most so much."""

    low: float
    middle: float
    high: float


def range_of(draws: Floats) -> Range:
    """Return the ends and the middle of what was drawn."""
    low, middle, high = np.quantile(np.atleast_1d(draws), (0.1, 0.5, 0.9))
    return Range(float(low), float(middle), float(high))
