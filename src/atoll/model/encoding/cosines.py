"""The cosine transform where the weights are: what `sync.frequencies` makes of tiles, on any device, to the same bits.

All tiles of one shape are transformed together, elementwise in fp64 and in the same order of operations: how many there
are at once changes no bit. Tiles whose sides are powers of two, which are nearly all, are one pass of a kernel on a
CUDA device (`model.encoding.programs`, and `model.encoding.columns` of those that recipes have), if that makes the same
bits there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atoll.model.encoding import columns, tiles
from atoll.model.encoding.tiles import Tiled
from atoll.model.encoding.trials import equal_bits
from atoll.model.encoding.trust import launch, trusted

BATCH_ELEMENTS = 2**22
"""So many are transformed at once without a kernel: each takes some 40 bytes meanwhile."""
FITTING = (32, 4096)
"""Elements of a tile that one program has in its registers."""

BY_COLUMNS = ((64, 64),)
"""Tiles whose columns and rows a lane has in its registers, which is faster still: the only ones that recipes have."""
_LANES = 32
"""Of a warp."""
_PROGRAMS = 528
"""That have many tiles each: four for each part of a large device, of which more were no faster."""

Tiling = tuple[Tiled, ...]


def frequencies(tiling: Tiling, values: Tensor) -> Tensor:
    """Return the frequencies of a unit's values."""
    return _transformed(tiling, values, forward=True)


def values(tiling: Tiling, frequencies: Tensor) -> Tensor:
    """Return the values whose frequencies these are."""
    return _transformed(tiling, frequencies, forward=False)


def _transformed(tiling: Tiling, given: Tensor, *, forward: bool) -> Tensor:
    made = torch.empty_like(given)
    for shape, alike in _by_shape(tiling).items():
        way = _way(shape, given.device)
        way(alike, given, made, forward)
    return made


def _way(shape: tuple[int, int], device: torch.device) -> Callable[[Tiling, Tensor, Tensor, bool], None]:
    """Return how tiles of a shape are transformed on a device."""
    if shape in BY_COLUMNS and trusted(same_columns, device, shape[0]):
        return _by_columns
    # Of this shape alone: to compile others' kernels would take a while for nothing.
    return _fused if _fits(shape) and trusted(same_cosines, device, (shape,)) else _plain


@lru_cache(maxsize=8)
def _by_shape(tiling: Tiling) -> dict[tuple[int, int], Tiling]:
    """Return what has tiles of each shape."""
    found: dict[tuple[int, int], list[Tiled]] = {}
    for each in tiling:
        found.setdefault((each.high, each.wide), []).append(each)
    return {shape: tuple(alike) for shape, alike in found.items()}


# in whole-tensor operations


def _plain(alike: Tiling, given: Tensor, made: Tensor, forward: bool) -> None:
    """Transform all that has tiles of one shape, some rows of tiles at a time."""
    for each, there, here in _bands(alike):
        across = each.columns // each.wide
        if forward:
            tiles = given[there].view(-1, each.high, across, each.wide).double()
            done = _along(_forward, _along(_forward, tiles, 1), 3).transpose(1, 2)
            made[here].view(done.shape).copy_(done)
        else:
            tiles = given[here].view(-1, across, each.high, each.wide).transpose(1, 2).double()
            done = _along(_inverse, _along(_inverse, tiles, 3), 1)
            made[there].view(done.shape).copy_(done)


