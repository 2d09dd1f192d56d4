"""What a market did, step by step: the price of every zone and whether one could have the machines there.

A trace is a CSV file of changes, in order of time, with this head:

    time_h,zone,usd_hour,available

From `time_h` on a machine in `zone` costs `usd_hour`, and `available` of them can be had (0: none, and who is there is
sent away). What a row does not change stays. `read` lays the changes out in equal steps: a zone is up in a step if
enough were available all through it, and costs what it cost when the step began.

Nodes that were added and removed, as Bamboo published its two days on spot instances (milliseconds, "add" or "remove",
name; no head), are another kind of trace. `gang_trace` turns one into the other: the zone is up while enough are there.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from atoll.errors import SpecError
from atoll.plan.money.check import positive

HEAD = ["time_h", "zone", "usd_hour", "available"]
_LETTER = re.compile(r"(?<=\d)-?[a-z]$")


class Trace(Struct, frozen=True, kw_only=True, eq=False):
    """Prices and availability of some zones in equal steps."""

    zones: tuple[str, ...]
    step_h: float
    usd_hour: NDArray[np.float64]
    """Of a step and a zone."""
    up: NDArray[np.bool_]

    @property
    def steps(self) -> int:
        return len(self.up)


class Change(Struct, frozen=True):
    """A row of a trace's file."""

    time_h: float
    zone: str
    usd_hour: float
    available: int


class Event(Struct, frozen=True):
    """A node that came or went."""

    time_ms: int
    kind: Literal["add", "remove"]
    node: str


class Nodes(Struct, frozen=True, kw_only=True):
    """What a trace of nodes is like."""

    hours: float
    """To its last event."""
    removals: int
    removals_hour: float
    life_mean_h: float
    """Of those that were removed."""
    life_median_h: float
    bulk_max: int
    """Most that went at one moment."""
    nodes_mean: float
    nodes_max: int

    @property
    def removals_node_hour(self) -> float:
        return self.removals_hour / self.nodes_mean


def region_of(zone: str) -> str:
    """Return the region of a zone by its name: us-east-1a is in us-east-1, us-central1-b in us-central1."""
    return _LETTER.sub("", zone)


def read(path: Path, step_h: float, needed: int = 1) -> Trace:
    """Return the trace of a file for who needs so many machines in one zone."""
    rows = _rows(path)
    if not rows or rows[0] != HEAD:
        raise SpecError(f"{path}: not a trace of prices", hint=f"its first line is {','.join(HEAD)}")
    try:
        return laid_out([_change(row, f"{path}: line {line}") for line, row in enumerate(rows[1:], 2)], step_h, needed)
    except SpecError as wrong:
        what = wrong.what if wrong.what.startswith(str(path)) else f"{path}: {wrong.what}"
        raise SpecError(what, hint=wrong.hint) from None


