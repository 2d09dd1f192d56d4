"""What a limit comes to: its number, its verdict, what binds, what would move it, and how both ways to it agree.

A limit is a record of functions over a scenario (`Limit`), so that looking for what flips a verdict, drawing ranges and
printing are written once (`flip.py`, `answer.py`) and each file of a limit holds its formulas and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from atoll.plan.limits.scenario import Scenario

Verdict = Literal["no wall", "binds", "wall"]
SEVERITY: dict[Verdict, int] = {"no wall": 0, "binds": 1, "wall": 2}


class Judged(Struct, frozen=True, kw_only=True):
    """A limit's answer for one scenario."""

    verdict: Verdict
    number: float
    says: str
    """The number in words, with its unit."""
    binds: str
    """What of the scenario the number hangs on."""


class Check(Struct, frozen=True, kw_only=True):
    """The formula beside a run of chance, or a small real one."""

    what: str
    formula: float
    run: float
    """What the run came to."""
    within: float
    """How far apart they may be, as a part of the formula's."""
    how: str
    chance: bool = False
    """Both are chances: how far apart they are is told plainly."""

    @property
    def apart(self) -> float:
        return float(abs(self.run - self.formula)) / (1.0 if self.chance else abs(self.formula) or 1.0)

    @property
    def agrees(self) -> bool:
        return bool(self.apart <= self.within)


class Rows(Struct, frozen=True, kw_only=True):
    """A table beside a limit."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Marks(Struct, frozen=True, kw_only=True):
    """What is plotted: a curve, or marks alone; grey is what others are measured against."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    joined: bool = True
    grey: bool = False


class Amount(Struct, frozen=True, kw_only=True):
    """What is plotted as a lying bar, with its range."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    say: str = ""


class Drawing(Struct, frozen=True, kw_only=True):
    """A plot's data: curves, or bars."""

    title: str
    x: str
    y: str = ""
    series: Sequence[Marks] = ()
    bars: Sequence[Amount] = ()
    log_x: bool = False
    log_y: bool = False
    caption: str = ""


class Flip(Struct, frozen=True, kw_only=True):
    """The nearest value of one input at which the verdict is another."""

    path: str
    now: float
    at: float
    verdict: Verdict


class Given(Struct, frozen=True, kw_only=True):
    """An input, as it was used."""

    path: str
    value: float
    low: float
    high: float
    source: str
    flip: Flip | None
    """None: within a thousandth and a thousand times it, the verdict does not hang on it."""


class Finding(Struct, frozen=True, kw_only=True):
    """A limit, done."""

    limit: str
    question: str
    verdict: Verdict
    number: float
    low: float
    high: float
    """Where the number lies for four of five draws of the inputs."""
    says: str
    binds: str
    moves: str
    """What would move the verdict, in words."""
    given: tuple[Given, ...]
    checks: tuple[Check, ...]
    tables: tuple[Rows, ...]
    drawings: tuple[Drawing, ...]


class Limit(Struct, frozen=True, kw_only=True):
    """One of the seven."""

    name: str
    question: str
    inputs: tuple[str, ...]
    levers: tuple[str, ...]
    """Those of the inputs that one would turn to ease it: nobody buys slower devices so that lines keep up."""
    switches: tuple[str, ...] = ()
    """Choices of yes or no that it hangs on."""
    number: Callable[[Scenario], Any]
    """Elementwise over worlds."""
    judge: Callable[[Scenario], Judged]
    checks: Callable[[Scenario, int], Sequence[Check]]
    tables: Callable[[Scenario], Sequence[Rows]]
    drawings: Callable[[Scenario, int], Sequence[Drawing]]
    ease: Callable[[Scenario], Sequence[tuple[str, Scenario]]]
    """What one would change first, in words and done, the gentlest first."""
