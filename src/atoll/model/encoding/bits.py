"""Numbers of a few bits each, side by side, on any device: as `sync.codec.bits` packs them, a row for each chunk."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

_GROUP = 8
"""Numbers that are packed together where a byte's end would cut one."""
_FIVE = 5
"""Numbers below three that are the digits of a byte."""


def packed_bytes(count: int, bits: int) -> int:
    """Return how long so many numbers are."""
    return count + packed_bytes(count, bits - 8) if bits > 8 else -(-count * bits // 8)


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Return rows of unsigned numbers below 2 ** bits as bytes, each number's lowest bit first."""
    if bits > 8:
        return torch.cat([(numbers & 0xFF).to(torch.uint8), pack(numbers >> 8, bits - 8)], dim=1)
    if bits == 8:
        return numbers.to(torch.uint8)
    group, kind = (8 // bits, torch.uint8) if 8 % bits == 0 else (_GROUP, torch.int64)
    count = numbers.shape[1]
    groups = pad(numbers.to(kind), (0, -count % group)).view(len(numbers), -1, group)
    words = groups[..., 0].clone(memory_format=torch.contiguous_format)
    for place in range(1, group):
        words |= groups[..., place] << (place * bits)
    if kind is torch.int64:
        words = words.view(torch.uint8).view(len(numbers), -1, 8)[..., :bits].flatten(1)
    return words[:, : packed_bytes(count, bits)]


def unpack(data: Tensor, count: int, bits: int) -> Tensor:
    """Return rows of `count` numbers from what `pack` made of them."""
    if bits > 8:
        return data[:, :count].int() | (unpack(data[:, count:], count, bits - 8).int() << 8)
    if bits == 8:
        return data[:, :count]
    if 8 % bits == 0:
        each = torch.arange(0, 8, bits, dtype=torch.uint8, device=data.device)
        return ((data[..., None] >> each) & ((1 << bits) - 1)).flatten(1)[:, :count]
    groups = -(-count // _GROUP)
    full = pad(data, (0, groups * bits - data.shape[1])).view(len(data), groups, bits)
    words = pad(full, (0, 8 - bits)).view(torch.int64)
    each = torch.arange(0, 8 * bits, bits, device=data.device)
    return ((words >> each) & ((1 << bits) - 1)).to(torch.uint8).flatten(1)[:, :count]


def threes_bytes(count: int) -> int:
    """Return how long so many numbers below three are."""
    return -(-count // _FIVE)


def pack_threes(numbers: Tensor) -> Tensor:
    """Return rows of numbers below three as bytes, five in each, the first counting least."""
    groups = pad(numbers, (0, -numbers.shape[1] % _FIVE)).view(len(numbers), -1, _FIVE)
    return (groups * _digits(numbers.device)).sum(-1, dtype=torch.uint8)


def unpack_threes(data: Tensor, count: int) -> Tensor:
    """Return rows of `count` numbers from what `pack_threes` made of them."""
    digits = torch.div(data[..., None], _digits(data.device), rounding_mode="floor") % 3
    return digits.flatten(1)[:, :count]


def _digits(device: torch.device) -> Tensor:
    """Return what each of a byte's five digits counts for."""
    return torch.tensor([3**place for place in range(_FIVE)], dtype=torch.uint8, device=device)


def cut(wire: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """Return what is before and after a place in each row."""
    return wire[:, :at], wire[:, at:]


def viewed(wire: Tensor, kind: torch.dtype) -> Tensor:
    """Return bytes as numbers: rows may lie at any distance from each other, and then they are copied."""
    return wire.flatten().view(kind).view(len(wire), -1)
