"""What a vector looks like on the wire, chunk by chunk.

Each chunk is encoded by itself, so it means the same whoever sends it. Decoding checks what came from another
machine: the length must fit and every value must be finite, or the sender is to blame.

In int8 a chunk is its blocks' steps (fp32), then a byte for each element: how many steps it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.errors import PeerError
from atoll.model.compute import Vector
from atoll.spec.recipe import Codec, Fp16, Fp32, Int8

_HALF_MAX = 65504.0
_STEPS = 127
_STEP_MIN = np.float32(2.0**-120)
"""A step's reciprocal must be finite; a block whose largest is smaller than this is as good as zero."""
_STEP_MAX = np.float32(2.0**120)
"""And so must 128 of them."""


class BadChunk(PeerError):
    """A chunk from another peer has the wrong length or holds a value that is not finite."""


def wire_bytes(codec: Codec, count: int) -> int:
    """Return how many bytes a chunk of so many elements is."""
    match codec:
        case Fp32():
            return 4 * count
        case Fp16():
            return 2 * count
        case Int8(block=block):
            return count + 4 * _blocks(count, block)


def encode(codec: Codec, values: Vector) -> memoryview:
    """Return the wire bytes of some elements, little-endian: where they are those in memory, without a copy."""
    match codec:
        case Fp32():
            return np.ascontiguousarray(values, "<f4").view(np.uint8).data
        case Fp16():
            return np.clip(values, -_HALF_MAX, _HALF_MAX).astype("<f2").view(np.uint8).data
        case Int8(block=block):
            return _in_steps(values, block)


def check(codec: Codec, data: bytes | memoryview, count: int) -> None:
    """Raise `BadChunk` unless some bytes are `count` finite elements."""
    expected = wire_bytes(codec, count)
    if len(data) != expected:
        raise BadChunk(f"a chunk of {count} elements came as {len(data)} bytes, not {expected}")
    match codec:
        case Fp32():
            fine = np.isfinite(np.frombuffer(data, "<f4")).all()
        case Fp16():
            fine = np.isfinite(np.frombuffer(data, "<f2")).all()
        case Int8(block=block):
            fine = (np.abs(_steps_of(data, count, block)) <= _STEP_MAX).all()
    if not fine:
        raise BadChunk("a chunk holds values that are not finite")


def decode(codec: Codec, data: bytes | memoryview, count: int) -> Vector:
    """Return `count` elements from wire bytes, not to be written to; raises `BadChunk`."""
    check(codec, data, count)
    return decoded(codec, data, count)


def decoded(codec: Codec, data: bytes | memoryview, count: int) -> Vector:
    """Return `count` elements from wire bytes that were checked, not to be written to."""
    match codec:
        case Fp32():
            return np.frombuffer(data, "<f4").astype(np.float32, copy=False)
        case Fp16():
            return np.frombuffer(data, "<f2").astype(np.float32)
        case Int8(block=block):
            return _out_of_steps(data, count, block)


# int8


def _blocks(count: int, block: int) -> int:
    return -(-count // block)


def _in_steps(values: Vector, block: int) -> memoryview:
    """Return the steps of the blocks and how many of them each element is."""
    count = values.size
    rows = _in_rows(values, block)
    steps = np.maximum(rows.max(axis=1, initial=0.0), -rows.min(axis=1, initial=0.0)) / np.float32(_STEPS)
    steps = np.where(steps < _STEP_MIN, np.float32(0.0), steps)
    per_one = np.divide(1.0, steps, out=np.zeros_like(steps), where=steps > 0)
    wire = np.empty(4 * steps.size + count, np.uint8)
    wire[: 4 * steps.size] = steps.astype("<f4", copy=False).view(np.uint8)
    with np.errstate(invalid="ignore"):  # the step of what is not finite is not finite either, and is refused
        counts = rows * per_one[:, None]
        wire[4 * steps.size :].view(np.int8)[:] = np.rint(counts, out=counts).reshape(-1)[:count]
    return wire.data


def _in_rows(values: Vector, block: int) -> NDArray[np.float32]:
    """Return the values a block a row, the last one filled up with zeros."""
    lacking = -values.size % block
    full = np.concatenate([values, np.zeros(lacking, np.float32)]) if lacking else values
    return full.reshape(-1, block)


def _steps_of(data: bytes | memoryview, count: int, block: int) -> NDArray[np.float32]:
    return np.frombuffer(data, "<f4", _blocks(count, block)).astype(np.float32)  # data lies anywhere; this is aligned


def _out_of_steps(data: bytes | memoryview, count: int, block: int) -> Vector:
    steps = _steps_of(data, count, block)
    counts = np.frombuffer(data, np.int8, count, 4 * steps.size)
    values = counts.astype(np.float32)
    whole = count - count % block
    values[:whole].reshape(-1, block)[:] *= steps[: whole // block, None]
    values[whole:] *= steps[-1] if count % block else np.float32(1.0)
    return values
