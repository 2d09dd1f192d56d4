"""Matrices as two thin factors: a few directions, and what of everybody's matrix lies along them (PowerSGD).

A matrix A is about P Q^T, with as many columns in P and Q as the rank says. One step of subspace iteration finds them,
from the directions Q of the step before, in two rounds of which the second needs the result of the first:

    directions   each sends A Q;     of the mean of these everybody makes an orthonormal P
    along them   each sends A^T P;   the mean of these is the next Q, and P Q^T is what the mean of all A is taken for

Both are linear, so a mean of contributions is the contribution of the mean. The second alone says what moves the
weights: P P^T times the mean of whoever is in it, whoever found the directions. Vectors, and what would hardly be
smaller, travel as they are with the second.

What contributors multiply is their own affair. What everybody makes of a result must be the same bits: lengths and
products are added up by halves in fp64, P Q^T column after column in fp32, each operation rounded by itself.
A device does all of this too (`model.encoding.products`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from atoll.errors import SpecError
from atoll.model.compute import Vector
from atoll.model.encoding.matrices import ALONG, Factored, Matrix
from atoll.model.shape import bell
from atoll.spec.axes.codec import Codec
from atoll.spec.axes.what import LowRank
from atoll.sync.grid import grid_of
from atoll.sync.units import Unit

Array = NDArray[np.float64]
BATCH_ELEMENTS = 2**16
"""So many are made at once: what a processor keeps near."""


class Factors:
    """How the tensors of one model travel."""

    def __init__(self, low: LowRank, shapes: Mapping[str, tuple[int, ...]], seed: int) -> None:
        self._seed = seed
        self._matrices: list[Matrix] = []
        self._whole: list[tuple[slice, slice]] = []
        """Where a tensor that travels as it is lies in the model, and where in what is exchanged."""
        self.size = self.left_size = self.right_size = 0
        whole: list[slice] = []
        ends = accumulate(math.prod(shape) for shape in shapes.values())
        for (name, shape), end in zip(shapes.items(), ends, strict=True):
            rows, columns = _sides(shape)
            rank = min(low.rank, rows, columns)
            if len(shape) > 1 and rows * columns >= low.least * rank * (rows + columns):
                self._matrices.append(Matrix(name, rows, columns, rank, self.size, self.left_size, self.right_size))
                self.left_size += rows * rank
                self.right_size += columns * rank
            else:
                whole.append(slice(self.size, end))
            self.size = end
        self.basis_size = self.right_size
        for part in whole:
            count = part.stop - part.start
            self._whole.append((part, slice(self.right_size, self.right_size + count)))
            self.right_size += count
        if not self._matrices:
            raise SpecError(
                f"recipe: what.transform: as factors of rank {low.rank} nothing here is {low.least:g} times smaller",
                hint="choose a smaller rank or least, or leave transform out",
            )

    @property
    def form(self) -> Factored:
        """Return which tensors travel how, for who works on them where the weights are."""
        whole = tuple((here.start, there.start, here.stop - here.start) for here, there in self._whole)
        return Factored(tuple(self._matrices), whole, self.size, self.left_size, self.right_size)

    def units(self, codec: Codec) -> tuple[Unit, Unit]:
        """Return what rounds are about, in turn: all of the model, in the chunks of what stands for it."""
        spans = ((0, self.size),)
        return Unit(spans, grid_of(self.left_size, codec)), Unit(spans, grid_of(self.right_size, codec))

    # what each contributes

    def directions(self, values: Vector, basis: Vector) -> Vector:
        """Return each matrix times the directions of the step before."""
        made = np.empty(self.left_size, np.float32)
        for each in self._matrices:
            np.matmul(_matrix(values, each), _right(basis, each), out=_left(made, each))
        return made

    def along(self, values: Vector, basis: Vector) -> Vector:
        """Return what of each matrix lies along this step's directions, and all of the other tensors."""
        made = np.empty(self.right_size, np.float32)
        for each in self._matrices:
            np.matmul(_matrix(values, each).T, _left(basis, each), out=_right(made, each))
        for here, there in self._whole:
            made[there] = values[here]
        return made

    # what everybody makes of results, to the same bits

    def first_basis(self) -> Vector:
        """Return the directions that a run begins with: by lot, the same for everybody."""
        return self.unit_columns(np.zeros(self.basis_size, np.float32), 0)

    def orthonormal(self, merged: Vector) -> Vector:
        """Return this step's directions: as long as one, at right angles; zero where one says nothing new."""
        made = np.empty_like(merged)
        for each in self._matrices:
            _left(made, each)[:] = _gram_schmidt(_left(merged, each))
        return made

    def next_basis(self, merged: Vector, version: int) -> Vector:
        """Return the directions to begin the next step with; drawn anew where this one found none."""
        return self.unit_columns(merged[: self.basis_size], version)

    def values(self, merged: Vector, basis: Vector) -> Vector:
        """Return the model's values that factors and whole tensors stand for."""
        made = np.empty(self.size, np.float32)
        for each in self._matrices:
            left, right, out = _left(basis, each), _right(merged, each), _matrix(made, each)
            for rows in _bands(each):
                out[rows] = left[rows, :1] * right[None, :, 0]
                for k in range(1, each.rank):
                    out[rows] += left[rows, k : k + 1] * right[None, :, k]
        for here, there in self._whole:
            made[here] = merged[there]
        return made

    def unit_columns(self, basis: Vector, version: int) -> Vector:
        """Return directions as long as one; where there is none, one that is drawn for the version."""
        made = np.empty_like(basis)
        for each in self._matrices:
            columns = _right(basis, each).astype(np.float64)
            lengths = np.sqrt(_summed(columns * columns))
            if (lengths == 0.0).any():
                drawn = bell(self._seed, f"basis {version} {each.name}", columns.shape, 1.0).astype(np.float64)
                columns = np.where(lengths == 0.0, drawn, columns)
                lengths = np.sqrt(_summed(columns * columns))
            _right(made, each)[:] = columns / lengths
        return made


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns; of a tensor of more dimensions, of a matrix of its last."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def _matrix(values: Vector, each: Matrix) -> Vector:
    return values[each.values].reshape(each.rows, each.columns)


def _left(values: Vector, each: Matrix) -> Vector:
    return values[each.lefts].reshape(each.rows, each.rank)


def _right(values: Vector, each: Matrix) -> Vector:
    return values[each.rights].reshape(each.columns, each.rank)


def _bands(each: Matrix) -> Iterator[slice]:
    """Yield some rows at a time."""
    step = max(1, BATCH_ELEMENTS // each.columns)
    for first in range(0, each.rows, step):
        yield slice(first, min(first + step, each.rows))


def _gram_schmidt(columns: Vector) -> Array:
    """Return columns made orthonormal one after the other, each freed of those before it twice, against rounding."""
    made = columns.astype(np.float64)
    for k in range(made.shape[1]):
        column = made[:, k]
        length = math.sqrt(_summed(column * column))
        for before in made.T[:k]:
            column -= before * _summed(before * column)
        for before in made.T[:k]:
            column -= before * _summed(before * column)
        left = math.sqrt(_summed(column * column))
        column[:] = column / left if left > ALONG * length else 0.0
    return made


def _summed(rows: Array) -> Array:
    """Return the sum of rows, added up by halves: in an order that depends on their number alone."""
    while len(rows) > 1:
        half = len(rows) // 2
        folded = rows[:half] + rows[half : 2 * half]
        rows = np.concatenate([folded, rows[2 * half :]]) if len(rows) % 2 else folded
    summed: Array = rows[0]
    return summed
