"""Values that share a scale with their block: even steps, powers of two, or nothing but a sign.

On the wire come the blocks' scales (fp32), then the elements' codes, packed. A block of zeros has the scale 0, and so
has one whose largest is too small to divide by.

    int8         a signed byte: so many steps, the largest of the block being 127
    e3m0         four bits: a sign, and 0 or 2^-6 .. 2^0 of the block's largest
    sign         a bit: plus or minus the block's mean magnitude
    ternary      a fifth of a byte: nothing, or plus or minus one level of the block
    quaternary   two bits: plus or minus one of two levels of the block
    stochastic   a few bits: so many steps of the block's norm, rounded up or down by chance

A norm is that of whole numbers, elements in parts of which the block's largest is 2^14 to 2^15, rounded up: so nobody
rounds while adding squares up, in whatever order, and no element is larger than the norm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.model.compute import Vector
from atoll.model.encoding.chance import DRAWN_BITS
from atoll.spec.axes.codec import (
    QUATERNARY_LARGE,
    QUATERNARY_LEVEL,
    TERNARY_LEVEL,
    E3m0,
    Int8,
    Quaternary,
    Sign,
    Stochastic,
    Ternary,
)
from atoll.sync.codec.bits import (
    are_threes,
    is_padded,
    pack,
    pack_threes,
    packed_bytes,
    threes_bytes,
    unpack,
    unpack_threes,
)
from atoll.sync.codec.chance import drawn

Scaled = Int8 | E3m0 | Sign | Ternary | Quaternary | Stochastic

_STEPS = 127
_OCTAVES = 7
_POWERS = np.array([0.0, *(2.0 ** (power - _OCTAVES + 1) for power in range(_OCTAVES))], np.float32)
_E3M0 = np.concatenate([_POWERS, -_POWERS])
"""What each four bits stand for, in units of the block's largest."""
_SIGNED = np.array([0.0, 1.0, -1.0], np.float32)
"""What each of three digits stands for, in levels."""
_SIZED = np.array([1.0, -1.0, QUATERNARY_LARGE, -QUATERNARY_LARGE], np.float32)
"""And what each two bits stand for: a sign, and whether the level is the larger one."""
_LARGE = np.float32((1.0 + QUATERNARY_LARGE) / 2)
"""From here on the larger one is nearer."""
_EXPONENT_BIAS = 127
_HALF_UP = 1 << 22
"""Added to the bits of a float, carries into its exponent from one and a half times a power of two upwards."""
_WHOLE = np.float32(1.5 * 2.0**23)
"""Where neighbouring floats are one apart, for as far as a code reaches in either direction."""
_NEAR = 2**18
"""Elements that are worked on at once: what a processor keeps near."""
_SCALE_MIN = np.float32(2.0**-120)
"""A scale's reciprocal must be finite; a block whose scale is smaller than this is as good as zero."""
SCALE_EXPONENT_MAX, _END_EXPONENT = 120, 128
"""And so must as many of them as a code can stand for: in all they stay below where numbers end."""
_NORM_BITS = 15
"""Of the largest of a block, where squares are added up: with 2^16 elements their sum has 46 bits at most."""
_UNIT_EXPONENT_MAX = 127


def scaled_bytes(codec: Scaled, count: int) -> int:
    """Return how many bytes so many elements are."""
    codes_bytes = threes_bytes(count) if isinstance(codec, Ternary) else packed_bytes(count, codec.bits)
    return 4 * _blocks(count, codec.block) + codes_bytes


def to_scales(codec: Scaled, values: Vector, seed: int) -> memoryview:
    """Return the wire bytes of some elements; `seed` is what chance depends on, where there is any."""
    rows = in_rows(values, codec.block)
    wire = np.empty(scaled_bytes(codec, values.size), np.uint8)
    scales, codes = wire[: 4 * len(rows)].view("<f4"), wire[4 * len(rows) :]
    with np.errstate(all="ignore"):  # the scale of what is not finite is not finite either, and is refused
        if isinstance(codec, Int8):
            _in_steps(rows, scales, codes.view(np.int8))
        else:
            scales[:] = _scales(codec, rows, values.size)
            made = _codes(codec, rows, _per_one(scales), seed).reshape(-1)[: values.size]
            codes[:] = pack_threes(made) if isinstance(codec, Ternary) else pack(made, codec.bits)
    return wire.data


