"""Codecs where the weights are: what `sync.codec` makes of chunks, made by torch on any device, to the same bits.

Many chunks of one length are encoded at once, a row each; what the wire looks like is said there, and one suite holds
both to it. Bits are the same because of three rules:

- what is rounded is elementwise, in the same order, each operation by itself: nothing is fused or divided by a number
  that torch might turn into a reciprocal;
- what is reduced cannot round (a maximum, sums of whole numbers), or is added in an order of our own;
- of equals the first is kept.

What is chosen by its size alone is as long as values make it, chunk by chunk: that is `encode_above`. Cosines and
factors have no form here: they stay on the processor.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

import torch
from torch import Tensor

from atoll.model import fused, lines
from atoll.model.above import COUNT_BYTES, Kept, Least, places_bytes, to_above
from atoll.model.bins import from_buckets, table_bytes
from atoll.model.bits import cut, pack, packed_bytes, unpack, viewed
from atoll.model.scales import added, from_scales, to_scales
from atoll.spec.axes.codec import (
    Above,
    Bf16,
    Buckets,
    CacheLines,
    Codec,
    E3m0,
    Fp16,
    Fp32,
    Int8,
    MaxN,
    Quantiser,
    Sign,
    Significance,
    Stochastic,
    Threshold,
    TopK,
)

Even = Quantiser | TopK | CacheLines
"""Of which every chunk of as many elements is as long."""
OnDevice = Even | Above


class Asked(NamedTuple):
    """What a codec goes by beside values, a row for each chunk."""

    keys: Tensor | None = None
    """Of their seeds (`model.chance`); none: of no seed."""
    known: Tensor | None = None
    """Remembered thresholds and what they were at first, which move; none: choices are exact."""


NOTHING = Asked()
_HALF_MAX = 65504.0
_BF16_MAX = 3.3895314e38


def on_device(codec: Codec) -> OnDevice | None:
    """Return a codec if it has a form here; None: it has none, or there is nothing to do."""
    match codec:
        case Fp32():
            return None
        case _:
            return codec


def encode(codec: Even, values: Tensor, asked: Asked = NOTHING) -> Tensor:
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
        case Stochastic():
            return to_scales(codec, values, asked.keys)
        case TopK():
            places = _places_of(codec, values)
            chosen = values.gather(1, _in_chunk(codec, places, values.shape[1]))
            return torch.cat([encode(codec.values, chosen, asked), pack(places, codec.place_bits)], dim=1)
        case CacheLines():
            rows, bits = lines.in_lines(codec, values), lines.bits_of(codec, values.shape[1])
            places = lines.chosen(added(rows.abs()), lines.kept(codec, values.shape[1]), asked.known)
            some = rows.gather(1, places[..., None].expand(-1, -1, codec.line)).flatten(1)
            return torch.cat([encode(codec.values, some, asked), pack(places, bits)], dim=1)
        case _:
            assert_never(codec)


def encode_above(codec: Above, values: Tensor, least: Least, asked: Asked = NOTHING) -> Kept:
    """Return chunks of what is at least so large, a row of values each."""

    def to_bytes(some: Tensor, nth: int) -> Tensor:
        keys = None if asked.keys is None else asked.keys[nth : nth + 1]
        return encode(codec.values, some[None], Asked(keys))[0]

    return to_above(values, least, to_bytes)


def decoded(codec: Even, wire: Tensor, count: int) -> Tensor:
    """Return chunks of so many elements from wire bytes that `encode` made."""
    match codec:
        case Fp32():
            return viewed(wire, torch.float32)
        case Fp16():
            return viewed(wire, torch.float16).float()
        case Bf16():
            return viewed(wire, torch.bfloat16).float()
        case Int8() | E3m0() | Sign() | Stochastic():
            return from_scales(codec, wire, count)
        case Buckets():
            return from_buckets(codec, wire, count)
        case TopK():
            keep = codec.kept(count)
            values, packed = cut(wire, wire_bytes(codec.values, keep))
            places = _in_chunk(codec, unpack(packed, keep, codec.place_bits).long(), count)
            spread = torch.zeros((len(wire), count), device=wire.device)
            return spread.scatter_(1, places, decoded(codec.values, values, keep))
        case CacheLines():
            keep, shape = lines.kept(codec, count), (len(wire), lines.lines_of(codec, count), codec.line)
            values, packed = cut(wire, wire_bytes(codec.values, keep * codec.line))
            places = unpack(packed, keep, lines.bits_of(codec, count)).long()[..., None].expand(-1, -1, codec.line)
            some = decoded(codec.values, values, keep * codec.line).view(len(wire), keep, codec.line)
            return torch.zeros(shape, device=wire.device).scatter_(1, places, some).flatten(1)[:, :count]
        case _:
            assert_never(codec)


def decoded_above(codec: Above, kept: Kept, count: int) -> Tensor:
    """Return chunks of so many elements from what `encode_above` made."""
    spread = torch.zeros(len(kept.counts) * count, device=kept.wire.device)
    each = zip(kept.starts, kept.counts, strict=True)
    some = [_values_of(codec, kept.wire[start + COUNT_BYTES :], keep) for start, keep in each if keep]
    if some:
        spread[kept.at] = torch.cat(some)
    return spread.view(-1, count)


def _values_of(codec: Above, wire: Tensor, keep: int) -> Tensor:
    """Return so many values that were kept."""
    return decoded(codec.values, wire[None, : wire_bytes(codec.values, keep)], keep)[0]


def wire_bytes(codec: OnDevice, count: int) -> int:
    """Return how many bytes a chunk of so many elements is, at most."""
    match codec:
        case Fp32():
            return 4 * count
        case Fp16() | Bf16():
            return 2 * count
        case Int8() | E3m0() | Sign() | Stochastic():
            return 4 * -(-count // codec.block) + packed_bytes(count, codec.bits)
        case Buckets():
            return table_bytes(codec) + packed_bytes(count, codec.bits)
        case TopK():
            keep = codec.kept(count)
            return wire_bytes(codec.values, keep) + packed_bytes(keep, codec.place_bits)
        case CacheLines():
            return wire_bytes(codec.values, lines.kept(codec, count) * codec.line) + lines.places_bytes(codec, count)
        case Threshold() | Significance() | MaxN():
            return COUNT_BYTES + wire_bytes(codec.values, count) + places_bytes(count, count)
        case _:
            assert_never(codec)


# the largest


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
