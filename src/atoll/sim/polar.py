"""What directions and lengths of tensors come to (RDA), said a second time.

A life's marks are part of the length of their tensor, so an anchor follows to the bit only where it is known which life
each contribution is from (`lives`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from atoll.model.compute import Vector
from atoll.sync.merge import inner
from atoll.sync.units import Tensor


def apart(tensors: Sequence[Tensor], values: Vector) -> Vector:
    """Return values as directions, each as long as a tensor of ones, and after them how many times as long each is."""
    made, lengths = values.copy(), []
    for _, first, end in tensors:
        lengths.append(np.float32(_long(values[first:end])))
        made[first:end] = values[first:end] / lengths[-1] if lengths[-1] else 0
    return np.concatenate([made, np.array(lengths, np.float32)])


def together(tensors: Sequence[Tensor], merged: Vector) -> Vector:
    """Return the values of mean directions, each brought to its mean length."""
    made = merged[: len(merged) - len(tensors)].copy()
    for (_, first, end), length in zip(tensors, merged[len(made) :], strict=True):
        long = _long(merged[first:end])
        made[first:end] = merged[first:end] / np.float32(long) * length if long > 1e-6 else 0
    return made


def _long(values: Vector) -> float:
    return math.sqrt(inner(values, values) / len(values))
