"""The codecs that most recipes send, in as few passes over a CUDA device's memory as will do, to the same bits.

`model.codec` makes a codec out of whole-vector operations, each of which reads and writes everything; here one kernel
reads a block once and keeps it in registers until its bytes are written. Triton compiles them, which comes with torch
on Linux. Compilers may fuse a multiplication with the addition after it, or divide by halves; both are forbidden below,
and because a compiler's word is not enough, a device's first use is a comparison with the plain forms: where kernels
cannot be compiled, or one bit is another, the plain forms are taken there.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from atoll.model.bins import PLAIN, Binned, Passes, to_buckets
from atoll.model.bits import packed_bytes
from atoll.model.largest import largest_of as plain_largest
from atoll.model.scales import to_scales
from atoll.spec.axes.codec import Buckets, E3m0, Int8

WIDTHS = (32, 8192)
"""Rows that fit into one program's registers."""
TO_WHOLE = 1.5 * 2.0**23
"""Added to a small number and taken off again, it leaves the nearest whole one, of two the even one."""
SCALE_MIN = 2.0**-120
CONSTANTS = {"STEPS": 127.0, "SCALE_MIN": SCALE_MIN, "TO_WHOLE": TO_WHOLE}
"""Of int8."""
_TILE = 2048
"""Elements that one program makes int8 or powers of two of, or puts into bins."""
_FEW_BITS = (1, 2, 4)
"""Of bins that fill bytes, and are few enough to be gone through one after the other."""


def largest_of(rows: Tensor, keep: int) -> Tensor:
    """Return the places of so many of each row, rising; of equals the first."""
    if _fits(rows.shape[1]) and keep < rows.shape[1] and len(rows) and _trusted(rows.device):
        return _largest(rows, keep)
    return plain_largest(rows, keep)


def int8(codec: Int8, values: Tensor) -> Tensor:
    """Return the wire bytes of chunks, a row each."""
    whole_words = values.shape[1] % 4 == 0
    if _fits(codec.block) and whole_words and len(values) and _trusted(values.device):
        return _int8(codec.block, values)
    return to_scales(codec, values)


def e3m0(codec: E3m0, values: Tensor) -> Tensor:
    """Return the wire bytes of chunks, a row each."""
    whole_words = values.shape[1] % 8 == 0
    if _fits(codec.block) and whole_words and len(values) and _trusted(values.device):
        return _e3m0(codec.block, values)
    return to_scales(codec, values)


def buckets(codec: Buckets, values: Tensor) -> Tensor:
    """Return the wire bytes of chunks, a row each."""
    fast = codec.bits in _FEW_BITS and len(values) and _trusted(values.device)
    return to_buckets(codec, values.contiguous(), FUSED if fast else PLAIN)


def _fits(width: int) -> bool:
    return WIDTHS[0] <= width <= WIDTHS[1] and width & (width - 1) == 0


def _trusted(device: torch.device) -> bool:
    """Return whether kernels make the same bits on a device."""
    return device.type == "cuda" and _same_bits(device)


@cache
def _kernels() -> Any:
    """Return the kernels; raises `ImportError` where Triton is not."""
    from atoll.model import kernels

    return kernels


@cache
def _same_bits(device: torch.device) -> bool:
    try:
        return all(same(device) for same in (same_largest, same_int8, same_e3m0, same_buckets))
    except ImportError:
        return False
    except Exception as error:  # whatever a compiler may say: there is another way
        warnings.warn(f"codecs are not fused on {device}: {error}", RuntimeWarning, stacklevel=4)
        return False


def same_largest(device: torch.device) -> bool:
    """Return whether the largest are the same ones, equals and the smallest numbers among them."""
    rows = _trial((16, 1024), device)
    return all(torch.equal(_largest(rows, keep), plain_largest(rows, keep)) for keep in (1, 16, 64, 1000))


def same_int8(device: torch.device) -> bool:
    """Return whether int8 is the same bytes, of blocks of zeros and of the smallest numbers too."""
    values = _trial((4, 4004), device)
    return all(torch.equal(_int8(block, values), to_scales(Int8(block=block), values)) for block in (32, 256))


def same_e3m0(device: torch.device) -> bool:
    """Return whether powers of two are the same bytes."""
    values = _trial((6, 4008), device)
    return all(torch.equal(_e3m0(block, values), to_scales(E3m0(block=block), values)) for block in (32, 64, 2048))


