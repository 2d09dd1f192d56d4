"""When: what triggers an exchange, and which part of the model it is about."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from atoll.spec.axes.axis import Axis


class Every(Axis, tag="every"):
    """Exchange after a fixed number of local steps."""

    steps: int

    @property
    def round_steps(self) -> int:
        """Return how many local steps a round has."""
        return self.steps

    def unit(self, number: int) -> str:
        """Return what one of the channel's rounds is about."""
        return "model"


class Fragments(Axis, tag="fragments"):
    """Exchange the model in parts, in turn: each a fixed number of local steps after its last turn."""

    steps: int
    """Between two exchanges of the same part; a multiple of `count`."""
    count: int
    pattern: Literal["strided", "sequential", "packed", "drawn"] = "strided"
    """Layers in turn, layers in runs (with them what is before the first and after the last), tensors by size; or
    elements by lot, drawn anew whenever all parts have had their turn."""

    @property
    def round_steps(self) -> int:
        """Return how many local steps a round has: in each one part is exchanged."""
        return self.steps // self.count

    def unit(self, number: int) -> str:
        """Return what one of the channel's rounds is about."""
        return f"fragment {(number - 1) % self.count}"


class Named(Axis, tag="named"):
    """Exchange some tensors and all others, in turn: each a fixed number of local steps after its last turn."""

    steps: int
    """Between two exchanges of the same part; even."""
    names: tuple[str, ...]
    """The first part are the tensors in whose names one of these is found."""

    @property
    def count(self) -> int:
        """Return how many parts there are."""
        return 2

    @property
    def round_steps(self) -> int:
        """Return how many local steps a round has: in each one part is exchanged."""
        return self.steps // self.count

    def unit(self, number: int) -> str:
        """Return what one of the channel's rounds is about."""
        return "named tensors" if number % self.count else "all others"


class Tensors(Axis, tag="tensors"):
    """Exchange tensors in turn, from the last to the first: as many at a time as travel during a backward pass."""

    steps: int
    """Of a period, in which each tensor has one turn at least; a multiple of `count`."""
    count: int
    """Exchanges in a period, all as many steps apart."""
    passes: float
    """Backward passes that an exchange of the whole model takes: for such lines the turns are made."""

    @property
    def round_steps(self) -> int:
        """Return how many local steps a round has: after them some tensors are exchanged."""
        return self.steps // self.count

    def unit(self, version: int) -> str:
        """Return what a round is about."""
        return f"turn {(version - 1) % self.count}"


class WithMoments(Axis, tag="with-moments"):
    """Exchange the model after a fixed number of local steps; what inner optimizers remember goes with it more rarely.

    Whose turn it is not stays everybody's own.
    """

    steps: int
    first: int = 3
    """Every so many exchanges the running means of gradients go too, with Muon its momentum; 0: never."""
    second: int = 6
    """And the running means of their squares."""

    @property
    def count(self) -> int:
        """Return after how many exchanges all begins anew."""
        return math.lcm(self.first or 1, self.second or 1)

    @property
    def round_steps(self) -> int:
        """Return how many local steps a round has."""
        return self.steps

    def due(self, number: int) -> tuple[bool, bool]:
        """Return whether first and second moments go with one of the channel's rounds."""
        first, second = ((number % every == 0 if every else False) for every in (self.first, self.second))
        return first, second

    def unit(self, number: int) -> str:
        """Return what one of the channel's rounds is about."""
        match self.due(number):
            case (True, True):
                return "weights and moments"
            case (True, False):
                return "weights and first moments"
            case (False, True):
                return "weights and second moments"
            case _:
                return "weights"


class Growth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a batch of all together grows while a run goes on: evenly at first, then twofold."""

    every: int
    """Rounds from one size to the next."""
    add: int
    """So many samples more each time, as long as there are fewer than `until`;"""
    until: int
    most: int
    """from then on twice as many, and never more than this."""


class TargetBatch(Axis, tag="target-batch"):
    """Exchange when all together have worked through so many samples, each at its own speed."""

    samples: int
    growth: Growth | None = None
    """How they become more; none: they stay as many."""

    def samples_in(self, version: int) -> int:
        """Return how many samples a round is of."""
        samples, growth = self.samples, self.growth
        if growth is None:
            return samples
        for _ in range((version - 1) // growth.every):
            if samples >= growth.most:
                break
            samples = min(samples + growth.add if samples < growth.until else 2 * samples, growth.most)
        return samples

    @property
    def round_steps(self) -> int:
        """Return how many steps a round has: one, on a batch of all together."""
        return 1

    def unit(self, number: int) -> str:
        """Return what one of the channel's rounds is about."""
        return "model"


Parts = Fragments | Named | Tensors | WithMoments
"""Rounds that are about a part of what peers hold each: the rest stays as their work left it."""


When = Every | Parts | TargetBatch
