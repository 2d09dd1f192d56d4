"""Results rounded by what their layers' inputs look at: the same bits, chosen otherwise.

A sign leaves out much of every element. What that does to a layer y = W x depends on its inputs: a row e of errors
costs e S e' in the mean, S being the inputs' second moments, of which a few directions have most. So a row is rounded
one element after the other, and what is missed goes into those that follow, as inputs have them in common (GPTQ:
Frantar et al. 2022; in this form Chee et al. 2023, QuIP):

    wanted[k]  +=  sum of missed[j] * R[j, k] / R[k, k], j < k        R R' = S / mean of its diagonal + damping

R is upper triangular, so the cost is the sum over k of (missed[k] R[k, k] + sum of missed[j] R[j, k])^2, and each
element does what is best for its own term. In all a row then misses more than if each were rounded to what is nearest,
but where inputs have little, and half as much where they have most. Feedback brings later what was missed; and nothing
that a model is given shows it meanwhile, so that nobody's training makes up for it a second time.

The result is values of which a block's all have one magnitude: `codec` makes the same of them as of any others, and who
gets them need not know. That magnitude is the block's mean, times what is then best for the inputs, within reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.model.compute import Moments, Rounder, Vector
from atoll.sync.units import Tensor, Unit, pieces_of, tensors_in

Matrix = NDArray[np.float32]

NEAR = 32
"""Columns whose errors are passed on one by one; to those behind them they go together."""
LEAST, MOST = 0.3, 3.0
"""Of a block's mean magnitude its own may be."""
HUGE = 1e30
"""Beyond that it is the mean: nobody can tell what is best for the inputs, and codecs have an end."""


class Segment(NamedTuple):
    """Rows of a matrix in a chunk, whole ones or of one row a part: where in the chunk, and which of its columns."""

    tensor: str
    run: slice
    columns: slice


