"""Max-n on any device: of each tensor what is near its largest, as `sync.peaks` finds it, to the same bits.

How near that is where only so many values are to be sent is a ratio to the largest that just so many of them reach, of
very many values of those that are looked at (`model.encoding.near`).

    largest of each tensor    |a         |b    |c             |
    rows that share it        |---|---|---|---|---|---|---|---|    as long as the lengths of all tensors allow
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from atoll.model.compute import Near
from atoll.model.encoding.above import Least, Limits
from atoll.model.encoding.near import looked_at, part_of, reaching
from atoll.spec.axes.codec import MaxN


def least_of(codec: MaxN, near: Near, values: Tensor) -> Least:
    """Return how large the values of a unit must be to be sent; all must be finite."""
    n, peaks = codec.most, None
    if near.keep is not None and near.keep < values.numel():
        peaks = limits(near.sizes, values)
        n = reaching(codec, reached(values, peaks, near.keep) if near.keep else 1.0)
    part = part_of(n)
    return 0.0 if part is None else Limits(limits(near.sizes, values) if peaks is None else peaks, part)


def limits(sizes: tuple[int, ...], values: Tensor) -> Tensor:
    """Return for every value the largest magnitude of its tensor; of a tensor of zeros what none of them reaches."""
    width = math.gcd(*sizes)
    tensor = _tensor_of_rows(sizes, width, values.device)
    rows = torch.linalg.vector_norm(values.view(-1, width), torch.inf, dim=1)
    largest = torch.zeros(len(sizes), device=values.device).scatter_reduce_(0, tensor, rows, "amax")
    largest = torch.where(largest > 0, largest, torch.inf)
    return largest[tensor][:, None].expand(-1, width).reshape(-1)


@lru_cache(maxsize=4)
def _tensor_of_rows(sizes: tuple[int, ...], width: int, device: torch.device) -> Tensor:
    """Return which tensor each row of so many elements is of."""
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes) // width).to(device)


def reached(values: Tensor, peaks: Tensor, keep: int) -> float:
    """Return the ratio of a magnitude to its limit that about so many values have, or a larger one."""
    stride, some = looked_at(values.numel(), keep)
    ratios = values[::stride].abs() / peaks[::stride]
    return float(ratios.sort().values[-some])
