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
    """The keep-th largest magnitude, bit by bit from the highest; then all above it, and the first of its equals."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    size = tl.load(rows + row * WIDTH + at).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    least = 0
    for nth in tl.static_range(31):
        tried = least | (1 << (30 - nth))
        enough = tl.sum((size >= tried).to(tl.int32)) >= keep
        least = tl.where(enough, tried, least)
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
