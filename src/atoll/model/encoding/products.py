"""Matrices as factors where the weights are: what `sync.factors` makes of them, on any device.

Layers are alike, so a matrix of each lies as far from the next one's as all others: such a stack is one operation. What
a contributor multiplies is its own affair, and a library's product. What everybody makes of results is the same to the
bit: P Q^T column after column in fp32, which is one pass of a kernel on a CUDA device (`model.encoding.programs`) if
that makes the same bits there; lengths and products of directions added up by halves in fp64, those of one length
together.
"""

from __future__ import annotations

import math
import re
from functools import cache, lru_cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atoll.model.encoding.matrices import ALONG, Factored, Matrix
from atoll.model.encoding.trust import launch, trusted

RANK_MAX = 32
"""Columns that a kernel goes through."""
_HIGH, _WIDE = 16, 128
"""Rows and columns that one program has in its registers."""
_PARTS = 64
"""Into so many a tall matrix is cut, whose product would keep only a few of a device's processors busy."""


class Stack(NamedTuple):
    """Matrices of one shape: how many, where the first and its factors begin, and how far apart they are."""

    many: int
    one: Matrix
    step: int
    left_step: int
    right_step: int

    def matrices(self, values: Tensor) -> Tensor:
        """Return them, in the memory of a model."""
        one = self.one
        return _strided(values, (self.many, one.rows, one.columns), self.step, one.first)

    def lefts(self, values: Tensor) -> Tensor:
        """Return their left factors, in the memory of all of these."""
        return _strided(values, (self.many, self.one.rows, self.one.rank), self.left_step, self.one.left)

    def rights(self, values: Tensor) -> Tensor:
        """Return their right factors, in the memory of all of these."""
        return _strided(values, (self.many, self.one.columns, self.one.rank), self.right_step, self.one.right)


def _strided(values: Tensor, shape: tuple[int, int, int], step: int, first: int) -> Tensor:
    return values.as_strided(shape, (step, shape[2], 1), values.storage_offset() + first)


@lru_cache(maxsize=4)
def stacks(form: Factored) -> list[Stack]:
    """Return the matrices of a model, those of all layers together that have the same part in each."""
    found: dict[tuple[object, ...], list[Matrix]] = {}
    for each in form.matrices:
        found.setdefault((re.sub(r"\d+", "", each.name), each.rows, each.columns, each.rank), []).append(each)
    return [stack for alike in found.values() for stack in _stacked(alike)]


def _stacked(alike: list[Matrix]) -> list[Stack]:
    """Return one stack of matrices that are evenly apart, or one of each."""
    steps = {(b.first - a.first, b.left - a.left, b.right - a.right) for a, b in pairwise(alike)}
    if len(steps) > 1:
        return [Stack(1, each, 0, 0, 0) for each in alike]
    return [Stack(len(alike), alike[0], *(steps.pop() if steps else (0, 0, 0)))]


# what each contributes


def directions(form: Factored, values: Tensor, basis: Tensor) -> Tensor:
    """Return each matrix times the directions of the step before."""
    made = values.new_empty(form.left_size)
    for stack in stacks(form):
        stack.lefts(made).copy_(torch.bmm(stack.matrices(values), stack.rights(basis)))
    return made


def along(form: Factored, values: Tensor, basis: Tensor) -> Tensor:
    """Return what of each matrix lies along this step's directions, and all of the other tensors."""
    made = values.new_empty(form.right_size)
    for stack in stacks(form):
        stack.rights(made).copy_(_transposed_product(stack.matrices(values), stack.lefts(basis)))
    for here, there, count in form.whole:
        made[there : there + count] = values[here : here + count]
    return made


def _transposed_product(matrices: Tensor, lefts: Tensor) -> Tensor:
    """Return A^T P; of one tall matrix part by part, since a library adds up its rows one after the other."""
    parts = math.gcd(matrices.shape[1], _PARTS) if len(matrices) == 1 else 1
    if parts == 1:
        return torch.bmm(matrices.transpose(1, 2), lefts)
    cut, along = (each.reshape(parts, -1, each.shape[2]) for each in (matrices, lefts))
    return torch.bmm(cut.transpose(1, 2), along).sum(0, keepdim=True)


# what everybody makes of results, to the same bits


def values(form: Factored, merged: Tensor, basis: Tensor) -> Tensor:
    """Return the model's values that factors and whole tensors stand for."""
    made = merged.new_empty(form.size)
    for stack in stacks(form):
        (_fused if _fits(stack, merged.device) else _plain)(stack, merged, basis, made, minus=False)
    for here, there, count in form.whole:
        made[here : here + count] = merged[there : there + count]
    return made


