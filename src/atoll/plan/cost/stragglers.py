"""Waiting for the slowest: how long a round of many takes, of which each takes a random time with mean 1.

The k-th fastest of R has the quantile of a Beta(k, R - k + 1); its mean is an integral over that, done here in the
logit of the probability so that far tails count as they should. The usual closed forms stand beside it: the harmonic
number for exponential times, gamma functions for Pareto's, e^(sigma sqrt(2 ln R)) medians for lognormal ones, which is
an upper bound of sorts and too high by a fifth to a third.

Remedies: a quorum waits for the fastest part, a deadline takes what is done by then, work in proportion to speed makes
lasting differences vanish.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from atoll.plan.cost.flops import Number

_LOGITS = np.linspace(-45.0, 45.0, 1801)


class Lognormal(Struct, frozen=True, kw_only=True):
    """Times that vary by factors: e^(sigma z)."""

    sigma: float


class Exponential(Struct, frozen=True):
    """Times without memory."""


class Pareto(Struct, frozen=True, kw_only=True):
    """Times with a heavy tail; the mean exists above 1."""

    alpha: float


Spread = Lognormal | Exponential | Pareto


def above(spread: Spread, part: Number) -> Number:
    """Return the time that a part of all exceeds, in means."""
    from scipy.special import ndtri

    match spread:
        case Lognormal(sigma=sigma):
            return np.exp(-sigma * ndtri(part) - sigma**2 / 2)
        case Exponential():
            return -np.log(part)
        case Pareto(alpha=alpha):
            return (alpha - 1) / alpha * np.asarray(part) ** (-1 / alpha)


def expected_rank(spread: Spread, rank: int, members: int) -> float:
    """Return the mean time of the rank-th fastest of so many, in means of one."""
    from scipy.special import betaincinv

    below = 1 / (1 + np.exp(_LOGITS))
    slower = betaincinv(members - rank + 1, rank, below)
    times = above(spread, np.clip(slower, 1e-300, 1 - 1e-16))
    return float(np.trapezoid(times * below * (1 - below), _LOGITS))


def expected_max(spread: Spread, members: int) -> float:
    """Return the mean time of the slowest, in means of one."""
    return expected_rank(spread, members, members)


def quorum_time(spread: Spread, members: int, quorum: float) -> float:
    """Return the mean time until so large a part of all is done, in means of one."""
    return expected_rank(spread, max(1, math.ceil(quorum * members)), members)


def expected_quorum(spread: Spread, rank: int, groups: int, *, together: int = 1, drop_out: float = 0.0) -> float:
    """Return the mean time until so many of all groups are done, where they are at all, in means of one member.

    A group is done when all `together` members are, and none is of which one drops out: by the time t with the chance
    ((1 - p) F(t))^together. Infinite where as good as never enough are.
    """
    from scipy.special import betainc, betaincinv

    logits = _LOGITS[::3]
    too_few = betainc(groups - rank + 1, rank, 1 - (1 - drop_out) ** together)
    if too_few >= 1:
        return math.inf
    below = 1 / (1 + np.exp(logits))
    slower = betaincinv(groups - rank + 1, rank, too_few + (1 - too_few) * below)
    missing = -np.expm1(np.log1p(-np.minimum(slower, 1 - 1e-16)) / together)  # the part of members not done by then
    times = above(spread, np.clip((missing - drop_out) / (1 - drop_out), 1e-300, 1 - 1e-16))
    return float(np.trapezoid(times * below * (1 - below), logits))


def lognormal_max_over_median(sigma: Number, members: Number) -> Number:
    """Return the usual estimate of the slowest of many, in medians."""
    return np.exp(sigma * np.sqrt(2 * np.log(members)))


def exponential_max(members: int) -> float:
    """Return the slowest of many, in means: the harmonic number, about ln R + 0.577."""
    return sum(1 / count for count in range(1, members + 1))


def pareto_max(alpha: float, members: int) -> float:
    """Return the slowest of many, in means: grows as R^(1 / alpha)."""
    gammas = math.lgamma(members + 1) + math.lgamma(1 - 1 / alpha) - math.lgamma(members + 1 - 1 / alpha)
    return (alpha - 1) / alpha * math.exp(gammas)


def all_finish(drop_out: Number, members: Number) -> Number:
    """Return how likely it is that nobody drops out."""
    return (1 - drop_out) ** members


# lasting differences


def equal_work_part(speeds: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the part of all speed that is used when everybody does the same and waits for the slowest."""
    return float(np.min(speeds) / np.mean(speeds))


def proportional_steps(speeds: Sequence[float], most: int, least: int = 1) -> list[int]:
    """Return how many steps each takes in the time in which the fastest takes the most."""
    fastest = max(speeds)
    return [max(least, math.floor(most * speed / fastest + 1e-9)) for speed in speeds]


def proportional_part(speeds: Sequence[float], most: int, least: int = 1) -> float:
    """Return the part of all speed that is used then: what whole steps leave over is lost."""
    steps = proportional_steps(speeds, most, least)
    round_s = max(count / speed for count, speed in zip(steps, speeds, strict=True))
    return sum(steps) / (round_s * sum(speeds))


def best_deadline(times_s: Sequence[float], overhead_s: float, *, partial: bool) -> tuple[float, float]:
    """Return the deadline that gets most work done per second, and that rate, in whole contributions.

    With `partial` who is not done gives what it has. Between two times the rate only rises or only falls, so that the
    best deadline is one of them.
    """
    times = np.sort(np.asarray(times_s, float))
    done = np.arange(1, times.size + 1, dtype=float)
    if partial:
        slower = np.cumsum((1 / times)[::-1])[::-1]
        done = done + times * np.append(slower[1:], 0.0)
    rates = done / (times + overhead_s)
    best = int(np.argmax(rates))
    return float(times[best]), float(rates[best])