def segments_of(unit: Unit, layout: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> list[list[Segment]]:
    """Return how each chunk is made of rows of matrices; what is no matrix is in none."""
    tensors = tensors_in(unit, layout)
    found: list[list[Segment]] = []
    for index, pieces in enumerate(pieces_of(tensors, unit.grid)):
        first, _ = unit.grid.bounds(index)
        rows = [_rows(tensors[number], shapes, slice(first + a, first + b)) for number, a, b in pieces]
        found.append([_moved(segment, -first) for some in rows for segment in some])
    return found


def _rows(tensor: Tensor, shapes: Mapping[str, tuple[int, ...]], run: slice) -> Iterable[Segment]:
    """Yield the rows in some of a matrix's elements: the end of one, whole ones, the beginning of one."""
    shape = shapes[tensor.name]
    if len(shape) != 2:
        return
    width, origin = shape[1], tensor.first
    low, high = run.start - origin, run.stop - origin
    first_whole, last_whole = -(-low // width) * width, high // width * width
    cuts = [low, high] if first_whole > last_whole else sorted({low, first_whole, last_whole, high})
    for a, b in pairwise(cuts):
        columns = slice(0, width) if (b - a) % width == 0 else slice(a % width, a % width + b - a)
        yield Segment(tensor.name, slice(origin + a, origin + b), columns)


def _moved(segment: Segment, by: int) -> Segment:
    return segment._replace(run=slice(segment.run.start + by, segment.run.stop + by))


class RowsHere:
    """What is seen of inputs, and rows rounded by it on the processor (on a device: `model.encoding.rounding`)."""

    def __init__(self, moments: Mapping[str, Moments], damping: float) -> None:
        self._moments, self._damping = moments, damping

    def known(self, tensor: str) -> tuple[Matrix, Matrix] | None:
        seen = self._moments.get(tensor)
        return None if seen is None else prepared(seen, self._damping)

    def rounded(
        self, known: tuple[Matrix, Matrix], columns: slice, wanted: Matrix, sizes: Matrix
    ) -> tuple[Matrix, Matrix]:
        passed_on, felt = (each[columns, columns] for each in known)
        signed = rounded_rows(wanted, sizes, passed_on)
        return signed, signed @ felt


class Seen:
    """Rounds the chunks of one round's result that an owner has."""

    def __init__(
        self,
        segments: Mapping[int, Sequence[Segment]],
        rounder: Rounder,
        *,
        block: int,
        gain: float = 1.0,
    ) -> None:
        self._segments, self._rounder = segments, rounder
        self._block, self._gain = block, np.float32(gain)
        self._known: dict[str, tuple[Any, Any] | None] = {}

    def rounded(self, index: int, values: Vector) -> Vector:
        """Return what a chunk's values are to become; those of which no inputs are known as they are."""
        with np.errstate(all="ignore"):
            return self._rounded(index, values)

    def _rounded(self, index: int, values: Vector) -> Vector:
        means = _means(np.abs(values), self._block)
        sizes = _each(self._gain * means, self._block, values.size)
        made, costs = values.copy(), np.zeros((2, values.size), np.float32)
        signed_runs = []
        for segment in self._segments[index]:
            if segment.tensor not in self._known:
                self._known[segment.tensor] = self._rounder.known(segment.tensor)
            known = self._known[segment.tensor]
            if known is None:
                continue
            run, width = segment.run, segment.columns.stop - segment.columns.start
            wanted, own = values[run].reshape(-1, width), sizes[run].reshape(-1, width)
            signed, felt = self._rounder.rounded(known, segment.columns, wanted, own)
            made[run] = signed.reshape(-1)
            costs[0, run], costs[1, run] = (wanted * felt).reshape(-1), (signed * felt).reshape(-1)
            signed_runs.append(run)
        best = self._best(costs, means)
        for run in signed_runs:
            made[run] *= best[run]
        return made

    def _best(self, costs: NDArray[np.float32], means: Vector) -> Vector:
        """Return what the magnitude of each element's block is best multiplied by."""
        wanted, own = (_means(each, self._block) for each in costs)
        factors = np.divide(wanted, own, out=np.ones_like(own), where=own > 0)
        factors[~np.isfinite(factors) | (means > HUGE)] = 1.0
        return _each(np.clip(factors, LEAST, MOST), self._block, costs.shape[1])


def prepared(moments: Moments, damping: float) -> tuple[Matrix, Matrix] | None:
    """Return what part of each column's error goes into the ones behind it, and the damped moments behind that."""
    every = float(np.mean(np.diagonal(moments), dtype=np.float64))
    if not (np.isfinite(moments).all() and every > 0):
        return None  # of a layer that is given nothing, or of training that has diverged, which others say
    damped = moments.astype(np.float64) / every  # so that no matrix counts more than another
    damped[np.diag_indices_from(damped)] += damping
    upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
    return (upper / np.diagonal(upper)).astype(np.float32), damped.astype(np.float32)


def rounded_rows(wanted: Matrix, sizes: Matrix, passed_on: Matrix) -> Matrix:
    """Return a sign times a size for every element, so that errors make up for each other along rows."""
    values, sizes = np.ascontiguousarray(wanted.T), np.ascontiguousarray(sizes.T)
    corrected, made = values.copy(), np.empty_like(values)
    for first in range(0, len(values), NEAR):
        end = min(first + NEAR, len(values))
        for at in range(first, end):
            np.copysign(sizes[at], corrected[at], out=made[at])
            corrected[at + 1 : end] += passed_on[at, at + 1 : end, None] * (values[at] - made[at])
        corrected[end:] += passed_on[first:end, end:].T @ (values[first:end] - made[first:end])
    return np.ascontiguousarray(made.T)


def _means(values: Vector, block: int) -> Vector:
    """Return the mean of each block, the last perhaps a short one."""
    starts = np.arange(0, values.size, block)
    counts = np.minimum(block, values.size - starts)
    means: Vector = (np.add.reduceat(values, starts) / counts).astype(np.float32)
    return means


def _each(blocks: Vector, block: int, size: int) -> Vector:
    """Return for every element what its block has."""
    return np.repeat(blocks, block)[:size]
