"""What sends some values only: which they are and where, taken out of chunks in few passes over a device's memory.

A kernel of `model.encoding.picks` reads all values once, to choose; after that only what is chosen is touched. What is
left out lies where the values were: whoever may lose these says that it is to be written there, and then nothing else
has to be. A device takes kernels only where they make the bits of the plain forms (`model.encoding.trust`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from atoll.model.encoding import fused, lines
from atoll.model.encoding.bits import pack, packed_bytes
from atoll.model.encoding.largest import largest_of as plain_largest
from atoll.model.encoding.scales import added
from atoll.model.encoding.trials import equal_bits, trial
from atoll.model.encoding.trust import WIDTHS, fits, is_power, launch, trusted
from atoll.model.encoding.wanted import Ends
from atoll.model.encoding.wanted import wanted as plain_wanted
from atoll.spec.axes.codec import CacheLines, TopK

_ALIGN_BYTES = 64
"""Chunks begin at such places, so that a device writes whole words of them."""
_LINES = 256
"""That one program adds up."""
_TILE = 2048
"""Scores that one program looks at, or counts at once."""
_TILES = 4
"""Of scores that one program counts before it tells anybody."""
_TAKEN = 64
"""Lines that one program takes out."""
_EIGHTS = 128
"""Of numbers that one program packs."""
_TEAMS_MIN = 16


def room(values: Tensor, size_bytes: int) -> Tensor:
    """Return room for as many chunks as there are rows, of so many bytes each, that begin where words do."""
    step = -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
    return torch.empty((len(values), step), dtype=torch.uint8, device=values.device)[:, :size_bytes]


def wanted_lines(
    codec: CacheLines, ends: Ends, bad: Tensor, made: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return what is to be sent (`fused.wanted`), and the scores of its lines if they came by on the way."""
    if _has_lines(codec, ends.base) and trusted(same_wanted_lines, ends.base.device, codec.line):
        return _wanted_lines(codec.line, ends, bad, made)
    return fused.wanted(ends, bad, made), None


def take_lines(
    codec: CacheLines, values: Tensor, known: Tensor | None, chosen: Tensor, left: Tensor | None, scores: Tensor | None
) -> Tensor:
    """Return which lines of chunks are kept, rising; write their values, and what is left without them.

    What is known of the thresholds moves. A kernel is trusted for the number of elements and the part of lines that it
    was tried with: compilers make other code of round numbers.
    """
    fast = _has_lines(codec, values) and values.is_contiguous()
    if fast and trusted(same_lines, values.device, values.shape[1], codec.line, codec.keep):
        return _take_lines(codec, values, known, chosen, left, scores)
    return _plain_lines(codec, values, known, chosen, left)


def take_largest(codec: TopK, values: Tensor, chosen: Tensor, left: Tensor | None) -> Tensor:
    """Return where in their blocks the largest of chunks are; write their values, and what is left without them."""
    whole = values.shape[1] % codec.block == 0 and values.is_contiguous()
    if whole and _is_fast(codec.block, codec.keep, values):
        return _take_largest(codec.block, codec.keep, values, chosen, left)
    return _plain_blocks(codec, values, chosen, left)


def put_packed(places: Tensor, bits: int, wire: Tensor) -> None:
    """Write numbers below 2 ** bits to rows of bytes."""
    if places.dtype == torch.int32 and len(places) and trusted(same_packed, places.device, bits):
        _put_packed(places, bits, wire)
    else:
        wire.copy_(pack(places, bits))


