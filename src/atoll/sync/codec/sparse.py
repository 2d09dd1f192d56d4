"""The largest of each block, and where they are.

How many are kept follows from the codec and the length alone, so a chunk's size is known before it comes. Of equals
those that come first are kept, so that everybody keeps the same, on whatever device (`model.encoding.codec`). On the
wire come the kept values in the order of the vector, in a form of their own, then each one's place in its block, rising
within a block, in as few bits as a place needs: 12 for a block of 4096.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.model.compute import Vector
from atoll.spec.axes.codec import TopK
from atoll.sync.codec.bits import is_padded, pack, packed_bytes, unpack

_TEAM = 16
_PLACE_BITS = 16
_LAST_PLACE = (1 << _PLACE_BITS) - 1


def places_bytes(codec: TopK, count: int) -> int:
    """Return how long the places of what is kept are."""
    return packed_bytes(codec.kept(count), codec.place_bits)


def largest(codec: TopK, values: Vector) -> tuple[Vector, NDArray[np.uint8]]:
    """Return the values that are kept and their packed places."""
    whole = values.size - values.size % codec.block
    rows, rest = values[:whole].reshape(-1, codec.block), values[whole:].reshape(1, -1)
    places = [_largest_of(rows, codec.keep)]
    if rest.size:
        places.append(_largest_of(rest, codec.kept(rest.size)))
    chosen = [np.take_along_axis(rows, places[0], axis=1).reshape(-1)]
    if rest.size:
        chosen.append(rest[0, places[1][0]])
    flat = np.concatenate([each.reshape(-1) for each in places])
    return np.concatenate(chosen), pack(flat, codec.place_bits)


def spread(codec: TopK, chosen: Vector, places: NDArray[np.uint8], count: int) -> Vector:
    """Return `count` elements: those that were kept where they were, zeros elsewhere."""
    values: Vector = np.zeros(count, np.float32)
    values[_indexes(codec, places, count)] = chosen
    return values


def named(codec: TopK, places: NDArray[np.uint8], count: int) -> NDArray[np.bool_]:
    """Return which of `count` elements were kept."""
    there = np.zeros(count, np.bool_)
    there[_indexes(codec, places, count)] = True
    return there


def why_not(codec: TopK, places: NDArray[np.uint8], count: int) -> str:
    """Return what is wrong with packed places of the right length; empty: nothing."""
    if not is_padded(places, codec.kept(count), codec.place_bits):
        return "has bits after its last place"
    indexes = _indexes(codec, places, count)
    rises = bool((np.diff(indexes) > 0).all()) and (not indexes.size or int(indexes[-1]) < count)
    return "" if rises else "names places out of order or outside its blocks"


def _largest_of(rows: NDArray[np.float32], keep: int) -> NDArray[np.int64]:
    """Return the places of the largest of each row, rising.

    Most of a row is ruled out first: cut it into teams, any way, and take the largest of each. As many of those as are
    to be kept are at least as large as the last of them, so what is kept is too. Of a bell 73 are left for 64 to keep.
    Rows of which many are left, since they are equal, are looked at as a whole.
    """
    width = rows.shape[1]
    if keep >= width:
        return np.broadcast_to(np.arange(width), rows.shape)
    # As integers magnitudes are in the same order, and what is not finite is the largest: it is sent, and refused.
    magnitudes = rows.view(np.int32) & 0x7FFFFFFF
    teams = width // _TEAM
    if keep > teams or width % _TEAM or not rows.size:
        return _chosen(magnitudes, keep)
    best = magnitudes.reshape(-1, _TEAM, teams).max(axis=1)
    best.partition(teams - keep, axis=1)
    at = np.flatnonzero(magnitudes >= best[:, teams - keep, None])
    counts = np.bincount(at // width, minlength=len(rows))
    crowded = counts > width // 4
    if not crowded.any():
        return _chosen_of(magnitudes, at, counts, keep)
    places = np.empty((len(rows), keep), np.int64)
    places[crowded] = _chosen(magnitudes[crowded], keep)
    few = at[~crowded[at // width]]
    few -= np.cumsum(crowded)[few // width] * width  # as if the crowded rows were not there
    places[~crowded] = _chosen_of(magnitudes[~crowded], few, counts[~crowded], keep)
    return places


def _chosen_of(
    magnitudes: NDArray[np.int32], at: NDArray[np.int64], counts: NDArray[np.int64], keep: int
) -> NDArray[np.int64]:
    """Return the places of the largest of each row, rising, of which only those at some places come into question."""
    row, place = np.divmod(at, magnitudes.shape[1])
    ranked = _ranked(magnitudes.reshape(-1)[at], place)
    left = np.full((len(counts), int(counts.max(initial=keep))), -1, np.int64)
    left[row, np.arange(row.size) - np.repeat(np.cumsum(counts) - counts, counts)] = ranked
    return place[ranked >= _least(left, keep)[row]].reshape(-1, keep)


def _chosen(magnitudes: NDArray[np.int32], keep: int) -> NDArray[np.int64]:
    """Return the places of the largest of each row, rising."""
    ranked = _ranked(magnitudes, np.arange(magnitudes.shape[1]))
    least = _least(ranked.copy(), keep)
    return np.nonzero(ranked >= least[:, None])[1].reshape(-1, keep)


def _ranked(magnitudes: NDArray[np.int32], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return numbers in the order of magnitudes, of equal ones the first place the largest: no two are the same."""
    return (magnitudes.astype(np.int64) << _PLACE_BITS) | (_LAST_PLACE - places)


def _least(ranked: NDArray[np.int64], keep: int) -> NDArray[np.int64]:
    """Return the least that is kept of each row; the rows are not in order any longer."""
    ranked.partition(ranked.shape[1] - keep, axis=1)
    return ranked[:, ranked.shape[1] - keep]


def _indexes(codec: TopK, places: NDArray[np.uint8], count: int) -> NDArray[Any]:
    """Return the places in the whole chunk."""
    within = unpack(places, codec.kept(count), codec.place_bits).astype(np.int64)
    full = count // codec.block
    within[: full * codec.keep].reshape(full, codec.keep)[:] += np.arange(full)[:, None] * codec.block
    within[full * codec.keep :] += full * codec.block
    return within
