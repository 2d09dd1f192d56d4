"""Values in bins: a chunk's own table of what each bin means, then every element's bin.

Bins are even, `width` standard deviations all together, and one of them has the chunk's mean in its middle, so there
is one more on the left of it than on the right: that is how hivemind, prime and Templar cut them. A bin is decoded as
the mean of what fell into it, so the chunk's sum is kept. An empty bin is zero. On the wire comes the table (fp32),
then the codes, packed.
"""

from __future__ import annotations

import numpy as np

from atoll.model.compute import Vector
from atoll.spec.recipe import Buckets
from atoll.sync.codec.bits import is_padded, pack, packed_bytes, unpack


def bucket_bytes(codec: Buckets, count: int) -> int:
    """Return how many bytes so many elements are."""
    return _table_bytes(codec) + packed_bytes(count, codec.bits) if count else 0


def to_buckets(codec: Buckets, values: Vector) -> memoryview:
    """Return the wire bytes of some elements."""
    if not values.size:
        return memoryview(b"")
    bins = 1 << codec.bits
    with np.errstate(all="ignore"):  # what is not finite shows in the table, and is refused
        centre = values.mean(dtype=np.float64)
        step = codec.width * values.std(dtype=np.float64) / bins
        places = (values - np.float32(centre)) * np.float32(1 / step if step > 0 else 0.0)
        codes = np.clip(np.rint(places, out=places), -bins // 2, bins // 2 - 1).astype(np.int16) + bins // 2
        sums = np.bincount(codes, weights=values, minlength=bins)
        table = sums / np.maximum(np.bincount(codes, minlength=bins), 1)
    wire = np.empty(bucket_bytes(codec, values.size), np.uint8)
    wire[: _table_bytes(codec)] = table.astype("<f4").view(np.uint8)
    wire[_table_bytes(codec) :] = pack(codes, codec.bits)
    return wire.data


def from_buckets(codec: Buckets, data: bytes | memoryview, count: int) -> Vector:
    """Return `count` elements from wire bytes that were checked."""
    if not count:
        return np.zeros(0, np.float32)
    codes = unpack(np.frombuffer(data, np.uint8, offset=_table_bytes(codec)), count, codec.bits)
    values: Vector = _table(codec, data)[codes]
    return values


def why_not(codec: Buckets, data: bytes | memoryview, count: int) -> str:
    """Return what is wrong with wire bytes of the right length; empty: nothing."""
    if not count:
        return ""
    if not np.isfinite(_table(codec, data)).all():
        return "holds values that are not finite"
    codes = np.frombuffer(data, np.uint8, offset=_table_bytes(codec))
    return "" if is_padded(codes, count, codec.bits) else "has bits after its last element"


def _table_bytes(codec: Buckets) -> int:
    return 4 << codec.bits


def _table(codec: Buckets, data: bytes | memoryview) -> Vector:
    return np.frombuffer(data, "<f4", 1 << codec.bits).astype(np.float32)
