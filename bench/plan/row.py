"""One line of the validation: what was published, what the planner says of the same setting, and whether it holds.

The figures themselves live beside these modules (`bench/plan/published/`) and are read by nothing in the package, so
that no formula can have been bent to a row.
"""

from __future__ import annotations

import csv
from pathlib import Path

from msgspec import Struct

PUBLISHED = Path(__file__).parent / "published"


class Row(Struct, frozen=True, kw_only=True):
    """A setting of a source, predicted."""

    source: str
    """Whose figure it is."""
    setting: str
    quantity: str
    """What was measured, with its unit."""
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """How far off the prediction is, as a part of what was published."""
        return self.predicted / self.published - 1


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
