"""Numbers of a few bits each, side by side.

Up to eight bits, eight numbers fill as many bytes as they have bits; what is longer is cut: first everybody's lowest
byte, then the rest. So twelve bits are a byte each and then a nibble each, and nothing is shifted across a word.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

assert sys.byteorder == "little", "codes are packed in words whose lowest byte comes first"

_GROUP = 8
"""Numbers that are packed together: so many of any bits fill whole bytes."""


def packed_bytes(count: int, bits: int) -> int:
    """Return how long so many numbers are."""
    if bits > 8:
        return count + packed_bytes(count, bits - 8)
    return -(-count * bits // 8)


def pack(numbers: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Return unsigned numbers below 2 ** bits as bytes, each number's lowest bit first."""
    if bits > 8:
        return np.concatenate([(numbers & 0xFF).astype(np.uint8), pack(numbers >> 8, bits - 8)])
    if bits == 8:
        return numbers.astype(np.uint8, copy=False)
    count = numbers.size
    groups = np.zeros((-(-count // _GROUP), _GROUP), np.uint8)
    groups.reshape(-1)[:count] = numbers
    words = np.zeros(len(groups), np.uint64)
    for place in range(_GROUP):
        words |= groups[:, place].astype(np.uint64) << np.uint64(place * bits)
    return words.view(np.uint8).reshape(-1, _GROUP)[:, :bits].reshape(-1)[: packed_bytes(count, bits)]


def unpack(data: NDArray[np.uint8], count: int, bits: int) -> NDArray[Any]:
    """Return `count` numbers from what `pack` made of them: bytes up to eight bits, else 16-bit words."""
    if bits > 8:
        high = unpack(data[count:], count, bits - 8)
        return data[:count].astype(np.uint16) | (high.astype(np.uint16) << np.uint16(8))
    if bits == 8:
        return data[:count]
    if 8 % bits == 0:  # none is cut by the end of a byte
        each = np.arange(0, 8, bits, dtype=np.uint8)
        return ((data[:, None] >> each) & np.uint8((1 << bits) - 1)).reshape(-1)[:count]
    groups = -(-count // _GROUP)
    wide = np.zeros((groups, _GROUP), np.uint8)
    full = np.zeros(groups * bits, np.uint8)
    full[: data.size] = data
    wide[:, :bits] = full.reshape(groups, bits)
    words = wide.view(np.uint64).reshape(-1)
    mask = np.uint64((1 << bits) - 1)
    numbers = np.empty((groups, _GROUP), np.uint8)
    for place in range(_GROUP):
        numbers[:, place] = (words >> np.uint64(place * bits)) & mask
    return numbers.reshape(-1)[:count]


def is_padded(data: NDArray[np.uint8], count: int, bits: int) -> bool:
    """Return whether the bits after the last number are zeros, as `pack` leaves them."""
    if bits > 8:
        return is_padded(data[count:], count, bits - 8)
    used = count * bits % 8
    return not used or not int(data[-1]) >> used
