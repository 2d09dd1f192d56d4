"""Whether kernels may be used on a device: only after they made the same bits there as the plain forms.

A compiler's word is not enough: where kernels cannot be compiled, or one bit is another, nothing is lost but time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

Check = Callable[[torch.device], bool]
"""Compares kernels with the plain forms on a device; raises `ImportError` where Triton is not."""


def trusted(check: Check, device: torch.device) -> bool:
    """Return whether kernels make the same bits on a device; asked for the first time, they are tried."""
    return device.type == "cuda" and _tried(check, device)


@cache
def _tried(check: Check, device: torch.device) -> bool:
    try:
        return check(device)
    except ImportError:
        return False
    except Exception as error:  # whatever a compiler may say: there is another way
        warnings.warn(f"not fused on {device}: {error}", RuntimeWarning, stacklevel=4)
        return False


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **also: Any) -> None:
    """Start one kernel where its values are; nothing in it is rounded later than it is written."""
    with torch.cuda.device_of(given[0]):  # type: ignore[no-untyped-call]
        kernel[grid](*given, **also, enable_fp_fusion=False)
