# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""What `model.fused` runs on a device: each program has some rows in its registers and passes over them once.

Triton reads these functions' text, annotations too: they are in its language, not in Python. A constant's name is in
capitals. What is rounded is written out operation by operation, and `div_rn` is the division that everybody has.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def largest(rows, places, keep, WIDTH: tl.constexpr):
    """The keep-th largest magnitude, bit by bit from the highest, until just so many are as large; then all above it,
    and the first of its equals."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    size = tl.load(rows + row * WIDTH + at).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    least, bit, many = keep * 0, keep * 0 + (1 << 30), keep * 0 + WIDTH
    while (bit > 0) & (many != keep):
        tried = least | bit
        there = tl.sum((size >= tried).to(tl.int32))
        least = tl.where(there >= keep, tried, least)
        many = tl.where(there >= keep, there, many)
        bit = bit >> 1
    larger = (size > least).to(tl.int32)
    equal = (size == least).to(tl.int32)
    first = equal * (tl.cumsum(equal) <= keep - tl.sum(larger)).to(tl.int32)
    chosen = larger + first
    tl.store(places + row * keep + tl.cumsum(chosen) - 1, at.to(tl.int64), mask=chosen > 0)


@triton.jit
def int8(
    values,
    scales,
    codes,
    count,
    blocks,
    BLOCK: tl.constexpr,
    MANY: tl.constexpr,
    SCALE_MIN: tl.constexpr,
    STEPS: tl.constexpr,
    TO_WHOLE: tl.constexpr,
):
    """Some blocks of a chunk: the scale of each, and what each of its elements is in steps of that."""
    chunk = tl.program_id(0).to(tl.int64)
    row_bytes = 4 * blocks + count
    block = tl.program_id(1) * MANY + tl.arange(0, MANY)
    at = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    held = tl.load(values + chunk * count + at, mask=at < count, other=0.0)
    scale = tl.div_rn(tl.max(tl.abs(held), axis=1), STEPS)
    scale = tl.where(scale < SCALE_MIN, 0.0, scale)
    per_one = tl.where(scale > 0, tl.div_rn(1.0, tl.where(scale > 0, scale, 1.0)), 0.0)
    whole = (held * per_one[:, None] + TO_WHOLE) - TO_WHOLE
    tl.store(scales + chunk * (row_bytes // 4) + block, scale, mask=block < blocks)
    tl.store(codes + chunk * row_bytes + 4 * blocks + at, whole.to(tl.int8), mask=at < count)


@triton.jit
def e3m0(
    values,
    scales,
    codes,
    count,
    blocks,
    HALF: tl.constexpr,
    MANY: tl.constexpr,
    SCALE_MIN: tl.constexpr,
    OCTAVES: tl.constexpr,
):
    """Some blocks of a chunk: the largest of each, and which power of two below it each of its elements is."""
    chunk = tl.program_id(0).to(tl.int64)
    row_bytes = 4 * blocks + (count + 1) // 2
    block = tl.program_id(1) * MANY + tl.arange(0, MANY)
    byte = block[:, None] * HALF + tl.arange(0, HALF)[None, :]
    place = tl.arange(0, 2)[None, None, :]
    at = byte[:, :, None] * 2 + place
    held = tl.load(values + chunk * count + at, mask=at < count, other=0.0)
    scale = tl.max(tl.max(tl.abs(held), axis=2), axis=1)
    scale = tl.where(scale < SCALE_MIN, 0.0, scale)
    per_one = tl.where(scale > 0, tl.div_rn(1.0, tl.where(scale > 0, scale, 1.0)), 0.0)
    parts = held * per_one[:, None, None]
    bits = parts.to(tl.int32, bitcast=True)
    power = (((bits & 0x7FFFFFFF) + (1 << 22)) >> 23) - (127 - OCTAVES)
    power = tl.minimum(tl.maximum(power, 0), OCTAVES)
    power = tl.maximum(power, ((bits & 0x7FFFFFFF) >= ((127 - OCTAVES) << 23)).to(tl.int32))
    code = power + ((bits >> 31) & 1) * (OCTAVES + 1)
    code = tl.where(at < count, code, 0)
    packed = tl.sum(code << (4 * place), axis=2)
    tl.store(scales + chunk * (row_bytes // 4) + block, scale, mask=block < blocks)
    tl.store(codes + chunk * row_bytes + 4 * blocks + byte, packed.to(tl.uint8), mask=byte * 2 < count)


@triton.jit
def bin_total(values, units, totals, count, TILE: tl.constexpr):
    """Some of a chunk: the sum of its elements, each in whole parts of a unit."""
    chunk, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tile * TILE + tl.arange(0, TILE)
    held = tl.load(values + chunk * count + at, mask=at < count, other=0.0)
    counted = (held * tl.load(units + chunk)).to(tl.int32)
    tl.store(totals + chunk * tl.num_programs(1) + tile, tl.sum(counted.to(tl.int64)))


@triton.jit
def bin_squares(values, centres, units, totals, count, TILE: tl.constexpr, TO_WHOLE: tl.constexpr):
    """Some of a chunk: the sum of the squares of how far its elements lie from a centre, to the nearest whole part."""
    chunk, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tile * TILE + tl.arange(0, TILE)
    centre = tl.load(centres + chunk)
    held = tl.load(values + chunk * count + at, mask=at < count, other=0.0)
    away = ((held - centre) * tl.load(units + chunk) + TO_WHOLE) - TO_WHOLE
    whole = tl.where(at < count, away, 0.0).to(tl.int32).to(tl.int64)
    tl.store(totals + chunk * tl.num_programs(1) + tile, tl.sum(whole * whole))


@triton.jit
def bin_codes(
    values,
    centres,
    per_steps,
    units,
    codes,
    sums,
    counts,
    count,
    row_bytes,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    TO_WHOLE: tl.constexpr,
):
    """Some of a chunk: each element's bin, as many side by side as a byte holds, and what is in each bin."""
    BINS: tl.constexpr = 1 << BITS
    chunk, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    group = tile * GROUPS + tl.arange(0, GROUPS)
    place = tl.arange(0, GROUP)
    at = group[:, None] * GROUP + place[None, :]
    there = at < count
    held = tl.load(values + chunk * count + at, mask=there, other=0.0)
    steps = (held - tl.load(centres + chunk)) * tl.load(per_steps + chunk)
    near = tl.minimum(tl.maximum(steps, -BINS), BINS)
    whole = ((near + TO_WHOLE) - TO_WHOLE).to(tl.int32)
    code = tl.minimum(tl.maximum(whole, -(BINS // 2)), BINS // 2 - 1) + BINS // 2
    code = tl.where(there, code, 0)
    tl.store(
        codes + chunk * row_bytes + group,
        tl.sum(code << (place * BITS)[None, :], axis=1).to(tl.uint8),
        mask=group < row_bytes,
    )
    counted = (held * tl.load(units + chunk)).to(tl.int32).to(tl.int64)
    part = (chunk * tl.num_programs(1) + tile) * BINS
    for nth in tl.static_range(BINS):
        here = there & (code == nth)
        tl.store(sums + part + nth, tl.sum(tl.where(here, counted, 0)))
        tl.store(counts + part + nth, tl.sum(here.to(tl.int64)))
