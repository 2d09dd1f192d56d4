"""Ratios of magnitudes to limits, counted by a byte of their bits (`model.encoding.peaks`), on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def ratio_counts(values: Tensor, limits: Tensor, bits: int, shift: int) -> Tensor:
    """Return how many ratios have each byte `shift` bits from their end, of those that have such bits before it."""
    ratios = (values.abs() / limits).view(torch.int32)
    if shift < 24:
        ratios = ratios[ratios >> shift + 8 == bits]
    return torch.bincount(ratios >> shift & 0xFF, minlength=256)
