# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""What `cosines` and `products` run on a device: each program has one tile in its registers.

Triton reads these functions' text, annotations too: they are in its language, not in Python. A constant's name is in
capitals. What is rounded is written out operation by operation.

A side of a tile lies in registers in such an order that both elements of a butterfly differ in one bit of their places:
first the halves, then what the second half is when it is turned round, and so on (a Gray code). What comes out is in
the order of the same bits from right to left. `model.encoding.cosines` works out both orders, and what is beside what.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def _along(numbers, HIGH: tl.constexpr, WIDE: tl.constexpr, AXIS: tl.constexpr):
    """Numbers of a side, for every element of a tile."""
    if AXIS == 0:
        return tl.broadcast_to(numbers[:, None], [HIGH, WIDE])
    return tl.broadcast_to(numbers[None, :], [HIGH, WIDE])


@triton.jit
def _forward(
    x,
    places,
    factors,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    AXIS: tl.constexpr,
    SIDE: tl.constexpr,
    LEVELS: tl.constexpr,
    HALVES: tl.constexpr,
    FIRST: tl.constexpr,
):
    """Halves are folded, and folded again; then neighbours are added, and all is scaled.

    Of all of a side, or of one of its halves, which begins at `FIRST` and was folded once.
    """
    at = tl.arange(0, SIDE // HALVES)
    for nth in tl.static_range(LEVELS + 1 - HALVES):
        level = HALVES - 1 + nth
        bit = SIDE >> (level + 1)
        other = tl.gather(x, _along(at ^ bit, HIGH, WIDE, AXIS), AXIS)
        second = _along(at & bit, HIGH, WIDE, AXIS) != 0
        factor = _along(tl.load(factors + (level + 1) * SIDE + FIRST + at), HIGH, WIDE, AXIS)
        x = tl.where(second, other - x, x + other) * factor
    for nth in tl.static_range(LEVELS - 1):
        level = LEVELS - 2 - nth
        if (level > 0) or (FIRST > 0) or (HALVES == 1):  # of an even half the last level adds nothing
            beside = tl.load(places + (2 + level) * SIDE + FIRST + at) - FIRST
            other = tl.gather(x, _along(beside, HIGH, WIDE, AXIS), AXIS)
            x = tl.where(_along(beside != at, HIGH, WIDE, AXIS), x + other, x)
    return x * _along(tl.load(factors + FIRST + at), HIGH, WIDE, AXIS)


@triton.jit
def _inverse(
    x,
    places,
    factors,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    AXIS: tl.constexpr,
    SIDE: tl.constexpr,
    LEVELS: tl.constexpr,
    HALVES: tl.constexpr,
    FIRST: tl.constexpr,
):
    """The other way round."""
    at = tl.arange(0, SIDE // HALVES)
    x = x * _along(tl.load(factors + FIRST + at), HIGH, WIDE, AXIS)
    for level in tl.static_range(LEVELS - 1):
        if (level > 0) or (FIRST > 0) or (HALVES == 1):
            beside = tl.load(places + (2 + LEVELS + level) * SIDE + FIRST + at) - FIRST
            other = tl.gather(x, _along(beside, HIGH, WIDE, AXIS), AXIS)
            x = tl.where(_along(beside != at, HIGH, WIDE, AXIS), x + other, x)
    for nth in tl.static_range(LEVELS + 1 - HALVES):
        level = LEVELS - 1 - nth
        bit = SIDE >> (level + 1)
        x = x * _along(tl.load(factors + (level + 1) * SIDE + FIRST + at), HIGH, WIDE, AXIS)
        other = tl.gather(x, _along(at ^ bit, HIGH, WIDE, AXIS), AXIS)
        x = tl.where(_along(at & bit, HIGH, WIDE, AXIS) != 0, other - x, x + other)
    return x


@triton.jit
def _forward_halves(
    a,
    b,
    places,
    factors,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    AXIS: tl.constexpr,
    SIDE: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """Both halves of a side: folded into each other, they have nothing more to do with each other."""
    HALF: tl.constexpr = SIDE // 2
    fold = _along(tl.load(factors + SIDE + HALF + tl.arange(0, HALF)), HIGH, WIDE, AXIS)
    even = _forward(a + b, places, factors, HIGH, WIDE, AXIS, SIDE, LEVELS, 2, 0)
    odd = _forward((a - b) * fold, places, factors, HIGH, WIDE, AXIS, SIDE, LEVELS, 2, HALF)
    return even, odd


@triton.jit
def _inverse_halves(
    even,
    odd,
    places,
    factors,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
    AXIS: tl.constexpr,
    SIDE: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """The other way round."""
    HALF: tl.constexpr = SIDE // 2
    fold = _along(tl.load(factors + SIDE + HALF + tl.arange(0, HALF)), HIGH, WIDE, AXIS)
    a = _inverse(even, places, factors, HIGH, WIDE, AXIS, SIDE, LEVELS, 2, 0)
    b = _inverse(odd, places, factors, HIGH, WIDE, AXIS, SIDE, LEVELS, 2, HALF) * fold
    return a + b, a - b


@triton.jit
def cosine_line(
    given,
    made,
    firsts,
    steps,
    ats,
    places,
    factors,
    FORWARD: tl.constexpr,
    WIDE: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """One run of a vector: from values to frequencies, or back."""
    tile = tl.program_id(0)
    column = tl.arange(0, WIDE)
    values = tl.load(firsts + tile) + tl.load(places + column)[None, :]
    frequencies = tl.load(ats + tile) + tl.load(places + WIDE + column)[None, :]
    if FORWARD:
        x = tl.load(given + values).to(tl.float64)
        x = _forward(x, places, factors, 1, WIDE, 1, WIDE, LEVELS, 1, 0)
        tl.store(made + frequencies, x.to(tl.float32))
    else:
        x = tl.load(given + frequencies).to(tl.float64)
        x = _inverse(x, places, factors, 1, WIDE, 1, WIDE, LEVELS, 1, 0)
        tl.store(made + values, x.to(tl.float32))


@triton.jit
def cosine(
    given,
    made,
    firsts,
    steps,
    ats,
    places_high,
    factors_high,
    places_wide,
    factors_wide,
    FORWARD: tl.constexpr,
    HIGH: tl.constexpr,
    HIGH_LEVELS: tl.constexpr,
    WIDE: tl.constexpr,
    WIDE_LEVELS: tl.constexpr,
):
    """One tile, in quarters: from values to frequencies, or back."""
    H: tl.constexpr = HIGH // 2
    W: tl.constexpr = WIDE // 2
    tile = tl.program_id(0)
    first, step, at = tl.load(firsts + tile), tl.load(steps + tile), tl.load(ats + tile)
    row, column = tl.arange(0, H), tl.arange(0, W)
    rows_a, rows_b = tl.load(places_high + row)[:, None] * step, tl.load(places_high + H + row)[:, None] * step
    columns_a, columns_b = tl.load(places_wide + column)[None, :], tl.load(places_wide + W + column)[None, :]
    values = first + rows_a + columns_a
    right = columns_b - columns_a
    down = rows_b - rows_a
    rows_even = tl.load(places_high + HIGH + row)[:, None] * WIDE
    frequencies = at + rows_even + tl.load(places_wide + WIDE + column)[None, :]
    if FORWARD:
        aa = tl.load(given + values).to(tl.float64)
        ab = tl.load(given + (values + right)).to(tl.float64)
        ba = tl.load(given + (values + down)).to(tl.float64)
        bb = tl.load(given + (values + down + right)).to(tl.float64)
        aa, ba = _forward_halves(aa, ba, places_high, factors_high, H, W, 0, HIGH, HIGH_LEVELS)
        ab, bb = _forward_halves(ab, bb, places_high, factors_high, H, W, 0, HIGH, HIGH_LEVELS)
        aa, ab = _forward_halves(aa, ab, places_wide, factors_wide, H, W, 1, WIDE, WIDE_LEVELS)
        ba, bb = _forward_halves(ba, bb, places_wide, factors_wide, H, W, 1, WIDE, WIDE_LEVELS)
        tl.store(made + frequencies, aa.to(tl.float32))  # odd frequencies are beside the even ones
        tl.store(made + (frequencies + 1), ab.to(tl.float32))
        tl.store(made + (frequencies + WIDE), ba.to(tl.float32))
        tl.store(made + (frequencies + WIDE + 1), bb.to(tl.float32))
    else:
        aa = tl.load(given + frequencies).to(tl.float64)
        ab = tl.load(given + (frequencies + 1)).to(tl.float64)
        ba = tl.load(given + (frequencies + WIDE)).to(tl.float64)
        bb = tl.load(given + (frequencies + WIDE + 1)).to(tl.float64)
        aa, ab = _inverse_halves(aa, ab, places_wide, factors_wide, H, W, 1, WIDE, WIDE_LEVELS)
        ba, bb = _inverse_halves(ba, bb, places_wide, factors_wide, H, W, 1, WIDE, WIDE_LEVELS)
        aa, ba = _inverse_halves(aa, ba, places_high, factors_high, H, W, 0, HIGH, HIGH_LEVELS)
        ab, bb = _inverse_halves(ab, bb, places_high, factors_high, H, W, 0, HIGH, HIGH_LEVELS)
        tl.store(made + values, aa.to(tl.float32))
        tl.store(made + (values + right), ab.to(tl.float32))
        tl.store(made + (values + down), ba.to(tl.float32))
        tl.store(made + (values + down + right), bb.to(tl.float32))


@triton.jit
def outer(
    lefts,
    rights,
    wanted,
    made,
    rows,
    columns,
    left_step,
    right_step,
    step,
    RANK: tl.constexpr,
    MINUS: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Some of one of several matrices: column after column of its factors, added up; or what they leave of another."""
    matrix = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    column = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    left = lefts + matrix * left_step + row * RANK
    right = rights + matrix * right_step + column * RANK
    x = tl.load(left, mask=row < rows, other=0.0)[:, None] * tl.load(right, mask=column < columns, other=0.0)[None, :]
    for k in tl.static_range(1, RANK):
        a, b = tl.load(left + k, mask=row < rows, other=0.0), tl.load(right + k, mask=column < columns, other=0.0)
        x = x + a[:, None] * b[None, :]
    at = matrix * step + row[:, None].to(tl.int64) * columns + column[None, :]
    there = (row < rows)[:, None] & (column < columns)[None, :]
    if MINUS:
        x = tl.load(wanted + at, mask=there, other=0.0) - x
    tl.store(made + at, x, mask=there)


def kernel_from(text: str, name: str, called: str) -> Any:
    """Return a kernel that was written as text, which lies under a name where Python looks for its sources."""
    known: dict[str, Any] = {"tl": tl, "__name__": __name__}
    exec(compile(text, name, "exec"), known)
    return triton.jit(known[called])