def same_buckets(device: torch.device) -> bool:
    """Return whether bins are the same bytes, of chunks of every length and size."""
    codecs = [Buckets(bits=bits, width=width) for bits in _FEW_BITS for width in (2.0, 6.0)]
    some = [_trial((12, count), device) for count in (1, 3, 4100)]
    return all(torch.equal(to_buckets(c, values, FUSED), to_buckets(c, values)) for c in codecs for values in some)


def _trial(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Return numbers of all sizes, many of them equal, some nothing."""
    made = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=made)
    sizes = torch.randint(-148, 100, (shape[0], 1), generator=made).float().exp2()
    values[1::2] = (values[1::2] * 4).round()
    values[2::4, : shape[1] // 2] = 0.0
    return (values * torch.where(torch.arange(shape[0])[:, None] % 3 == 0, sizes, torch.ones_like(sizes))).to(device)


def _largest(rows: Tensor, keep: int) -> Tensor:
    places = torch.empty((len(rows), keep), dtype=torch.int64, device=rows.device)
    warps = 8 if rows.shape[1] > 2048 else 4
    _launch(_kernels().largest, (len(rows),), rows.contiguous(), places, keep, WIDTH=rows.shape[1], num_warps=warps)
    return places


def _int8(block: int, values: Tensor) -> Tensor:
    chunks, count = values.shape
    blocks = -(-count // block)
    wire = torch.empty((chunks, 4 * blocks + count), dtype=torch.uint8, device=values.device)
    many = max(1, _TILE // block)
    _launch(
        _kernels().int8,
        (chunks, -(-blocks // many)),
        values.contiguous(),
        wire.view(torch.float32),
        wire.view(torch.int8),
        count,
        blocks,
        BLOCK=block,
        MANY=many,
        **CONSTANTS,
    )
    return wire


def _e3m0(block: int, values: Tensor) -> Tensor:
    chunks, count = values.shape
    blocks = -(-count // block)
    wire = torch.empty((chunks, 4 * blocks + count // 2), dtype=torch.uint8, device=values.device)
    many = max(1, _TILE // block)
    given = (values.contiguous(), wire.view(torch.float32), wire, count, blocks)
    shape = {"HALF": block // 2, "MANY": many, "SCALE_MIN": SCALE_MIN, "OCTAVES": 7}
    _launch(_kernels().e3m0, (chunks, -(-blocks // many)), *given, **shape)
    return wire


class FusedPasses:
    """The passes of bins, one kernel each."""

    def total(self, values: Tensor, unit: Tensor) -> Tensor:
        sums = _parts(values)
        _launch(_kernels().bin_total, sums.shape, values, unit, sums, values.shape[1], TILE=_TILE)
        return sums.sum(1)

    def squares(self, values: Tensor, centre: Tensor, unit: Tensor) -> Tensor:
        sums = _parts(values)
        given = (values, centre, unit, sums, values.shape[1])
        _launch(_kernels().bin_squares, sums.shape, *given, TILE=_TILE, TO_WHOLE=TO_WHOLE)
        return sums.sum(1)

    def binned(self, values: Tensor, centre: Tensor, per_step: Tensor, unit: Tensor, bits: int) -> Binned:
        (chunks, count), group = values.shape, 8 // bits
        codes = torch.empty((chunks, packed_bytes(count, bits)), dtype=torch.uint8, device=values.device)
        sums, counts = _parts(values, 1 << bits), _parts(values, 1 << bits)
        given = (values, centre, per_step, unit, codes, sums, counts, count, codes.shape[1])
        shape = {"BITS": bits, "GROUP": group, "GROUPS": _TILE // group}
        _launch(_kernels().bin_codes, sums.shape[:2], *given, **shape, TO_WHOLE=TO_WHOLE)
        return Binned(codes, sums.sum(1), counts.sum(1))


FUSED: Passes = FusedPasses()


def _parts(values: Tensor, *numbers: int) -> Tensor:
    """Return room for what each program comes to, chunk by chunk."""
    shape = (len(values), -(-values.shape[1] // _TILE), *numbers)
    return torch.empty(shape, dtype=torch.int64, device=values.device)


def _launch(kernel: Any, grid: tuple[int, ...], *given: Any, **also: Any) -> None:
    """Start one kernel where its values are; nothing in it is rounded later than it is written."""
    with torch.cuda.device_of(given[0]):  # type: ignore[no-untyped-call]
        kernel[grid](*given, **also, enable_fp_fusion=False)
