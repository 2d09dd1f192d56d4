"""Max-n on any device: of each tensor what is near its largest, as `sync.peaks` finds it, to the same bits.

    largest of each tensor    |a         |b    |c             |
    rows that share it        |---|---|---|---|---|---|---|---|    as long as the lengths of tensors and chunks allow

Values are read once for the largest of each row, and are not kept. How near to it is near, where only so many values
are to be sent, is the ratio to the largest that just so many of them reach, or, of very many, that so many of those
that are looked at do (`model.encoding.near`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from atoll.model.compute import Near
from atoll.model.encoding import fused
from atoll.model.encoding.above import Least, Limits
from atoll.model.encoding.near import looked_at, part_of, reaching
from atoll.model.encoding.wanted import Ends, wanted
from atoll.spec.axes.codec import MaxN

ROW_MAX = 1024
"""Elements of a row, a power of two as all others are."""


def limits(sizes: Sequence[int], rows: Tensor, width: int) -> Tensor:
    """Return for every row the largest magnitude of its tensor; of a tensor of zeros what nothing reaches."""
    tensor = _tensor_of_rows(tuple(sizes), width, rows.device)
    largest = torch.zeros(len(sizes), device=rows.device).scatter_reduce_(0, tensor, rows, "amax")
    return torch.where(largest > 0, largest, torch.inf)[tensor]


@lru_cache(maxsize=4)
def _tensor_of_rows(sizes: tuple[int, ...], width: int, device: torch.device) -> Tensor:
    """Return which tensor each row of so many elements is of."""
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes) // width).to(device)


def least_of(codec: MaxN, near: Near, unit: Sequence[Ends], bad: Tensor) -> Least:
    """Return how large the values of a unit must be to be sent, given as chunks, one after the other, in some parts.

    A number becomes more than zero if any of them is not finite: then the rest has no meaning.
    """
    width = math.gcd(ROW_MAX, *near.sizes, *(each.base.shape[1] for each in unit))
    rows = limits(near.sizes, torch.cat([fused.row_peaks(each, width, bad) for each in unit]), width)
    n = codec.most
    if near.keep is not None and near.keep < sum(near.sizes):
        n = reaching(codec, _reached(near, unit, rows, width) if near.keep else 1.0)
    part = part_of(n)
    return 0.0 if part is None else Limits(rows, part, width)


def _reached(near: Near, unit: Sequence[Ends], rows: Tensor, width: int) -> float:
    """Return the ratio of a magnitude to the largest that about so many values have, or a larger one."""
    size = sum(near.sizes)
    stride, some = looked_at(size, near.keep or 0)
    peaks = rows[torch.arange(0, size, stride, device=rows.device) // width]
    ratios = torch.cat(list(_every(stride, unit))).abs() / peaks
    return float(ratios.sort().values[-some])


def _every(nth: int, unit: Sequence[Ends]) -> Iterator[Tensor]:
    """Yield every n-th of the values that are to be sent, counted through all parts."""
    before = 0
    for ends in unit:
        at = slice(-before % nth, None, nth)
        before += ends.base.numel()
        weights, left = (None if each is None else each.flatten()[at] for each in (ends.weights, ends.before))
        some = ends._replace(base=ends.base.flatten()[at], weights=weights, before=left)
        yield wanted(some, torch.zeros(1, dtype=torch.int32, device=some.base.device))
