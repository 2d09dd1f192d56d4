# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""What `model.encoding.sparse` runs on a device: which lines of a chunk or values of a block are kept, and their bytes.

Triton reads these functions' text, annotations too: they are in its language, not in Python. A constant's name is in
capitals. Magnitudes are compared as the whole numbers that their bits are, which are in the same order.

Of a chunk's lines, the last one that comes is found by many programs: they count lines by the first byte of their
scores, then by the second of those whose first one it has; what has both is gathered, and is so little that one program
finds the one among them. What each program has found is numbers of its own or sums, so no order decides anything.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atoll.model.encoding.kernels import is_odd, wanted_of


@triton.jit
def _added(sums, LINE: tl.constexpr, HALVINGS: tl.constexpr, MANY: tl.constexpr):
    """The sum of each line, its second half added to the first, and so on."""
    for nth in tl.static_range(HALVINGS):
        sums = tl.sum(tl.reshape(sums, (MANY, 2, LINE >> (nth + 1))), axis=1)
    return tl.reshape(sums, (MANY,))


@triton.jit
def line_scores(values, scores, count, lines, LINE: tl.constexpr, HALVINGS: tl.constexpr, MANY: tl.constexpr):
    """Some lines of a chunk: the sum of each one's magnitudes. The last one may be short: what it lacks is nothing."""
    chunk = tl.program_id(0).to(tl.int64)
    line = tl.program_id(1) * MANY + tl.arange(0, MANY)
    at = line[:, None] * LINE + tl.arange(0, LINE)[None, :]
    held = tl.load(values + chunk * count + at, mask=at < count, other=0.0)
    tl.store(scores + chunk * lines + line, _added(tl.abs(held), LINE, HALVINGS, MANY), mask=line < lines)


@triton.jit
def line_wanted(
    base,
    weights,
    before,
    made,
    scores,
    bad,
    count,
    lines,
    steps,
    decay,
    WAY: tl.constexpr,
    FED: tl.constexpr,
    LINE: tl.constexpr,
    HALVINGS: tl.constexpr,
    MANY: tl.constexpr,
):
    """Likewise of what is to be sent, which is made here as in `kernels.wanted`."""
    chunk = tl.program_id(0).to(tl.int64)
    line = tl.program_id(1) * MANY + tl.arange(0, MANY)
    within = line[:, None] * LINE + tl.arange(0, LINE)[None, :]
    at, there = chunk * count + within, within < count
    value = tl.load(base + at, mask=there, other=0.0)
    value = wanted_of(value, weights, before, at, there, steps, decay, WAY, not WAY, FED)
    some = tl.max(tl.max((is_odd(value) & there).to(tl.int32), axis=1))
    if some > 0:
        tl.store(bad, some)
    else:
        tl.store(made + at, value, mask=there)
    tl.store(scores + chunk * lines + line, _added(tl.abs(value), LINE, HALVINGS, MANY), mask=line < lines)


@triton.jit
def _bits_of(row, line, lines):
    """The scores of some lines, in the order of their bits; what is no line is below all."""
    return tl.load(row + line, mask=line < lines, other=-1.0).to(tl.int32, bitcast=True)


@triton.jit
def _limit_of(known, chunk, KNOWN: tl.constexpr):
    """What lines of a chunk must reach: where nothing is known yet, what none does that has an end."""
    if KNOWN:
        now = tl.load(known + 2 * chunk)
        return tl.where(now > 0, now.to(tl.int32, bitcast=True), 0x7F800000)
    else:
        return (chunk * 0 + 0x7F800000).to(tl.int32)


@triton.jit
def _byte_of(counts, lack):
    """The byte of the last of so many largest, and how many come of those that have it; of none, no byte."""
    byte = tl.arange(0, 256)
    many = tl.load(counts + byte)
    last = tl.sum((tl.sum(many) - tl.cumsum(many) >= lack).to(tl.int32))
    return last, lack - tl.sum(tl.where(byte > last, many, 0))


@triton.jit
def _first_byte_of(counts, lines, keep):
    """The first byte of the last line that comes beside those that reach the limit, and how many of it come."""
    reached = lines - tl.sum(tl.load(counts + tl.arange(0, 256)))
    return _byte_of(counts, tl.maximum(keep - reached, 0))


@triton.jit
def _bytes_of(counts, lines, keep):
    """Likewise its first two bytes."""
    first, lack = _first_byte_of(counts, lines, keep)
    second, lack = _byte_of(counts + 256, lack)
    return first * 256 + second, lack


