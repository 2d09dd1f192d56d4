"""Codecs where the weights are: what `sync.codec` makes of chunks, made by torch on any device, to the same bits.

Many chunks of one length are encoded at once, a row each; what the wire looks like is said there, and one suite holds
both to it. Bits are the same because of three rules:

- what is rounded is elementwise, in the same order, each operation by itself: nothing is fused or divided by a number
  that torch might turn into a reciprocal;
- what is reduced cannot round (a maximum, sums of whole numbers), or is added in an order of our own;
- of equals the first is kept.

Rounding by chance and what is chosen by a threshold have no form here: they stay on the processor.
"""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor

from atoll.model import fused
from atoll.model.bins import from_buckets, table_bytes
from atoll.model.bits import cut, pack, packed_bytes, unpack, viewed
from atoll.model.scales import Scaled, from_scales, to_scales
from atoll.spec.axes.codec import Bf16, Buckets, Codec, E3m0, Fp16, Fp32, Int8, Sign, TopK

Value = Fp32 | Fp16 | Bf16 | Scaled | Buckets
OnDevice = Value | TopK

_HALF_MAX = 65504.0
_BF16_MAX = 3.3895314e38


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
        case E3m0():
            return fused.e3m0(codec, values)
        case Sign():
            return to_scales(codec, values)
        case Buckets():
            return fused.buckets(codec, values)
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
            return from_buckets(codec, wire, count)
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
            return table_bytes(codec) + packed_bytes(count, codec.bits)
        case TopK():
            keep = codec.kept(count)
            return wire_bytes(_value(codec), keep) + packed_bytes(keep, codec.place_bits)
        case _:
            assert_never(codec)


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
