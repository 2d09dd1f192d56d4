"""Whether a kernel may be used on a device: only after it made the same bits there as its plain form.

A compiler's word is not enough, so a kernel's first use on a device is a comparison, of a trial that whoever has both
forms chooses (`same_int8` and the like): where it cannot be compiled, or one bit is another, the plain form is taken
there, and nothing is lost but time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
from torch import Tensor

WIDTHS = (32, 8192)
"""Rows that fit into one program's registers."""
Same = Callable[..., bool]
"""Compares a kernel with its plain form on a device, of what else it is given; raises `ImportError` without Triton."""


def trusted(same: Same, device: torch.device, *of: Hashable) -> bool:
    """Return whether a kernel makes the same bits on a device; asked for the first time, it is tried."""
    return device.type == "cuda" and _tried(same, device, *of)


@cache
def _tried(same: Same, device: torch.device, *of: Hashable) -> bool:
    try:
        return same(device, *of)
    except ImportError:
        return False
    except Exception as error:  # whatever a compiler may say: there is another way
        warnings.warn(f"{same.__name__}: not fused on {device}: {error}", RuntimeWarning, stacklevel=4)
        return False


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **also: Any) -> None:
    """Start one kernel where its values are; nothing in it is rounded later than it is written."""
    with torch.cuda.device_of(given[0]):  # type: ignore[no-untyped-call]
        kernel[grid](*given, **also, enable_fp_fusion=False)


def fits(width: int) -> bool:
    """Return whether one program can have a row of such a width."""
    return WIDTHS[0] <= width <= WIDTHS[1] and is_power(width)


def is_power(width: int) -> bool:
    """Return whether a width is a power of two, as all that programs have must be."""
    return width & (width - 1) == 0


def trial(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Return numbers of all sizes, many of them equal, some nothing."""
    made = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=made)
    sizes = torch.randint(-148, 100, (shape[0], 1), generator=made).float().exp2()
    values[1::2] = (values[1::2] * 4).round()
    values[2::4, : shape[1] // 2] = 0.0
    return (values * torch.where(torch.arange(shape[0])[:, None] % 3 == 0, sizes, torch.ones_like(sizes))).to(device)


def equal_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of fp32 are the same bits."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
