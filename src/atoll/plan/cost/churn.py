"""Machines that come and go: how often enough of them are there, and what their leaving costs.

Times up and down are exponential, as a fleet file says them. A pipeline needs every stage; a round of replicas needs a
quorum of those that began it. (How often to write a checkpoint is money's question.)
"""

from __future__ import annotations

import math

import numpy as np

from atoll.plan.cost.flops import Number

LONG = 500.0
"""Whoever leaves so many times in a round finishes none."""


def availability(up_s: Number, down_s: Number) -> Number:
    """Return the part of the time that a machine is there."""
    return up_s / (up_s + down_s)


def survives(work_s: Number, up_s: Number) -> Number:
    """Return how likely it is that a machine which is there stays for some work: that part of a round counts."""
    return np.exp(-work_s / np.asarray(up_s, float))


def pipeline_availability(machine: Number, stages: Number, copies: Number = 1) -> Number:
    """Return the part of the time that every stage has at least one of its copies."""
    return (1 - (1 - machine) ** copies) ** stages


def copies_needed(machine: float, stages: int, wanted: float) -> int:
    """Return how many copies each stage needs for a pipeline to be there so much of the time."""
    if machine >= 1:
        return 1
    each = -math.expm1(math.log(wanted) / stages)
    return max(1, math.ceil(math.log(each) / math.log1p(-machine) - 1e-9))


def quorum_met(machine: Number, members: Number, least: Number) -> Number:
    """Return how likely it is that at least so many of all are there."""
    from scipy.special import bdtrc

    return np.where(np.asarray(least) > 0, bdtrc(np.maximum(least, 1) - 1.0, members, machine), 1.0)


def tries_until_quorum(machine: Number, members: Number, least: Number) -> Number:
    """Return how many rounds are begun on average until one has its quorum; never: infinity."""
    met = quorum_met(machine, members, least)
    return np.divide(1.0, met, out=np.full_like(met, math.inf), where=met > 0)


def round_with_restarts_s(round_s: Number, up_s: Number, members: Number, restart_s: Number = 0.0) -> Number:
    """Return how long a round takes on average that begins again whenever one of its members leaves.

    With failures at the rate m / up: (1 / rate + restart)(e^(rate t) - 1).
    """
    rate = members / up_s
    return (1 / rate + restart_s) * np.expm1(rate * round_s)


def lost_part(round_s: Number, up_s: Number) -> Number:
    """Return the part of a machine's time that is lost in rounds it does not finish."""
    ratio = np.minimum(round_s / np.asarray(up_s, float), LONG)
    return 1 - ratio / np.expm1(ratio)