@triton.jit
def line_counts(
    scores,
    known,
    counts,
    lines,
    keep,
    KNOWN: tl.constexpr,
    SECOND: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """Some lines of a chunk: how many have each first byte, of those below its limit; or second, after the right first.

    There is no sign, so bytes begin with the bit after it.
    """
    chunk = tl.program_id(0).to(tl.int64)
    limit = _limit_of(known, chunk, KNOWN)
    here = counts + chunk * 513
    byte = tl.arange(0, 256)
    total = tl.zeros((256,), tl.int32)
    if SECOND:
        first, _ = _first_byte_of(here, lines, keep)
    for nth in range(TILES):
        line = (tl.program_id(1) * TILES + nth) * TILE + tl.arange(0, TILE)
        size = _bits_of(scores + chunk * lines, line, lines)
        there = (size >= 0) & (size < limit)
        if SECOND:
            there = there & ((size >> 23) == first)
            code = (size >> 15) & 0xFF
        else:
            code = (size >> 23) & 0xFF
        # All others are counted as zero, and taken off again.
        others = tl.sum((~there).to(tl.int32))
        total += tl.histogram(tl.where(there, code, 0), 256) - tl.where(byte == 0, others, 0)
    if SECOND:
        here = here + 256
    tl.atomic_add(here + byte, total, mask=total > 0)


@triton.jit
def line_rivals(scores, known, counts, rivals, lines, keep, KNOWN: tl.constexpr, TILE: tl.constexpr):
    """Some lines of a chunk: the scores with the first two bytes of the last one that comes, in any order."""
    chunk = tl.program_id(0).to(tl.int64)
    limit = _limit_of(known, chunk, KNOWN)
    here = counts + chunk * 513
    bits, _ = _bytes_of(here, lines, keep)
    line = tl.program_id(1) * TILE + tl.arange(0, TILE)
    size = _bits_of(scores + chunk * lines, line, lines)
    one = ((size < limit) & ((size >> 15) == bits)).to(tl.int32)
    many = tl.sum(one)
    if many > 0:
        first = tl.atomic_add(here + 512, many)
        tl.store(rivals + chunk * lines + first + tl.cumsum(one) - 1, size, mask=one > 0)


@triton.jit
def line_least(
    known,
    counts,
    rivals,
    found,
    lines,
    keep,
    KNOWN: tl.constexpr,
    FALL: tl.constexpr,
    RISE: tl.constexpr,
    TILE: tl.constexpr,
):
    """A chunk: what its lines must reach, else how large the last is that comes, and how many as large come with it.

    It is found bit by bit, until just so many are as large. Where thresholds are known, they follow.
    """
    chunk = tl.program_id(0).to(tl.int64)
    limit = _limit_of(known, chunk, KNOWN)
    here = counts + chunk * 513
    bits, lack = _bytes_of(here, lines, keep)
    many = tl.load(here + 512)
    row = rivals + chunk * lines
    at = tl.arange(0, TILE)
    least, bit, there = tl.where(lack > 0, bits, 0) << 15, lack * 0 + (1 << 14), many
    while (bit > 0) & (there != lack):
        tried = least | bit
        larger, first = lack * 0, lack * 0
        while first < many:
            size = tl.load(row + first + at, mask=first + at < many, other=-1)
            larger += tl.sum((size >= tried).to(tl.int32))
            first += TILE
        least = tl.where(larger >= lack, tried, least)
        there = tl.where(larger >= lack, larger, there)
        bit = bit >> 1
    last, first = lack * 0 + 0x7FFFFFFF, lack * 0
    while first < many:
        size = tl.load(row + first + at, mask=first + at < many, other=-1)
        last = tl.minimum(last, tl.min(tl.where(size >= least, size, 0x7FFFFFFF)))
        first += TILE
    equals, first = lack, lack * 0
    while first < many:
        size = tl.load(row + first + at, mask=first + at < many, other=-1)
        equals -= tl.sum((size > last).to(tl.int32))
        first += TILE
    tl.store(found + 3 * chunk, limit)
    tl.store(found + 3 * chunk + 1, last)
    tl.store(found + 3 * chunk + 2, equals)
    if KNOWN:
        now, begin = tl.load(known + 2 * chunk), tl.load(known + 2 * chunk + 1)
        moved = tl.where(lack > 0, now * FALL, now + begin * RISE)
        # Of what is not known yet, what reaches the limit is as large as it.
        lowest = tl.where(lack > 0, last, limit).to(tl.float32, bitcast=True)
        tl.store(known + 2 * chunk, tl.where(now > 0, moved, lowest))
        tl.store(known + 2 * chunk + 1, tl.where(now > 0, begin, lowest))


@triton.jit
def line_tiles(scores, found, tiles, lines, TILE: tl.constexpr):
    """Some lines of a chunk: how many come for sure, and how many are as large as the last one."""
    chunk, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    limit, last = tl.load(found + 3 * chunk), tl.load(found + 3 * chunk + 1)
    size = _bits_of(scores + chunk * lines, tile * TILE + tl.arange(0, TILE), lines)
    here = tiles + 2 * (chunk * tl.num_programs(1) + tile)
    tl.store(here, tl.sum(((size >= limit) | (size > last)).to(tl.int32)))
    tl.store(here + 1, tl.sum((size == last).to(tl.int32)))


@triton.jit
def line_places(scores, found, tiles, places, lines, keep, TILE: tl.constexpr, TILES: tl.constexpr):
    """Some lines of a chunk: which come, each written behind those before it."""
    chunk, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    limit, last, equals = tl.load(found + 3 * chunk), tl.load(found + 3 * chunk + 1), tl.load(found + 3 * chunk + 2)
    other = tl.arange(0, TILES)
    row = tiles + 2 * chunk * tl.num_programs(1)
    before = tl.sum(tl.load(row + 2 * other, mask=other < tile, other=0))
    alike = tl.sum(tl.load(row + 2 * other + 1, mask=other < tile, other=0))
    line = tile * TILE + tl.arange(0, TILE)
    size = _bits_of(scores + chunk * lines, line, lines)
    equal = (size == last).to(tl.int32)
    comes = equal * (alike + tl.cumsum(equal) <= equals).to(tl.int32)
    comes += ((size >= limit) | (size > last)).to(tl.int32)
    nth = before + tl.minimum(alike, equals) + tl.cumsum(comes) - 1
    tl.store(places + chunk * keep + nth, line, mask=(comes > 0) & (nth < keep))


@triton.jit
def line_values(
    values, places, chosen, count, keep, step, LINE: tl.constexpr, EMPTIES: tl.constexpr, MANY: tl.constexpr
):
    """Some of the lines of a chunk that are kept: their values side by side; and nothing where they were."""
    chunk = tl.program_id(0).to(tl.int64)
    nth = tl.program_id(1) * MANY + tl.arange(0, MANY)
    place = tl.load(places + chunk * keep + nth, mask=nth < keep, other=0)
    within = tl.arange(0, LINE)[None, :]
    at = place[:, None] * LINE + within
    there = (nth < keep)[:, None]
    held = tl.load(values + chunk * count + at, mask=there & (at < count), other=0.0)
    tl.store(chosen + chunk * step + nth[:, None] * LINE + within, held, mask=there)
    if EMPTIES:
        tl.store(values + chunk * count + at, tl.zeros_like(held), mask=there & (at < count))


@triton.jit
def packed(numbers, wire, count, step, BITS: tl.constexpr, EIGHTS: tl.constexpr):
    """Some numbers of a chunk, of so many bits each: the lowest eight of all, the next; the rest of eight together."""
    chunk = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * EIGHTS + tl.arange(0, EIGHTS)
    place = tl.arange(0, 8)[None, :]
    nth = group[:, None] * 8 + place
    number = tl.load(numbers + chunk * count + nth, mask=nth < count, other=0)
    here = wire + chunk * step
    WHOLE: tl.constexpr = (BITS - 1) // 8
    REST: tl.constexpr = BITS - 8 * WHOLE
    for byte in tl.static_range(WHOLE):
        tl.store(here + byte * count + nth, ((number >> (8 * byte)) & 0xFF).to(tl.uint8), mask=nth < count)
    word = tl.sum((number >> (8 * WHOLE)).to(tl.int64) << (place * REST).to(tl.int64), axis=1)
    for byte in tl.static_range(REST):
        at = group * REST + byte
        tl.store(here + WHOLE * count + at, ((word >> (8 * byte)) & 0xFF).to(tl.uint8), mask=at * 8 < count * REST)


@triton.jit
def largest(
    rows,
    places,
    chosen,
    left,
    keep,
    blocks,
    step,
    WIDTH: tl.constexpr,
    TEAMS: tl.constexpr,
    TAKES: tl.constexpr,
    LEAVES: tl.constexpr,
    EMPTIES: tl.constexpr,
):
    """The keep-th largest magnitude, by halves, until just so many are as large; all above it, and the first equals.

    It is at most the largest of all, and at least the smallest of those that are the largest of their teams, if there
    are as many teams: it has to be looked for only between these two.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    held = tl.load(rows + row * WIDTH + at)
    size = held.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    best = tl.max(tl.reshape(size, (WIDTH // TEAMS, TEAMS)), axis=0)
    low, high = tl.min(best), tl.max(best)
    many = keep * 0 + WIDTH
    while (low < high) & (many != keep):
        tried = low + ((high - low + 1) >> 1)
        there = tl.sum((size >= tried).to(tl.int32))
        high = tl.where(there >= keep, high, tried - 1)
        low = tl.where(there >= keep, tried, low)
        many = tl.where(there >= keep, there, many)
    larger = (size > low).to(tl.int32)
    equal = (size == low).to(tl.int32)
    first = equal * (tl.cumsum(equal) <= keep - tl.sum(larger)).to(tl.int32)
    comes = larger + first
    nth = tl.cumsum(comes) - 1
    tl.store(places + row * keep + nth, at, mask=comes > 0)
    if TAKES:
        begin = chosen + (row // blocks) * step + (row % blocks) * keep
        tl.store(begin + nth, held, mask=comes > 0)
    if LEAVES:
        tl.store(left + row * WIDTH + at, tl.where(comes > 0, 0.0, held))
    if EMPTIES:
        tl.store(left + row * WIDTH + at, tl.zeros_like(held), mask=comes > 0)
