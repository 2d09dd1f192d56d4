"""What a vector looks like on the wire, chunk by chunk.

Each chunk is encoded by itself, so it means the same whoever sends it, and is as long as its codec and its number of
elements say: how long is known before it comes. Only of `above` that is the most it can be: such a chunk begins with
how many elements it is about. Decoding checks what came from another machine: the length must fit and every value must
be finite, or the sender is to blame.

    floats      fp32, fp16, bf16                      each element by itself
    scales      int8, e3m0, sign, ternary, quaternary, stochastic elements share a scale with their block
    turned      turned-sign                           likewise sums and differences of a block, of drawn signs
    buckets     a table of the chunk's own, and each element's place in it
    sparse      the largest of each block, in any of the forms above, and where they are
    above       whatever is large enough, likewise
    lines       whole cache lines, by a threshold that is remembered, likewise
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from atoll.errors import PeerError
from atoll.model.compute import Vector
from atoll.spec.axes.codec import (
    Above,
    Bf16,
    Buckets,
    CacheLines,
    Codec,
    E3m0,
    Fp16,
    Fp32,
    Int8,
    MaxN,
    Quaternary,
    Sign,
    Significance,
    Stochastic,
    Ternary,
    Threshold,
    TopK,
    TurnedSign,
)
from atoll.sync.codec import above, buckets, lines, scales, sparse, turned
from atoll.sync.codec.memory import keep_freed

_HALF_MAX = 65504.0
_BF16_MAX = np.float32(3.3895314e38)
_BF16_EXPONENT = np.uint16(0x7F80)
"""All ones: not finite."""

keep_freed()


class BadChunk(PeerError):
    """A chunk from another peer has the wrong length or holds a value that is not finite."""


def wire_bytes(codec: Codec, count: int) -> int:
    """Return how many bytes a chunk of so many elements is; where that depends on its values, at most."""
    match codec:
        case Fp32():
            return 4 * count
        case Fp16() | Bf16():
            return 2 * count
        case Int8() | E3m0() | Sign() | Ternary() | Quaternary() | Stochastic():
            return scales.scaled_bytes(codec, count)
        case TurnedSign():
            return turned.turned_bytes(codec, count)
        case Buckets():
            return buckets.bucket_bytes(codec, count)
        case TopK():
            return wire_bytes(codec.values, codec.kept(count)) + sparse.places_bytes(codec, count)
        case CacheLines():
            return wire_bytes(codec.values, lines.kept(codec, count) * codec.line) + lines.places_bytes(codec, count)
        case Threshold() | Significance() | MaxN():
            return _above_bytes(codec, count, count)


def is_exact(codec: Codec) -> bool:
    """Return whether every chunk of as many elements is as long."""
    return not isinstance(codec, Above)


def length_of(codec: Codec, data: bytes | memoryview, count: int) -> int:
    """Return how long a chunk of so many elements that begins like this must be; -1: nothing can."""
    match codec:
        case Threshold() | Significance() | MaxN():
            keep = above.kept(data, count)
            return -1 if keep is None else _above_bytes(codec, keep, count)
        case _:
            return wire_bytes(codec, count)


def encode(codec: Codec, values: Vector, seed: int = 0, least: float | Vector | None = None) -> memoryview:
    """Return the wire bytes of some elements, little-endian: where they are those in memory, without a copy.

    `seed` is what chance depends on, in codecs that round by chance; `least` how large an element must be, in those
    that look at that, if not as large as the codec says, or what one remembers from round to round, which then moves.
    """
    match codec:
        case Fp32():
            return np.ascontiguousarray(values, "<f4").view(np.uint8).data
        case Fp16():
            return np.clip(values, -_HALF_MAX, _HALF_MAX).astype("<f2").view(np.uint8).data
        case Bf16():
            return _upper_halves(values)
        case Int8() | E3m0() | Sign() | Ternary() | Quaternary() | Stochastic():
            return scales.to_scales(codec, values, seed)
        case TurnedSign():
            return turned.to_turned(codec, values, seed)
        case Buckets():
            return buckets.to_buckets(codec, values)
        case TopK():
            chosen, places = sparse.largest(codec, values)
            return np.concatenate([np.frombuffer(encode(codec.values, chosen, seed), np.uint8), places]).data
        case CacheLines():
            known = least if isinstance(least, np.ndarray) else None
            chosen, places = lines.largest(codec, values, known)
            return np.concatenate([np.frombuffer(encode(codec.values, chosen, seed), np.uint8), places]).data
        case Threshold() | Significance() | MaxN():
            given = 0.0 if isinstance(codec, MaxN) else codec.least
            number, chosen, places = above.large(values, given if least is None else least)
            return np.concatenate([number, np.frombuffer(encode(codec.values, chosen, seed), np.uint8), places]).data


def seed_of(version: int, index: int, peer: bytes = b"") -> int:
    """Return what chance depends on in a chunk of a round's result, or of a peer's contribution to it."""
    words = version.to_bytes(8, "little") + index.to_bytes(8, "little") + peer
    return int.from_bytes(blake3(words).digest(length=16), "little")


def check(codec: Codec, data: bytes | memoryview, count: int) -> None:
    """Raise `BadChunk` unless some bytes are `count` finite elements."""
    expected = length_of(codec, data, count)
    if len(data) != expected:
        raise BadChunk(f"a chunk of {count} elements came as {len(data)} bytes, not {max(expected, 0)}")
    if problem := _why_not(codec, data, count):
        raise BadChunk(f"a chunk {problem}")


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
        case Bf16():
            return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        case Int8() | E3m0() | Sign() | Ternary() | Quaternary() | Stochastic():
            return scales.from_scales(codec, data, count)
        case TurnedSign():
            return turned.from_turned(codec, data, count)
        case Buckets():
            return buckets.from_buckets(codec, data, count)
        case TopK():
            values, places = _halves(codec, data, count)
            return sparse.spread(codec, decoded(codec.values, values, codec.kept(count)), places, count)
        case CacheLines():
            values, places = _halves(codec, data, count)
            chosen = decoded(codec.values, values, lines.kept(codec, count) * codec.line)
            return lines.spread(codec, chosen, places, count)
        case Threshold() | Significance() | MaxN():
            keep, values, places = _parts(codec, data, count)
            spread: Vector = np.zeros(count, np.float32)
            spread[above.named(places, keep, count)] = decoded(codec.values, values, keep)
            return spread


def sent(codec: Codec, data: bytes | memoryview, count: int) -> NDArray[np.bool_]:
    """Return which of `count` elements wire bytes that were checked are about: all, or those that were kept."""
    match codec:
        case TopK():
            return sparse.named(codec, _halves(codec, data, count)[1], count)
        case CacheLines():
            return lines.named(codec, _halves(codec, data, count)[1], count)
        case Threshold() | Significance() | MaxN():
            keep, _, places = _parts(codec, data, count)
            return above.named(places, keep, count)
        case _:
            return np.ones(count, np.bool_)


def _why_not(codec: Codec, data: bytes | memoryview, count: int) -> str:
    """Return what is wrong with wire bytes of the right length; empty: nothing."""
    match codec:
        case Fp32():
            return _finite(np.isfinite(np.frombuffer(data, "<f4")))
        case Fp16():
            return _finite(np.isfinite(np.frombuffer(data, "<f2")))
        case Bf16():
            return _finite((np.frombuffer(data, "<u2") & _BF16_EXPONENT) != _BF16_EXPONENT)
        case Int8() | E3m0() | Sign() | Ternary() | Quaternary() | Stochastic():
            return scales.why_not(codec, data, count)
        case TurnedSign():
            return turned.why_not(codec, data, count)
        case Buckets():
            return buckets.why_not(codec, data, count)
        case TopK():
            values, places = _halves(codec, data, count)
            return _why_not(codec.values, values, codec.kept(count)) or sparse.why_not(codec, places, count)
        case CacheLines():
            values, places = _halves(codec, data, count)
            wrong = _why_not(codec.values, values, lines.kept(codec, count) * codec.line)
            return wrong or lines.why_not(codec, places, count)
        case Threshold() | Significance() | MaxN():
            keep, values, places = _parts(codec, data, count)
            return _why_not(codec.values, values, keep) or above.why_not(places, keep, count)


def _halves(codec: TopK | CacheLines, data: bytes | memoryview, count: int) -> tuple[memoryview, NDArray[np.uint8]]:
    """Return the values that were kept, in their own codec, and their packed places."""
    keep = codec.kept(count) if isinstance(codec, TopK) else lines.kept(codec, count) * codec.line
    values_bytes = wire_bytes(codec.values, keep)
    return memoryview(data)[:values_bytes], np.frombuffer(data, np.uint8, offset=values_bytes)


def _above_bytes(codec: Above, keep: int, count: int) -> int:
    """Return how long a chunk is that keeps so many of `count` elements."""
    return above.COUNT_BYTES + wire_bytes(codec.values, keep) + above.places_bytes(keep, count)


def _parts(codec: Above, data: bytes | memoryview, count: int) -> tuple[int, memoryview, NDArray[np.uint8]]:
    """Return how many values were kept, those in their own codec, and their packed places."""
    keep = above.kept(data, count)
    assert keep is not None, "lengths are checked first"
    end = above.COUNT_BYTES + wire_bytes(codec.values, keep)
    return keep, memoryview(data)[above.COUNT_BYTES : end], np.frombuffer(data, np.uint8, offset=end)


def _finite(each: NDArray[np.bool_]) -> str:
    return "" if each.all() else "holds values that are not finite"


def _upper_halves(values: Vector) -> memoryview:
    """Return values as bf16: what is cut off rounds to the nearest, a half to the even."""
    bits = np.clip(values, -_BF16_MAX, _BF16_MAX).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2").view(np.uint8).data
