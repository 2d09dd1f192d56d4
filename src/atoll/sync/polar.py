"""Tensors as directions and lengths, so that owners who have only chunks can average either (RDA).

Radial-directional averaging makes of each tensor the mean direction at the mean length. On a butterfly nobody has a
whole tensor of everybody's; but a mean of directions, and one of lengths, is a mean like any other:

    contribution   | direction | direction | embedding | ...  | lengths |
    result         the weighted mean of these, element by element, as owners make it of anything
    everybody      brings the mean of a tensor's directions to the mean of its lengths

So contributions are made of these, and so are results; everybody goes back to values when one is applied, to the same
bits. A direction is as long as a tensor of ones and a length is the root of the mean square, so that both fit every
float however large the tensor. Embeddings stay as they are: theirs is the plain mean.

A length is as true as the values that its maker might have sent in its place. What owners hold it to: it is not
negative, its tensor's values would be finite, and no part of a direction is longer than all of it can be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from atoll.model.compute import Vector
from atoll.sync.codec import BadChunk
from atoll.sync.merge import inner
from atoll.sync.units import Unit, directed, pieces_of

DIRECTION_MIN = 1e-6
"""A mean of directions that is shorter than this part of one is rounding: those that cancel out have none."""
LONGER = 1 + 2**-6
"""What rounding on the way, to half precision or less, may add to the square of a direction's length."""
BLOCK_ELEMENTS = 2**20
"""So many are squared at once."""


class Polar:
    """The directions and lengths of one unit's tensors."""

    def __init__(self, unit: Unit, layout: Mapping[str, int]) -> None:
        self._size, self._grid = unit.size, unit.grid
        self._tensors = directed(unit, layout)
        self._pieces = pieces_of(self._tensors, unit.grid)
        sides = [math.sqrt(tensor.end - tensor.first) for tensor in self._tensors]
        self._most = np.array([np.finfo(np.float32).max / side for side in sides])
        assert unit.grid.size == self._size + len(self._tensors), "there is a place for every length"

    def of(self, values: Vector) -> Vector:
        """Return the directions and lengths of a unit's values; of what is not finite neither is."""
        made: Vector = np.empty(self._grid.size, np.float32)
        made[: self._size] = values
        with np.errstate(invalid="ignore"):
            for place, tensor in enumerate(self._tensors, self._size):
                part = made[tensor.first : tensor.end]
                length = made[place] = np.float32(_root_mean_square(part))
                if length:
                    part /= length
                else:
                    part.fill(0.0)  # too short to be told
        return made

    def back(self, merged: Vector) -> Vector:
        """Return the values of mean directions at mean lengths; nothing where there is no direction."""
        made: Vector = merged[: self._size].copy()
        for place, tensor in enumerate(self._tensors, self._size):
            part = made[tensor.first : tensor.end]
            direction = _root_mean_square(part)
            if direction > DIRECTION_MIN:
                part /= np.float32(direction)
                part *= merged[place]
            else:
                part.fill(0.0)
        return made

    def check(self, index: int, values: Vector) -> None:
        """Raise `BadChunk` for a chunk of a contribution that cannot be of directions and lengths."""
        for number, first, end in self._pieces[index]:
            tensor, part = self._tensors[number], values[first:end]
            if not float(np.dot(part, part)) <= LONGER * (tensor.end - tensor.first):
                raise BadChunk(f"a chunk has a part of {tensor.name}'s direction that is longer than a direction is")
        first, end = (max(0, bound - self._size) for bound in self._grid.bounds(index))
        lengths = values[values.size - (end - first) :]
        if (lengths < 0.0).any() or (lengths > self._most[first:end]).any():
            raise BadChunk("a chunk holds lengths that no values have")


def _root_mean_square(values: Vector) -> float:
    """Return how long a vector is beside one of as many ones: added up in a fixed order."""
    blocks = (values[first : first + BLOCK_ELEMENTS] for first in range(0, values.size, BLOCK_ELEMENTS))
    square = 0.0
    for block in blocks:
        square += inner(block, block)
    return math.sqrt(square / values.size)
