"""A scale for each block, and each element in few bits of it: `sync.codec.scales` on torch, to the same bits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from atoll.model.encoding.bins import units_of
from atoll.model.encoding.bits import cut, pack, pack_threes, unpack, unpack_threes, viewed
from atoll.model.encoding.chance import ALL_BITS, DRAWN_BITS, WORD_BITS, keys_of, mixed
from atoll.spec.axes.codec import (
    QUATERNARY_LARGE,
    QUATERNARY_LEVEL,
    TERNARY_LEVEL,
    E3m0,
    Int8,
    Quaternary,
    Sign,
    Stochastic,
    Ternary,
)

Scaled = Int8 | E3m0 | Sign | Ternary | Quaternary | Stochastic

_STEPS = 127.0
_OCTAVES = 7
_HALF_UP = 1 << 22
_EXPONENT_BIAS = 127
_SCALE_MIN = 2.0**-120
NORM_BITS = 15


def to_scales(codec: Scaled, values: Tensor, keys: Tensor | None = None) -> Tensor:
    """Return the scales of chunks' blocks, and after them what elements are in their steps.

    `keys` are those of each chunk's seed, a row each, where chance has a part; none: those of no seed.
    """
    count, rows = values.shape[1], in_blocks(values, codec.block)
    scales = nonzero(_scales(codec, rows, count))
    codes = _codes(codec, rows, scales, keys).flatten(1)[:, :count]
    return torch.cat([scales.contiguous().view(torch.uint8), _packed(codec, codes)], dim=1)


def _packed(codec: Scaled, codes: Tensor) -> Tensor:
    match codec:
        case Int8():
            return codes.contiguous().view(torch.uint8)
        case Ternary():
            return pack_threes(codes)
        case _:
            return pack(codes, codec.bits)


def nonzero(scales: Tensor) -> Tensor:
    """Return scales, zero where they are too small to divide by."""
    return torch.where(scales < _SCALE_MIN, torch.zeros_like(scales), scales)


def in_blocks(values: Tensor, block: int) -> Tensor:
    """Return chunks a block a row, the last one filled up with zeros."""
    lacking = -values.shape[1] % block
    full = pad(values, (0, lacking)) if lacking else values
    return full.reshape(len(values), full.shape[1] // block, block)


def _scales(codec: Scaled, rows: Tensor, count: int) -> Tensor:
    match codec:
        case Int8():
            return _largest(rows) / torch.tensor(_STEPS, device=rows.device)
        case E3m0():
            return _largest(rows)
        case Sign():
            return _means(rows, count)
        case Ternary():
            return _means(rows, count) * TERNARY_LEVEL
        case Quaternary():
            return _means(rows, count) * QUATERNARY_LEVEL
        case Stochastic(bits=bits):
            unit, per_unit = units_of(_largest(rows), NORM_BITS)
            whole = (rows.abs() * unit[..., None]).ceil_().to(torch.int32)
            norms = (whole * whole).sum(-1, dtype=torch.int64).double().sqrt_() * per_unit
            return (norms / torch.tensor(float(levels_of(bits)), dtype=torch.float64, device=rows.device)).float()


def _means(rows: Tensor, count: int) -> Tensor:
    """Return the mean magnitude of each block of chunks of so many elements."""
    blocks, block = rows.shape[1:]
    filled = torch.full((blocks,), float(block), device=rows.device)
    filled[-1:] -= -count % block
    return added(rows.abs()) / filled


def _largest(rows: Tensor) -> Tensor:
    low, high = torch.aminmax(rows, dim=-1)
    return torch.maximum(high, -low)


def added(rows: Tensor) -> Tensor:
    """Return the sums of rows, whose memory is used up, in the order that every device adds in."""
    width = rows.shape[-1]
    while width > 1:
        half = -(-width // 2)
        rows[..., : width - half] += rows[..., half:width]
        width = half
    return rows[..., 0]


def _codes(codec: Scaled, rows: Tensor, scales: Tensor, keys: Tensor | None) -> Tensor:
    if isinstance(codec, Sign):
        return rows.signbit().to(torch.uint8)
    per_one = torch.where(scales > 0, torch.ones_like(scales) / scales, torch.zeros_like(scales))
    parts = rows * per_one[..., None]
    if isinstance(codec, Stochastic):
        return _rounded(parts, no_seed(rows) if keys is None else keys, levels_of(codec.bits))
    if isinstance(codec, Ternary):
        return (parts >= 0.5).to(torch.uint8) + (parts <= -0.5).to(torch.uint8) * 2
    if isinstance(codec, Quaternary):
        return parts.signbit().to(torch.uint8) + (parts.abs() >= (1.0 + QUATERNARY_LARGE) / 2).to(torch.uint8) * 2
    return parts.round_().to(torch.int8) if isinstance(codec, Int8) else _powers(parts)


def levels_of(bits: int) -> int:
    """Return how many steps there are on either side of zero."""
    return max(1, (1 << (bits - 1)) - 1)


def no_seed(values: Tensor) -> Tensor:
    """Return the keys of chunks whose seed is nothing."""
    return torch.tensor([keys_of(0)], device=values.device).expand(len(values), 2)


def _rounded(steps: Tensor, keys: Tensor, levels: int) -> Tensor:
    """Return steps rounded up or down by chance, as codes."""
    down = steps.floor()
    beyond = steps.sub_(down).mul_(float(1 << DRAWN_BITS)).flatten(1)
    up = (drawn(keys, beyond.shape[1]) < beyond).view(steps.shape)
    return down.add_(up).add_(levels).clamp_(0, 2 * levels).to(torch.int16)


def drawn(keys: Tensor, count: int) -> Tensor:
    """Return a whole number of 24 bits for each of so many elements of chunks, by the keys of each."""
    first, second = keys[:, :1], keys[:, 1:]
    place = torch.arange(count, device=keys.device)
    numbers: Tensor = mixed(mixed((place + first) & ALL_BITS) ^ second) >> (WORD_BITS - DRAWN_BITS)
    return numbers


def _powers(parts: Tensor) -> Tensor:
    """Return the nearest power of two of each part of a largest: its place, and 8 more where it is negative."""
    exponents = ((parts.view(torch.int32) & 0x7FFFFFFF) + _HALF_UP) >> 23
    places = (exponents - (_EXPONENT_BIAS - _OCTAVES)).clamp_(0, _OCTAVES).to(torch.uint8)
    places = torch.maximum(places, (parts.abs() >= 2.0**-_OCTAVES).to(torch.uint8))
    return places + parts.signbit().to(torch.uint8) * (_OCTAVES + 1)


def from_scales(codec: Scaled, wire: Tensor, count: int) -> Tensor:
    scales, packed = cut(wire, 4 * -(-count // codec.block))
    codes = unpack_threes(packed, count) if isinstance(codec, Ternary) else unpack(packed, count, codec.bits)
    match codec:
        case Int8():
            units = codes.contiguous().view(torch.int8).float()
        case E3m0():
            powers = [0.0, *(2.0 ** (power - _OCTAVES + 1) for power in range(_OCTAVES))]
            each = torch.tensor([*powers, *(-power for power in powers)], device=wire.device)
            units = each[codes.int()]
        case Sign():
            units = codes.float().mul_(-2.0).add_(1.0)
        case Ternary():
            units = (codes == 1).float() - (codes == 2).float()
        case Quaternary():
            units = (1.0 - 2.0 * (codes & 1)) * torch.where(codes >= 2, QUATERNARY_LARGE, 1.0)
        case Stochastic(bits=bits):
            units = codes.float().sub_(levels_of(bits))
    values = in_blocks(units, codec.block) * viewed(scales, torch.float32)[..., None]
    return values.flatten(1)[:, :count]
