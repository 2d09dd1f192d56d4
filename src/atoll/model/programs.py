# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""What `model.cosines` and `model.products` run on a device: each program has one tile in its registers.

Triton reads these functions' text, annotations too: they are in its language, not in Python. A constant's name is in
capitals. What is rounded is written out operation by operation.

A side of a tile lies in registers in such an order that both elements of a butterfly differ in one bit of their places:
first the halves, then what the second half is when it is turned round, and so on (a Gray code). What comes out is in
the order of the same bits from right to left. `model.cosines` works out both orders, and what is beside what.
"""

from __future__ import annotations

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
):
    """Halves are folded, and folded again; then neighbours are added, and all is scaled."""
    at = tl.arange(0, SIDE)
    for level in tl.static_range(LEVELS):
        bit = SIDE >> (level + 1)
        other = tl.gather(x, _along(at ^ bit, HIGH, WIDE, AXIS), AXIS)
        second = _along(at & bit, HIGH, WIDE, AXIS) != 0
        factor = _along(tl.load(factors + (level + 1) * SIDE + at), HIGH, WIDE, AXIS)
        x = tl.where(second, other - x, x + other) * factor
    for nth in tl.static_range(LEVELS - 1):
        level = LEVELS - 2 - nth
        beside = tl.load(places + (2 + level) * SIDE + at)
        other = tl.gather(x, _along(beside, HIGH, WIDE, AXIS), AXIS)
        x = tl.where(_along(beside != at, HIGH, WIDE, AXIS), x + other, x)
    return x * _along(tl.load(factors + at), HIGH, WIDE, AXIS)


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
):
    """The other way round."""
    at = tl.arange(0, SIDE)
    x = x * _along(tl.load(factors + at), HIGH, WIDE, AXIS)
    for level in tl.static_range(LEVELS - 1):
        beside = tl.load(places + (2 + LEVELS + level) * SIDE + at)
        other = tl.gather(x, _along(beside, HIGH, WIDE, AXIS), AXIS)
        x = tl.where(_along(beside != at, HIGH, WIDE, AXIS), x + other, x)
    for nth in tl.static_range(LEVELS):
        level = LEVELS - 1 - nth
        bit = SIDE >> (level + 1)
        x = x * _along(tl.load(factors + (level + 1) * SIDE + at), HIGH, WIDE, AXIS)
        other = tl.gather(x, _along(at ^ bit, HIGH, WIDE, AXIS), AXIS)
        x = tl.where(_along(at & bit, HIGH, WIDE, AXIS) != 0, other - x, x + other)
    return x


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
    """One tile: from values to frequencies, or back."""
    tile = tl.program_id(0)
    row, column = tl.arange(0, HIGH), tl.arange(0, WIDE)
    row_in, column_in = tl.load(places_high + row), tl.load(places_wide + column)
    row_out, column_out = tl.load(places_high + HIGH + row), tl.load(places_wide + WIDE + column)
    values = tl.load(firsts + tile) + row_in[:, None] * tl.load(steps + tile) + column_in[None, :]
    frequencies = tl.load(ats + tile) + row_out[:, None] * WIDE + column_out[None, :]
    if FORWARD:
        x = tl.load(given + values).to(tl.float64)
        if HIGH > 1:
            x = _forward(x, places_high, factors_high, HIGH, WIDE, 0, HIGH, HIGH_LEVELS)
        if WIDE > 1:
            x = _forward(x, places_wide, factors_wide, HIGH, WIDE, 1, WIDE, WIDE_LEVELS)
        tl.store(made + frequencies, x.to(tl.float32))
    else:
        x = tl.load(given + frequencies).to(tl.float64)
        if WIDE > 1:
            x = _inverse(x, places_wide, factors_wide, HIGH, WIDE, 1, WIDE, WIDE_LEVELS)
        if HIGH > 1:
            x = _inverse(x, places_high, factors_high, HIGH, WIDE, 0, HIGH, HIGH_LEVELS)
        tl.store(made + values, x.to(tl.float32))


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
