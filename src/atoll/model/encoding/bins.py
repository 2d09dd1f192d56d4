"""Values in bins on any device: as `sync.codec.buckets` makes them, a row for each chunk, to the same bits.

Three times a chunk's values are passed over (`Passes`), for their sum, for how far they lie from their mean, and for
the bin of each; between these there are only a few numbers for each chunk. All sums are of whole numbers, so the order
in which a device adds up does not matter.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from atoll.model.encoding.bits import cut, pack, unpack, viewed
from atoll.spec.axes.codec import Buckets

_VALUE_BITS, _DISTANCE_BITS = 31, 15
_UNIT_EXPONENT_MAX = 127
_EXPONENT_BIAS = 127
_LARGEST = 2.0**126
_STEP_MIN = 2.0**-120
_FEW_BINS = 16
"""So many are added up one after the other; more, each element into its own."""


class Binned(NamedTuple):
    """What fell into the bins of each chunk."""

    codes: Tensor
    """Each element's bin, packed."""
    sums: Tensor
    counts: Tensor


class Passes(Protocol):
    """The ways over all values, of which a device may have faster forms."""

    def total(self, values: Tensor, unit: Tensor) -> Tensor:
        """Return the sum of each chunk, of elements in whole parts of its unit."""

    def squares(self, values: Tensor, centre: Tensor, unit: Tensor) -> Tensor:
        """Return the sum of the squares of their distances from a centre, in whole parts of a unit, to the nearest."""

    def binned(self, values: Tensor, centre: Tensor, per_step: Tensor, unit: Tensor, bits: int) -> Binned:
        """Return the bins of all elements, and what is in each bin in whole parts of the chunk's unit."""


class PlainPasses:
    """Them in operations on whole vectors."""

    def total(self, values: Tensor, unit: Tensor) -> Tensor:
        return _counted(values, unit).sum(1, dtype=torch.int64)

    def squares(self, values: Tensor, centre: Tensor, unit: Tensor) -> Tensor:
        whole = (values - centre[:, None]).mul_(unit[:, None]).round_().to(torch.int32)
        return (whole * whole).sum(1, dtype=torch.int64)

    def binned(self, values: Tensor, centre: Tensor, per_step: Tensor, unit: Tensor, bits: int) -> Binned:
        half = 1 << (bits - 1)
        steps = (values - centre[:, None]).mul_(per_step[:, None]).round_()
        codes = steps.clamp_(-half, half - 1).add_(half).to(torch.uint8)
        return Binned(pack(codes, bits), *_in_bins(codes, _counted(values, unit), 1 << bits))


PLAIN: Passes = PlainPasses()


def to_buckets(codec: Buckets, values: Tensor, passes: Passes = PLAIN) -> Tensor:
    """Return the wire bytes of chunks, a row each."""
    low, high = torch.aminmax(values, dim=1)
    sound = torch.maximum(high, -low) <= _LARGEST
    unit, per_unit = units_of(torch.maximum(high, -low), _VALUE_BITS)
    size = torch.tensor(float(values.shape[1]), dtype=torch.float64, device=values.device)
    centre = (passes.total(values, unit).double() / size * per_unit).float()
    centre = torch.where(sound, centre, torch.zeros_like(centre))
    coarse, per_coarse = units_of(torch.maximum(high - centre, centre - low), _DISTANCE_BITS)
    squares = passes.squares(values, centre, coarse).double()
    step = (squares / size).sqrt() * codec.width * per_coarse * (1.0 / (1 << codec.bits))
    per_step = torch.where(step >= _STEP_MIN, torch.ones_like(step) / step, torch.zeros_like(step)).float()
    per_step = torch.where(sound, per_step, torch.zeros_like(per_step))
    codes, sums, counts = passes.binned(values, centre, per_step, unit, codec.bits)
    table = (sums.double() / counts.clamp(min=1).double() * per_unit[:, None]).float()
    table = torch.where(sound[:, None], table, torch.full_like(table, torch.nan))
    return torch.cat([table.view(torch.uint8), codes], dim=1)


def from_buckets(codec: Buckets, wire: Tensor, count: int) -> Tensor:
    """Return chunks of so many elements from wire bytes that `to_buckets` made."""
    table, codes = cut(wire, table_bytes(codec))
    return viewed(table, torch.float32).gather(1, unpack(codes, count, codec.bits).long())


def table_bytes(codec: Buckets) -> int:
    """Return how long the meanings of all bins are."""
    return 4 << codec.bits


def units_of(largest: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return how many of the smallest part that is counted make one, which is a power of two, and that part."""
    exponent = ((largest.double().view(torch.int64) >> 52) & 0x7FF) - 1022
    power = (bits - exponent).clamp(-126, _UNIT_EXPONENT_MAX)
    unit = ((power + _EXPONENT_BIAS) << 23).to(torch.int32).view(torch.float32)
    return unit, ((1023 - power) << 52).view(torch.float64)


def _counted(values: Tensor, unit: Tensor) -> Tensor:
    return (values * unit[:, None]).to(torch.int32)


def _in_bins(codes: Tensor, counted: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Return what is in each bin of each chunk: the sum, and how many."""
    if bins <= _FEW_BINS:
        there = [codes == each for each in range(bins)]
        each = [torch.where(here, counted, 0).sum(1, dtype=torch.int64) for here in there]
        return torch.stack(each, 1), torch.stack([here.sum(1) for here in there], 1)
    chunks = torch.arange(len(codes), device=codes.device)[:, None] * bins
    at = (codes + chunks).flatten()
    sums = torch.zeros(len(codes) * bins, dtype=torch.int64, device=codes.device)
    counts = torch.zeros_like(sums)
    sums.scatter_add_(0, at, counted.flatten().long())
    counts.scatter_add_(0, at, torch.ones_like(at))
    return sums.view(-1, bins), counts.view(-1, bins)
