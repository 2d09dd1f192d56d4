"""Whole cache lines of values: those whose magnitudes add up to most, found by a threshold that is remembered.

What lies together is read and sent together: 16 floats are a processor's cache line, and have one place on the wire
instead of sixteen. How many lines are kept follows from the codec and the length alone. Which they are is found in one
pass, without sorting: in the order of the vector whatever reaches the threshold, until there are enough. Too few, and
the largest of the others fill up, and the threshold falls by a hundredth; enough, and it rises by a hundredth of what
it was at first. At first it is that of an exact choice. On the wire come the lines' values in a form of their own, then
their places, rising, in as few bits as a place needs; a short last line is filled up with zeros. Magnitudes of a line
are added half to half, and of equal lines the first are the largest, so that everybody, on whatever device
(`model.encoding.lines`), keeps the same ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.model.compute import Vector
from atoll.spec.axes.codec import CacheLines
from atoll.sync.codec.bits import is_padded, pack, packed_bytes, unpack

FALL, RISE = 0.99, 0.01
_NEAR = 2**12
"""Lines that are added up at once: what a processor keeps near."""


def kept(codec: CacheLines, count: int) -> int:
    """Return how many lines of so many elements are kept: at least one."""
    lines = lines_of(codec, count)
    return min(lines, max(1, round(codec.keep * lines)))


def lines_of(codec: CacheLines, count: int) -> int:
    """Return how many lines so many elements are."""
    return -(-count // codec.line)


def places_bytes(codec: CacheLines, count: int) -> int:
    """Return how long the places of what is kept are."""
    return packed_bytes(kept(codec, count), _bits(codec, count))


def largest(codec: CacheLines, values: Vector, known: Vector | None) -> tuple[Vector, NDArray[np.uint8]]:
    """Return the values of the lines that are kept, and their packed places.

    `known` are the threshold and what it was at first, which move; zeros, or none: an exact choice.
    """
    rows = _in_lines(codec, values)
    scores = np.empty(len(rows), np.float32)
    with np.errstate(all="ignore"):  # sums that are not finite are the largest
        for first in range(0, len(rows), _NEAR):
            scores[first : first + _NEAR] = _added(np.abs(rows[first : first + _NEAR]))
    # What is not finite is larger than anything: it is sent, and refused.
    places = _chosen(np.nan_to_num(scores, nan=np.inf, posinf=np.inf), kept(codec, values.size), known)
    return rows[places].reshape(-1), pack(places, _bits(codec, values.size))


def spread(codec: CacheLines, chosen: Vector, packed: NDArray[np.uint8], count: int) -> Vector:
    """Return `count` elements: the lines that were kept where they were, zeros elsewhere."""
    rows = np.zeros((lines_of(codec, count), codec.line), np.float32)
    rows[_places(codec, packed, count)] = chosen.reshape(-1, codec.line)
    return rows.reshape(-1)[:count]


def named(codec: CacheLines, packed: NDArray[np.uint8], count: int) -> NDArray[np.bool_]:
    """Return which of `count` elements were kept."""
    there = np.zeros((lines_of(codec, count), codec.line), np.bool_)
    there[_places(codec, packed, count)] = True
    return there.reshape(-1)[:count]


def why_not(codec: CacheLines, packed: NDArray[np.uint8], count: int) -> str:
    """Return what is wrong with packed places of the right length; empty: nothing."""
    if not is_padded(packed, kept(codec, count), _bits(codec, count)):
        return "has bits after its last place"
    places = _places(codec, packed, count)
    rises = bool((np.diff(places) > 0).all()) and int(places[-1] if places.size else -1) < lines_of(codec, count)
    return "" if rises else "names lines out of order or outside of it"


def _chosen(scores: Vector, keep: int, known: Vector | None) -> NDArray[np.intp]:
    """Return the places of so many lines, rising, and move what is known of the threshold."""
    if known is None or not known[0] > 0:
        places = _largest_of(scores, keep)
        if known is not None:
            known[:] = scores[places].min()
        return places
    reach = np.flatnonzero(scores >= known[0])
    if reach.size >= keep:
        known[0] += RISE * known[1]
        return reach[:keep]
    others = scores.copy()
    others[reach] = -1.0
    known[0] *= FALL
    return np.sort(np.concatenate([reach, _largest_of(others, keep - reach.size)]))


def _largest_of(scores: Vector, keep: int) -> NDArray[np.intp]:
    """Return the places of the largest, rising; of equals the first."""
    if not keep:
        return np.zeros(0, np.intp)
    beyond = scores.size - keep
    least = np.partition(scores, beyond)[beyond]
    larger, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    places: NDArray[np.intp] = np.concatenate([larger, equal[: keep - larger.size]])
    places.sort()
    return places


def _added(rows: NDArray[np.float32]) -> Vector:
    """Return the sum of each row: its second half is added to the first, and so on, all rows' columns at once."""
    columns: list[Vector] = list(rows.T)
    while len(columns) > 1:
        half = -(-len(columns) // 2)
        columns = [*map(np.add, columns, columns[half:]), *columns[len(columns) - half : half]]
    return columns[0]


def _in_lines(codec: CacheLines, values: Vector) -> NDArray[np.float32]:
    short = -values.size % codec.line
    whole = np.concatenate([values, np.zeros(short, np.float32)]) if short else values
    return whole.reshape(-1, codec.line)


def _bits(codec: CacheLines, count: int) -> int:
    return max(1, (lines_of(codec, count) - 1).bit_length())


def _places(codec: CacheLines, packed: NDArray[np.uint8], count: int) -> NDArray[Any]:
    return unpack(packed, kept(codec, count), _bits(codec, count)).astype(np.int64)
