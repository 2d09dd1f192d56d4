"""How the learning rate moves over a run: a factor on the peak rate, from where the run stands.

Warm-up counts local steps; decay follows the share of the budget that is spent, because with peers
coming and going nobody knows beforehand how many steps a token budget will take. A cyclic rate follows the round.
"""

from __future__ import annotations

import math

from atoll.spec.axes.work import Constant, Cosine, Cyclic, Schedule, Wsd


def rate(schedule: Schedule, step: int, spent: float, within: float = 0.0) -> float:
    """Return the factor for local step `step` (from 0), with `spent` of the budget and `within` of the round past."""
    spent = min(max(spent, 0.0), 1.0)
    warm = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    match schedule:
        case Constant():
            return warm
        case Cosine(floor=floor):
            return warm * (floor + (1 - floor) * (1 + math.cos(math.pi * spent)) / 2)
        case Cyclic(floor=floor):
            return warm * math.pow(floor, within)
        case Wsd(decay=decay, floor=floor):
            left = min(1.0, (1 - spent) / decay) if decay else 1.0
            return warm * (floor + (1 - floor) * left)
