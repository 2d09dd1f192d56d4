"""Values as frequencies: each tile of a tensor by its cosines (DCT-II), so that few numbers say much of a smooth one.

A matrix is cut into tiles, a vector into runs, whose sides are the largest divisors of its own up to the recipe's. A
tile's frequencies lie together; matrices with whole tiles come first, so that a block of the codec that is as large as
a tile is one. The transform is orthonormal: lengths stay as they are, and so does what is fed back.

Contributions are made of frequencies, and so is their result. Going back is done by everybody, who must all get the
same bits: the fast cosine transform (Lee's: halves of halves) in fp64, elementwise, each operation rounded by itself,
with constants of so few digits that no library disagrees about them (`model.encoding.tiles`). A device does the same
(`model.encoding.cosines`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.model.compute import Vector
from atoll.model.encoding.tiles import Tiled, cosines, folds, scales
from atoll.spec.axes.what import Dct
from atoll.sync.units import Unit, tensors_in

Array = NDArray[np.float64]
BATCH_ELEMENTS = 2**16
"""So many are transformed at once: what a processor keeps near."""


class Frequencies:
    """The transform of one unit."""

    def __init__(self, dct: Dct, unit: Unit, layout: Mapping[str, tuple[int, ...]]) -> None:
        sizes = {name: math.prod(shape) for name, shape in layout.items()}
        found = [_place(dct, layout[name], first) for name, first, _ in tensors_in(unit, sizes)]
        self._size = unit.size
        places: list[Tiled] = []
        at = 0
        for place in sorted(found, key=lambda place: place.high * place.wide != dct.tile**2):
            places.append(place._replace(at=at))
            at += place.rows * place.columns
        self.tiles = tuple(places)

    def of(self, values: Vector) -> Vector:
        """Return the frequencies of a unit's values."""
        made: Vector = np.empty(self._size, np.float32)
        for place, there, here in self._bands():
            part = values[there].reshape(-1, place.high, place.columns // place.wide, place.wide)
            made[here] = _along(_forward, _along(_forward, part, 1), 3).transpose(0, 2, 1, 3).reshape(-1)
        return made

    def back(self, frequencies: Vector) -> Vector:
        """Return the values whose frequencies these are."""
        made: Vector = np.empty(self._size, np.float32)
        for place, there, here in self._bands():
            tiles = frequencies[here].reshape(-1, place.columns // place.wide, place.high, place.wide)
            made[there] = _along(_inverse, _along(_inverse, tiles.transpose(0, 2, 1, 3), 3), 1).reshape(-1)
        return made

    def _bands(self) -> Iterator[tuple[Tiled, slice, slice]]:
        """Yield some rows of tiles at a time: whose they are, where their values are, and where their frequencies."""
        for place in self.tiles:
            block = _tile_rows(place)
            for row in range(0, place.rows, block):
                skip, count = row * place.columns, min(block, place.rows - row) * place.columns
                values, frequencies = place.first + skip, place.at + skip
                yield place, slice(values, values + count), slice(frequencies, frequencies + count)


def _place(dct: Dct, shape: tuple[int, ...], first: int) -> Tiled:
    """Return how a tensor is cut; one of no dimensions or of more than two as a matrix of its last."""
    columns = shape[-1] if shape else 1
    rows = math.prod(shape[:-1])
    high = _side(rows, dct.tile) if len(shape) > 1 else 1
    return Tiled(rows, columns, high, _side(columns, dct.tile), first, 0)


def _side(length: int, most: int) -> int:
    """Return the largest divisor that is no larger than the most."""
    return next(side for side in range(min(length, most), 0, -1) if length % side == 0)


def _tile_rows(place: Tiled) -> int:
    """Return how many rows are transformed at once: whole tiles."""
    return max(1, BATCH_ELEMENTS // (place.columns * place.high)) * place.high


def _along(transform: Any, values: NDArray[Any], axis: int) -> Array:
    """Return an orthonormal transform along one axis, of sides of one nothing."""
    side = values.shape[axis]
    if side == 1:
        return values.astype(np.float64)
    first = np.ascontiguousarray(np.moveaxis(values, axis, 0), np.float64)
    scale = _column(scales(side), values.ndim)
    made = transform(first) * scale if transform is _forward else transform(first * scale)
    return np.moveaxis(made, 0, axis)


def _forward(x: Array) -> Array:
    """Return the sums of x times cosines, along the first axis: halves are folded, and transformed side by side."""
    side = len(x)
    if side == 1:
        return x
    if side % 2:
        return _summed(x, _table(side))
    half = side // 2
    low, high = x[:half], x[: half - 1 : -1]
    both = np.empty((half, 2, *x.shape[1:]))
    np.add(low, high, out=both[:, 0])
    np.subtract(low, high, out=both[:, 1])
    both[:, 1] *= _column(folds(side), x.ndim)
    done = _forward(both)
    made = np.empty_like(x)
    made[0::2] = done[:, 0]
    made[1::2] = done[:, 1]
    made[1:-1:2] += done[1:, 1]
    return made


def _inverse(x: Array) -> Array:
    """Return the sums of cosines times x, along the first axis: the other way round."""
    side = len(x)
    if side == 1:
        return x
    if side % 2:
        return _summed(x, _table(side).T)
    half = side // 2
    both = np.empty((half, 2, *x.shape[1:]))
    both[:, 0] = x[0::2]
    both[:, 1] = x[1::2]
    both[1:, 1] += x[1:-1:2]
    done = _inverse(both)
    done[:, 1] *= _column(folds(side), x.ndim)
    made = np.empty_like(x)
    np.add(done[:, 0], done[:, 1], out=made[:half])
    np.subtract(done[:, 0], done[:, 1], out=made[: half - 1 : -1])
    return made


def _summed(x: Array, table: Array) -> Array:
    """Return row after row of x times its row of a table, added up."""
    made = np.zeros_like(x)
    for row, factors in zip(x, table, strict=True):
        made += factors.reshape(-1, *[1] * row.ndim) * row
    return made


@cache
def _table(side: int) -> Array:
    return np.array(cosines(side), np.float64)


@cache
def _column(factors: tuple[float, ...], dimensions: int) -> Array:
    """Return factors of what lies along the first of so many dimensions."""
    return np.array(factors, np.float64).reshape(-1, *[1] * (dimensions - 1))
