"""Values in bins: a chunk's own table of what each bin means, then every element's bin.

Bins are even, `width` standard deviations all together, and one of them has the chunk's mean in its middle, so there
is one more on the left of it than on the right: that is how hivemind, prime and Templar cut them. A bin is decoded as
the mean of what fell into it, so the chunk's sum is kept. An empty bin is zero. On the wire comes the table (fp32),
then the codes, packed.

Sums are of whole numbers: values are counted in a power of two that leaves the largest of the chunk 31 bits, distances
from the mean, which are squared, in one that leaves them 15. Then no sum is ever rounded, and whoever adds up in
whatever order, one core or ten thousand (`model.encoding.codec`), comes to the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from atoll.model.compute import Vector
from atoll.spec.axes.codec import Buckets
from atoll.sync.codec.bits import is_padded, pack, packed_bytes, unpack

VALUE_BITS, DISTANCE_BITS = 31, 15
"""With 2^21 elements, which no chunk exceeds, sums of values and of squares have 52 bits at most: a double has 53."""
UNIT_EXPONENT_MAX = 127
"""Beyond it a unit's reciprocal is no fp32."""
LARGEST = 2.0**126
"""Between two values that are larger there may be no finite distance: they are refused as if they were not finite."""
STEP_MIN = 2.0**-120
"""Bins narrower than this have no finite reciprocal: all are as good as one."""
_NEAR = 2**16
"""Elements that are worked on at once: what a processor keeps near."""


def bucket_bytes(codec: Buckets, count: int) -> int:
    """Return how many bytes so many elements are."""
    return _table_bytes(codec) + packed_bytes(count, codec.bits) if count else 0


def to_buckets(codec: Buckets, values: Vector) -> memoryview:
    """Return the wire bytes of some elements."""
    if not values.size:
        return memoryview(b"")
    low, high = values.min(), values.max()
    codes = np.full(values.size, (1 << codec.bits) // 2, np.uint8)
    largest = max(float(high), -float(low))
    if largest <= LARGEST:
        table = _in_bins(codec, values, low, high, codes)
    else:  # not finite, or nearly so: it shows in the table, and is refused
        table = np.full(1 << codec.bits, np.nan, np.float32)
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


class _Desk:
    """Memory for as many elements as a processor keeps near, in which the rest are worked on one after the other."""

    def __init__(self, values: Vector) -> None:
        self.values, near = values, min(values.size, _NEAR)
        self._steps, self._whole, self._places = np.empty(near, np.float32), np.empty(near), np.empty(near, np.intp)

    def parts(self) -> Iterator[Vector]:
        """Yield the elements, some at a time."""
        return (self.values[first : first + _NEAR] for first in range(0, self.values.size, _NEAR))

    def counted(self, part: Vector, unit: float) -> NDArray[np.float64]:
        """Return elements in whole parts of a unit, what is less cut off."""
        steps, whole = self._steps[: part.size], self._whole[: part.size]
        np.multiply(part, np.float32(unit), out=steps)
        whole[:] = np.trunc(steps, out=steps)
        return whole

    def away(self, part: Vector, centre: np.float32, per_step: np.float32) -> Vector:
        """Return how many steps elements are away from a centre, to the nearest."""
        steps = np.subtract(part, centre, out=self._steps[: part.size])
        steps *= per_step
        return np.rint(steps, out=steps)

    def exact(self, steps: Vector) -> NDArray[np.float64]:
        """Return whole numbers, which can be multiplied and added up exactly."""
        whole = self._whole[: steps.size]
        whole[:] = steps
        return whole

    def places(self, codes: NDArray[np.uint8]) -> NDArray[np.intp]:
        """Return codes as numpy counts them."""
        places = self._places[: codes.size]
        places[:] = codes
        return places


def _in_bins(codec: Buckets, values: Vector, low: np.float32, high: np.float32, codes: NDArray[np.uint8]) -> Vector:
    """Write each element's bin, and return what the bins mean."""
    desk, bins = _Desk(values), 1 << codec.bits
    unit = _unit(max(float(high), -float(low)), VALUE_BITS)
    total = sum(float(desk.counted(part, unit).sum()) for part in desk.parts())
    centre = np.float32(total / values.size / unit)
    per_step = _per_step(codec, desk, centre, max(float(high - centre), float(centre - low)))
    sums, counts, first = np.zeros(bins), np.zeros(bins, np.int64), 0
    for part in desk.parts():
        steps = desk.away(part, centre, per_step)
        np.clip(steps, -bins // 2, bins // 2 - 1, out=steps)
        steps += np.float32(bins // 2)
        here = codes[first : first + part.size]
        here[:] = steps
        places = desk.places(here)
        sums += np.bincount(places, weights=desk.counted(part, unit), minlength=bins)
        counts += np.bincount(places, minlength=bins)
        first += part.size
    return (sums / np.maximum(counts, 1) / unit).astype(np.float32)


def _per_step(codec: Buckets, desk: _Desk, centre: np.float32, farthest: float) -> np.float32:
    """Return how many bins lie between two values that are one apart."""
    unit = _unit(farthest, DISTANCE_BITS)
    distances = (desk.exact(desk.away(part, centre, np.float32(unit))) for part in desk.parts())
    squares = sum(float(np.dot(each, each)) for each in distances)
    step = codec.width * math.sqrt(squares / desk.values.size) / unit / (1 << codec.bits)
    return np.float32(1.0 / step if step >= STEP_MIN else 0.0)


def _unit(largest: float, bits: int) -> float:
    """Return how many of the smallest part that is counted make one: a power of two."""
    return 2.0 ** min(bits - math.frexp(largest)[1], UNIT_EXPONENT_MAX)


def _table_bytes(codec: Buckets) -> int:
    return 4 << codec.bits


def _table(codec: Buckets, data: bytes | memoryview) -> Vector:
    return np.frombuffer(data, "<f4", 1 << codec.bits).astype(np.float32)
