"""A bit an element in a basis of the chunk's own, which spreads whatever a block has over all of it.

What one bit leaves out stays with the largest elements round after round, and then a block's mean magnitude says little
of any of them: of a bell's energy a sign brings two thirds at once, of such a rest far less. All sums and differences
of a block (the transform of Walsh and Hadamard) are much like a bell, if many elements have a part in them and their
signs are drawn before; and drawn anew each time, so that no basis collects what it cannot say (Vargaftik et al. 2021,
DRIVE, arXiv 2105.08339).

On the wire come two words, of which signs are drawn, then the blocks' scales (fp32), then a bit for each sum. The last
block is a whole one. Sums are added in one order everywhere; going back they are of ones, so nothing is rounded but by
the scale.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from atoll.model.compute import Vector
from atoll.model.encoding.chance import DRAWN_BITS, keys_of
from atoll.spec.axes.codec import TurnedSign
from atoll.sync.codec.bits import pack, packed_bytes, unpack
from atoll.sync.codec.chance import drawn_by
from atoll.sync.codec.scales import SCALE_EXPONENT_MAX, added, in_rows, nonzero

KEY_BYTES = 8
_NEAR = 2**16
"""Elements that are worked on at once: what a processor keeps near."""
_FINITE_EXPONENT = 127

Rows = NDArray[np.float32]


def turned_bytes(codec: TurnedSign, count: int) -> int:
    """Return how many bytes so many elements are."""
    blocks = -(-count // codec.block)
    return KEY_BYTES + 4 * blocks + packed_bytes(blocks * codec.block, 1) if count else 0


def to_turned(codec: TurnedSign, values: Vector, seed: int) -> memoryview:
    """Return the wire bytes of some elements; `seed` is what the basis depends on."""
    keys, block = keys_of(seed), codec.block
    wire = np.empty(turned_bytes(codec, values.size), np.uint8)
    if not values.size:
        return wire.data
    wire[:KEY_BYTES].view("<u4")[:] = keys
    with np.errstate(all="ignore"):  # the scale of what is not finite is not finite either, and is refused
        sums = _spread(in_rows(values, block) * _signs(keys, block))
        wire[KEY_BYTES:][: 4 * len(sums)].view("<f4")[:] = _scales(sums)
        wire[KEY_BYTES + 4 * len(sums) :] = pack((sums < 0).reshape(-1), 1)
    return wire.data


def from_turned(codec: TurnedSign, data: bytes | memoryview, count: int) -> Vector:
    """Return `count` elements from wire bytes that were checked."""
    if not count:
        return np.empty(0, np.float32)
    keys, scales = np.frombuffer(data, "<u4", 2), _scales_in(codec, data, count)
    packed = np.frombuffer(data, np.uint8, offset=KEY_BYTES + 4 * len(scales))
    bits = unpack(packed, len(scales) * codec.block, 1).reshape(-1, codec.block)
    signs = _signs((int(keys[0]), int(keys[1])), codec.block)
    rows, few = np.empty(bits.shape, np.float32), max(1, _NEAR // codec.block)
    for first in range(0, len(rows), few):
        some = slice(first, first + few)
        sums = _sums_of_ones(bits[some])
        sums *= signs
        np.multiply(sums, scales[some, None], out=rows[some])
    return rows.reshape(-1)[:count]


def why_not(codec: TurnedSign, data: bytes | memoryview, count: int) -> str:
    """Return what is wrong with wire bytes of the right length; empty: nothing."""
    if not count:
        return ""
    exponent = min(SCALE_EXPONENT_MAX, _FINITE_EXPONENT - (codec.block - 1).bit_length())
    most = np.float32(2.0**exponent)
    return "" if (np.abs(_scales_in(codec, data, count)) <= most).all() else "holds values that are not finite"


def _scales(sums: Rows) -> Vector:
    """Return each block's scale: the mean magnitude of its sums, and as many times smaller as going back adds up.

    Infinite where sums are no numbers: which bits such a one has is each processor's own.
    """
    block = np.float32(sums.shape[1])  # a power of two: dividing by it rounds nothing
    scales = nonzero(added(np.divide(np.abs(sums), block, dtype=np.float32)) / block)
    scales[np.isnan(scales)] = np.inf
    return scales


def _scales_in(codec: TurnedSign, data: bytes | memoryview, count: int) -> Vector:
    blocks = -(-count // codec.block)
    return np.frombuffer(data, np.uint8, 4 * blocks, KEY_BYTES).view("<f4").astype(np.float32)


def _signs(keys: tuple[int, int], block: int) -> Vector:
    minus = drawn_by(keys, block) >> np.uint32(DRAWN_BITS - 1)
    return np.float32(1.0) - np.float32(2.0) * minus.astype(np.float32)


def _sums_of_ones(bits: NDArray[np.uint8]) -> Rows:
    """Return all sums and differences of rows of ones, minus where a bit is: whole numbers, so in whatever order.

    The transform of a row is one of its parts and then one across parts, and products of matrices are fastest.
    """
    ones: Rows = np.float32(1.0) - np.float32(2.0) * bits.astype(np.float32)
    block = bits.shape[1]
    part = 1 << (block.bit_length() // 2)
    within = ones.reshape(-1, part) @ _all_sums(part)
    across: Rows = np.matmul(_all_sums(block // part), within.reshape(-1, block // part, part))
    return across.reshape(-1, block)


@cache
def _all_sums(count: int) -> Rows:
    """Return the matrix of Walsh and Hadamard of so many rows."""
    signs: Rows = np.ones((1, 1), np.float32)
    while len(signs) < count:
        signs = np.block([[signs, signs], [signs, -signs]])
    return signs


def _spread(rows: Rows) -> Rows:
    """Return all sums and differences of each row; twice, they are the row again, as often as it is long."""
    made, block = np.empty_like(rows), rows.shape[1]
    few = max(1, _NEAR // block)
    for first in range(0, len(rows), few):
        columns = np.ascontiguousarray(rows[first : first + few].T)  # so that neighbours in memory are added at once
        half = 1
        while half < block:
            one, other = columns.reshape(block // (2 * half), 2, -1).transpose(1, 0, 2)
            less = one - other
            one += other
            other[:] = less
            half *= 2
        made[first : first + few] = columns.T
    return made