def _rows(path: Path) -> list[list[str]]:
    """Return the cells of a file's lines."""
    try:
        return list(csv.reader(path.read_text("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no CSV in UTF-8"
        raise SpecError(
            f"{path}: cannot be read: {why}", hint=f"give a CSV file with the head {','.join(HEAD)}"
        ) from None


def _change(cells: list[str], place: str) -> Change:
    """Return a line of a trace of prices; whatever is wrong is refused with its place."""
    if len(cells) != len(HEAD):
        raise SpecError(f"{place}: {len(cells)} cells", hint=f"each line is {','.join(HEAD)}")
    said = dict(zip(HEAD, cells, strict=True))
    time_h, usd_hour, available = (_number(said, column, place) for column in ("time_h", "usd_hour", "available"))
    return Change(time_h, said["zone"].strip(), usd_hour, int(available))


def _number(said: dict[str, str], column: str, place: str) -> float:
    try:
        number = float(said[column])
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0 and (column != "available" or number == int(number))):
        hint = "a whole number, at least 0" if column == "available" else "a finite number, at least 0"
        raise SpecError(f"{place}, column {column}: '{said[column]}' is none", hint=hint)
    return number


def laid_out(changes: Sequence[Change], step_h: float, needed: int = 1) -> Trace:
    """Return changes in equal steps, to the end of the step in which the last one is."""
    positive(step_h=step_h, needed=needed)
    zones = tuple(sorted({one.zone for one in changes}))
    if not zones or any(b.time_h < a.time_h for a, b in pairwise(changes)):
        raise SpecError("a trace needs rows in order of time", hint=f"columns: {','.join(HEAD)}")
    if {one.zone for one in changes if one.time_h == 0} != set(zones):
        raise SpecError("a trace says of every zone what holds at hour 0", hint="add a row with time_h 0 for each")
    steps = int(changes[-1].time_h / step_h + 1e-9) + 1
    usd, up = np.zeros((steps, len(zones))), np.ones((steps, len(zones)), dtype=bool)
    for one in changes:
        zone, first = zones.index(one.zone), int(one.time_h / step_h + 1e-9)
        begins = int(np.ceil(one.time_h / step_h - 1e-9))
        usd[begins:, zone] = one.usd_hour
        up[begins:, zone] = one.available >= needed
        up[first:begins, zone] &= one.available >= needed
    return Trace(zones=zones, step_h=step_h, usd_hour=usd, up=up)


def read_nodes(path: Path) -> list[Event]:
    """Return the events of a trace of nodes."""
    events = sorted(
        (_event(cells, f"{path}: line {line}") for line, cells in enumerate(_rows(path), 1)),
        key=lambda one: one.time_ms,
    )
    here: set[str] = set()
    for one in events:
        if (one.node in here) == (one.kind == "add"):
            raise SpecError(f"{path}: {one.kind} {one.node!r} at {one.time_ms} ms", hint="nodes come, and go once each")
        here ^= {one.node}
    return events


def _event(cells: list[str], place: str) -> Event:
    """Return a line of a trace of nodes."""
    hint = "a line is milliseconds,add or remove,node"
    if len(cells) != 3 or not cells[0].strip().isdecimal():
        raise SpecError(f"{place}: '{','.join(cells)}' is no event", hint=hint)
    time_ms, kind, node = cells
    if kind not in ("add", "remove"):
        raise SpecError(f"{place}: {kind!r} is neither add nor remove", hint=hint)
    return Event(int(time_ms), "add" if kind == "add" else "remove", node)


def describe(events: Sequence[Event]) -> Nodes:
    """Return how many went, how long they lived, and how many there were."""
    if not any(one.kind == "remove" for one in events):
        raise SpecError("nobody left in this trace", hint="lifetimes are known of nodes that went")
    came: dict[str, int] = {}
    lives_h, node_hours, present, most, then_ms = [], 0.0, 0, 0, 0
    for one in events:
        node_hours += present * (one.time_ms - then_ms) / 3.6e6
        then_ms = one.time_ms
        if one.kind == "add":
            came[one.node] = one.time_ms
        else:
            lives_h.append((one.time_ms - came.pop(one.node)) / 3.6e6)
        present = len(came)
        most = max(most, present)
    hours, went = then_ms / 3.6e6, Counter(one.time_ms for one in events if one.kind == "remove")
    return Nodes(
        hours=hours,
        removals=len(lives_h),
        removals_hour=len(lives_h) / hours,
        life_mean_h=mean(lives_h),
        life_median_h=median(lives_h),
        bulk_max=max(went.values()),
        nodes_mean=node_hours / hours,
        nodes_max=most,
    )


def gang_trace(events: Sequence[Event], zone: str, gang: int, usd_hour: float, step_h: float) -> Trace:
    """Return nodes that come and go as one zone at a flat price that is up while a gang of so many is there."""
    changes, present, moment = [Change(0.0, zone, usd_hour, 0)], 0, 0
    for number, one in enumerate(events):
        present += 1 if one.kind == "add" else -1
        moment = one.time_ms
        if number + 1 == len(events) or events[number + 1].time_ms != moment:
            changes.append(Change(moment / 3.6e6, zone, usd_hour, present))
    return laid_out(changes, step_h, gang)
