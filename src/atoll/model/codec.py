"""Codecs where the weights are: what `sync.codec` makes of chunks, made by torch on any device, to the same bits.

Many chunks of one length are encoded at once, a row each; what the wire looks like is said there, and one suite holds
both to it. Bits are the same because of three rules:

- what is rounded is elementwise, in the same order, each operation by itself: nothing is fused or divided by a number
  that torch might turn into a reciprocal;
- what is reduced cannot round (a maximum, sums of whole numbers), or is added in an order of our own;
- of equals the first is kept.

Rounding by chance, what is chosen by a threshold, cosines and factors have no form here: they stay on the processor.
"""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor

from atoll.model import fused
from atoll.model.bits import cut, pack, packed_bytes, unpack, viewed
from atoll.model.scales import Scaled, from_scales, to_scales
from atoll.spec.axes.codec import Bf16, Buckets, Codec, E3m0, Fp16, Fp32, Int8, Sign, TopK

Value = Fp32 | Fp16 | Bf16 | Scaled | Buckets
OnDevice = Value | TopK

_HALF_MAX = 65504.0
_BF16_MAX = 3.3895314e38
_EXPONENT_BIAS = 127
_VALUE_BITS, _DISTANCE_BITS = 31, 15
_UNIT_EXPONENT_MAX = 127
_LARGEST = 2.0**126
_STEP_MIN = 2.0**-120
_FEW_BINS = 16
"""So many are added up one after the other; more, each element into its own."""


def on_device(codec: Codec) -> OnDevice | None:
    """Return a codec if it has a form here; None: it has none, or there is nothing to do."""
    match codec:
        case Fp16() | Bf16() | Int8() | E3m0() | Sign() | Buckets():
            return codec
        case TopK() if isinstance(codec.values, Value):
            return codec
        case _:
            return None


def encode(codec: OnDevice, values: Tensor) -> Tensor:
    """Return the wire bytes of chunks, a row each, of at least one element; all must be finite."""
    match codec:
        case Fp32():
            return values.contiguous().view(torch.uint8)
        case Fp16():
            return values.clamp(-_HALF_MAX, _HALF_MAX).half().view(torch.uint8)
        case Bf16():
            return values.clamp(-_BF16_MAX, _BF16_MAX).bfloat16().view(torch.uint8)
        case Int8():
            return fused.int8(codec, values)
        case E3m0() | Sign():
            return to_scales(codec, values)
        case Buckets():
            return _to_buckets(codec, values)
        case TopK():
            places = _places_of(codec, values)
            chosen = values.gather(1, _in_chunk(codec, places, values.shape[1]))
            return torch.cat([encode(_value(codec), chosen), pack(places, codec.place_bits)], dim=1)
        case _:
            assert_never(codec)


def decoded(codec: OnDevice, wire: Tensor, count: int) -> Tensor:
    """Return chunks of so many elements from wire bytes that `encode` made."""
    match codec:
        case Fp32():
            return viewed(wire, torch.float32)
        case Fp16():
            return viewed(wire, torch.float16).float()
        case Bf16():
            return viewed(wire, torch.bfloat16).float()
        case Int8() | E3m0() | Sign():
            return from_scales(codec, wire, count)
        case Buckets():
            table, codes = cut(wire, 4 << codec.bits)
            return viewed(table, torch.float32).gather(1, unpack(codes, count, codec.bits).long())
        case TopK():
            keep = codec.kept(count)
            values, packed = cut(wire, wire_bytes(_value(codec), keep))
            places = _in_chunk(codec, unpack(packed, keep, codec.place_bits).long(), count)
            spread = torch.zeros((len(wire), count), device=wire.device)
            return spread.scatter_(1, places, decoded(_value(codec), values, keep))
        case _:
            assert_never(codec)


def wire_bytes(codec: OnDevice, count: int) -> int:
    """Return how many bytes a chunk of so many elements is."""
    match codec:
        case Fp32():
            return 4 * count
        case Fp16() | Bf16():
            return 2 * count
        case Int8() | E3m0() | Sign():
            return 4 * -(-count // codec.block) + packed_bytes(count, codec.bits)
        case Buckets():
            return (4 << codec.bits) + packed_bytes(count, codec.bits)
        case TopK():
            keep = codec.kept(count)
            return wire_bytes(_value(codec), keep) + packed_bytes(keep, codec.place_bits)
        case _:
            assert_never(codec)


# bins


def _to_buckets(codec: Buckets, values: Tensor) -> Tensor:
    count = values.shape[1]
    bins = 1 << codec.bits
    low, high = torch.aminmax(values, dim=1)
    sound = torch.maximum(high, -low) <= _LARGEST
    unit, per_unit = _units(torch.maximum(high, -low), _VALUE_BITS)
    counted = (values * unit[:, None]).to(torch.int32)
    size = torch.tensor(float(count), dtype=torch.float64, device=values.device)
    centre = (counted.sum(1, dtype=torch.int64).double() / size * per_unit).float()
    centre = torch.where(sound, centre, torch.zeros_like(centre))
    steps = values - centre[:, None]
    coarse, per_coarse = _units(torch.maximum(high - centre, centre - low), _DISTANCE_BITS)
    whole = (steps * coarse[:, None]).round_().to(torch.int32)
    squares = (whole * whole).sum(1, dtype=torch.int64).double()
    step = (squares / size).sqrt() * codec.width * per_coarse * (1.0 / bins)
    per_step = torch.where(step >= _STEP_MIN, torch.ones_like(step) / step, torch.zeros_like(step)).float()
    steps *= torch.where(sound, per_step, torch.zeros_like(per_step))[:, None]
    codes = steps.round_().clamp_(-bins // 2, bins // 2 - 1).add_(bins // 2).to(torch.uint8)
    sums, counts = _in_bins(codes, counted, bins)
    table = (sums.double() / counts.clamp(min=1).double() * per_unit[:, None]).float()
    table = torch.where(sound[:, None], table, torch.full_like(table, torch.nan))
    return torch.cat([table.view(torch.uint8), pack(codes, codec.bits)], dim=1)


def _units(largest: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return how many of the smallest part that is counted make one, which is a power of two, and that part."""
    exponent = ((largest.double().view(torch.int64) >> 52) & 0x7FF) - 1022
    power = (bits - exponent).clamp(-126, _UNIT_EXPONENT_MAX)
    unit = ((power + _EXPONENT_BIAS) << 23).to(torch.int32).view(torch.float32)
    return unit, ((1023 - power) << 52).view(torch.float64)


def _in_bins(codes: Tensor, counted: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Return what is in each bin of each chunk: the sum, and how many; whole numbers, so that order does not matter."""
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


# the largest


def _value(codec: TopK) -> Value:
    assert isinstance(codec.values, Value), "others have no form here"
    return codec.values


def _places_of(codec: TopK, values: Tensor) -> Tensor:
    """Return what is kept of each chunk, as places in their blocks."""
    chunks, count = values.shape
    whole = count - count % codec.block
    places = [fused.largest_of(values[:, :whole].reshape(-1, codec.block), codec.keep).view(chunks, -1)]
    if count > whole:
        places.append(fused.largest_of(values[:, whole:], codec.kept(count - whole)))
    return torch.cat(places, dim=1)


def _in_chunk(codec: TopK, places: Tensor, count: int) -> Tensor:
    """Return places in the chunk for places in blocks."""
    full = count // codec.block
    nth = torch.arange(places.shape[1], device=places.device)
    return places + (nth // codec.keep).clamp(max=full) * codec.block
