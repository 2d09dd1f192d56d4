"""What kernels are tried with before they are trusted (`model.encoding.trust`)."""

from __future__ import annotations

import torch
from torch import Tensor


def trial(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Return numbers of all sizes, many of them equal, some nothing."""
    made = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=made)
    sizes = torch.randint(-148, 100, (shape[0], 1), generator=made).float().exp2()
    values[1::2] = (values[1::2] * 4).round()
    values[2::4, : shape[1] // 2] = 0.0
    return (values * torch.where(torch.arange(shape[0])[:, None] % 3 == 0, sizes, torch.ones_like(sizes))).to(device)


def equal_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether all numbers are the same, nothing and its negative apart."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
