"""Numbers that somebody said, before a formula divides by them: whatever is none is refused by its name."""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.errors import SpecError


def positive(**numbers: Any) -> None:
    """Refuse what is not a finite number above 0 (or an array of such)."""
    _demand(numbers, 0.0, "a finite number above 0", above=True)


def not_negative(**numbers: Any) -> None:
    """Refuse what is not a finite number from 0 on."""
    _demand(numbers, 0.0, "a finite number, at least 0")


def part(**numbers: Any) -> None:
    """Refuse what is no part of something: more than 0, at most 1."""
    _demand(numbers, 0.0, "a number above 0 and at most 1", above=True, most=1.0)


def _demand(
    numbers: dict[str, Any], least: float, hint: str, *, above: bool = False, most: float = float("inf")
) -> None:
    for name, number in numbers.items():
        said = np.asarray(number, float)
        if not np.all(np.isfinite(said) & (said >= least) & (said <= most) & ((said > least) | (not above))):
            raise SpecError(f"{name}: {number} is out of range", hint=hint)