def in_chunk(codec: TopK, places: Tensor, count: int) -> Tensor:
    """Return places in chunks of so many elements, for places in blocks."""
    full = count // codec.block
    nth = torch.arange(places.shape[1], device=places.device)
    return places.long() + (nth // codec.keep).clamp(max=full) * codec.block


# in whole-tensor operations


def _plain_lines(
    codec: CacheLines, values: Tensor, known: Tensor | None, chosen: Tensor, left: Tensor | None
) -> Tensor:
    rows, count = lines.in_lines(codec, values), values.shape[1]
    places = lines.chosen(added(rows.abs()), lines.kept(codec, count), known)
    chosen.copy_(rows.gather(1, places[..., None].expand(-1, -1, codec.line)).flatten(1))
    if left is not None:
        taken = torch.zeros(rows.shape[:2], dtype=torch.bool, device=values.device).scatter_(1, places, value=True)
        left.copy_(values.masked_fill(taken.repeat_interleave(codec.line, dim=1)[:, :count], 0.0))
    return places


def _plain_blocks(codec: TopK, values: Tensor, chosen: Tensor, left: Tensor | None) -> Tensor:
    chunks, count = values.shape
    whole = count - count % codec.block
    some = [_largest_of(values[:, :whole].reshape(-1, codec.block), codec.keep).view(chunks, -1)]
    if count > whole:
        some.append(_largest_of(values[:, whole:], codec.kept(count - whole)))
    places = torch.cat(some, dim=1)
    at = in_chunk(codec, places, count)
    chosen.copy_(values.gather(1, at))
    if left is not None:
        _copy(values, left)
        left.scatter_(1, at, 0.0)
    return places


def _largest_of(rows: Tensor, keep: int) -> Tensor:
    """Return the places of so many of each row, rising; of equals the first."""
    if _is_fast(rows.shape[1], keep, rows):
        return _largest(rows.contiguous(), keep).long()
    return plain_largest(rows, keep)


def _copy(values: Tensor, left: Tensor) -> None:
    """Write values where they are to be without what is taken out of them, if they are not there already."""
    if left.data_ptr() != values.data_ptr():
        left.copy_(values)


# in few passes


@cache
def _kernels() -> Any:
    """Return the kernels; raises `ImportError` where Triton is not."""
    from atoll.model.encoding import picks

    return picks


def _has_lines(codec: CacheLines, values: Tensor) -> bool:
    """Return whether there are lines that a program can have."""
    return is_power(codec.line) and 1 < codec.line <= WIDTHS[1] and values.numel() > 0


def _take_lines(
    codec: CacheLines,
    values: Tensor,
    known: Tensor | None,
    chosen: Tensor,
    left: Tensor | None,
    scores: Tensor | None = None,
) -> Tensor:
    (chunks, count), line = values.shape, codec.line
    scores = _line_scores(values, line) if scores is None else scores
    places = _line_places(scores, lines.kept(codec, count), known)
    if left is not None:
        _copy(values, left)
    keep, many = places.shape[1], max(1, _TAKEN * 16 // line)
    given = (values if left is None else left, places, chosen, count, keep, chosen.stride(0))
    shape = {"LINE": line, "EMPTIES": left is not None, "MANY": many}
    launch(_kernels().line_values, (chunks, -(-keep // many)), *given, **shape)
    return places


def _line_scores(values: Tensor, line: int) -> Tensor:
    """Return the sum of the magnitudes of each line."""
    scores, grid, shape = _in_lines(values, line)
    launch(_kernels().line_scores, grid, values, scores, values.shape[1], scores.shape[1], **shape)
    return scores


def _wanted_lines(line: int, ends: Ends, bad: Tensor, made: Tensor | None = None) -> tuple[Tensor, Tensor]:
    assert made is None or made.is_contiguous(), "what is to be sent is written row by row"
    base, weights, before = ends.in_rows()
    made = torch.empty_like(base) if made is None else made
    scores, grid, shape = _in_lines(base, line)
    launch(
        _kernels().line_wanted,
        grid,
        base,
        weights,
        before,
        made,
        scores,
        bad,
        base.shape[1],
        scores.shape[1],
        float(ends.steps),
        float(ends.decay),
        WAY=ends.weights is not None,
        FED=ends.before is not None,
        **shape,
    )
    return made, scores


def _in_lines(values: Tensor, line: int) -> tuple[Tensor, tuple[int, int], dict[str, int]]:
    """Return room for the scores of chunks' lines, and how programs share them out."""
    chunks, count = values.shape
    scores = torch.empty((chunks, -(-count // line)), device=values.device)
    many = max(1, _LINES * 16 // line)
    shape = {"LINE": line, "HALVINGS": line.bit_length() - 1, "MANY": many}
    return scores, (chunks, -(-scores.shape[1] // many)), shape


def _line_places(scores: Tensor, keep: int, known: Tensor | None) -> Tensor:
    """Return the places of so many lines of each chunk, rising, and move what is known of the thresholds."""
    assert known is None or known.is_contiguous(), "thresholds are moved where they are"
    (chunks, many), knows = scores.shape, {"KNOWN": known is not None}
    limits, each = (scores if known is None else known), (chunks, -(-many // _TILE))
    counts = _numbers(scores, chunks, 513).zero_()  # by each first byte, by each second, and of rivals
    for second in (False, True):
        shape = {"SECOND": second, "TILE": _TILE, "TILES": _TILES}
        grid = (chunks, -(-many // (_TILE * _TILES)))
        launch(_kernels().line_counts, grid, scores, limits, counts, many, keep, **knows, **shape)
    rivals, found = _numbers(scores, chunks, many), _numbers(scores, chunks, 3)
    launch(_kernels().line_rivals, each, scores, limits, counts, rivals, many, keep, **knows, TILE=_TILE)
    follow = {"FALL": lines.FALL, "RISE": lines.RISE}
    launch(_kernels().line_least, (chunks,), limits, counts, rivals, found, many, keep, **knows, **follow, TILE=_TILE)
    tiles, places = _numbers(scores, *each, 2), _numbers(scores, chunks, keep)
    launch(_kernels().line_tiles, each, scores, found, tiles, many, TILE=_TILE)
    shape = {"TILE": _TILE, "TILES": 1 << (each[1] - 1).bit_length()}
    launch(_kernels().line_places, each, scores, found, tiles, places, many, keep, **shape)
    return places


def _numbers(beside: Tensor, *shape: int) -> Tensor:
    """Return room for whole numbers on a tensor's device."""
    return torch.empty(shape, dtype=torch.int32, device=beside.device)


def _take_largest(block: int, keep: int, values: Tensor, chosen: Tensor, left: Tensor | None) -> Tensor:
    return _largest(values.view(-1, block), keep, chosen, left, values.shape[1] // block).view(len(values), -1)


def _largest(
    rows: Tensor, keep: int, chosen: Tensor | None = None, left: Tensor | None = None, blocks: int = 1
) -> Tensor:
    places, width = _numbers(rows, len(rows), keep), rows.shape[1]
    there = left is not None and left.data_ptr() == rows.data_ptr()
    launch(
        _kernels().largest,
        (len(rows),),
        rows,
        places,
        rows if chosen is None else chosen,
        rows if left is None else left,
        keep,
        blocks,
        1 if chosen is None else chosen.stride(0),
        WIDTH=width,
        TEAMS=max(_TEAMS_MIN, 1 << (keep - 1).bit_length()),
        TAKES=chosen is not None,
        LEAVES=left is not None and not there,
        EMPTIES=there,
        num_warps=4,
    )
    return places


def _put_packed(places: Tensor, bits: int, wire: Tensor) -> None:
    chunks, count = places.shape
    grid = (chunks, -(-count // (8 * _EIGHTS)))
    launch(_kernels().packed, grid, places, wire, count, wire.stride(0), BITS=bits, EIGHTS=_EIGHTS)


def _is_fast(width: int, keep: int, rows: Tensor) -> bool:
    return bool(fits(width) and keep < width and len(rows) and trusted(same_largest, rows.device, width, keep))


# whether they do the same


TRIED = (1.0, 0.0, 1.0, 0.5, 3.0)
"""Parts of what is known of thresholds that are tried one after the other."""


def same_lines(device: torch.device, count: int, line: int, keep: float, parts: Sequence[float] = TRIED) -> bool:
    """Return whether such a part of lines is taken alike: exactly, of too few that reach a limit and of too many."""
    codec, values = CacheLines(line=line, keep=keep), trial((3, count), device)
    known: Tensor | None = None
    for part in parts:
        before = None if known is None else known * part
        ours, theirs = (None if before is None else before.clone() for _ in range(2))
        if not _same_lines(codec, values, ours, theirs):
            return False
        known = torch.zeros((len(values), 2), device=device) if ours is None else ours
    return True


def _same_lines(codec: CacheLines, values: Tensor, ours: Tensor | None, theirs: Tensor | None) -> bool:
    keep = lines.kept(codec, values.shape[1]) * codec.line
    some, others = (torch.empty((len(values), keep), device=values.device) for _ in range(2))
    there, beside, elsewhere = values.clone(), torch.empty_like(values), torch.empty_like(values)
    expected = _plain_lines(codec, values, theirs, others, elsewhere)
    again = None if ours is None else ours.clone()
    places = _take_lines(codec, there, ours, some, there), _take_lines(codec, values, again, some, beside)
    if ours is not None and theirs is not None and not equal_bits(ours, theirs):
        return False
    lefts = equal_bits(there, elsewhere) and equal_bits(beside, elsewhere)
    return lefts and equal_bits(some, others) and all(torch.equal(each.long(), expected) for each in places)


def same_wanted_lines(device: torch.device, line: int) -> bool:
    """Return whether what is to be sent is the same with scores as without, and scores those of it."""
    base, weights, before = (trial((3, 301 * line - line // 2), device).roll(shift, 0) for shift in range(3))
    for ends in (Ends(base, weights, 1, before, 0.95), Ends(base, None, 3, None, 1.0)):
        ours, theirs = torch.zeros(2, dtype=torch.int32, device=device)
        made, scores = _wanted_lines(line, ends, ours, None if ends.before is None else ends.before.clone())
        expected = plain_wanted(ends, theirs)
        rows = lines.in_lines(CacheLines(line=line), expected)
        if not (equal_bits(made, expected) and equal_bits(scores, added(rows.abs()))) or ours or theirs:
            return False
    return fused.keeps_out_odd(partial(_wanted_lines, line), device)


def same_largest(device: torch.device, width: int = 1024, keep: int = 64) -> bool:
    """Return whether the largest are the same ones, equals and the smallest numbers among them, and leave the same."""
    values = trial((16, 2 * width), device)
    some, others = (torch.empty((len(values), 2 * keep), device=device) for _ in range(2))
    expected = plain_largest(values.view(-1, width), keep).view(len(values), -1)
    at = in_chunk(TopK(keep=keep, block=width), expected, 2 * width)
    others.copy_(values.gather(1, at))
    rest = values.scatter(1, at, 0.0)
    there, beside = values.clone(), torch.empty_like(values)
    for given, left in ((there, there), (values, beside)):
        places = _take_largest(width, keep, given, some, left)
        if not (torch.equal(places.long(), expected) and equal_bits(some, others) and equal_bits(left, rest)):
            return False
    return torch.equal(_largest(values.view(-1, width), keep).long(), expected.view(-1, keep))


def same_packed(device: torch.device, bits: int) -> bool:
    """Return whether numbers of so many bits are the same bytes, of rows that end anywhere."""
    for count in (1, 37, 4096):
        drawn = torch.randint(1 << bits, (3, count), generator=torch.Generator().manual_seed(0))
        places = drawn.to(device)
        wire = torch.empty((3, packed_bytes(count, bits) + 3), dtype=torch.uint8, device=device)[:, 3:]
        _put_packed(places.int(), bits, wire)
        if not torch.equal(wire, pack(places, bits)):
            return False
    return True
