"""What is to be sent, on any device: the way from somewhere to the weights, or a mean, and what was left out before."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Ends(NamedTuple):
    """What it is made of, some elements each."""

    base: Tensor
    """Where work began, or what there is a mean of, or the values themselves."""
    weights: Tensor | None
    """Where it has come to; none: it is about a mean."""
    steps: int
    """Of how many."""
    before: Tensor | None
    """What was left out before; none: it is forgotten, or kept otherwise."""
    decay: float
    """So much of that counts."""

    @property
    def is_made(self) -> bool:
        """Return whether the values themselves are to be sent."""
        return self.weights is None and self.steps == 1 and self.before is None

    def in_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return base, weights and what was left out before as kernels read them; the base for what there is not."""
        base = self.base.contiguous()
        weights, before = (base if each is None else each.contiguous() for each in (self.weights, self.before))
        return base, weights, before


def as_it_is(values: Tensor) -> Ends:
    """Return what values are made of that need no making."""
    return Ends(values, None, 1, None, 1.0)


def wanted(ends: Ends, bad: Tensor) -> Tensor:
    """Return it in memory of its own; `bad` becomes more than zero if any of it is not finite."""
    if ends.weights is not None:
        values = ends.base - ends.weights
    else:
        # By a number on the device: by one in the host's memory it would be multiplied with the reciprocal.
        values = ends.base / torch.tensor(float(ends.steps), device=ends.base.device)
    if ends.before is not None:
        # Two operations, each rounded by itself: as `sync.feedback` does it.
        values = (ends.before * ends.decay).add_(values)
    bad += ~values.isfinite().all()
    return values
