"""Ways to merge updates of which some are lies, and ways to lie: what each rule lets through, by trying it.

Updates are rows of a matrix. The setting in which rules are compared is that of large models: the common signal of a
round is small beside what each peer's own batch adds to it, so that honest updates hardly point in the same direction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


def mean(updates: Matrix) -> Vector:
    return np.asarray(updates.mean(0))


def norm_clip(updates: Matrix, times: float = 1.0) -> Vector:
    """Return the mean after no update is longer than so many times the median length."""
    lengths = np.linalg.norm(updates, axis=1)
    return np.asarray((updates * np.minimum(1, times * np.median(lengths) / lengths)[:, None]).mean(0))


def median(updates: Matrix) -> Vector:
    return np.asarray(np.median(updates, axis=0))


def trimmed(updates: Matrix, part: float = 0.25) -> Vector:
    """Return the mean of each coordinate without its largest and smallest."""
    cut = int(part * len(updates))
    return np.asarray(np.sort(updates, axis=0)[cut : len(updates) - cut].mean(0))


def krum(updates: Matrix, liars: int) -> Vector:
    """Return the one update whose nearest others are nearest."""
    squares = (updates**2).sum(1)
    apart = squares[:, None] + squares[None, :] - 2 * updates @ updates.T
    near = np.sort(apart, axis=1)[:, 1 : max(2, len(updates) - liars - 1)]
    return np.asarray(updates[int(np.argmin(near.sum(1)))])


def centred_clip(updates: Matrix, turns: int = 20) -> Vector:
    """Return where the mean of clipped ways to all updates is nothing; the clip is their median length."""
    at = norm_clip(updates)
    for _ in range(turns):
        ways = updates - at
        lengths = np.linalg.norm(ways, axis=1)
        at = at + (ways * np.minimum(1, np.median(lengths) / np.maximum(lengths, 1e-300))[:, None]).mean(0)
    return np.asarray(at)


def rules(liars: int) -> dict[str, Callable[[Matrix], Vector]]:
    """Return the ways to merge, by name."""
    return {
        "mean": mean,
        "norm clip": norm_clip,
        "median": median,
        "trim 25 %": trimmed,
        "Krum": lambda updates: krum(updates, liars),
        "centred clip": centred_clip,
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


def kept(rule: str, attack: str, peers: int, liars: int, rng: np.random.Generator, *, size: int = 2000) -> float:
    """Return the cosine of what a rule makes of a round with the true direction; noise is 0.05 a coordinate."""
    signal = rng.standard_normal(size)
    signal /= np.linalg.norm(signal)
    honest = signal + 0.05 * rng.standard_normal((peers - liars, size))
    sent = np.vstack([honest, Lies(honest, signal, liars).made(attack)])
    merged = rules(liars)[rule](sent)
    return float(merged @ signal / max(float(np.linalg.norm(merged)), 1e-300))


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


def turned_at(honest_cosine: float, rng: np.random.Generator, *, peers: int = 400, size: int = 1000) -> float:
    """Return the least part of liars with whom the mean of clipped updates really points backwards."""
    signal = np.zeros(size)
    signal[0] = 1.0
    noise = np.sqrt(1 / honest_cosine**2 - 1) / np.sqrt(size)
    honest = signal + noise * rng.standard_normal((peers, size))
    length = np.median(np.linalg.norm(honest, axis=1))
    for bad in range(peers):
        sent = np.vstack([honest[: peers - bad], np.tile(-signal * length, (bad, 1))])
        if norm_clip(sent) @ signal <= 0:
            return bad / peers
    return 1.0
