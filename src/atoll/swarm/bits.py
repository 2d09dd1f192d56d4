"""Some of many, one bit each: the members of a round among the roster, the pieces of a state that somebody has.

Both sides know the many, and in which order they stand; the first has the lowest bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress

_TRUTH = bytes.maketrans(b"01", b"\0\1")


def bits_of(places: Iterable[int], count: int) -> bytes:
    """Return a bit for each of `count`, set for those at some places."""
    bits = bytearray(-(-count // 8))
    for place in places:
        bits[place // 8] |= 1 << place % 8
    return bytes(bits)


def places_of(bits: bytes, count: int) -> list[int]:
    """Return the places whose bit is set, in order; bits beyond the last place say nothing."""
    digits = f"{int.from_bytes(bits, 'little'):0{count}b}"[::-1]
    return list(compress(range(count), digits.encode().translate(_TRUTH)))
