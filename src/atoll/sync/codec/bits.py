"""Numbers of a few bits each, side by side.

Up to eight bits, eight numbers fill as many bytes as they have bits; what is longer is cut: first everybody's lowest
byte, then the rest. So twelve bits are a byte each and then a nibble each, and nothing is shifted across a word. Of
numbers below three, five are the digits of a byte.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

assert sys.byteorder == "little", "codes are packed in words whose lowest byte comes first"

_GROUP = 8
"""Numbers that are packed together: so many of any bits fill whole bytes."""


def _spread(bits: int) -> NDArray[Any]:
    each = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (np.arange(256, dtype=np.uint8)[:, None] >> each) & np.uint8((1 << bits) - 1)
    return numbers.view(f"<u{8 // bits}").reshape(-1)


_SPREAD = {bits: _spread(bits) for bits in (2, 4)}
"""The numbers that share a byte, a byte each in one word, for every byte."""


_DIGITS = 3 ** np.arange(5, dtype=np.uint8)
"""What each of a byte's five digits counts for."""
_THREES = np.arange(256, dtype=np.uint8)[:, None] // _DIGITS % np.uint8(3)
"""The digits of every byte; of those above 242 they have no meaning."""


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
    if bits == 1:
        return np.packbits(numbers.astype(np.bool_, copy=False), bitorder="little")
    groups = np.zeros((-(-count // _GROUP), _GROUP), np.uint8)
    groups.reshape(-1)[:count] = numbers
    if bits in _SPREAD:  # as many as share a byte lie in one word, where neighbours move together, then pairs
        wide = groups.reshape(-1).view(_SPREAD[bits].dtype)
        for shift in range(8 - bits, 4 * wide.itemsize, 8 - bits):
            wide |= wide >> np.array(shift, wide.dtype)
        return wide.astype(np.uint8)[: packed_bytes(count, bits)]
    words = np.zeros(len(groups), np.uint64)
    for place in range(_GROUP):
        words |= groups[:, place].astype(np.uint64) << np.uint64(place * bits)
    return words.view(np.uint8).reshape(-1, _GROUP)[:, :bits].reshape(-1)[: packed_bytes(count, bits)]


def unpack(data: NDArray[np.uint8], count: int, bits: int) -> NDArray[Any]:
    """Return `count` numbers from what `pack` made of them: bytes up to eight bits, else words as long as they need."""
    if bits > 8:
        word: np.dtype[Any] = np.dtype(np.uint16 if bits <= 16 else np.uint32)
        high = unpack(data[count:], count, bits - 8)
        words: NDArray[Any] = data[:count].astype(word) | (high.astype(word) << word.type(8))
        return words
    if bits == 8:
        return data[:count]
    if bits == 1:
        return np.unpackbits(data, count=count, bitorder="little")
    if bits in _SPREAD:
        return _SPREAD[bits][data].view(np.uint8)[:count]
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


def threes_bytes(count: int) -> int:
    """Return how long so many numbers below three are."""
    return -(-count // len(_DIGITS))


def pack_threes(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return numbers below three as bytes, five in each, the first counting least; the last is filled up with zeros."""
    groups = np.zeros((threes_bytes(numbers.size), len(_DIGITS)), np.uint8)
    groups.reshape(-1)[: numbers.size] = numbers
    packed: NDArray[np.uint8] = groups @ _DIGITS
    return packed


def unpack_threes(data: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Return `count` numbers from what `pack_threes` made of them."""
    return _THREES[data].reshape(-1)[:count]


def are_threes(data: NDArray[np.uint8], count: int) -> bool:
    """Return whether all bytes are five digits, and those after the last number are zeros."""
    used = count % len(_DIGITS)
    full = not used or not data.size or int(data[-1]) < _DIGITS[used]
    return full and bool((data < 3 ** len(_DIGITS)).all())