def from_scales(codec: Scaled, data: bytes | memoryview, count: int) -> Vector:
    """Return `count` elements from wire bytes that were checked."""
    scales, values = _scales_in(codec, data, count), _units(codec, _codes_in(codec, data, count))
    whole = count - count % codec.block
    values[:whole].reshape(-1, codec.block)[:] *= scales[: whole // codec.block, None]
    values[whole:] *= scales[-1] if count % codec.block else np.float32(1.0)
    return values


def why_not(codec: Scaled, data: bytes | memoryview, count: int) -> str:
    """Return what is wrong with wire bytes of the right length; empty: nothing."""
    bits = 2 if isinstance(codec, Ternary) else codec.bits
    most = np.float32(2.0 ** min(SCALE_EXPONENT_MAX, _END_EXPONENT - bits))
    if not (np.abs(_scales_in(codec, data, count)) <= most).all():
        return "holds values that are not finite"
    codes = np.frombuffer(data, np.uint8, offset=4 * _blocks(count, codec.block))
    if isinstance(codec, Ternary):
        return "" if are_threes(codes, count) else "has bytes that stand for no elements"
    return "" if is_padded(codes, count, codec.bits) else "has bits after its last element"


def in_rows(values: Vector, block: int) -> NDArray[np.float32]:
    """Return the values a block a row, the last one filled up with zeros."""
    lacking = -values.size % block
    full = np.concatenate([values, np.zeros(lacking, np.float32)]) if lacking else values
    return full.reshape(-1, block)


def _in_steps(rows: NDArray[np.float32], scales: NDArray[np.float32], codes: NDArray[np.int8]) -> None:
    """Write the steps of blocks, and how many of them each element is.

    A small number added to `_WHOLE` is rounded to a whole one, a half to the even, and stands in its lowest bits: that
    is quicker than to round it and to make an integer of it.
    """
    block = rows.shape[1]
    few = max(1, min(len(rows), _NEAR // block))
    near = np.empty((few, block), np.float32)
    for first in range(0, len(rows), few):
        some, step = rows[first : first + few], scales[first : first + few]
        largest = _largest(some)
        nonzero(np.divide(largest, np.float32(_STEPS), out=step))
        steps = np.multiply(some, _per_one(step, out=largest)[:, None], out=near[: len(some)])
        steps += _WHOLE
        part = codes[first * block : (first + few) * block]
        part[:] = steps.view(np.int32).reshape(-1)[: part.size]


def _per_one(scales: NDArray[np.float32], out: Vector | None = None) -> Vector:
    """Return how often each scale goes into one: not once, if it is zero or no number."""
    if scales.size and scales.min() > 0:  # nearly always, and the quicker way
        return np.divide(np.float32(1.0), scales, out=out)
    return np.divide(1.0, scales, out=np.zeros(scales.shape, np.float32), where=scales > 0)


def nonzero(scales: Vector) -> Vector:
    """Return scales, zero from now on where they are too small to divide by."""
    scales[scales < _SCALE_MIN] = 0.0
    return scales


def _blocks(count: int, block: int) -> int:
    return -(-count // block)


def _scales(codec: E3m0 | Sign | Ternary | Quaternary | Stochastic, rows: NDArray[np.float32], count: int) -> Vector:
    """Return each block's scale: what the code 1 stands for."""
    match codec:
        case E3m0():
            scales = _largest(rows)
        case Sign():
            scales = _means(rows, count)
        case Ternary():
            scales = _means(rows, count) * np.float32(TERNARY_LEVEL)
        case Quaternary():
            scales = _means(rows, count) * np.float32(QUATERNARY_LEVEL)
        case Stochastic(bits=bits):
            scales = (_norms(rows) / _levels(bits)).astype(np.float32)
    return nonzero(scales)


def _means(rows: NDArray[np.float32], count: int) -> Vector:
    """Return the mean magnitude of each block of so many elements in all."""
    block = rows.shape[1]
    filled = np.full(len(rows), block, np.float32)
    filled[-1:] -= -count % block
    means: Vector = added(np.abs(rows)) / filled
    return means


def _largest(rows: NDArray[np.float32]) -> Vector:
    """Return the largest magnitude of each row, without a copy of them; it is quicker where the first is 0."""
    largest: Vector = rows.max(axis=1, initial=0.0)
    least: Vector = rows.min(axis=1, initial=0.0)
    return np.maximum(largest, np.negative(least, out=least), out=largest)


def _norms(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the norm of each row, of whole numbers whose squares are added up exactly."""
    powers = np.minimum(_NORM_BITS - np.frexp(_largest(rows))[1], _UNIT_EXPONENT_MAX)
    units = np.ldexp(np.float32(1.0), powers)
    whole = np.abs(rows)
    whole *= units[:, None]
    np.ceil(whole, out=whole)
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", whole, whole, dtype=np.float64)) / units
    return norms


def added(rows: NDArray[np.float32]) -> Vector:
    """Return the sum of each row, whose memory is used up: its second half is added to the first, and so on.

    So every device adds in the same order (`model.encoding.codec`), and in one that rounds little.
    """
    width = rows.shape[1]
    while width > 1:
        half = -(-width // 2)
        rows[:, : width - half] += rows[:, half:width]
        width = half
    sums: Vector = rows[:, 0]
    return sums


def _codes(
    codec: E3m0 | Sign | Ternary | Quaternary | Stochastic, rows: NDArray[np.float32], per_one: Vector, seed: int
) -> NDArray[Any]:
    match codec:
        case E3m0():
            return _powers(rows * per_one[:, None])
        case Sign():
            return np.signbit(rows)
        case Ternary():
            return _nearest(rows * per_one[:, None])
        case Quaternary():
            return _sized(rows * per_one[:, None])
        case Stochastic(bits=bits):
            return _rounded(rows * per_one[:, None], seed, _levels(bits))


def _nearest(parts: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return which of three levels is nearest to each: 0 nothing, 1 plus, 2 minus."""
    codes = (parts <= -0.5).view(np.uint8) * np.uint8(2)
    codes += parts >= 0.5
    return codes


def _sized(parts: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return which of four levels is nearest to each: a bit for its sign, one for its size."""
    codes = np.signbit(parts).view(np.uint8)
    codes += (np.abs(parts) >= _LARGE).view(np.uint8) * np.uint8(2)
    return codes


def _rounded(steps: NDArray[np.float32], seed: int, levels: int) -> NDArray[np.int16]:
    """Return steps rounded up or down, as codes: up as often as the part beyond the lower one says, to 24 bits."""
    down = np.floor(steps)
    steps -= down
    steps *= np.float32(1 << DRAWN_BITS)
    down += drawn(seed, steps.size).reshape(steps.shape) < steps
    down += np.float32(levels)
    codes: NDArray[np.int16] = np.clip(down, 0, 2 * levels, out=down).astype(np.int16)
    return codes


def _levels(bits: int) -> int:
    """Return how many steps there are on either side of zero."""
    return max(1, (1 << (bits - 1)) - 1)


def _powers(parts: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the nearest power of two of each part of a largest: its place, and 8 more where it is negative."""
    exponents = ((parts.view(np.int32) & 0x7FFFFFFF) + _HALF_UP) >> 23
    places: NDArray[np.uint8] = np.clip(exponents - (_EXPONENT_BIAS - _OCTAVES), 0, _OCTAVES).astype(np.uint8)
    small = 2.0**-_OCTAVES  # half of the smallest power: what is above it is nearer to that than to zero
    np.maximum(places, np.abs(parts) >= small, out=places)
    places += np.uint8(_OCTAVES + 1) * np.signbit(parts)
    return places


def _units(codec: Scaled, codes: NDArray[Any]) -> Vector:
    """Return what codes stand for, in units of their blocks' scales."""
    units: Vector
    match codec:
        case Int8():
            units = codes.view(np.int8).astype(np.float32)
        case E3m0():
            units = _E3M0[codes]
        case Sign():
            units = np.float32(1.0) - np.float32(2.0) * codes.astype(np.float32)
        case Ternary():
            units = _SIGNED[codes]
        case Quaternary():
            units = _SIZED[codes]
        case Stochastic(bits=bits):
            units = codes.astype(np.float32) - np.float32(_levels(bits))
    return units


def _scales_in(codec: Scaled, data: bytes | memoryview, count: int) -> NDArray[np.float32]:
    # Data lies anywhere; this is aligned.
    return np.frombuffer(data, "<f4", _blocks(count, codec.block)).astype(np.float32)


def _codes_in(codec: Scaled, data: bytes | memoryview, count: int) -> NDArray[Any]:
    packed = np.frombuffer(data, np.uint8, offset=4 * _blocks(count, codec.block))
    return unpack_threes(packed, count) if isinstance(codec, Ternary) else unpack(packed, count, codec.bits)