def subtract(form: Factored, wanted: Tensor, arrives: Tensor, basis: Tensor) -> None:
    """Take off a model's values what factors and whole tensors stand for."""
    for stack in stacks(form):
        (_fused if _fits(stack, wanted.device) else _plain)(stack, arrives, basis, wanted, minus=True)
    for here, there, count in form.whole:
        wanted[here : here + count] -= arrives[there : there + count]


def _plain(stack: Stack, merged: Tensor, basis: Tensor, made: Tensor, *, minus: bool) -> None:
    """Write P Q^T of each matrix, or take it off: one after the other, since each takes as much memory again."""
    for left, right, out in zip(stack.lefts(basis), stack.rights(merged), stack.matrices(made), strict=True):
        product = left[:, :1] * right[None, :, 0]
        for k in range(1, stack.one.rank):
            product += left[:, k : k + 1] * right[None, :, k]
        out.sub_(product) if minus else out.copy_(product)


def orthonormal(form: Factored, merged: Tensor) -> Tensor:
    """Return this step's directions: as long as one, at right angles; zero where one says nothing new."""
    made = torch.empty_like(merged)
    for places in _columns(form, merged.device, right=False):
        made[places] = _gram_schmidt(merged[places].double()).float()
    return made


def unit_columns(form: Factored, basis: Tensor) -> Tensor | None:
    """Return directions as long as one; None: there is one without a length."""
    made = torch.empty_like(basis)
    for places in _columns(form, basis.device, right=True):
        columns = basis[places].double()
        lengths = _summed(columns * columns).sqrt()
        if not bool((lengths != 0.0).all()):
            return None
        made[places] = (columns / lengths).float()
    return made


@lru_cache(maxsize=8)
def _columns(form: Factored, device: torch.device, *, right: bool) -> list[Tensor]:
    """Return where factors of one length and rank are, a matrix after the other in the last dimension."""

    def shape(each: Matrix) -> tuple[int, int]:
        return (each.columns if right else each.rows), each.rank

    found = []
    for (length, rank), alike in groupby(sorted(form.matrices, key=shape), shape):
        firsts = torch.tensor([each.right if right else each.left for each in alike], device=device)
        found.append(torch.arange(length * rank, device=device).view(length, rank, 1) + firsts)
    return found


def _gram_schmidt(columns: Tensor) -> Tensor:
    """Return columns made orthonormal one after the other, each freed of those before it twice, against rounding.

    Of the two times the first is done for all later ones at once: each is still freed of one after the other.
    """
    lengths = _summed(columns * columns).sqrt()
    for k in range(columns.shape[1]):
        column = columns[:, k]
        for j in range(k):
            before = columns[:, j]
            column -= before * _summed(before * column)
        left = _summed(column * column).sqrt()
        column.copy_(torch.where(left > ALONG * lengths[k], column / left, 0.0))
        later = columns[:, k + 1 :]
        later -= column[:, None] * _summed(column[:, None] * later)
    return columns


def _summed(rows: Tensor) -> Tensor:
    """Return the sum of rows, added up by halves: in an order that depends on their number alone."""
    while len(rows) > 1:
        half = len(rows) // 2
        folded = rows[:half] + rows[half : 2 * half]
        rows = torch.cat([folded, rows[2 * half :]]) if len(rows) % 2 else folded
    return rows[0]


# in one pass


def _fits(stack: Stack, device: torch.device) -> bool:
    return stack.one.rank <= RANK_MAX and trusted(same_products, device)


def _fused(stack: Stack, merged: Tensor, basis: Tensor, made: Tensor, *, minus: bool) -> None:
    """Write P Q^T of each matrix, or take it off."""
    one = stack.one
    launch(
        _kernels().outer,
        (stack.many, -(-one.rows // _HIGH), -(-one.columns // _WIDE)),
        basis[one.left :],
        merged[one.right :],
        made[one.first :],
        made[one.first :],
        one.rows,
        one.columns,
        stack.left_step,
        stack.right_step,
        stack.step,
        RANK=one.rank,
        MINUS=minus,
        HIGH=_HIGH,
        WIDE=_WIDE,
    )


@cache
def _kernels() -> Any:
    """Return the kernels; raises `ImportError` where Triton is not."""
    from atoll.model.encoding import programs

    return programs


def same_products(device: torch.device) -> bool:
    """Return whether kernels make the same bits, of stacks and of one matrix."""
    made = torch.Generator().manual_seed(0)
    for stack in (
        Stack(3, Matrix("", 19, 200, 4, 5, 3, 2), 4000, 80, 810),
        Stack(1, Matrix("", 33, 7, 1, 0, 1, 0), 0, 0, 0),
    ):
        basis, merged, one = (torch.randn(size, generator=made).to(device) for size in (300, 2500, 13_000))
        other = one.clone()
        for minus in (False, True):
            _plain(stack, merged, basis, one, minus=minus)
            _fused(stack, merged, basis, other, minus=minus)
        if not torch.equal(one.view(torch.int32), other.view(torch.int32)):
            return False
    return True
