"""Stages in a row, each with a line to the next: how long many micro-batches take, by formula and played out.

    T(n) = sum (C_p + R_p) + (n - 1) max over p of max(C_p, R_p)

A stage computes one micro-batch while its line sends the one before: what is slowest sets the pace, the rest is the way
through. The formula is FusionAI's, as others retell it.
"""

from __future__ import annotations

from collections.abc import Sequence


def pipeline_s(compute_s: Sequence[float], send_s: Sequence[float], batches: int) -> float:
    """Return when the last of so many micro-batches is through, by formula."""
    return sum(compute_s) + sum(send_s) + (batches - 1) * max(*compute_s, *send_s)


def run_s(compute_s: Sequence[float], send_s: Sequence[float], batches: int) -> float:
    """Return the same, played: everything begins when what it needs is there and who does it is free."""
    free = [0.0] * (2 * len(compute_s))
    takes = [each for pair in zip(compute_s, send_s, strict=True) for each in pair]
    for _ in range(batches):
        ready = 0.0
        for place, takes_s in enumerate(takes):
            ready = free[place] = max(ready, free[place]) + takes_s
    return free[-1]
