"""What optimizers of our own share: a step of every group of tensors, and what they remember of a tensor.

Torch's contract for a step has a closure, which nobody here passes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor


class Stepping(torch.optim.Optimizer):
    """An optimizer that steps some tensors at a time, in place."""

    def __init__(self, groups: Iterable[dict[str, Any]], **rates: Any) -> None:
        # With a rate that lies on the device a step asks the processor for nothing, and can be recorded.
        super().__init__(groups, {**rates, "capturable": isinstance(rates["lr"], Tensor)})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step of every tensor that has a gradient."""
        assert closure is None, "nobody asks for one here"
        for group in self.param_groups:
            if tensors := [tensor for tensor in group["params"] if tensor.grad is not None]:
                self._move(tensors, group)
        return None

    @abstractmethod
    def _move(self, tensors: list[Tensor], group: dict[str, Any]) -> None:
        """Step the tensors of a group, all of which have gradients."""

    def _remembered(self, tensor: Tensor, slot: str, shape: tuple[int, ...]) -> Tensor:
        """Return something that is kept about a tensor, zeros at first."""
        state = self.state[tensor]
        if slot not in state:
            state[slot] = tensor.new_zeros(shape)
        kept: Tensor = state[slot]
        return kept
