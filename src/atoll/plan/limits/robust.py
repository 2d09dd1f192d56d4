"""Ways to merge updates of which some are lies, and ways to lie: what each rule lets through, by trying it.

Rules are the engine's own (`sync.combine`), asked as a round asks them; Krum, which Atoll does not have, stands beside
them. Updates are rows of a matrix. The setting in which rules are compared is that of large models: the common signal
of a round is small beside what each peer's own batch adds to it, so that honest updates hardly point in the same
direction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from atoll.spec.axes.merge import CentredClip, Combine, Mean, MedianNormClip, Trimmed
from atoll.sync.combine import combined

TRIM = 0.25
Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


def merged(combine: Combine, updates: Matrix) -> Vector:
    """Return what the engine makes of a round's updates, all weighing the same."""
    rows = [np.ascontiguousarray(row, np.float32) for row in updates]
    return combined(combine, rows, [1.0] * len(rows)).astype(np.float64)


def norm_clip(updates: Matrix) -> Vector:
    return merged(MedianNormClip(), updates)


def median(updates: Matrix) -> Vector:
    """Return the middle of each coordinate: the mean without all the others."""
    return merged(Trimmed(drop=0.5), updates)


def krum(updates: Matrix, liars: int) -> Vector:
    """Return the one update whose nearest others are nearest."""
    squares = (updates**2).sum(1)
    apart = squares[:, None] + squares[None, :] - 2 * updates @ updates.T
    near = np.sort(apart, axis=1)[:, 1 : max(2, len(updates) - liars - 1)]
    return np.asarray(updates[int(np.argmin(near.sum(1)))])


def rules(liars: int, trim: float = TRIM) -> dict[str, Callable[[Matrix], Vector]]:
    """Return the ways to merge, by name."""
    return {
        "mean": lambda updates: merged(Mean(), updates),
        "norm clip": norm_clip,
        "median": median,
        f"trim {trim:.0%}": lambda updates: merged(Trimmed(drop=trim), updates),
        "centred clip": lambda updates: merged(CentredClip(), updates),
        "(Krum)": lambda updates: krum(updates, liars),
    }


class Lies(Struct, frozen=True):
    """What liars know: the honest updates of the round and the true direction."""

    honest: Matrix
    signal: Vector
    liars: int

    def made(self, kind: str) -> Matrix:
        """Return the liars' updates; all of them send the same."""
        average = self.honest.mean(0)
        match kind:
            case "none":
                return self.honest[:0]
            case "sign flip x10":
                lie = -10 * average
            case "a little is enough":
                stray = little(len(self.honest) + self.liars, self.liars) * self.honest.std(0)
                lie = average - stray * np.sign(self.signal)
            case "inner product":
                lie = -0.5 * average
            case "full length backwards":
                lie = -self.signal / np.linalg.norm(self.signal) * np.median(np.linalg.norm(self.honest, axis=1))
            case _:
                raise AssertionError(kind)
        return np.tile(lie, (self.liars, 1))


ATTACKS = ("sign flip x10", "a little is enough", "inner product", "full length backwards")


def little(peers: int, liars: int) -> float:
    """Return by how many deviations liars may stray and still have honest peers beyond them in each coordinate."""
    from statistics import NormalDist

    need = peers // 2 + 1 - liars
    share = (peers - liars - need) / (peers - liars)
    return max(0.0, NormalDist().inv_cdf(min(max(share, 1e-6), 1 - 1e-6)))


def kept(
    rule: Callable[[Matrix], Vector], attack: str, peers: int, liars: int, rng: np.random.Generator, *, size: int = 2000
) -> float:
    """Return the cosine of what a rule makes of a round with the true direction; noise is 0.05 a coordinate."""
    signal = rng.standard_normal(size)
    signal /= np.linalg.norm(signal)
    honest = signal + 0.05 * rng.standard_normal((peers - liars, size))
    sent = np.vstack([honest, Lies(honest, signal, liars).made(attack)])
    one = rule(sent)
    return float(one @ signal / max(float(np.linalg.norm(one)), 1e-300))


def passes(update: Vector, reference: Vector, norm_max: float, cosine_min: float) -> bool:
    """Return whether the rules take an update."""
    length, other = float(np.linalg.norm(update)), float(np.linalg.norm(reference))
    return length <= norm_max * other and float(update @ reference) >= cosine_min * length * other


def hidden_found(norm_max: float, cosine_min: float, rng: np.random.Generator) -> float:
    """Return the longest hidden component that the rules really take, by halving."""
    reference = rng.standard_normal(500)
    across = rng.standard_normal(500)
    across -= (across @ reference) / (reference @ reference) * reference
    across *= np.linalg.norm(reference) / np.linalg.norm(across)
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if passes(reference + middle * across, reference, norm_max, cosine_min) else (low, middle)
        )
    return float(low)


def leaves_found(depth: int, fan_in: int, rule: Callable[[Matrix], Vector] = median) -> float:
    """Return the least part of the leaves whose lies, however large, really come out at the root, placed worst."""
    for enough in range(1, fan_in + 1):
        bad = np.ones(1, bool)
        for _ in range(depth):  # the first so many children of each such node
            bad = np.kron(np.arange(fan_in) < enough, bad)
        level = np.where(bad, 1e12, 0.0)
        while len(level) > 1:
            level = rule(level.reshape(-1, fan_in).T)
        if level[0] > 1:
            return float(bad.mean())
    raise AssertionError("where all lie, the root does")


class Crowd(Struct, frozen=True):
    """Honest updates around a common signal of length one, and what liars of full length send."""

    signal: Vector
    honest: Matrix

    def left(self, liars: int) -> float:
        """Return which part of the signal the engine's clipped mean keeps, so many of the crowd lying."""
        peers = len(self.honest)
        sent = self.honest[: peers - liars]
        lies = Lies(self.honest, self.signal, liars).made("full length backwards")
        return float(norm_clip(np.vstack([sent, lies])) @ self.signal)


def crowd(honest_cosine: float, peers: int, rng: np.random.Generator, *, size: int = 1000) -> Crowd:
    """Return honest updates of this cosine with the signal."""
    signal = rng.standard_normal(size)
    signal /= np.linalg.norm(signal)
    noise = np.sqrt(1 / honest_cosine**2 - 1) / np.sqrt(size)
    return Crowd(signal, signal + noise * rng.standard_normal((peers, size)))


def turned_at(honest_cosine: float, rng: np.random.Generator, *, peers: int = 400, size: int = 1000) -> float:
    """Return the least part of liars with whom the mean of clipped updates really points backwards, by halving."""
    drawn = crowd(honest_cosine, peers, rng, size=size)
    low, high = 0, peers - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if drawn.left(middle) <= 0 else (middle, high)
    return high / peers


def unseen_found(loss_noise: float, curvature: float, samples: int, rng: np.random.Generator, z: float = 2.0) -> float:
    """Return how far weights go on a bowl until a held-out loss of drawn samples shows it every other time."""
    looks = loss_noise * rng.standard_normal(
        (2000, samples), np.float32
    )  # of one sample's loss, before any weight moves
    usual = z * float(looks.std()) / np.sqrt(samples)
    seen = looks.mean(1)
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        shows = float((seen + curvature * middle**2 / 2 > usual).mean())
        low, high = (low, middle) if shows >= 0.5 else (middle, high)
    return high
