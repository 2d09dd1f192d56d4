"""A bit an element in a basis that a chunk draws: `sync.codec.turned` on torch, to the same bits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from atoll.model.encoding.bits import cut, pack, packed_bytes, unpack, viewed
from atoll.model.encoding.chance import ALL_BITS, DRAWN_BITS, WORD_BITS
from atoll.model.encoding.scales import added, drawn, in_blocks, no_seed, nonzero
from atoll.spec.axes.codec import TurnedSign

KEY_BYTES = 8


def turned_bytes(codec: TurnedSign, count: int) -> int:
    """Return how many bytes a chunk of so many elements is."""
    blocks = -(-count // codec.block)
    return KEY_BYTES + 4 * blocks + packed_bytes(blocks * codec.block, 1) if count else 0


def to_turned(codec: TurnedSign, values: Tensor, keys: Tensor | None = None) -> Tensor:
    """Return the wire bytes of chunks, a row each; `keys` are those of each chunk's seed, none: those of no seed."""
    keys, block = no_seed(values) if keys is None else keys, float(codec.block)
    sums = _spread(in_blocks(values, codec.block) * _signs(keys, codec.block))
    scales = nonzero(added(sums.abs() / block) / block).nan_to_num_(nan=math.inf, posinf=math.inf)
    bits = pack((sums < 0).to(torch.uint8).flatten(1), 1)
    return torch.cat([_words(keys), scales.contiguous().view(torch.uint8), bits], dim=1)


def from_turned(codec: TurnedSign, wire: Tensor, count: int) -> Tensor:
    """Return chunks of so many elements from wire bytes that `to_turned` made."""
    head, rest = cut(wire, KEY_BYTES)
    keys = viewed(head, torch.int32).long() & ALL_BITS
    scales, packed = cut(rest, 4 * -(-count // codec.block))
    steps = viewed(scales, torch.float32)
    bits = unpack(packed, steps.shape[1] * codec.block, 1)
    ones = bits.float().mul_(-2.0).add_(1.0).view(len(wire), -1, codec.block)
    rows = _spread(ones) * _signs(keys, codec.block) * steps[..., None]
    return rows.flatten(1)[:, :count]


def _words(keys: Tensor) -> Tensor:
    """Return keys as bytes, a row each."""
    signed = torch.where(keys > ALL_BITS // 2, keys - (1 << WORD_BITS), keys)
    return signed.to(torch.int32).contiguous().view(torch.uint8)


def _signs(keys: Tensor, block: int) -> Tensor:
    """Return plus or minus one for each element of a block, a chunk a row."""
    minus = drawn(keys, block) >> (DRAWN_BITS - 1)
    return minus.float().mul_(-2.0).add_(1.0)[:, None, :]


def _spread(rows: Tensor) -> Tensor:
    """Return all sums and differences of each row, whose memory may be used up, added in the one order."""
    rows, half = rows.contiguous(), 1
    while half < rows.shape[-1]:
        one, other = rows.view(-1, 2, half).unbind(1)
        less = one - other
        one += other
        other.copy_(less)
        half *= 2
    return rows
