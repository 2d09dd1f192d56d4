"""Where an axis has its marks: round places, in the words in which people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from atoll.observe.plots import Tick
from atoll.units import say_time, time_s

TIMES = tuple(
    Tick(time_s(label), label)
    for label in ("1 ms", "10 ms", "0.1 s", "1 s", "10 s", "1 min", "10 min", "1 h", "10 h", "1 d", "10 d", "100 d")
)
"""Where people expect marks on an axis of time."""
TICKS_MAX = 12
"""Of more decades than this only every second, third, ... has its mark."""


def log_ticks(low: float, high: float, say: Callable[[float], str]) -> list[Tick]:
    """Return round places on a logarithmic axis: decades, or between them where there are too few."""
    decades = (10.0**k for k in range(-12, 22))
    known = TIMES if say is say_time else [Tick(at, _short(at, say)) for at in decades]
    inside = [tick for tick in known if low / 1.5 <= tick.at <= high * 1.5]
    if len(inside) >= 3:
        return inside[:: -(-len(inside) // TICKS_MAX)]
    decade = 10.0 ** math.floor(math.log10(low))
    finer = [m * decade * 10.0**k for k in range(4) for m in (1, 2, 5)]
    return [Tick(at, _short(at, say)) for at in finer if low / 1.1 <= at <= high * 1.1]


def even_ticks(high: float, say: Callable[[float], str]) -> list[Tick]:
    """Return four to eight even places from 0 on."""
    decade = 10.0 ** math.floor(math.log10(max(high, 1.0)))
    step = next(m * decade for m in (0.2, 0.25, 0.5, 1, 2) if high / (m * decade) <= 7)
    return [Tick(step * i, _short(step * i, say)) for i in range(int(high / step + 1e-9) + 1)]


def _short(value: float, say: Callable[[float], str]) -> str:
    """Return a round value as text: "100 MB", not "100.0 MB"."""
    return re.sub(r"\.0(?!\d)", "", say(value))
