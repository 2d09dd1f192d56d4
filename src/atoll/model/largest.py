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
    everywhere = torch.arange(width, device=rows.device)
    if keep >= width:
        return everywhere.repeat(len(rows), 1)
    magnitudes = rows.contiguous().view(torch.int32) & 0x7FFFFFFF
    teams = width // _TEAM
    if keep > teams or width % _TEAM or not len(rows):
        return _chosen(_ranked(magnitudes, everywhere), keep)
    best = magnitudes.view(-1, _TEAM, teams).amax(dim=1)
    least = best.topk(keep, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
    left = magnitudes >= least
    counts = left.sum(dim=1)
    crowded = counts > width // 4
    if bool(crowded.any()):
        left &= ~crowded[:, None]
        counts = torch.where(crowded, 0, counts)
        places = _chosen(_few(magnitudes, left, counts, keep), keep)
        places[crowded] = _chosen(_ranked(magnitudes[crowded], everywhere), keep)
        return places
    return _chosen(_few(magnitudes, left, counts, keep), keep)


def _few(magnitudes: Tensor, left: Tensor, counts: Tensor, keep: int) -> Tensor:
    """Return what is left of each row, ranked, side by side."""
    width = magnitudes.shape[1]
    at = left.flatten().nonzero().squeeze(1)
    row, place = at // width, at % width
    before = (counts.cumsum(0) - counts)[row]
    ranked = torch.full((len(left), max(keep, int(counts.max()))), -1, dtype=torch.int64, device=left.device)
    ranked[row, torch.arange(len(at), device=at.device) - before] = _ranked(magnitudes.flatten()[at], place)
    return ranked


def _ranked(magnitudes: Tensor, places: Tensor) -> Tensor:
    """Return numbers in the order of magnitudes, of equal ones the first place the largest: no two are the same."""
    return (magnitudes.long() << _PLACE_BITS) | (_LAST_PLACE - places)


def _chosen(ranked: Tensor, keep: int) -> Tensor:
    best = ranked.topk(keep, dim=1, sorted=False).values
    return (_LAST_PLACE - (best & _LAST_PLACE)).sort(dim=1).values
