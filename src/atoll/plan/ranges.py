"""Numbers with their ranges, and what they hang on: one forecast asked again with its inputs elsewhere.

A forecast is a function of how far each input deviates from its middle. Asked with everything at its middle it gives
the number that is told and judged; with everything drawn, the range that nine of ten lie in on either side; with one
input at a time at either end, what that input is worth. Whoever has such a function (replicas, stages, a rented
cluster) gets the same here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from atoll.plan.goal import Goal
from atoll.plan.knowledge import Knowledge
from atoll.plan.spread import TENTH, Floats, Range, range_of

DRAWS = 400
SHIFT_MIN = 0.02
"""An input that moves every number by less than this part of it, and changes no verdict, is told as irrelevant."""

Deviations = Mapping[str, Any]
"""How far inputs are from their middle: a number or a column of draws each; those that are not there, not at all."""


class Outcome(Protocol):
    """What a forecast says: numbers, or one for each draw."""

    @property
    def time_s(self) -> Floats: ...
    @property
    def usd(self) -> Floats: ...
    @property
    def energy_kwh(self) -> Floats: ...
    @property
    def carbon_g(self) -> Floats: ...


class Taken(Struct, frozen=True):
    """The same, as it is."""

    time_s: Floats
    usd: Floats
    energy_kwh: Floats
    carbon_g: Floats


Forecast = Callable[[Deviations], Outcome]


class Ranged(Struct, frozen=True, kw_only=True):
    """What something takes, each number with its range."""

    time_s: Range
    usd: Range
    energy_kwh: Range
    carbon_g: Range
    keeps: float
    """In which part of the draws it keeps to the goal."""


class Sway(Struct, frozen=True, kw_only=True):
    """What one input does to a plan at either end of its range."""

    name: str
    source: str
    as_of: str
    time_s: tuple[float, float]
    usd: tuple[float, float]
    carbon_g: tuple[float, float]
    feasible: tuple[bool, bool]
    """Whether the plan keeps to the goal there."""
    instead: tuple[str, str] = ("", "")
    """The way that would be recommended there, where that is another."""
    shift: float
    """By how much it moves the number that it moves most: the logarithm of the high end over the low one."""
    keeps: bool
    """Whether the plan keeps to the goal with everything at its middle."""

    @property
    def matters(self) -> bool:
        """Return whether it moves a number, decides whether the goal is kept, or which way is recommended."""
        return self.shift > SHIFT_MIN or any(ok != self.keeps for ok in self.feasible) or any(self.instead)


def ranged(goal: Goal, knowledge: Knowledge, forecast: Forecast, seed: int = 0, draws: int = DRAWS) -> dict[str, Any]:
    """Return the fields of a `Ranged`: the middle as it is judged, the ends as they are drawn."""
    rng = np.random.default_rng(seed)
    middle = forecast({})
    drawn = forecast({name: rng.standard_normal((draws, 1)) for name in knowledge})
    names = ("time_s", "usd", "energy_kwh", "carbon_g")
    found = {name: range_of(getattr(drawn, name), float(getattr(middle, name))) for name in names}
    return {**found, "keeps": float(_kept(goal, drawn).mean())}


def sways(goal: Goal, knowledge: Knowledge, forecast: Forecast) -> tuple[Sway, ...]:
    """Return what every input does at its ends, the strongest first: one forecast, with a row for each end."""
    names = list(knowledge)
    deviations = {name: np.zeros((2 * len(names), 1)) for name in names}
    for number, name in enumerate(names):
        deviations[name][2 * number : 2 * number + 2, 0] = -TENTH, TENTH
    ends = forecast(deviations)
    kept, keeps = _kept(goal, ends), bool(np.all(_kept(goal, forecast({}))))
    found = []
    for number, name in enumerate(names):
        at, about = slice(2 * number, 2 * number + 2), knowledge[name]
        time_s, usd, carbon_g = (_pair(each[at]) for each in (ends.time_s, ends.usd, ends.carbon_g))
        found.append(
            Sway(
                name=name,
                source=about.source,
                as_of=about.as_of,
                time_s=time_s,
                usd=usd,
                carbon_g=carbon_g,
                feasible=(bool(kept[at][0]), bool(kept[at][1])),
                shift=max(_shift(each) for each in (time_s, usd, carbon_g)),
                keeps=keeps,
            )
        )
    return tuple(sorted(found, key=lambda sway: -sway.shift))


def _kept(goal: Goal, takes: Outcome) -> NDArray[np.bool_]:
    """Return whether a forecast keeps to a goal, for each draw."""
    kept = np.ones(np.shape(takes.time_s), bool)
    for number, limit in zip((takes.time_s, takes.usd, takes.carbon_g), goal.limits, strict=True):
        if limit is not None:
            kept &= np.asarray(number) <= limit
    return kept


def _pair(ends: Floats) -> tuple[float, float]:
    return float(ends[0]), float(ends[1])


def _shift(ends: tuple[float, float]) -> float:
    low, high = np.maximum(ends, 1e-9)
    return float(abs(np.log(high / low)))
