"""Whether a kernel may be used on a device: only after it made the same bits there as its plain form.

A compiler's word is not enough, so a kernel's first use on a device is a comparison, of a trial that whoever has both
forms chooses (`same_int8` and the like): where it cannot be compiled, or one bit is another, the plain form is taken
there, and nothing is lost but time. Where bits may differ the comparison is of what they cost (`rounding.as_good`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch

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
        if same(device, *of):
            return True
        why = "it does not make there what its plain form does"
    except ImportError:
        return False
    except Exception as error:  # whatever a compiler may say: there is another way
        why = str(error)
    warnings.warn(f"{same.__name__}{of or ''}: not fused on {device}: {why}", RuntimeWarning, stacklevel=4)
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
