"""Chance on the processor: `model.encoding.chance` in numpy, in words of 32 bits that wrap around."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.model.encoding.chance import DRAWN_BITS, FACTORS, SHIFTS, WORD_BITS, keys_of

_NEAR = 2**15
"""Numbers that are mixed at once: what a processor keeps near."""


def drawn(seed: int, count: int) -> NDArray[np.uint32]:
    """Return a whole number of 24 bits for each of so many elements."""
    return drawn_by(keys_of(seed), count)


def drawn_by(keys: tuple[int, int], count: int) -> NDArray[np.uint32]:
    """Return likewise by the keys of a seed."""
    first, second = map(np.uint32, keys)
    numbers = np.arange(count, dtype=np.uint32)
    for at in range(0, count, _NEAR):
        some = numbers[at : at + _NEAR]
        some += first
        _mix(some)
        some ^= second
        _mix(some)
        some >>= np.uint32(WORD_BITS - DRAWN_BITS)
    return numbers


def _mix(numbers: NDArray[np.uint32]) -> None:
    """Let every number be another one."""
    for shift, factor in zip(SHIFTS, FACTORS, strict=False):
        numbers ^= numbers >> np.uint32(shift)
        numbers *= np.uint32(factor)
    numbers ^= numbers >> np.uint32(SHIFTS[-1])
