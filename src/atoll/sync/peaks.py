"""Max-N: of each tensor what is near its largest, and how near that is where a link carries only so much.

    sent  if  |value| >= (1 - N / 100) * largest magnitude of its tensor

So the share of a tensor that is sent follows from how its values are spread, not from how large they are: a tensor of
small gradients is heard as well as one of large ones. Which N a number of bytes allows is found from the values
themselves, of very many from some of them: the ratio to the largest that so many reach. `model.encoding.peaks` is the
same on a device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.model.compute import Vector
from atoll.model.encoding.near import looked_at, part_of, reaching
from atoll.spec.axes.codec import MaxN
from atoll.sync.codec import wire_bytes
from atoll.sync.codec.above import COUNT_BYTES
from atoll.sync.grid import Grid
from atoll.sync.units import Tensor

_MANY = 1024
"""Values whose length on the wire tells that of one."""


def peaks(values: Vector, tensors: Sequence[Tensor]) -> Vector:
    """Return for every value the largest magnitude of its tensor."""
    largest = np.maximum.reduceat(np.abs(values), [each.first for each in tensors])
    return np.repeat(largest, [each.end - each.first for each in tensors])


def limits(n: float, peak: Vector) -> Vector:
    """Return how large each value must be to be sent; of a tensor of zeros nothing is, unless everything is."""
    part = part_of(n)
    if part is None:
        return np.zeros_like(peak)
    least: Vector = peak * np.float32(part)
    return np.where(peak > 0, least, np.float32(np.inf))


def fitting(codec: MaxN, values: Vector, peak: Vector, keep: int) -> float:
    """Return the N of which about so many values are sent, within what the codec allows."""
    if keep >= values.size:
        return codec.most
    return reaching(codec, reached(values, peak, keep) if keep else 1.0)


def reached(values: Vector, peak: Vector, keep: int) -> float:
    """Return the ratio of a magnitude to the largest that about so many values have, or a larger one."""
    stride, some = looked_at(values.size, keep)
    values, peak = values[::stride], peak[::stride]
    ratio = np.divide(np.abs(values), peak, out=np.zeros_like(peak), where=peak > 0)
    return float(np.partition(ratio, ratio.size - some)[ratio.size - some])


def kept_within(codec: MaxN, grid: Grid, budget_bytes: float) -> int:
    """Return of how many values so many bytes can tell, with their places or a bit for every element of the grid."""
    left_bytes = budget_bytes - COUNT_BYTES * grid.each
    value_bytes = wire_bytes(codec.values, _MANY) / _MANY
    place_bytes = max(1, (grid.chunk - 1).bit_length()) / 8
    return int(max(left_bytes / (value_bytes + place_bytes), (left_bytes - grid.size / 8) / value_bytes, 0))
