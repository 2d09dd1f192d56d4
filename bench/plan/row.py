"""One line of the validation: a figure, what the planner says of the same setting, and whether it holds.

The figure is one that a source printed ("published"), or one that we or another program of ours computed from a
source's formulas or from its other figures ("ours"): both are held, and they are never counted together. Published
figures live beside these modules (`bench/plan/published/`) and are read by nothing in the package, so that no formula
can have been bent to a row.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

from msgspec import Struct

PUBLISHED = Path(__file__).parent / "published"
Basis = Literal["published", "ours"]


class Row(Struct, frozen=True, kw_only=True):
    """A setting of a source, predicted."""

    source: str
    """Whose setting it is."""
    setting: str
    quantity: str
    """What was measured or computed, with its unit."""
    basis: Basis = "published"
    reference: float
    """The figure that it is held against."""
    predicted: float

    @property
    def error(self) -> float:
        """How far off the prediction is, as a part of the figure."""
        return self.predicted / self.reference - 1


class Gate(Struct, frozen=True, kw_only=True):
    """What is demanded of some rows together, and what they come to."""

    source: str
    demand: str
    value: float
    holds: bool


def table(name: str) -> list[dict[str, str]]:
    """Return the rows of a published table."""
    with (PUBLISHED / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
