"""Codecs where the weights are: what `sync.codec` makes of chunks, made by torch on any device, to the same bits.

Many chunks of one length are encoded at once, a row each; what the wire looks like is said there, and one suite holds
both to it. Bits are the same because of three rules:

- what is rounded is elementwise, in the same order, each operation by itself: nothing is fused or divided by a number
  that torch might turn into a reciprocal;
- what is reduced cannot round (a maximum, sums of whole numbers), or is added in an order of our own;
- of equals the first is kept.

What is chosen by its size alone is as long as values make it, chunk by chunk: that is `encode_above`. Frequencies, if
`model.encoding.transforms` makes these of values, are encoded like them.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

import torch
from torch import Tensor
from torch.nn.functional import pad

from atoll.model.encoding import fused, lines, sieve, sparse
from atoll.model.encoding.above import COUNT_BYTES, Kept, Least, places_bytes, to_above
from atoll.model.encoding.bins import from_buckets, table_bytes
from atoll.model.encoding.bits import cut, packed_bytes, threes_bytes, unpack, viewed
from atoll.model.encoding.scales import from_scales, to_scales
from atoll.model.encoding.turned import from_turned, to_turned, turned_bytes
from atoll.model.encoding.wanted import as_it_is
from atoll.spec.axes.codec import (
    Above,
    Bf16,
    Buckets,
    CacheLines,
    E3m0,
    Fp16,
    Fp32,
    Int8,
    MaxN,
    Quantiser,
    Quaternary,
    Sign,
    Significance,
    Stochastic,
    Ternary,
    Threshold,
    TopK,
    TurnedSign,
)

Even = Quantiser | TopK | CacheLines
"""Of which every chunk of as many elements is as long."""
OnDevice = Even | Above


class Asked(NamedTuple):
    """What a codec goes by beside values, a row for each chunk."""

    keys: Tensor | None = None
    """Of their seeds (`model.encoding.chance`); none: of no seed."""
    known: Tensor | None = None
    """Remembered thresholds and what they were at first, which move; none: choices are exact."""
    scores: Tensor | None = None
    """Of lines, if whoever made the values has added them up; none: nobody has."""


NOTHING = Asked()


def encode(codec: Even, values: Tensor, asked: Asked = NOTHING, left: Tensor | None = None) -> Tensor:
    """Return the wire bytes of chunks, a row each, of at least one element; all must be finite.

    What is left out of them is written where somebody asks for it, in rows that lie one after the other: of what sends
    some values only, it may be where the values are, and then all others stay there as they are.
    """
    match codec:
        case Fp16() | Bf16():
            return fused.short(codec, values, left)
        case Int8():
            return fused.int8(codec, values, left)
        case Stochastic():
            return fused.stochastic(codec, values, asked.keys, left)
        case TopK() | CacheLines():
            return _encode_some(codec, values, asked, left)
        case _:
            wire = _encode(codec, values, asked)
            if left is not None and isinstance(codec, Fp32):
                left.zero_()  # a pass less than taking each from itself
            elif left is not None:
                torch.sub(values, decoded(codec, wire, values.shape[1]), out=left)
            return wire


def _encode(
    codec: Fp32 | E3m0 | Sign | Ternary | Quaternary | TurnedSign | Buckets, values: Tensor, asked: Asked
) -> Tensor:
    match codec:
        case Fp32():
            return values.contiguous().view(torch.uint8)
        case E3m0():
            return fused.e3m0(codec, values)
        case Sign() | Ternary() | Quaternary():
            return to_scales(codec, values)
        case TurnedSign():
            return to_turned(codec, values, asked.keys)
        case Buckets():
            return fused.buckets(codec, values)
        case _:
            assert_never(codec)


def _encode_some(codec: TopK | CacheLines, values: Tensor, asked: Asked, left: Tensor | None) -> Tensor:
    """Return likewise of what sends some values only: these, and after them where they are."""
    count, is_exact = values.shape[1], isinstance(codec.values, Fp32)
    wire, keep = sparse.room(values, wire_bytes(codec, count)), _kept(codec, count)
    head, tail = cut(wire, wire_bytes(codec.values, keep))
    chosen = head.view(torch.float32) if is_exact else torch.empty((len(values), keep), device=values.device)
    if isinstance(codec, TopK):
        places, bits = sparse.take_largest(codec, values, chosen, left), codec.place_bits
    else:
        places = sparse.take_lines(codec, values, asked.known, chosen, left, asked.scores)
        bits = lines.bits_of(codec, count)
    sparse.put_packed(places, bits, tail)
    if not is_exact:
        rest = None if left is None else torch.empty_like(chosen)
        head.copy_(encode(codec.values, chosen, asked, rest))
        if left is not None and rest is not None:
            _put(codec, left, places, rest)
    return wire


def _put(codec: TopK | CacheLines, left: Tensor, places: Tensor, rest: Tensor) -> None:
    """Write what is left out of values where these were taken from."""
    at, lacking = _elements(codec, places, left.shape[1]), _lacking(codec, left.shape[1])
    if lacking:
        left.copy_(pad(left, (0, lacking)).scatter_(1, at, rest)[:, : left.shape[1]])
    else:
        left.scatter_(1, at, rest)


def encode_above(
    codec: Above, values: Tensor, least: Least, asked: Asked = NOTHING, left: Tensor | None = None
) -> Kept:
    """Return chunks of what is at least so large, a row of values each; what is left out of them as in `encode`."""

    def to_bytes(some: Tensor, nth: int) -> Tensor:
        keys = None if asked.keys is None else asked.keys[nth : nth + 1]
        return encode(codec.values, some[None], Asked(keys))[0]

    sifted = sieve.sifted(type(codec.values), as_it_is(values), least, left)
    if sifted is not None:
        return sifted.kept(sifted.keeps.cpu().numpy())
    kept = to_above(values, least, to_bytes)
    if left is not None:
        torch.sub(values, decoded_above(codec, kept, values.shape[1]), out=left)
    return kept


def decoded(codec: Even, wire: Tensor, count: int) -> Tensor:
    """Return chunks of so many elements from wire bytes that `encode` made."""
    match codec:
        case Fp32():
            return viewed(wire, torch.float32)
        case Fp16():
            return viewed(wire, torch.float16).float()
        case Bf16():
            return viewed(wire, torch.bfloat16).float()
        case Int8() | E3m0() | Sign() | Ternary() | Quaternary() | Stochastic():
            return from_scales(codec, wire, count)
        case TurnedSign():
            return from_turned(codec, wire, count)
        case Buckets():
            return from_buckets(codec, wire, count)
        case TopK() | CacheLines():
            spread = torch.zeros((len(wire), count + _lacking(codec, count)), device=wire.device)
            return spread.scatter_(1, *_arrived(codec, wire, count))[:, :count]
        case _:
            assert_never(codec)


def _lacking(codec: TopK | CacheLines, count: int) -> int:
    """Return how many elements the last line of so many is short of."""
    return -count % codec.line if isinstance(codec, CacheLines) else 0


def _arrived(codec: TopK | CacheLines, wire: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return which elements of chunks of so many were sent, and what arrives of them; of whole lines to their ends."""
    keep = _kept(codec, count)
    values, packed = cut(wire, wire_bytes(codec.values, keep))
    many, bits = (
        (keep, codec.place_bits) if isinstance(codec, TopK) else (keep // codec.line, lines.bits_of(codec, count))
    )
    return _elements(codec, unpack(packed, many, bits), count), decoded(codec.values, values, keep)


def _kept(codec: TopK | CacheLines, count: int) -> int:
    """Return how many of so many elements are sent; of a line that is short, as many as of others."""
    return codec.kept(count) if isinstance(codec, TopK) else lines.kept(codec, count) * codec.line


def _elements(codec: TopK | CacheLines, places: Tensor, count: int) -> Tensor:
    """Return where elements are in chunks of so many, for places in blocks or of lines."""
    if isinstance(codec, TopK):
        return sparse.in_chunk(codec, places, count)
    first = places.long() * codec.line
    return (first[..., None] + torch.arange(codec.line, device=places.device)).flatten(1)


def decoded_above(codec: Above, kept: Kept, count: int) -> Tensor:
    """Return chunks of so many elements from what `encode_above` made."""
    spread = torch.zeros(len(kept.counts) * count, device=kept.wire.device)
    each = zip(kept.starts.tolist(), kept.counts.tolist(), strict=True)
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
        case Int8() | E3m0() | Sign() | Quaternary() | Stochastic():
            return 4 * -(-count // codec.block) + packed_bytes(count, codec.bits)
        case Ternary():
            return 4 * -(-count // codec.block) + threes_bytes(count)
        case TurnedSign():
            return turned_bytes(codec, count)
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
