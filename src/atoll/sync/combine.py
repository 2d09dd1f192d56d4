"""How contributions become one: their mean, or something that a few bad ones cannot move far.

    mean, mean-present, sum, trimmed, rda   coordinate by coordinate
    median-norm-clip, centred-clip          each contribution times a number of its own

Of `rda` coordinates are those of directions and lengths (`sync.polar`), whose mean is taken like any other.

The numbers of the second kind follow from the lengths of contributions and the angles between them, which is all in
their inner products: every point these rules can come to is a sum of contributions, so no vector has to be made on the
way. Whose products they are is what a rule is `over`. Of a chunk its owner has all it needs. Of a tensor, which may lie
in many chunks, products are added up chunk by chunk, by everybody who gathers everything.

Everybody must come to the same bits: products are added in a fixed order (`merge.inner`), numbers one after the other,
and a contribution is multiplied and added in fp32, like a mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.model.compute import Vector
from atoll.spec.axes.merge import CentredClip, Combine, Mean, MeanPresent, MedianNormClip, Over, Rda, Sum, Trimmed
from atoll.sync.merge import add_up, inner, weighed_mean

Lengths = CentredClip | MedianNormClip
"""Rules that need lengths."""
Products = NDArray[np.float64]
"""The inner product of each contribution with each; only with itself where angles do not matter."""


def over(combine: Combine) -> Over | None:
    """Return what lengths are taken of; None: each coordinate is by itself."""
    match combine:
        case Mean() | MeanPresent() | Sum() | Trimmed() | Rda():
            return None
        case MedianNormClip(over=scope) | CentredClip(over=scope):
            return scope


def products(combine: Lengths, parts: Sequence[Vector]) -> Products:
    """Return what a rule needs to know of some elements of all contributions; those of more elements are sums."""
    found = np.zeros((len(parts), len(parts)))
    for i, one in enumerate(parts):
        for j in (i,) if isinstance(combine, MedianNormClip) else range(i + 1):
            found[i, j] = found[j, i] = inner(one, parts[j])
    return found


def numbers(combine: Lengths, known: Products, weights: Sequence[float]) -> list[float]:
    """Return what each contribution is to be multiplied by before they are added up."""
    match combine:
        case MedianNormClip():
            return _clipped(known, weights)
        case CentredClip():
            return _centred(combine, known, weights)


def combined(
    combine: Combine, parts: Sequence[Vector], weights: Sequence[float], sent: Sequence[NDArray[np.bool_]] = ()
) -> Vector:
    """Return one of many, where what is given is all that counts; what is too large comes out not finite.

    `sent` says which coordinates each contributor sent, where that matters.
    """
    match combine:
        case Mean() | Rda():
            return weighed_mean(parts, weights)
        case Sum():
            return add_up(parts, weights)
        case MeanPresent():
            return _mean_present(parts, weights, sent)
        case Trimmed(drop=drop):
            return _trimmed(parts, weights, drop)
        case MedianNormClip() | CentredClip():
            return add_up(parts, numbers(combine, products(combine, parts), weights))


# coordinate by coordinate


def _mean_present(parts: Sequence[Vector], weights: Sequence[float], sent: Sequence[NDArray[np.bool_]]) -> Vector:
    """Return the mean of each coordinate over those who sent it; zero where nobody did."""
    weight = np.zeros_like(parts[0])
    for there, each in zip(sent, weights, strict=True):
        weight += there * np.float32(each)
    total = add_up(parts, weights)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)


def _trimmed(parts: Sequence[Vector], weights: Sequence[float], drop: float) -> Vector:
    """Return the mean of each coordinate, without the values at either end."""
    dropped = min(math.ceil(drop * len(parts)), (len(parts) - 1) // 2)
    values = np.stack(parts)
    order = np.argsort(values, axis=0, kind="stable")[dropped : len(parts) - dropped]
    kept = np.take_along_axis(values, order, axis=0)
    heavy = np.asarray(weights, np.float32)[order]
    with np.errstate(over="ignore", invalid="ignore"):
        total, weight = np.zeros_like(parts[0]), np.zeros_like(parts[0])
        for value, each in zip(kept, heavy, strict=True):
            total += value * each
            weight += each
        return np.divide(total, weight, out=total)


# by lengths


def _even(weights: Sequence[float]) -> list[float]:
    return [weight / _sum(weights) for weight in weights]


def _lengths(known: Products) -> list[float]:
    return [math.sqrt(max(0.0, float(known[i, i]))) for i in range(len(known))]


def _median(lengths: Sequence[float]) -> float:
    """Return the middle one, the shorter of two: then of two contributions the longer is clipped."""
    return sorted(lengths)[(len(lengths) - 1) // 2]


def _clipped(known: Products, weights: Sequence[float]) -> list[float]:
    """Return the mean's numbers, smaller for those that are longer than the median, by as much as they are."""
    lengths = _lengths(known)
    most = _median(lengths)
    return [part * _shrunk(long, most) for part, long in zip(_even(weights), lengths, strict=True)]


def _shrunk(long: float, most: float) -> float:
    """Return what makes something no longer than the most."""
    return 1.0 if long <= most else most / long


def _centred(combine: CentredClip, known: Products, weights: Sequence[float]) -> list[float]:
    """Return how much of each contribution the centre is made of.

    The authors start from the last round's centre, which an owner that has just taken a chunk over does not know. This
    starts from the mean clipped to the median length, and nears the same balance.
    """
    parts = _even(weights)
    centre = _clipped(known, weights)
    radius = combine.radius * _median(_lengths(known))
    for _ in range(combine.iterations):
        along = [_sum(a * float(known[i, j]) for j, a in enumerate(centre)) for i in range(len(known))]
        square = _sum(a * each for a, each in zip(centre, along, strict=True))
        far = [math.sqrt(max(0.0, float(known[i, i]) - 2 * along[i] + square)) for i in range(len(known))]
        pull = [part * _shrunk(each, radius) for part, each in zip(parts, far, strict=True)]
        stays = 1.0 - _sum(pull)
        centre = [stays * a + each for a, each in zip(centre, pull, strict=True)]
    return centre


def _sum(values: Iterable[float]) -> float:
    """Return a sum, added one after the other: `sum` rounds otherwise from one Python to the next."""
    total = 0.0
    for value in values:
        total += value
    return total
