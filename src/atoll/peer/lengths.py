"""What a rule that looks at whole tensors knows of a round's contributions: measured chunk by chunk, then put together.

A chunk is measured once for each set of contributions that it may be combined for, of which the newest is remembered.
When all chunks are measured for the same set, each tensor's products are those of its pieces added up, in the order of
the grid, and with them the numbers that contributions are multiplied by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atoll.model.compute import Vector
from atoll.spec.axes.merge import Mean, MeanPresent, Rda, Sum, Trimmed
from atoll.spec.recipe import Channel
from atoll.sync import combine as rules
from atoll.sync.merge import add_up
from atoll.sync.units import Tensor, Unit, pieces_of, tensors_in


class Lengths:
    """Measures for one unit under one plan; used by one job at a time."""

    def __init__(self, combine: rules.Lengths, unit: Unit, tensors: Sequence[Tensor]) -> None:
        self._combine = combine
        self._tensors = tensors
        self._pieces = pieces_of(tensors, unit.grid)
        self._known: dict[int, tuple[bytes, list[rules.Products]]] = {}
        self._complete = b""
        """The set for which all chunks are measured; empty: there is none."""
        self._numbers: tuple[bytes, list[list[float]]] = (b"", [])

    def knows(self, index: int, of: bytes) -> bool:
        """Return whether a chunk is measured for a set of contributions."""
        return index in self._known and self._known[index][0] == of

    @property
    def begun(self) -> bool:
        """Return whether each chunk is measured for some set: before that, nothing is complete."""
        return len(self._known) == len(self._pieces)

    def complete(self, of: bytes) -> bool:
        """Return whether all chunks are measured for a set of contributions."""
        if self._complete != of and all(self.knows(index, of) for index in range(len(self._pieces))):
            self._complete = of
        return self._complete == of

    def measure(self, index: int, of: bytes, values: Sequence[Vector]) -> None:
        """Measure a chunk of all contributions of a set."""
        found = [
            rules.products(self._combine, [part[first:end] for part in values]) for _, first, end in self._pieces[index]
        ]
        self._known[index] = (of, found)
        if self._complete != of:
            self._complete = b""

    def combined(self, index: int, of: bytes, values: Sequence[Vector], weights: Sequence[float]) -> Vector:
        """Return what a chunk of all contributions of a set becomes, once all chunks are measured for it."""
        numbers = self._numbers_for(of, weights)
        made = np.empty_like(values[0])
        for tensor, first, end in self._pieces[index]:
            made[first:end] = add_up([part[first:end] for part in values], numbers[tensor])
        return made

    def _numbers_for(self, of: bytes, weights: Sequence[float]) -> list[list[float]]:
        """Return what each contribution is multiplied by, tensor by tensor."""
        if self._numbers[0] != of:
            assert self.complete(of), "every piece of a tensor counts"
            totals = [np.zeros((len(weights), len(weights))) for _ in self._tensors]
            for index, pieces in enumerate(self._pieces):
                for (tensor, _, _), found in zip(pieces, self._known[index][1], strict=True):
                    totals[tensor] += found
            self._numbers = (of, [rules.numbers(self._combine, total, weights) for total in totals])
        return self._numbers[1]


def lengths_of(channel: Channel, unit: Unit, layout: Mapping[str, int]) -> Lengths | None:
    """Return where a channel's contributions are measured; None: what a chunk becomes depends on that chunk alone."""
    combine = channel.merge.combine
    if isinstance(combine, Mean | MeanPresent | Sum | Trimmed | Rda) or rules.over(combine) == "chunk":
        return None
    whole = rules.over(combine) == "whole"
    return Lengths(combine, unit, [Tensor("", 0, unit.grid.size)] if whole else tensors_in(unit, layout))
