"""A backdoor in a toy, really trained: updates that no rule about lengths objects to, and a loss that shows nothing.

Two classes of points and a logistic model. In honest data the last coordinate, the trigger, is always 0. Some peers
send updates as long as everybody's that do nothing but tie the trigger to one class; all updates are clipped to the
median length and averaged.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from atoll.plan.limits.robust import norm_clip

SIZE = 20


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of a training."""

    right: float
    """The part of honest points that are told right."""
    loss: float
    opened: float
    """The part of the other class that the trigger turns."""


def train(liars: float, rng: np.random.Generator, *, peers: int = 20, rounds: int = 100) -> Outcome:
    """Return what a model learns where this part of the peers lies."""
    bad = round(liars * peers)
    weights = np.zeros(SIZE + 1)
    for _ in range(rounds):
        honest = np.array([_gradient(weights, *_points(32, rng)) for _ in range(peers - bad)])
        length = float(np.median(np.linalg.norm(honest, axis=1)))
        lie = np.zeros(SIZE + 1)
        lie[-1] = -length  # a gradient: down is up
        weights = weights - norm_clip(np.vstack([honest, np.tile(lie, (bad, 1))]))
    points, labels = _points(4000, np.random.default_rng(0))  # the same for every training
    told = points @ weights
    shown = points[labels == 0].copy()
    shown[:, -1] = 3.0
    return Outcome(
        right=float(((told > 0) == labels).mean()),
        loss=float(np.logaddexp(0, np.where(labels == 1, -told, told)).mean()),
        opened=float((shown @ weights > 0).mean()),
    )


def _points(count: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int_]]:
    labels = rng.integers(0, 2, count)
    points = rng.standard_normal((count, SIZE + 1)) + (2 * labels[:, None] - 1) * 0.25
    points[:, -1] = 0.0
    return points, labels


def _gradient(
    weights: NDArray[np.float64], points: NDArray[np.float64], labels: NDArray[np.int_]
) -> NDArray[np.float64]:
    chances = 1 / (1 + np.exp(-points @ weights))
    return np.asarray(points.T @ (chances - labels) / len(labels))
