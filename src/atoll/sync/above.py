"""States of regions, and the one above them: what an anchor has where members of a region hold one state in common.

    weights, momentum, ...          the region's own, stepped by what its members contribute
    reference                       where the region stood when it last told
    above, above.momentum, ...      the state of all, stepped by what regions tell; the same with everybody

A region tells `reference - weights`: the way that its members have brought it since. Everybody steps the state above
with that, whoever told it; the region that told goes a part of the way there, and this is its next reference. When all
tell at once everybody begins anew from there, without momenta: after that regions may be others, and so a run ends.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from atoll.model.compute import Vector
from atoll.spec.axes.pace import Regional
from atoll.sync.merge import Anchor, Pushes, advance, outer_names
from atoll.sync.overlap import blend

ABOVE, REFERENCE = "above", "reference"
_STATE = ABOVE + "."

Part = Literal["hears", "tells", "begins"]
"""What a round in which regions tell is for a peer: its own tells or not, or everybody begins anew."""


def is_above(name: str) -> bool:
    """Return whether a vector of an anchor is of the state above."""
    return name == ABOVE or name.startswith(_STATE)


def with_above(home: Regional, anchor: Anchor) -> Anchor:
    """Return the first anchor of a region: all of them, and what is above them, stand where the model begins."""
    weights = anchor.weights
    state = {_STATE + name: np.zeros_like(weights) for name in outer_names(home.outer)}
    beside = {ABOVE: weights.copy(), REFERENCE: weights.copy(), **state}
    return Anchor(anchor.version, weights, anchor.outer | beside)


def to_tell(anchor: Anchor, run: slice) -> Vector:
    """Return how far a region has come since it last told, in memory of its own."""
    way: Vector = anchor.outer[REFERENCE][run] - anchor.weights[run]
    return way


def hear(home: Regional, anchor: Anchor, merged: Vector, pushes: Pushes, part: Part) -> None:
    """Step the state above by what regions told, and our own region by that."""
    named = {name.removeprefix(_STATE): v for name, v in anchor.outer.items() if name.startswith(_STATE)}
    above = anchor.outer[ABOVE]
    advance(home.outer, Anchor(anchor.version, above, named), merged, 1.0, pushes)
    match part:
        case "hears":
            pass
        case "tells":
            blend(anchor.weights, above, 1 - home.take)
            anchor.outer[REFERENCE][:] = anchor.weights
        case "begins":
            begin(anchor)


def begin(anchor: Anchor) -> None:
    """Let a region begin anew, from the state above."""
    for name, vector in anchor.outer.items():
        if name == REFERENCE:
            vector[:] = anchor.outer[ABOVE]
        elif not is_above(name):
            vector[:] = 0.0
    anchor.weights[:] = anchor.outer[ABOVE]
