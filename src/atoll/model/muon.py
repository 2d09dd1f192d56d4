"""Muon: steps of matrices in which every direction moves about as far as any other.

Torch has one of its own, which works in bf16 on every device; on a processor without bf16 a single step of a small
model then takes seconds. This one works in fp32 on a CPU, as all training there, and in bf16 on CUDA.

Directions are equal then, rows are not: with a `beta2` each row is divided by the root of the mean square of its moves
so far, so that in the mean they move alike (Li et al. 2025, NorMuon, arXiv 2510.05491). The whole is scaled back to the
length it had, so that a rate means the same with and without; in the paper it is scaled to a fixed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from atoll.model.shape import NEWTON_STEPS
from atoll.model.stepping import Stepping

A, B, C = 3.4445, -4.7750, 2.0315
"""Jordan et al.'s quintic: steep at zero, so that five steps lift small singular values to between 0.7 and 1.2."""
NORM_MIN = 1e-7
ROW_MIN = 1e-8
"""Added to the size of a row's moves: a row that never moves stays where it is."""
TOGETHER = 2**25
"""Elements that are stepped at once, at most: their copies take a few times their memory."""


class MuonOptimizer(Stepping):
    """Momentum, made orthonormal, scaled up for matrices that are taller than wide; decoupled weight decay."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float | Tensor,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
        beta2: float = 0.0,
    ) -> None:
        super().__init__(groups, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, beta2=beta2)

    def _move(self, tensors: list[Tensor], group: dict[str, Any]) -> None:
        """Step matrices, those of one shape together: what many small ones take is mostly the launching of it."""
        for matrices in _alike(tensors):
            self._together(matrices, group)

    def _together(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        means = [self._remembered(matrix, "momentum_buffer", matrix.shape) for matrix in matrices]
        torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, means, group["momentum"]) if group["nesterov"] else means
        rows, columns = matrices[0].shape
        moves = orthonormal(torch.stack(ahead))
        if group["beta2"]:
            squares = [self._remembered(matrix, "row_squares", (len(matrix), 1)) for matrix in matrices]
            torch._foreach_lerp_(squares, list(row_squares(moves).unbind()), 1 - group["beta2"])
            moves = evened(moves, torch.stack(squares))
        moves = moves * (group["lr"] * max(1.0, rows / columns) ** 0.5)
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_sub_(matrices, moves.unbind())


def orthonormal(matrices: Tensor) -> Tensor:
    """Return matrices with the same directions, all of about length one (Newton-Schulz)."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.bfloat16() if matrices.device.type == "cuda" else matrices
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=NORM_MIN)
    for _ in range(NEWTON_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return (x.mT if tall else x).to(matrices.dtype)


def row_squares(moves: Tensor) -> Tensor:
    """Return the mean square of every row of matrices."""
    return moves.square().mean(dim=-1, keepdim=True)


def evened(moves: Tensor, squares: Tensor) -> Tensor:
    """Return moves of the same length, each row divided by the root of its mean square so far."""
    even = moves / (squares.sqrt() + ROW_MIN)
    lengths = [each.norm(dim=(-2, -1), keepdim=True) for each in (moves, even)]
    scaled: Tensor = even * (lengths[0] / lengths[1].clamp(min=NORM_MIN))
    return scaled


def _alike(matrices: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield matrices of the same shape together, as many as may be copied at once."""
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for matrix in matrices:
        by_shape.setdefault(matrix.shape, []).append(matrix)
    for alike in by_shape.values():
        few = max(1, TOGETHER // alike[0].numel())
        yield from (alike[first : first + few] for first in range(0, len(alike), few))
