"""FedAvg where everything can be written down: peers with a bowl each, f_i(x) = (x - c_i)' A_i (x - c_i) / 2.

With M_i = (I - r A_i)^H after H local steps of rate r, averaging settles where  sum (I - M_i)(x - c_i) = 0,  while what
is wanted is  sum A_i (x - c_i) = 0.  After one step: the same place; after many: the plain mean of the c_i.
The gap depends on how curvatures differ, not on how far the c_i lie apart, and is nothing where all A_i are equal.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


class Bowls(Struct, frozen=True):
    """A quadratic for each peer."""

    curvatures: Matrix
    """peers x size x size."""
    centres: Matrix
    """peers x size."""


def bowls(peers: int, size: int, rng: np.random.Generator, *, flat: float = 0.05, steep: float = 1.0) -> Bowls:
    """Return bowls in random directions, their curvatures spread evenly in the logarithm."""
    curvatures, centres = [], []
    for _ in range(peers):
        directions, _ = np.linalg.qr(rng.standard_normal((size, size)))
        values = np.exp(rng.uniform(np.log(flat), np.log(steep), size))
        curvatures.append((directions * values) @ directions.T)
        centres.append(rng.standard_normal(size))
    return Bowls(np.array(curvatures), np.array(centres))


def optimum(b: Bowls) -> Matrix:
    """Return what the peers together want."""
    return np.asarray(np.linalg.solve(b.curvatures.sum(0), np.einsum("kij,kj->i", b.curvatures, b.centres)))


def settled(b: Bowls, steps: int, rate: float) -> Matrix:
    """Return where averaging after so many local steps settles."""
    size = b.centres.shape[1]
    pulls = np.array([np.eye(size) - np.linalg.matrix_power(np.eye(size) - rate * a, steps) for a in b.curvatures])
    return np.asarray(np.linalg.solve(pulls.sum(0), np.einsum("kij,kj->i", pulls, b.centres)))


def contraction(b: Bowls, steps: int, rate: float) -> float:
    """Return by how much a round shrinks the way that is left, where it shrinks least."""
    size = b.centres.shape[1]
    mean = np.mean([np.linalg.matrix_power(np.eye(size) - rate * a, steps) for a in b.curvatures], axis=0)
    return float(np.abs(np.linalg.eigvalsh(mean)).max())


def rounds_to(b: Bowls, steps: int, rate: float, left: float = 1e-3) -> int:
    """Return after how many rounds only this part of the way is left."""
    return int(np.ceil(np.log(left) / np.log(contraction(b, steps, rate))))


def loss(b: Bowls, x: Matrix) -> float:
    """Return the mean loss of the peers."""
    far = x - b.centres
    return float(np.einsum("ki,kij,kj->", far, b.curvatures, far) / 2 / len(far))


def bias(b: Bowls, steps: int, rate: float) -> float:
    """Return how far from the optimum averaging settles, as a part of the way to it from 0."""
    best = optimum(b)
    return float(np.linalg.norm(settled(b, steps, rate) - best) / np.linalg.norm(best))


def gap_lost(b: Bowls, steps: int, rate: float) -> float:
    """Return which part of the loss between 0 and the optimum is never gained."""
    best = loss(b, optimum(b))
    return (loss(b, settled(b, steps, rate)) - best) / (loss(b, np.zeros(b.centres.shape[1])) - best)


def train(b: Bowls, steps: int, rate: float, rounds: int) -> Matrix:
    """Return where FedAvg comes to, really run: local steps, mean, again."""
    peers, size = b.centres.shape
    x = np.zeros(size)
    for _ in range(rounds):
        own = np.tile(x, (peers, 1))
        for _ in range(steps):
            own -= rate * np.einsum("kij,kj->ki", b.curvatures, own - b.centres)
        x = own.mean(0)
    return x
