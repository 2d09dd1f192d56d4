"""Whatever is large enough, and where that is: a few of one chunk, many of another, none of a third.

How long a chunk is depends on its values, so it says so itself: on the wire come how many were kept (4 bytes), their
values in a form of their own, then where they are, by whichever is shorter: each one's place in the chunk in as few
bits as that needs, rising, or a bit for every element. From how many were kept everything else follows, and they are
never more than the chunk has elements: what is longer or shorter than it says is refused before it is decoded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.model.compute import Vector
from atoll.sync.codec.bits import is_padded, pack, packed_bytes, unpack

COUNT_BYTES = 4
ELEMENTS_MAX = 2**16
"""Of a chunk: a place has two bytes at most."""


def kept(data: bytes | memoryview, count: int) -> int | None:
    """Return how many of `count` elements a chunk says it keeps; None: that cannot be."""
    said = int.from_bytes(data[:COUNT_BYTES], "little")
    return said if len(data) >= COUNT_BYTES and said <= count else None


def places_bytes(keep: int, count: int) -> int:
    """Return how long the places of so many of `count` elements are."""
    return min(packed_bytes(keep, _bits(count)), packed_bytes(count, 1))


def large(values: Vector, least: float | Vector) -> tuple[NDArray[np.uint8], Vector, NDArray[np.uint8]]:
    """Return how many values are at least so large, those, and their packed places."""
    # What is not finite is not smaller than anything: it is sent, and refused.
    there = ~(np.abs(values) < least)
    chosen = values[there]
    packed = pack(there, 1) if _mapped(chosen.size, values.size) else pack(np.flatnonzero(there), _bits(values.size))
    return np.frombuffer(chosen.size.to_bytes(COUNT_BYTES, "little"), np.uint8), chosen, packed


def named(packed: NDArray[np.uint8], keep: int, count: int) -> NDArray[np.bool_]:
    """Return which of `count` elements were kept, from packed places."""
    if _mapped(keep, count):
        return unpack(packed, count, 1).astype(np.bool_)
    there = np.zeros(count, np.bool_)
    there[_places(packed, keep, count)] = True
    return there


def why_not(packed: NDArray[np.uint8], keep: int, count: int) -> str:
    """Return what is wrong with packed places of the right length; empty: nothing."""
    mapped = _mapped(keep, count)
    numbers, bits = (count, 1) if mapped else (keep, _bits(count))
    if packed.size and not is_padded(packed, numbers, bits):
        return "has bits after its last place"
    if mapped:
        return "" if int(unpack(packed, count, 1).sum()) == keep else "has another number of places than it says"
    places = _places(packed, keep, count)
    rises = bool((np.diff(places) > 0).all()) and (not places.size or int(places[-1]) < count)
    return "" if rises else "names places out of order or outside of it"


def _bits(count: int) -> int:
    return max(1, (count - 1).bit_length())


def _mapped(keep: int, count: int) -> bool:
    """Return whether places are a bit for every element."""
    return packed_bytes(count, 1) < packed_bytes(keep, _bits(count))


def _places(packed: NDArray[np.uint8], keep: int, count: int) -> NDArray[Any]:
    return unpack(packed, keep, _bits(count)).astype(np.int64)
