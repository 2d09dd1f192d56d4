"""Adam in mixed precision, really run on a small model, its memory counted by the interpreter: what a parameter takes.

The model is one matrix that learns to be another one. What stays between two steps is counted as it is allocated, so
whatever an optimizer of this kind has to keep shows, and nothing is said beforehand of how many bytes that is.
"""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

BLOCK = 256
"""Moments in eight bits that share a scale."""


class Held(Struct, frozen=True, kw_only=True):
    """What a training held, and that it was one."""

    bytes_each: float
    """Per parameter, after the last step."""
    first_loss: float
    last_loss: float


class _Eight:
    """Numbers in eight bits: a scale for each block of them."""

    def __init__(self, count: int, kind: Any) -> None:
        self.most = 127 if kind is np.int8 else 255
        self.codes = np.zeros(count, kind)
        self.scales = np.zeros(count // BLOCK, np.float32)

    def get(self) -> NDArray[np.float32]:
        return (self.codes.reshape(-1, BLOCK) * (self.scales / self.most)[:, None]).ravel().astype(np.float32)

    def put(self, values: NDArray[np.float32]) -> None:
        blocks = values.reshape(-1, BLOCK)
        self.scales[:] = np.abs(blocks).max(1)
        self.codes[:] = np.round(blocks / np.maximum(self.scales, 1e-30)[:, None] * self.most).ravel()


class _Full:
    """Numbers in fp32."""

    def __init__(self, count: int, kind: Any) -> None:
        self.values = np.zeros(count, np.float32)

    def get(self) -> NDArray[np.float32]:
        return self.values

    def put(self, values: NDArray[np.float32]) -> None:
        self.values[:] = values


def train(*, eight_bits: bool, side: int = 384, steps: int = 60, rate: float = 0.02) -> Held:
    """Return what training a matrix held; `eight_bits`: the two moments are kept so."""
    rng = np.random.default_rng(0)
    wanted = rng.standard_normal((side, side), np.float32) / np.float32(4)
    seen = rng.standard_normal((64, side), np.float32)
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    moments = _Eight if eight_bits else _Full
    master = np.zeros(side * side, np.float32)
    weights, gradient = master.astype(np.float16), np.zeros(side * side, np.float16)
    first, second = moments(master.size, np.int8), moments(master.size, np.uint8)
    losses = []
    for step in range(1, steps + 1):
        off = seen @ weights.reshape(side, side).astype(np.float32) - seen @ wanted
        losses.append(float((off**2).mean()))
        gradient[:] = (seen.T @ off / len(seen)).ravel()
        mean, root = 0.9 * first.get() + 0.1 * gradient, second.get()
        square = 0.99 * root**2 + 0.01 * gradient.astype(np.float32) ** 2  # kept as its root: eight bits reach farther
        first.put(mean)
        second.put(np.sqrt(square))
        master -= rate * mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.99**step)) + 1e-3)
        weights[:] = master
        del off, mean, root, square
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    if not traced:
        tracemalloc.stop()
    return Held(bytes_each=(held - before) / master.size, first_loss=losses[0], last_loss=losses[-1])
