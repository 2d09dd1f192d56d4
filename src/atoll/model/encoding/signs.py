# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The kernel of rows that are rounded by what their layers are given: `model.encoding.rounding` says what it makes.

A program has some rows, and goes through their columns from the first to the last. What a column misses goes at once
into those near it, which it has in registers; into all behind these it goes together, once they have been gone through.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def chosen(
    wanted,
    sizes,
    passed_on,
    corrected,
    made,
    rows,
    columns,
    UNTIL: tl.constexpr,
    ROWS: tl.constexpr,
    NEAR: tl.constexpr,
    WIDE: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    begins = row.to(tl.int64)[:, None] * columns
    near = tl.arange(0, NEAR)
    for first in range(0, UNTIL, NEAR):
        column = first + near
        here = (row < rows)[:, None] & (column < columns)[None, :]
        at = begins + column[None, :]
        value = tl.load(corrected + at, mask=here, other=0.0)
        own = tl.load(wanted + at, mask=here, other=0.0)
        size = tl.load(sizes + at, mask=here, other=0.0)
        signed = tl.zeros([ROWS, NEAR], tl.float32)
        missed = tl.zeros([ROWS, NEAR], tl.float32)
        for place in range(NEAR):
            one = (near == place)[None, :]
            side = tl.where(tl.sum(tl.where(one, value, 0.0), axis=1) < 0, -1.0, 1.0)
            own_size = tl.sum(tl.where(one, size, 0.0), axis=1) * side
            lacks = tl.sum(tl.where(one, own, 0.0), axis=1) - own_size
            follows = (near > place) & (column < columns) & (first + place < columns)
            part = tl.load(passed_on + (first + place) * columns + column, mask=follows, other=0.0)
            value += lacks[:, None] * part[None, :]
            signed = tl.where(one, own_size[:, None], signed)
            missed = tl.where(one, lacks[:, None], missed)
        tl.store(made + at, signed, mask=here)
        missed = tl.where(here, missed, 0.0)
        for then in range(first + NEAR, UNTIL, WIDE):
            later = then + tl.arange(0, WIDE)
            there = (row < rows)[:, None] & (later < columns)[None, :]
            known = (column < columns)[:, None] & (later < columns)[None, :]
            parts = tl.load(passed_on + column[:, None] * columns + later[None, :], mask=known, other=0.0)
            behind = begins + later[None, :]
            rest = tl.load(corrected + behind, mask=there, other=0.0)
            tl.store(corrected + behind, rest + tl.dot(missed, parts, input_precision="ieee"), mask=there)
        tl.debug_barrier()  # what one thread has corrected another goes through next
