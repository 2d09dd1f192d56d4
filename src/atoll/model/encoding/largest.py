"""The largest of each row on any device: as `sync.codec.sparse` chooses them, of equals the first.

The way is the same: most of a row is ruled out by the largest of its teams, and what is left is ranked by magnitude and
place at once, in numbers of which no two are the same. So a device passes over all values a few times and sorts a
fiftieth of them, where a plain top-k goes through every row many times.
"""

from __future__ import annotations

import torch
from torch import Tensor

_TEAM = 16
_PLACE_BITS = 16
_LAST_PLACE = (1 << _PLACE_BITS) - 1


def largest_of(rows: Tensor, keep: int) -> Tensor:
    """Return the places of so many of each row, rising."""
    width = rows.shape[1]
    if keep >= width:
        return torch.arange(width, device=rows.device).repeat(len(rows), 1)
    magnitudes = rows.contiguous().view(torch.int32) & 0x7FFFFFFF
    teams = width // _TEAM
    if keep > teams or width % _TEAM or not len(rows):
        return _chosen(magnitudes, keep)
    best = magnitudes.view(-1, _TEAM, teams).amax(dim=1)
    left = magnitudes >= _least(best, keep)[:, None]
    counts = left.sum(dim=1)
    crowded = counts > width // 4
    if not bool(crowded.any()):
        return _chosen_of(magnitudes, left, counts, keep)
    places = torch.empty((len(rows), keep), dtype=torch.int64, device=rows.device)
    places[crowded] = _chosen(magnitudes[crowded], keep)
    few = ~crowded
    if bool(few.any()):
        places[few] = _chosen_of(magnitudes[few], left[few], counts[few], keep)
    return places


def _chosen_of(magnitudes: Tensor, left: Tensor, counts: Tensor, keep: int) -> Tensor:
    """Return the places of the largest of each row, rising, of which only those that are left come into question."""
    width = magnitudes.shape[1]
    at = left.flatten().nonzero().squeeze(1)
    row, place = at // width, at % width
    ranked = _ranked(magnitudes.flatten()[at], place)
    few = torch.full((len(left), int(counts.max())), -1, dtype=torch.int64, device=left.device)
    few[row, torch.arange(len(at), device=at.device) - (counts.cumsum(0) - counts)[row]] = ranked
    return place[ranked >= _least(few, keep)[row]].view(-1, keep)


def _chosen(magnitudes: Tensor, keep: int) -> Tensor:
    """Return the places of the largest of each row, rising."""
    ranked = _ranked(magnitudes, torch.arange(magnitudes.shape[1], device=magnitudes.device))
    return (ranked >= _least(ranked, keep)[:, None]).nonzero()[:, 1].view(-1, keep)


def _ranked(magnitudes: Tensor, places: Tensor) -> Tensor:
    """Return numbers in the order of magnitudes, of equal ones the first place the largest: no two are the same."""
    return (magnitudes.long() << _PLACE_BITS) | (_LAST_PLACE - places)


def _least(ranked: Tensor, keep: int) -> Tensor:
    """Return the least of so many largest of each row."""
    return ranked.topk(keep, dim=1, sorted=False).values.amin(dim=1)
