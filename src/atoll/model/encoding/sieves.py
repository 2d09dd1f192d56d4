# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""What `model.encoding.sieve` runs on a device, in Triton's language as `model.encoding.kernels`.

Programs are counted through one chunk after the other, so that those that run at once are neighbours in memory. Inside
a chunk places are 32-bit numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atoll.model.encoding.kernels import half_of, is_odd, upper_half_of, wanted_of


@triton.jit
def sift(
    base,
    weights,
    before,
    limits,
    made,
    maps,
    many,
    bad,
    count,
    tiles,
    steps,
    decay,
    least,
    part,
    WAY: tl.constexpr,
    MEAN: tl.constexpr,
    FED: tl.constexpr,
    MAKES: tl.constexpr,
    LIMITED: tl.constexpr,
    OF_BASE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A tile of a chunk, in rows of 32: what is to be sent, and which of it is large enough, as a bit each; how many.

    Where anything is not finite, that is said, and what is to be sent of the tile is not written.
    """
    TILE: tl.constexpr = ROWS * 32
    tile = tl.program_id(0)
    chunk = tile // tiles
    lane = tl.arange(0, 32)[None, :]
    row = tl.arange(0, ROWS)
    at = (tile - chunk * tiles) * TILE + row[:, None] * 32 + lane
    there = at < count
    first = chunk.to(tl.int64) * count
    held = tl.load(base + first + at, mask=there, other=0.0)
    value = wanted_of(held, weights + first, before + first, at, there, steps, decay, WAY, MEAN, FED)
    if LIMITED:
        if not OF_BASE:
            held = tl.load(limits + first // WIDTH + at // WIDTH, mask=there, other=0.0)
        large = there & ~(tl.abs(value) < tl.abs(held) * part)
    else:
        large = there & ~(tl.abs(value) < least)
    one = large.to(tl.int32)
    tl.store(maps + tile.to(tl.int64) * ROWS + row, tl.sum(one << lane, axis=1))
    # Both in one sum: how many are large enough, and above that how many are not finite.
    both = tl.sum(one + ((is_odd(value) & there).to(tl.int32) << 16))
    tl.store(many + tile, both & 0xFFFF)
    tl.store(bad, 1, mask=both > 0xFFFF)
    if MAKES:  # noqa: SIM102  (this is known when it is compiled, the other is not)
        if both <= 0xFFFF:
            tl.store(made + first + at, value, mask=there)


@triton.jit
def lay_out(
    keeps,
    starts,
    chunks,
    map_bytes,
    VALUE_BYTES: tl.constexpr,
    PLACE_BYTES: tl.constexpr,
    ALIGN_BYTES: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Where each chunk begins, of one after the other; by a single program."""
    own = tl.arange(0, CHUNKS)
    chunk = tl.program_id(0)
    begins = chunk.to(tl.int64)
    while chunk < chunks:
        at = chunk + own
        keep = tl.load(keeps + at, mask=at < chunks, other=0)
        length = 4 + VALUE_BYTES * keep + tl.minimum(PLACE_BYTES * keep, map_bytes)
        length = (length + (ALIGN_BYTES - 1)) // ALIGN_BYTES * ALIGN_BYTES
        length = tl.where(at < chunks, length, 0).to(tl.int64)
        tl.store(starts + at, begins + tl.cumsum(length) - length, mask=at < chunks)
        begins += tl.sum(length)
        chunk += CHUNKS


@triton.jit
def ones_in(word):
    """How many bits of each word are set."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def lowest(word, at):
    """The place of each word's lowest bit, whether there is one, and the other bits."""
    others = word & (word - 1)
    # A power of two as a float has its number in the exponent.
    low = (word ^ others).to(tl.float32)
    return at * 32 + (low.to(tl.int32, bitcast=True) >> 23) - 127, word != 0, others


@triton.jit
def put(
    made,
    begins,
    keep,
    listing,
    place,
    value,
    nth,
    there,
    KIND: tl.constexpr,
    HALF_MAX: tl.constexpr,
    PLACE_BYTES: tl.constexpr,
    LEAVES: tl.constexpr,
):
    """Some of those that a chunk keeps, and where they are, of as many as are listed; what is left of them stays."""
    if KIND == 0:
        tl.store((begins + 4).to(tl.pointer_type(tl.float32), bitcast=True) + nth, value, mask=there)
        arrives = value
        listed = begins + 4 + 4 * keep
    else:
        if KIND == 1:
            bits, arrives = half_of(value, HALF_MAX)
        else:
            bits, arrives = upper_half_of(value, HALF_MAX)
        tl.store((begins + 4).to(tl.pointer_type(tl.int16), bitcast=True) + nth, bits, mask=there)
        listed = begins + 4 + 2 * keep
    tl.store(listed + nth, (place & 0xFF).to(tl.uint8), mask=there & (nth < listing))
    if PLACE_BYTES == 2:
        tl.store(listed + keep + nth, (place >> 8).to(tl.uint8), mask=there & (nth < listing))
    if LEAVES:
        tl.store(made + place, value - arrives, mask=there)


@triton.jit
def put_together(
    made,
    maps,
    many,
    starts,
    wire,
    count,
    tiles,
    blocks,
    map_bytes,
    KIND: tl.constexpr,
    HALF_MAX: tl.constexpr,
    PLACE_BYTES: tl.constexpr,
    LEAVES: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    WORDS: tl.constexpr,
    FEW: tl.constexpr,
):
    """Some words of a chunk's map: the elements that they say are kept.

    Where no word has many of them each is taken out of its word, some at a time, so that nothing else is read. Else all
    are gone through in the order in which they lie in memory.
    """
    program = tl.program_id(0)
    chunk = program // blocks
    block = program - chunk * blocks
    own = tl.arange(0, WORDS)
    at = block * WORDS + own
    row_map = maps + chunk.to(tl.int64) * tiles * ROWS
    word = tl.load(row_map + at, mask=at < tiles * ROWS, other=0).to(tl.uint32, bitcast=True)
    nth_tile = tl.arange(0, TILES)
    each = tl.load(many + chunk.to(tl.int64) * tiles + nth_tile, mask=nth_tile < tiles, other=0)
    keep = tl.sum(each)
    before = tl.sum(tl.where(nth_tile < block * (WORDS // ROWS), each, 0))
    listing = tl.where(map_bytes < PLACE_BYTES * keep, 0, keep)
    mapping = tl.where(map_bytes < PLACE_BYTES * keep, map_bytes, 0)
    begins = wire + tl.load(starts + chunk)
    row = made + chunk.to(tl.int64) * count
    if block == 0:
        tl.store(begins.to(tl.pointer_type(tl.int32), bitcast=True), keep)
    listed = begins + 4 + (4 if KIND == 0 else 2) * keep
    for quarter in tl.static_range(4):
        byte = at * 4 + quarter
        tl.store(listed + byte, ((word >> (8 * quarter)) & 0xFF).to(tl.uint8), mask=byte < mapping)
    ones = ones_in(word)
    most = tl.max(ones)
    if most <= FEW:
        rank = before + tl.cumsum(ones) - ones
        while most > 0:
            # Four of each word are read before any is written, so that they are waited for together.
            place_0, there_0, word = lowest(word, at)
            place_1, there_1, word = lowest(word, at)
            place_2, there_2, word = lowest(word, at)
            place_3, there_3, word = lowest(word, at)
            value_0 = tl.load(row + place_0, mask=there_0, other=0.0)
            value_1 = tl.load(row + place_1, mask=there_1, other=0.0)
            value_2 = tl.load(row + place_2, mask=there_2, other=0.0)
            value_3 = tl.load(row + place_3, mask=there_3, other=0.0)
            put(row, begins, keep, listing, place_0, value_0, rank, there_0, KIND, HALF_MAX, PLACE_BYTES, LEAVES)
            put(row, begins, keep, listing, place_1, value_1, rank + 1, there_1, KIND, HALF_MAX, PLACE_BYTES, LEAVES)
            put(row, begins, keep, listing, place_2, value_2, rank + 2, there_2, KIND, HALF_MAX, PLACE_BYTES, LEAVES)
            put(row, begins, keep, listing, place_3, value_3, rank + 3, there_3, KIND, HALF_MAX, PLACE_BYTES, LEAVES)
            rank += 4
            most -= 4
    else:
        for nth in range(32):
            place = (block * 32 + nth) * WORDS + own
            bits = tl.load(row_map + place // 32, mask=place < tiles * ROWS * 32, other=0)
            one = (bits >> (place & 31)) & 1
            value = tl.load(row + place, mask=one > 0, other=0.0)
            rank = before + tl.cumsum(one) - one
            put(row, begins, keep, listing, place, value, rank, one > 0, KIND, HALF_MAX, PLACE_BYTES, LEAVES)
            before += tl.sum(one)
