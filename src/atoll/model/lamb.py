"""LAMB: Adam whose step in each tensor is as long as that tensor, times the rate.

The formula is that of the common LAMB in `sync.merge`, which steps the anchor: moments freed of their bias, a decay of
every tensor, vectors too, that is part of the step before it is scaled, and no limit on the scale. What is zero has no
length to go by and is stepped as Adam steps it.

Counts, lengths and scales stay tensors where the weights are, so that nothing waits for a device and a step can be
recorded. It is worked out in the gradients' memory, which nobody needs any more: it takes none beside AdamW's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from atoll.model.stepping import Stepping


class LambOptimizer(Stepping):
    """Adam with decay in its step, each tensor's step scaled to the length of the tensor."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float | Tensor,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _move(self, tensors: list[Tensor], group: dict[str, Any]) -> None:
        """Step tensors, all together: what many small ones take is mostly the launching. Their gradients are spent."""
        moves = self._directions(tensors, group)
        if group["weight_decay"]:
            torch._foreach_add_(moves, tensors, alpha=group["weight_decay"])
        lengths = (scales(tensors, moves) * group["lr"]).unbind()
        torch._foreach_addcmul_(tensors, moves, lengths, value=-1)

    def _directions(self, tensors: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Remember gradients, and return where Adam would go: in their memory."""
        gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
        steps = [self._remembered(tensor, "step", ()) for tensor in tensors]
        first, second = (
            [self._remembered(tensor, slot, tensor.shape) for tensor in tensors] for slot in ("exp_avg", "exp_avg_sq")
        )
        beta1, beta2 = group["betas"]
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        counts, moves = torch.stack(steps), gradients
        torch._foreach_copy_(moves, second)
        torch._foreach_sqrt_(moves)
        torch._foreach_div_(moves, _seen(beta2, counts).sqrt().unbind())
        torch._foreach_add_(moves, group["eps"])
        torch._foreach_reciprocal_(moves)
        torch._foreach_mul_(moves, first)
        torch._foreach_div_(moves, _seen(beta1, counts).unbind())
        return moves


def scales(tensors: list[Tensor], moves: list[Tensor]) -> Tensor:
    """Return how often each move goes into the length of its tensor; one for a tensor that has none."""
    there, goes = _lengths(tensors), _lengths(moves)
    scaled = there / goes.masked_fill(goes == 0, 1.0)
    return scaled.masked_fill(scaled == 0, 1.0)


def _lengths(tensors: list[Tensor]) -> Tensor:
    """Return how long tensors are, by way of their rows: added up in one go, 30 million squares lose three digits."""
    rows = [torch.linalg.vector_norm(tensor, dim=-1) for tensor in tensors]
    return torch.stack(torch._foreach_norm(rows))


def _seen(beta: float, counts: Tensor) -> Tensor:
    """Return how much of a mean is what it has seen, 1 - beta^n; the direct way loses digits while that is little."""
    return -torch.expm1(counts * (math.log(beta) if beta else -math.inf))
