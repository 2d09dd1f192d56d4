"""Pieces of a contribution: chunks of one length that lie one after the other in a vector, and are encoded at once.

Where they do, a device reads and writes the vector where it is; a chunk in several runs is a piece of its own, and
passes through memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from atoll.model.compute import Portion


class Piece(NamedTuple):
    """Some chunks."""

    portions: Sequence[Portion]
    width: int
    """Elements of each."""
    runs: Sequence[slice]
    """Where they are in a vector, each run as long as it goes."""

    def in_unit(self) -> Piece:
        """Return the same chunks where they are in what was made of a unit."""
        return self._replace(runs=_joined(slice(each.first, each.first + self.width) for each in self.portions))

    def view(self, vector: Tensor, device: torch.device) -> Tensor | None:
        """Return elements of a vector where they are, a chunk a row; None: they are elsewhere, or not together."""
        if vector.device != device or len(self.runs) != 1:
            return None
        return vector[self.runs[0]].view(-1, self.width)

    def seen(self, vector: Tensor, device: torch.device) -> Tensor:
        """Return elements of a vector on a device, a chunk a row, not to be written to."""
        there = self.view(vector, device)
        if there is not None:
            return there
        rows = torch.empty((len(self.portions), self.width), device=device)
        for part, run in self._parts():
            rows.view(-1)[part].copy_(vector[run], non_blocking=True)
        return rows

    def write(self, vector: Tensor, rows: Tensor) -> None:
        """Write rows where their elements are in a vector."""
        for part, run in self._parts():
            vector[run].copy_(rows.view(-1)[part])

    def _parts(self) -> Iterator[tuple[slice, slice]]:
        """Yield where elements are, in rows one after the other and in the vector."""
        at = 0
        for run in self.runs:
            size = run.stop - run.start
            yield slice(at, at + size), run
            at += size


def pieces_of(portions: Sequence[Portion], many: Callable[[int], int]) -> list[Piece]:
    """Return chunks in pieces, in their order; `many` says how many chunks of so many elements are one at most.

    A chunk goes with the one before it if it is as long and lies right behind. There are thousands of them while a
    device waits.
    """
    pieces: list[Piece] = []
    first, most, width, end = 0, 0, 0, -1
    for at, portion in enumerate(portions):
        run = portion.runs[0] if len(portion.runs) == 1 else None
        if run is not None and run.start == end and run.stop - end == width and at - first < most:
            end = run.stop
            continue
        pieces += [_piece(portions[first:at])] if at else []
        first, width = at, _count(portion)
        most, end = many(width), -1 if run is None else run.stop
    return [*pieces, _piece(portions[first:])] if portions else pieces


def _piece(portions: Sequence[Portion]) -> Piece:
    """Return a piece of one chunk, or of several that lie one right behind the other."""
    one, last = portions[0].runs, portions[-1].runs
    runs = _joined(one) if len(portions) == 1 else [slice(one[0].start, last[0].stop)]
    return Piece(portions, _count(portions[0]), runs)


def _joined(runs: Iterable[slice]) -> list[slice]:
    """Return the same runs, each as long as it goes."""
    joined: list[slice] = []
    for run in runs:
        if joined and joined[-1].stop == run.start:
            joined[-1] = slice(joined[-1].start, run.stop)
        else:
            joined.append(run)
    return joined


def _count(portion: Portion) -> int:
    return sum(run.stop - run.start for run in portion.runs)
