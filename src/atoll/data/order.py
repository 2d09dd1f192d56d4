"""The one order in which a run reads its samples, the same on every peer.

Position p of the order is sample `index_of(p)`: each epoch is its own seeded permutation of all samples.
No table is stored: a permutation is a Feistel network over pairs (high, low) with high * low_size + low
just above the sample count, so any peer finds any position alone, in constant memory and microseconds.
The few pairs that fall outside the count are walked on until they land inside (cycle walking).
Integers only: the result is the same on every machine, and part of the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt
from struct import unpack

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

_ROUNDS = 8
_MASK = (1 << 64) - 1
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB
"""Odd multipliers of the splitmix64 finaliser: every input bit reaches every output bit."""


def index_of(position: int, count: int, seed: int) -> int:
    """Return which of `count` samples stands at `position` of the seeded order."""
    assert position >= 0, position
    assert count > 0, count
    epoch, index = divmod(position, count)
    keys = _keys(seed, epoch, count)
    while True:
        index = _permute(index, count, keys)
        if index < count:
            return index


def indices_of(positions: Sequence[int] | NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Return `index_of` for many positions at once."""
    where = np.asarray(positions, dtype=np.int64)
    assert count > 0, count
    assert where.min(initial=0) >= 0, where.min()
    epochs, indices = np.divmod(where, count)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        indices[chosen] = _walk(indices[chosen].astype(np.uint64), count, _keys(seed, int(epoch), count))
    return indices


def _walk(indices: NDArray[np.uint64], count: int, keys: tuple[int, ...]) -> NDArray[np.int64]:
    indices = _permute_many(indices, count, keys)
    outside = np.flatnonzero(indices >= count)
    while outside.size:
        indices[outside] = _permute_many(indices[outside], count, keys)
        outside = outside[indices[outside] >= count]
    return indices.astype(np.int64)


@lru_cache(maxsize=64)
def _keys(seed: int, epoch: int, count: int) -> tuple[int, ...]:
    """Return the round keys of one epoch."""
    digest = blake3(f"{seed} {epoch} {count}".encode(), derive_key_context="atoll sample order 1")
    return unpack(f"<{_ROUNDS}Q", digest.digest(length=8 * _ROUNDS))


def _sides(count: int) -> tuple[int, int]:
    """Return the sizes of the two halves: nearly square, so that hardly any pair lies outside `count`."""
    low = isqrt(count - 1) + 1
    return -(-count // low), low


def _permute(index: int, count: int, keys: tuple[int, ...]) -> int:
    highs, lows = _sides(count)
    high, low = divmod(index, lows)
    for turn, key in enumerate(keys):
        if turn % 2:
            low = (low + _mix(high ^ key)) % lows
        else:
            high = (high + _mix(low ^ key)) % highs
    return high * lows + low


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * _MIX_A & _MASK
    value = (value ^ (value >> 27)) * _MIX_B & _MASK
    return (value ^ (value >> 31)) >> 1


def _permute_many(indices: NDArray[np.uint64], count: int, keys: tuple[int, ...]) -> NDArray[np.uint64]:
    highs, lows = (np.uint64(side) for side in _sides(count))
    high, low = np.divmod(indices, lows)
    for turn, key in enumerate(keys):
        if turn % 2:
            low = (low + _mix_many(high ^ np.uint64(key))) % lows
        else:
            high = (high + _mix_many(low ^ np.uint64(key))) % highs
    return high * lows + low


def _mix_many(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `_mix` of each; the last shift leaves 63 bits, so adding a half cannot overflow."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_MIX_A)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_MIX_B)
    return (values ^ (values >> np.uint64(31))) >> np.uint64(1)
