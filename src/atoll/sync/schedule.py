"""How the learning rate moves over a run: a factor on the peak rate, from where the run stands.

Warm-up counts local steps; decay follows the share of the budget that is spent, because with peers
coming and going nobody knows beforehand how many steps a token budget will take.
"""

from __future__ import annotations

import math

from atoll.spec.recipe import Constant, Cosine, Schedule, Wsd


def rate(schedule: Schedule, step: int, spent: float) -> float:
    """Return the factor for local step `step` (from 0) when `spent` of the budget (0 to 1) is used."""
    spent = min(max(spent, 0.0), 1.0)
    warm = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    match schedule:
        case Constant():
            return warm
        case Cosine(floor=floor):
            return warm * (floor + (1 - floor) * (1 + math.cos(math.pi * spent)) / 2)
        case Wsd(decay=decay, floor=floor):
            left = min(1.0, (1 - spent) / decay) if decay else 1.0
            return warm * (floor + (1 - floor) * left)
