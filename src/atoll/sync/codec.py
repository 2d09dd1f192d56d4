"""What a vector looks like on the wire, chunk by chunk.

Encoding is elementwise, so a chunk means the same whoever cut it. Decoding checks what came from another
machine: the length must fit and every value must be finite, or the sender is to blame.
"""

from __future__ import annotations

import numpy as np

from atoll.errors import PeerError
from atoll.model.compute import Vector
from atoll.spec.recipe import Codec, Fp16, Fp32

_HALF_MAX = 65504.0


class BadChunk(PeerError):
    """A chunk from another peer has the wrong length or holds a value that is not finite."""


def encode(codec: Codec, values: Vector) -> memoryview:
    """Return the wire bytes of some elements, little-endian: where they are those in memory, without a copy."""
    match codec:
        case Fp32():
            wire = np.ascontiguousarray(values, "<f4")
        case Fp16():
            wire = np.clip(values, -_HALF_MAX, _HALF_MAX).astype("<f2")
    return wire.view(np.uint8).data


def decode(codec: Codec, data: bytes | memoryview, count: int) -> Vector:
    """Return `count` elements from wire bytes, not to be written to; raises `BadChunk`."""
    if len(data) != count * element_bytes(codec):
        raise BadChunk(f"a chunk of {count} elements came as {len(data)} bytes, not {count * element_bytes(codec)}")
    values = np.frombuffer(data, "<f4" if isinstance(codec, Fp32) else "<f2").astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise BadChunk("a chunk holds values that are not finite")
    return values


def element_bytes(codec: Codec) -> int:
    """Return wire bytes per element."""
    match codec:
        case Fp32():
            return 4
        case Fp16():
            return 2
