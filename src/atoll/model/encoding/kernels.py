# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""What `model.encoding.fused` runs on a device: each program has some rows in its registers and passes over them once.

Triton reads these functions' text, annotations too: they are in its language, not in Python. A constant's name is in
capitals. What is rounded is written out operation by operation, and `div_rn` is the division that everybody has.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def int8(
    values,
    scales,
    codes,
    left,
    count,
    blocks,
    BLOCK: tl.constexpr,
    MANY: tl.constexpr,
    SCALE_MIN: tl.constexpr,
    STEPS: tl.constexpr,
    TO_WHOLE: tl.constexpr,
    LEAVES: tl.constexpr,
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
    if LEAVES:
        tl.store(left + chunk * count + at, held - whole * scale[:, None], mask=at < count)


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


@triton.jit
def wanted_of(held, weights, before, at, there, steps, decay, WAY: tl.constexpr, MEAN: tl.constexpr, FED: tl.constexpr):
    """What is to be sent of some of a base: the way to the weights, a mean, or itself; and what was left out before."""
    if WAY:
        held = held - tl.load(weights + at, mask=there, other=0.0)
    if MEAN:
        held = tl.div_rn(held, steps)
    if FED:
        held = tl.load(before + at, mask=there, other=0.0) * decay + held
    return held


@triton.jit
def is_odd(value):
    """Which values are not finite."""
    return (value.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000


@triton.jit
def wanted(
    base,
    weights,
    before,
    made,
    bad,
    size,
    steps,
    decay,
    WAY: tl.constexpr,
    FED: tl.constexpr,
    TILE: tl.constexpr,
):
    """Some of what is to be sent: the way from a base to the weights, or a base's mean, and what was left out before.

    Where any of it is not finite, that is said, and none of it is written: that might be where it would stay.
    """
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = at < size
    value = tl.load(base + at, mask=there, other=0.0)
    value = wanted_of(value, weights, before, at, there, steps, decay, WAY, not WAY, FED)
    some = tl.max((is_odd(value) & there).to(tl.int32))
    if some > 0:
        tl.store(bad, some)
    else:
        tl.store(made + at, value, mask=there)


@triton.jit
def row_peaks(
    base,
    weights,
    before,
    peaks,
    bad,
    rows,
    steps,
    decay,
    WAY: tl.constexpr,
    FED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The largest magnitude of what is to be sent of each of some rows; whether anything of it is not finite."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)
    there = first + row < rows
    base, weights, before = base + first * WIDTH, weights + first * WIDTH, before + first * WIDTH
    at, inside = row[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :], there[:, None]
    value = tl.load(base + at, mask=inside, other=0.0)
    value = wanted_of(value, weights, before, at, inside, steps, decay, WAY, not WAY, FED)
    some = tl.max((is_odd(value) & inside).to(tl.int32))
    tl.store(bad, some, mask=some > 0)
    tl.store(peaks + first + row, tl.max(tl.abs(value), axis=1), mask=there)


@triton.jit
def half_of(value, HALF_MAX: tl.constexpr):
    """A value in IEEE's half precision, as its bits, and what arrives of it."""
    short = tl.minimum(tl.maximum(value, -HALF_MAX), HALF_MAX).to(tl.float16)
    return short.to(tl.int16, bitcast=True), short.to(tl.float32)


@triton.jit
def upper_half_of(value, HALF_MAX: tl.constexpr):
    """A value's upper half, as its bits: what is cut off rounds to the nearest, a half to the even; what arrives."""
    bits = tl.minimum(tl.maximum(value, -HALF_MAX), HALF_MAX).to(tl.uint32, bitcast=True)
    short = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return short.to(tl.int16), (short << 16).to(tl.float32, bitcast=True)


@triton.jit
def halves(
    values, wire, left, size, UPPER: tl.constexpr, HALF_MAX: tl.constexpr, LEAVES: tl.constexpr, TILE: tl.constexpr
):
    """Some elements in two bytes each."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    held = tl.load(values + at, mask=at < size, other=0.0)
    if UPPER:
        bits, arrives = upper_half_of(held, HALF_MAX)
    else:
        bits, arrives = half_of(held, HALF_MAX)
    tl.store(wire + at, bits, mask=at < size)
    if LEAVES:
        tl.store(left + at, held - arrives, mask=at < size)


@triton.jit
def mixed(number):
    """Another number of 32 bits for each one (`model.encoding.chance`)."""
    number = number ^ (number >> 16)
    number = number * 0x7FEB352D
    number = number ^ (number >> 15)
    number = number * 0x846CA68B
    return number ^ (number >> 16)


@triton.jit
def _norms(size, LEVELS: tl.constexpr, NORM_BITS: tl.constexpr, SCALE_MIN: tl.constexpr):
    """The step of each block: its norm, of magnitudes in whole parts of a unit, so that no sum rounds."""
    largest = tl.max(tl.max(size, axis=2), axis=1)
    power = tl.minimum(NORM_BITS + 126 - (largest.to(tl.int32, bitcast=True) >> 23), 127)
    unit = ((power + 127) << 23).to(tl.float32, bitcast=True)
    per_unit = ((1023 - power).to(tl.int64) << 52).to(tl.float64, bitcast=True)
    parts = size * unit[:, None, None]
    whole = parts.to(tl.int32)
    whole = whole + (whole.to(tl.float32) < parts).to(tl.int32)
    squares = tl.sum(tl.sum((whole * whole).to(tl.int64), axis=2), axis=1)
    norm = tl.sqrt(squares.to(tl.float64)) * per_unit
    scale = (norm / LEVELS).to(tl.float32)
    return tl.where(scale < SCALE_MIN, 0.0, scale)


@triton.jit
def _pack(packed, code, group, place, at, count, BITS: tl.constexpr):
    """Write codes of so many bits, eight side by side; of more than eight, the lowest eight come first."""
    if BITS > 8:
        tl.store(packed + at, (code & 0xFF).to(tl.uint8), mask=at < count)
        packed = packed + count
        code = code >> 8
    REST: tl.constexpr = BITS - 8 if BITS > 8 else BITS
    word = tl.sum(code.to(tl.int64) << (place * REST).to(tl.int64), axis=2)
    for nth in tl.static_range(REST):
        byte = group * REST + nth
        tl.store(packed + byte, ((word >> (8 * nth)) & 0xFF).to(tl.uint8), mask=byte * 8 < count * REST)


@triton.jit
def stochastic(
    values,
    scales,
    codes,
    keys,
    left,
    count,
    blocks,
    row_bytes,
    EIGHTHS: tl.constexpr,
    MANY: tl.constexpr,
    BITS: tl.constexpr,
    LEVELS: tl.constexpr,
    NORM_BITS: tl.constexpr,
    SCALE_MIN: tl.constexpr,
    LEAVES: tl.constexpr,
):
    """Some blocks of a chunk: the norm of each in steps, and how many of them each element is, by chance."""
    chunk = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * MANY + tl.arange(0, MANY)
    group = block[:, None] * EIGHTHS + tl.arange(0, EIGHTHS)[None, :]
    place = tl.arange(0, 8)[None, None, :]
    at = group[:, :, None] * 8 + place
    held = tl.load(values + chunk * count + at, mask=at < count, other=0.0)
    scale = _norms(tl.abs(held), LEVELS, NORM_BITS, SCALE_MIN)
    tl.store(scales + chunk * (row_bytes // 4) + block, scale, mask=block < blocks)
    per_one = tl.where(scale > 0, tl.div_rn(1.0, tl.where(scale > 0, scale, 1.0)), 0.0)
    steps = held * per_one[:, None, None]
    down = steps.to(tl.int32).to(tl.float32)
    down = tl.where(down > steps, down - 1.0, down)
    first = tl.load(keys + 2 * chunk).to(tl.uint32)
    second = tl.load(keys + 2 * chunk + 1).to(tl.uint32)
    drawn = mixed(mixed(at.to(tl.uint32) + first) ^ second) >> 8
    up = drawn.to(tl.float32) < (steps - down) * 16777216.0
    code = (down + up.to(tl.float32)).to(tl.int32)
    code = tl.minimum(tl.maximum(code, -LEVELS), LEVELS)
    if LEAVES:
        arrives = code.to(tl.float32) * scale[:, None, None]
        tl.store(left + chunk * count + at, held - arrives, mask=at < count)
    code = tl.where(at < count, code + LEVELS, 0)
    _pack(codes + chunk * row_bytes + 4 * blocks, code, group, place, at, count, BITS)
