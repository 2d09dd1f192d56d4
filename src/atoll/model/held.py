"""A vector that is wherever it was last worked on: what a codec left out so far, or a sum of gradients.

A peer with a device works on it there; it is only brought to the host's memory when somebody asks for it there, to save
it or to work on it on the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from atoll.model.compute import Step, Trained, Vector, together


class Elsewhere(Protocol):
    """The same vector in another memory."""

    def bring(self, values: Vector) -> None:
        """Write it into the host's memory."""


class Held:
    """A vector in one memory or another; all zero to begin with. Used through `Compute` only."""

    def __init__(self, size: int) -> None:
        self._values = np.zeros(size, np.float32)
        self._elsewhere: Elsewhere | None = None
        self._stale = False
        """Whether what is elsewhere is newer."""

    @classmethod
    def of(cls, values: Vector) -> Held:
        """Return a vector of such values, in memory of its own."""
        held = cls(values.size)
        held.write()[:] = values
        return held

    @property
    def size(self) -> int:
        """Return how many elements there are."""
        return self._values.size

    def elsewhere(self) -> Elsewhere | None:
        """Return where it is, to be written to there; None: in the host's memory."""
        self._stale = self._elsewhere is not None
        return self._elsewhere

    def read(self) -> Vector:
        """Return its values in the host's memory, not to be written to."""
        if self._elsewhere is not None and self._stale:
            self._elsewhere.bring(self._values)
            self._stale = False
        return self._values

    def write(self) -> Vector:
        """Return its values in the host's memory, to be written to: from now on it is there and nowhere else."""
        values = self.read()
        self._elsewhere = None
        return values

    def move(self, elsewhere: Elsewhere) -> None:
        """Let it be elsewhere from now on, to be written to there: that was made of what `read` returns."""
        self._elsewhere, self._stale = elsewhere, True


def less_held(weights: Vector, held: Vector, part: float) -> Vector:
    """Return weights less what is held back of them, or less a part of that: in the same bits everywhere."""
    less: Vector = weights - (held if part == 1.0 else np.float32(part) * held)
    return less


def added_up(
    gradient: Callable[[Sequence[Step]], tuple[Trained, Vector]], steps: Sequence[Step], total: Held | None
) -> tuple[Trained, Held]:
    """Return `Engine.gradients` of an engine that has nothing but the host's memory."""
    parts = []
    for step in steps:
        trained, mean = gradient([step])
        parts.append(trained)
        if total is None:
            total = Held.of(mean)
        else:
            total.write()[:] += mean
    assert total is not None, "there is at least one step"
    return together(parts), total
