"""Max-n on any device: of each tensor what is near its largest, as `sync.peaks` finds it, to the same bits.

How near that is where only so many values are to be sent is a ratio to the largest that just so many of them reach. It
is found without sorting them: numbers that are not negative are in the order of their bits, so values are counted by
the first byte of their ratio, then, of those that have the byte in which the one looked for is, by the second, and so
on: four passes, whose counts do not depend on any order.

    largest of each tensor    |a         |b    |c             |
    rows that share it        |---|---|---|---|---|---|---|---|    as long as the lengths of all tensors allow
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache

import torch
from torch import Tensor

from atoll.model.compute import Near
from atoll.model.encoding import fused
from atoll.model.encoding.above import Least, Limits
from atoll.model.encoding.near import part_of, reaching
from atoll.spec.axes.codec import MaxN

BYTE_BITS = 8
BYTE_MAX = 255


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
    """Return the largest ratio of a magnitude to its limit that so many values have, or a larger one."""
    bits, left = 0, keep
    for shift in range(3 * BYTE_BITS, -1, -BYTE_BITS):
        counts: list[int] = fused.ratio_counts(values, peaks, bits, shift).tolist()
        byte = BYTE_MAX
        while counts[byte] < left:
            left -= counts[byte]
            byte -= 1
        bits = bits << BYTE_BITS | byte
    (ratio,) = struct.unpack("<f", bits.to_bytes(4, "little"))
    return float(ratio)
