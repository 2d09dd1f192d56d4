"""How tensors are cut into tiles for the cosine transform, and its constants: what every form of it shares.

Constants have so few digits that no library disagrees about them. What is done with them, operation by operation, is
said in `sync.frequencies`; `model.encoding.cosines` does the same on a device.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

DIGITS = 10
"""Of a constant, after the point."""


class Tiled(NamedTuple):
    """A tensor: its rows and columns, its tiles' sides, where it is in the unit and where its frequencies are."""

    rows: int
    columns: int
    high: int
    wide: int
    first: int
    at: int


@cache
def cosines(side: int) -> tuple[tuple[float, ...], ...]:
    """Return the cosine of each place (rows) at each frequency (columns)."""
    return tuple(tuple(rounded(math.cos((i + 0.5) * k * math.pi / side)) for k in range(side)) for i in range(side))


@cache
def folds(side: int) -> tuple[float, ...]:
    """Return what the difference of two halves is multiplied by."""
    return tuple(rounded(1 / (2 * math.cos((i + 0.5) * math.pi / side))) for i in range(side // 2))


@cache
def scales(side: int) -> tuple[float, ...]:
    """Return what frequencies are multiplied by, so that lengths stay as they are."""
    return (rounded(math.sqrt(1 / side)), *[rounded(math.sqrt(2 / side))] * (side - 1))


def rounded(value: float) -> float:
    """Return a constant as everybody has it."""
    return round(value, DIGITS)
