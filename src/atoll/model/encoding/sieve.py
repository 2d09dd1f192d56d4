"""Whatever is large enough, in one pass over a CUDA device's memory: what `model.encoding.above` makes, to the bit.

How long chunks are depends on their values, and the places in them come after the values; so their bytes cannot be
written before all is counted. Three kernels (`model.encoding.sieves`), between which nobody waits for the host:

    sift           reads all, writes what is to be sent where what is left out is kept; of each element a bit
    lay out        where chunks begin
    put together   by the bits: moves what is kept into chunks, and out of what is left

The first is as fast as memory is; the others touch only what is kept, and what lies within a few bytes of it. What is
to be sent may be made on the way (`model.encoding.wanted`): then it is never written for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.model.encoding.above import (
    ALIGN_BYTES,
    COUNT_BYTES,
    Kept,
    Least,
    Limits,
    Numbers,
    bits_of,
    starts_of,
    to_above,
)
from atoll.model.encoding.bits import packed_bytes
from atoll.model.encoding.floats import BF16_MAX, HALF_MAX, Short, to_short
from atoll.model.encoding.trials import equal_bits, trial
from atoll.model.encoding.trust import launch, trusted
from atoll.model.encoding.wanted import Ends, as_it_is, wanted
from atoll.spec.axes.codec import Bf16, Fp16, Fp32, Quantiser

KINDS: dict[type[Quantiser], int] = {Fp32: 0, Fp16: 1, Bf16: 2}
"""Values that are what they are each by itself, as kernels call them."""
ROWS, ROW = 64, 32
"""A program sifts so many rows of so many elements: those of one row are the bits of one word."""
WARPS = 4
"""Of 32 threads each, that do so."""
WORDS = 256
"""That one program puts together, one in each thread; of whole tiles."""
FEW = 8
"""Elements that are taken out of a word one by one; where one word has more, all are gone through."""
CHUNKS = 1024
"""Whose beginnings are found at once."""


class Sifted(NamedTuple):
    """Chunks that are made on a device; here nobody knows yet how long they are."""

    wire: Tensor
    """One after the other, and room for more."""
    keeps: Tensor
    """How many values each is about, on the device."""
    width: int
    """Elements of each."""
    value_bytes: int

    def kept(self, keeps: NDArray[np.int32]) -> Kept:
        """Return the chunks, now that it is known what each keeps."""
        counts = keeps.astype(np.int64)
        lengths = lengths_of(counts, self.value_bytes, self.width)
        starts = starts_of(lengths)
        return Kept(self.wire[: int(starts[-1] + lengths[-1])], starts, counts, lengths, None)


def sifted(
    kind: type[Quantiser], ends: Ends, least: Least, left: Tensor | None = None, bad: Tensor | None = None
) -> Sifted | None:
    """Return chunks of what is large enough, and write what is left out of them; None: no kernel makes these.

    A number becomes more than zero if anything is not finite. Then chunks have no meaning, and what is left is written
    for some elements and not for others, though never anything that is not finite.
    """
    chunks, count = ends.base.shape
    if kind in KINDS and bits_of(count) in (8, 16) and chunks and trusted(same_above, ends.base.device, kind):
        return _sifted(kind, ends, least, left, bad)
    return None


def _sifted(
    kind: type[Quantiser], ends: Ends, least: Least, left: Tensor | None = None, bad: Tensor | None = None
) -> Sifted:
    (chunks, count), device = ends.base.shape, ends.base.device
    assert left is None or left.is_contiguous(), "what is left out is written where it lies, row by row"
    ends = ends._replace(base=ends.base.contiguous())
    made = left
    if made is None:  # nobody keeps it: it is where it was, or in memory of its own until chunks are made
        made = ends.base if ends.is_made else torch.empty_like(ends.base)
    tiles, map_bytes = -(-count // (ROWS * ROW)), packed_bytes(count, 1)
    maps = torch.empty((chunks, tiles * ROWS), dtype=torch.int32, device=device)
    many = torch.empty((chunks, tiles), dtype=torch.int32, device=device)
    _sift(ends, least, made, maps, many, torch.empty(1, dtype=torch.int32, device=device) if bad is None else bad)
    keeps = many.sum(1, dtype=torch.int32)
    value_bytes, place_bytes = 4 if kind is Fp32 else 2, bits_of(count) // 8
    starts = _starts(keeps, value_bytes, place_bytes, map_bytes)
    longest = COUNT_BYTES + value_bytes * count + map_bytes + ALIGN_BYTES
    wire = torch.empty(chunks * longest, dtype=torch.uint8, device=device)
    blocks = -(-maps.shape[1] // WORDS)
    launch(
        _kernels().put_together,
        (chunks * blocks,),
        made,
        maps,
        many,
        starts,
        wire,
        count,
        tiles,
        blocks,
        map_bytes,
        KIND=KINDS[kind],
        HALF_MAX=BF16_MAX if kind is Bf16 else HALF_MAX,
        PLACE_BYTES=place_bytes,
        LEAVES=left is not None,
        ROWS=ROWS,
        TILES=1 << (tiles - 1).bit_length(),
        WORDS=WORDS,
        FEW=FEW,
        num_warps=WORDS // 32,
    )
    return Sifted(wire, keeps, count, value_bytes)


def _sift(ends: Ends, least: Least, made: Tensor, maps: Tensor, many: Tensor, bad: Tensor) -> None:
    base, weights, before = ends.in_rows()
    limits, width = (least.rows.contiguous(), least.width) if isinstance(least, Limits) else (base, 1)
    assert base.shape[1] % width == 0, "a limit is about values of one chunk"
    launch(
        _kernels().sift,
        (many.numel(),),
        base,
        weights,
        before,
        limits,
        made,
        maps,
        many,
        bad,
        base.shape[1],
        many.shape[1],
        float(ends.steps),
        float(ends.decay),
        0.0 if isinstance(least, Limits) else least,
        least.part if isinstance(least, Limits) else 1.0,
        WAY=ends.weights is not None,
        MEAN=ends.weights is None and ends.steps != 1,
        FED=ends.before is not None,
        MAKES=made is not base or not ends.is_made,
        LIMITED=isinstance(least, Limits),
        OF_BASE=width == 1 and limits.data_ptr() == base.data_ptr(),
        WIDTH=width,
        ROWS=ROWS,
        num_warps=WARPS,
    )


def _starts(keeps: Tensor, value_bytes: int, place_bytes: int, map_bytes: int) -> Tensor:
    """Return where chunks begin that keep so many values, on their device."""
    starts = torch.empty(len(keeps), dtype=torch.int64, device=keeps.device)
    given = (keeps, starts, len(keeps), map_bytes)
    sizes = {"VALUE_BYTES": value_bytes, "PLACE_BYTES": place_bytes, "ALIGN_BYTES": ALIGN_BYTES}
    launch(_kernels().lay_out, (1,), *given, **sizes, CHUNKS=CHUNKS, num_warps=8)
    return starts


def lengths_of(keeps: Numbers, value_bytes: int, count: int) -> Numbers:
    """Return how long chunks of so many elements are, by how many values they keep."""
    places = np.minimum(keeps * (bits_of(count) // 8), packed_bytes(count, 1))
    return COUNT_BYTES + value_bytes * keeps + places


@cache
def _kernels() -> Any:
    """Return the kernels; raises `ImportError` where Triton is not."""
    from atoll.model.encoding import sieves

    return sieves


# whether they are trusted


TRIED = ((3, 200), (2, 33_001), (1, 65_536))
"""Chunks, and elements of each."""


def same_above(device: torch.device, kind: type[Quantiser] = Fp32, shapes: Sequence[tuple[int, int]] = TRIED) -> bool:
    """Return whether the same is kept and left: of none, of few, of so many that places are a bit each, and of all.

    Of chunks of round lengths too, since compilers make other code of these.
    """
    codec = kind()
    for shape in shapes:
        values = trial(shape, device)
        values[:, : shape[1] // 3] *= 0.01  # of which few are kept where of the others many are
        leasts: list[Least] = [0.0, 2.5, 1e38, Limits(values.flip(1), 0.7), *_of_rows(values)]
        if not all(_same(as_it_is(values), least, codec, leaves=True) for least in leasts):
            return False
        if not all(_same(ends, least, codec, leaves=leaves) for ends, least, leaves in _tried(values)):
            return False
    return _same_bad(device) and _same_starts(device)


def _of_rows(values: Tensor) -> list[Limits]:
    """Return limits that some values share, where chunks are cut into such rows."""
    return [Limits(values.view(-1, width)[:, 0], 0.7, width) for width in (8, 256) if values.shape[1] % width == 0]


def _tried(values: Tensor) -> list[tuple[Ends, Least, bool]]:
    """Return all ways to come to what is to be sent, limits that keep some of it, and whether to ask what is left."""
    if values.shape[1] % 2:
        return []  # such chunks are rare, and are made by much the same code
    base, weights, before = values.clone(), values.roll(5, 1), values.roll(77, 1)
    return [
        (as_it_is(base), Limits(values.flip(1), 0.7), False),
        (Ends(base, weights, 1, None, 1.0), Limits(base, 0.5), True),
        (Ends(base, weights, 1, before, 0.95), 2.5, True),
        (Ends(base, None, 3, before, 0.9), Limits(values.flip(1), 8.0), True),
        (Ends(base, None, 7, None, 1.0), 0.5, False),
    ]


def _same(ends: Ends, least: Least, codec: Quantiser, *, leaves: bool) -> bool:
    """Return whether chunks are the same bytes, and what is left the same bits, where it was before too."""
    ours, theirs = torch.zeros((2, 1), dtype=torch.int32, device=ends.base.device)
    values = wanted(ends, theirs)
    expected = to_above(values, least, lambda some, nth: _bytes_of(codec, some))
    assert expected.at is not None, "the plain form says which"
    rest = values.flatten()
    rest[expected.at] -= _arrives(codec, rest[expected.at])
    before = None if ends.before is None else ends.before.clone()
    left = torch.empty_like(values) if before is None else before
    made = _sifted(type(codec), ends._replace(before=before), least, left if leaves else None, ours)
    kept = made.kept(made.keeps.cpu().numpy())
    each = zip(kept.starts.tolist(), kept.lengths.tolist(), strict=True)
    same = all(torch.equal(kept.wire[at : at + size], expected.wire[at : at + size]) for at, size in each)
    return (
        same
        and all(map(np.array_equal, kept[1:4], expected[1:4]))
        and torch.equal(ours > 0, theirs > 0)
        and (not leaves or equal_bits(left, rest.view(values.shape)))
    )


def _bytes_of(codec: Quantiser, some: Tensor) -> Tensor:
    return to_short(codec, some[None])[0] if isinstance(codec, Short) else some.view(torch.uint8)


def _arrives(codec: Quantiser, some: Tensor) -> Tensor:
    if not isinstance(codec, Short):
        return some
    kind = torch.float16 if isinstance(codec, Fp16) else torch.bfloat16
    return to_short(codec, some[None])[0].view(kind).float()


def _same_bad(device: torch.device) -> bool:
    """Return whether it is said of a single value that it is not finite, and what is left stays so."""
    for odd in (torch.nan, torch.inf, -torch.inf):
        values, bad = torch.ones((2, 256), device=device), torch.zeros(1, dtype=torch.int32, device=device)
        values[1, 200] = odd
        left = torch.zeros_like(values)
        _sifted(Fp32, as_it_is(values), 2.0, left, bad)
        if not (bad > 0).all() or not left.isfinite().all():
            return False
    return True


def _same_starts(device: torch.device) -> bool:
    """Return whether more chunks than are laid out at once begin at the same places."""
    keeps = torch.arange(2 * CHUNKS + 7) * 7919 % 65_536
    expected = starts_of(lengths_of(keeps.numpy(), 2, 65_536))
    return bool(torch.equal(_starts(keeps.int().to(device), 2, 2, 8192).cpu(), torch.from_numpy(expected)))
