"""Whatever is large enough, on any device: as `sync.codec.above` makes it, many chunks at once, to the same bits.

How long chunks are depends on their values. So they lie one after the other in one row of bytes, and only how many each
keeps is asked of the device, once for all of them: the host cuts the row by that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.model.encoding.bits import pack, packed_bytes

COUNT_BYTES = 4
ALIGN_BYTES = 4
"""Chunks begin at multiples of this, so that a device writes whole numbers there."""

Numbers = NDArray[np.int64]
"""Of chunks, in the host's memory."""
ToBytes = Callable[[Tensor, int], Tensor]
"""Returns the wire bytes of some values of one chunk, which is the n-th."""


class Limits(NamedTuple):
    """How large each value must be: as large as such a part of another."""

    rows: Tensor
    """One for every value, or for so many, one after the other."""
    part: float
    width: int = 1

    def each(self, values: Tensor) -> Tensor:
        """Return how large each of all values that these are about must be."""
        return (self.rows.abs() * self.part).view(-1, 1).expand(-1, self.width).reshape(values.shape)


Least = float | Limits
"""How large is large: everywhere, or for every value."""


class Kept(NamedTuple):
    """Chunks of values that were large enough."""

    wire: Tensor
    """The bytes of all, each from where it begins on."""
    starts: Numbers
    counts: Numbers
    """How many values each is about."""
    lengths: Numbers
    at: Tensor | None
    """Which values are in them, counted through all chunks; none: nobody will ask."""


def places_bytes(keep: int, count: int) -> int:
    """Return how long the places of so many of `count` elements are."""
    return min(packed_bytes(keep, bits_of(count)), packed_bytes(count, 1))


def bits_of(count: int) -> int:
    """Return how many bits a place among so many has."""
    return max(1, (count - 1).bit_length())


def is_mapped(keep: int, count: int) -> bool:
    """Return whether places are a bit for every element."""
    return packed_bytes(count, 1) < packed_bytes(keep, bits_of(count))


def starts_of(lengths: Numbers) -> Numbers:
    """Return where chunks of such lengths begin, one after the other."""
    steps = -(-lengths // ALIGN_BYTES) * ALIGN_BYTES
    return np.cumsum(steps) - steps


def to_above(values: Tensor, least: Least, to_bytes: ToBytes) -> Kept:
    """Return chunks, a row of values each."""
    count, device = values.shape[1], values.device
    limit = least.each(values) if isinstance(least, Limits) else torch.tensor(least, device=device)
    there = ~(values.abs() < limit)
    counts: list[int] = there.sum(1).tolist()
    at = there.flatten().nonzero().squeeze(1)
    chosen, places, maps = torch.split(values.flatten()[at], counts), torch.split(at % count, counts), pack(there, 1)
    chunks = []
    for nth, (keep, some, where) in enumerate(zip(counts, chosen, places, strict=True)):
        number = torch.tensor([keep], dtype=torch.int32).view(torch.uint8).to(device)
        packed = maps[nth] if is_mapped(keep, count) else pack(where[None], bits_of(count))[0]
        chunks.append(torch.cat([number, to_bytes(some, nth), packed]) if keep else number)
    lengths = np.array([chunk.numel() for chunk in chunks])
    starts = starts_of(lengths)
    wire = torch.zeros(int(starts[-1] + lengths[-1]), dtype=torch.uint8, device=device)
    for start, chunk in zip(starts.tolist(), chunks, strict=True):
        wire[start : start + chunk.numel()] = chunk
    return Kept(wire, starts, np.array(counts), lengths, at)
