"""Muon: steps of matrices in which every direction moves about as far as any other.

Torch has one of its own, which works in bf16 on every device; on a processor without bf16 a single step of a small
model then takes seconds. This one works in fp32 on a CPU, as all training there, and in bf16 on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor

STEPS = 5
A, B, C = 3.4445, -4.7750, 2.0315
"""Jordan et al.'s quintic: steep at zero, so that five steps lift small singular values to between 0.7 and 1.2."""
NORM_MIN = 1e-7


class MuonOptimizer(torch.optim.Optimizer):
    """Momentum, made orthonormal, scaled up for matrices that are taller than wide; decoupled weight decay."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float | Tensor,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
    ) -> None:
        rates = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        # With a rate that lies on the device a step asks the processor for nothing, and can be recorded.
        super().__init__(groups, {**rates, "capturable": isinstance(lr, Tensor)})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step of every matrix that has a gradient."""
        assert closure is None, "nobody asks for one here"
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._move(matrix, matrix.grad, group)
        return None

    def _move(self, matrix: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        mean = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        direction = orthonormal(gradient.lerp(mean, group["momentum"]) if group["nesterov"] else mean)
        rows, columns = matrix.shape
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        matrix.sub_(direction * (group["lr"] * max(1.0, rows / columns) ** 0.5))


def orthonormal(matrix: Tensor) -> Tensor:
    """Return a matrix with the same directions, all of about length one (Newton-Schulz)."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.bfloat16() if matrix.device.type == "cuda" else matrix.clone()
    x = x.T if tall else x
    x = x / x.norm().clamp(min=NORM_MIN)
    for _ in range(STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return (x.T if tall else x).to(matrix.dtype)
