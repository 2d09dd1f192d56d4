"""Whole cache lines on any device: as `sync.codec.lines` chooses them, a row for each chunk, to the same bits.

In the order of the chunk whatever reaches its threshold, until there are enough; else the largest of the others fill
up, of equals the first. For a device that is one question: how large the last one is that still comes, and how many of
its equals come with it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from atoll.model.encoding.bits import packed_bytes
from atoll.spec.axes.codec import CacheLines

FALL, RISE = 0.99, 0.01


def lines_of(codec: CacheLines, count: int) -> int:
    """Return how many lines so many elements are."""
    return -(-count // codec.line)


def kept(codec: CacheLines, count: int) -> int:
    """Return how many lines of so many elements are kept: at least one."""
    lines = lines_of(codec, count)
    return min(lines, max(1, round(codec.keep * lines)))


def places_bytes(codec: CacheLines, count: int) -> int:
    """Return how long the places of what is kept are."""
    return packed_bytes(kept(codec, count), bits_of(codec, count))


def bits_of(codec: CacheLines, count: int) -> int:
    """Return how many bits the place of a line has."""
    return max(1, (lines_of(codec, count) - 1).bit_length())


def in_lines(codec: CacheLines, values: Tensor) -> Tensor:
    """Return chunks a line a row, the last one filled up with zeros."""
    lacking = -values.shape[1] % codec.line
    full = pad(values, (0, lacking)) if lacking else values
    return full.reshape(len(values), full.shape[1] // codec.line, codec.line)


def chosen(scores: Tensor, keep: int, known: Tensor | None) -> Tensor:
    """Return the places of so many lines of each chunk, rising, and move what is known of the thresholds."""
    limit = scores.new_full((len(scores),), torch.inf) if known is None else limit_of(known)
    reach = scores >= limit[:, None]
    many = reach.sum(1)
    taken = _first(reach, keep) | _largest(scores.masked_fill(reach, -1.0), (keep - many).clamp(min=0))
    places = taken.nonzero()[:, 1].view(-1, keep)
    if known is not None:
        move(known, many, keep, scores.gather(1, places).amin(1))
    return places


def limit_of(known: Tensor) -> Tensor:
    """Return what lines must reach: where nothing is known yet, what none does."""
    return torch.where(known[:, 0] > 0, known[:, 0], torch.inf)


def move(known: Tensor, many: Tensor, keep: int, least: Tensor) -> None:
    """Let thresholds follow: that so many reached them, and how large the least is that was kept."""
    now, first = known[:, 0], known[:, 1]
    moved = torch.where(many >= keep, now + first * RISE, now * FALL)
    begun = now > 0
    known.copy_(torch.stack([torch.where(begun, moved, least), torch.where(begun, first, least)], 1))


def _first(reach: Tensor, keep: int) -> Tensor:
    """Return the first of those that are there, so many of each row at most."""
    return reach & (reach.cumsum(1) <= keep)


def _largest(scores: Tensor, lack: Tensor) -> Tensor:
    """Return which are the largest of each row, as many as it lacks; of equals the first."""
    ranked = scores.sort(dim=1, descending=True, stable=True).indices
    nth = torch.arange(scores.shape[1], device=scores.device)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, ranked, nth < lack[:, None])