def _bands(alike: Tiling) -> Iterator[tuple[Tiled, slice, slice]]:
    """Yield some rows of tiles: whose they are, where their values are, and where their frequencies."""
    for each in alike:
        step = max(1, BATCH_ELEMENTS // (each.columns * each.high)) * each.high * each.columns
        size = each.rows * each.columns
        for skip in range(0, size, step):
            first, at, count = each.first + skip, each.at + skip, min(step, size - skip)
            yield each, slice(first, first + count), slice(at, at + count)


def _along(transform: Callable[[Tensor], Tensor], x: Tensor, dim: int) -> Tensor:
    """Return an orthonormal transform along one dimension, of sides of one nothing."""
    side = x.shape[dim]
    if side == 1:
        return x
    first, scale = x.movedim(dim, 0), _column(tiles.scales(side), x.ndim, x.device)
    made = transform(first) * scale if transform is _forward else transform(first * scale)
    return made.movedim(0, dim)


def _forward(x: Tensor) -> Tensor:
    """Return the sums of x times cosines, along the first dimension."""
    side = len(x)
    if side == 1:
        return x
    if side % 2:
        return _summed(x, tiles.cosines(side))
    half = side // 2
    low, high = x[:half], x[half:].flip(0)
    done = _forward(torch.stack([low + high, (low - high) * _column(tiles.folds(side), x.ndim, x.device)], 1))
    odd = done[:, 1].clone()
    odd[:-1] += done[1:, 1]
    return torch.stack([done[:, 0], odd], 1).view(x.shape)


def _inverse(x: Tensor) -> Tensor:
    """Return the sums of cosines times x, along the first dimension."""
    side = len(x)
    if side == 1:
        return x
    if side % 2:
        return _summed(x, tuple(zip(*tiles.cosines(side), strict=True)))
    both = torch.stack([x[0::2], x[1::2]], 1)
    both[1:, 1] += x[1:-1:2]
    done = _inverse(both)
    even, odd = done[:, 0], done[:, 1] * _column(tiles.folds(side), x.ndim, x.device)
    return torch.cat([even + odd, (even - odd).flip(0)])


def _summed(x: Tensor, table: Sequence[tuple[float, ...]]) -> Tensor:
    """Return row after row of x times its row of a table, added up."""
    made = torch.zeros_like(x)
    for row, factors in zip(x, table, strict=True):
        made += _column(factors, x.ndim, x.device) * row
    return made


@cache
def _column(factors: tuple[float, ...], dimensions: int, device: torch.device) -> Tensor:
    """Return factors of what lies along the first of so many dimensions."""
    return torch.tensor(factors, dtype=torch.float64, device=device).view(-1, *[1] * (dimensions - 1))


# in one pass


def _fits(shape: tuple[int, int]) -> bool:
    """Return whether tiles of a shape have a kernel: with both sides powers of two, or runs of vectors."""
    high, wide = shape
    powers = high & (high - 1) == 0 and wide & (wide - 1) == 0
    return powers and wide > 1 and FITTING[0] <= high * wide <= FITTING[1]


def _fused(alike: Tiling, given: Tensor, made: Tensor, forward: bool) -> None:
    """Transform all that has tiles of one shape, one program a tile."""
    (high, wide), where = (alike[0].high, alike[0].wide), _where(alike, given.device)
    vectors, grid, across = (given.contiguous(), made, *where), (len(where.firsts),), _side(wide, given.device)
    levels = wide.bit_length() - 1
    if high == 1:
        launch(_kernels().cosine_line, grid, *vectors, *across, FORWARD=forward, WIDE=wide, LEVELS=levels, num_warps=1)
        return
    shape = {"HIGH": high, "HIGH_LEVELS": high.bit_length() - 1, "WIDE": wide, "WIDE_LEVELS": levels}
    warps = 8 if high * wide > 1024 else 4
    down = _side(high, given.device)
    launch(_kernels().cosine, grid, *vectors, *down, *across, FORWARD=forward, **shape, num_warps=warps)


def _by_columns(alike: Tiling, given: Tensor, made: Tensor, forward: bool, most: int = _PROGRAMS) -> None:
    """Transform all that has square tiles of one shape, many tiles a program."""
    side, where = alike[0].high, _where(alike, given.device)
    programs = min(most, len(where.firsts))
    own = torch.empty(programs * side * (side + columns.BESIDE), dtype=torch.float64, device=given.device)
    kernel, warps = columns.kernel_of(side, forward=forward), max(1, side // _LANES)
    launch(kernel, (programs,), given.contiguous(), made, own, *where, len(where.firsts), num_warps=warps)


class Where(NamedTuple):
    """Of each tile: its first value, how far its rows are apart, and its first frequency."""

    firsts: Tensor
    steps: Tensor
    ats: Tensor


@lru_cache(maxsize=16)
def _where(alike: Tiling, device: torch.device) -> Where:
    firsts, steps, ats = [], [], []
    for each in alike:
        down, across = each.rows // each.high, each.columns // each.wide
        first = torch.arange(down)[:, None] * each.high * each.columns + torch.arange(across) * each.wide
        firsts.append(each.first + first.flatten())
        steps.append(torch.full((down * across,), each.columns))
        ats.append(each.at + torch.arange(down * across) * each.high * each.wide)
    return Where(*(torch.cat(some).to(device) for some in (firsts, steps, ats)))


@cache
def _side(side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return what a kernel has to know of a side: places, and factors.

    Places: which value lies at each, which frequency comes out there; then for each level where the frequency lies that
    is to be added, on the way there and on the way back, or the place itself. Factors: scales, then each level's folds.
    """
    levels = side.bit_length() - 1
    order = _order(side)
    out = [int(f"{at:0{levels}b}"[::-1], 2) if levels else 0 for at in range(side)]
    later = [[_beside(out, at, level, 1) for at in range(side)] for level in range(levels)]
    earlier = [[_beside(out, at, level, -1) for at in range(side)] for level in range(levels)]
    scales = tiles.scales(side)
    factors = [[scales[k] for k in out], *([_fold(side, at, level) for at in range(side)] for level in range(levels))]
    places = torch.tensor([order, out, *later, *earlier], dtype=torch.int32, device=device)
    return places, torch.tensor(factors, dtype=torch.float64, device=device)


def _order(side: int) -> list[int]:
    """Return which element lies at each place: the first half, then the second turned round, each likewise."""
    if side == 1:
        return [0]
    half = _order(side // 2)
    return [*half, *(side - 1 - at for at in half)]


def _beside(out: list[int], at: int, level: int, way: int) -> int:
    """Return where the next frequency lies, or the one before, of the odd ones of a level; none: the place itself."""
    frequency, step = out[at], 2 << level
    beside = frequency + way * step
    return out.index(beside) if frequency >> level & 1 and 0 <= beside < len(out) else at


def _fold(side: int, at: int, level: int) -> float:
    """Return what a place is multiplied by at a level: of a second half its fold."""
    half = side >> (level + 1)
    return tiles.folds(2 * half)[_order(half)[at % half]] if at & half else 1.0


@cache
def _kernels() -> Any:
    """Return the kernels; raises `ImportError` where Triton is not."""
    from atoll.model.encoding import programs

    return programs


TRIED = ((64, 64), (1, 64), (32, 2), (2, 16), (16, 64), (1, 32))


def same_columns(device: torch.device, side: int = 64) -> bool:
    """Return likewise of square tiles whose columns are in one lane each, by programs that have several tiles."""
    return same_cosines(device, ((side, side),), partial(_by_columns, most=3))


def same_cosines(
    device: torch.device,
    shapes: Sequence[tuple[int, int]] = TRIED,
    way: Callable[[Tiling, Tensor, Tensor, bool], None] = _fused,
) -> bool:
    """Return whether kernels make the same bits, of tiles of such shapes, there and back."""
    for high, wide in shapes:
        tiling = _trial_tiling(high, wide)
        given = _trial(sum(each.rows * each.columns for each in tiling)).to(device)
        for forward in (True, False):
            one, other = torch.empty_like(given), torch.empty_like(given)
            _plain(tiling, given, one, forward)
            way(tiling, given, other, forward)
            if not equal_bits(one, other):
                return False
    return True


def _trial_tiling(high: int, wide: int) -> Tiling:
    """Return two tensors of such tiles, whose frequencies lie in another order than they do."""
    one, two = Tiled(2 * high, 3 * wide, high, wide, 0, high * wide), Tiled(high, wide, high, wide, 6 * high * wide, 0)
    return one, two


def _trial(size: int) -> Tensor:
    """Return numbers of which a tenth are nothing, and those of the last tile of all sizes."""
    made = torch.Generator().manual_seed(0)
    sizes = torch.randint(-140, 100, (size,), generator=made).float().exp2()
    drawn = torch.randn(size, generator=made) * torch.where(torch.arange(size) < 6 * size // 7, 1.0, sizes)
    return torch.where(torch.rand(size, generator=made) < 0.1, 0.0, drawn)
