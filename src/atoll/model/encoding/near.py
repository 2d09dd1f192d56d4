"""How near to the largest of its tensor a value must be to be sent: the numbers of max-n that every form of it shares.

They are worked out in double precision and rounded once, on the host, wherever values are: `sync.peaks` has these on
the processor, `model.encoding.peaks` on a device.
"""

from __future__ import annotations

import math

import numpy as np

from atoll.spec.axes.codec import MaxN

ALL = 100.0
"""N of which everything is sent."""
LOOKED_AT = 2**18
"""Values that tell how many of all are so near, or a little fewer."""
COMMON = 3 * 5 * 7 * 11 * 13
"""Of which, and of two, the widths of most matrices are made."""
FEW = 17
"""Times as many are all looked at: of the next to one it is the first odd number without such factors."""


def looked_at(size: int, keep: int) -> tuple[int, int]:
    """Return of how many values one is looked at, and how many of these are to be sent if so many of all are.

    Which N fits need not be known to the value, and to look at all of them costs more than to send some. The stride has
    no factor in common with the widths of most matrices, so that all of their columns take turns.
    """
    stride = size // LOOKED_AT | 1 if size >= FEW * LOOKED_AT else 1
    while math.gcd(stride, COMMON) > 1:
        stride += 2
    return stride, -(-keep // stride)


def reaching(codec: MaxN, ratio: float) -> float:
    """Return the N of which values are sent that reach such a ratio to the largest, within what the codec allows."""
    return min(max(ALL * (1 - ratio), codec.least), codec.most)


def part_of(n: float) -> float | None:
    """Return which part of the largest a value must be by N, in single precision; None: everything is sent."""
    return None if n >= ALL else float(np.float32(1 - n / ALL))
