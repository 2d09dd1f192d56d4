"""The ceiling on data parallelism: beyond the critical batch more samples at once mostly means more samples.

A model needs (1 + B / B_crit) times as many samples to get as far with a batch of B (McCandlish et al. 2018). R equal
peers of B each are therefore worth R (1 + B / B_crit) / (1 + R B / B_crit) of one, never more than 1 + B_crit / B.
How large B_crit is depends on model and data and grows during training: it is an input here.
"""

from __future__ import annotations

from atoll.plan.cost.flops import Number


def samples_factor(batch: Number, critical: Number) -> Number:
    """Return how many times more samples training takes than with a tiny batch."""
    return 1.0 + batch / critical


def speed_up(members: Number, batch: Number, critical: Number) -> Number:
    """Return what so many peers of one batch each are worth, in peers."""
    return members * samples_factor(batch, critical) / samples_factor(members * batch, critical)


def speed_up_max(batch: Number, critical: Number) -> Number:
    """Return what no number of peers exceeds."""
    return 1.0 + critical / batch


def members_for(efficiency: Number, batch: Number, critical: Number) -> Number:
    """Return how many peers there may be for each to be worth so much of one: more are better used otherwise."""
    return (samples_factor(batch, critical) / efficiency - 1.0) * critical / batch
