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
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    if not rows or rows[0] != HEAD:
        raise SpecError(f"{path}: not a trace of prices", hint=f"its first line is {','.join(HEAD)}")
    try:
        changes = [Change(float(time), zone, float(usd), int(many)) for time, zone, usd, many in rows[1:]]
    except ValueError as wrong:
        raise SpecError(f"{path}: {wrong}", hint=f"each line is {','.join(HEAD)}") from wrong
    return laid_out(changes, step_h, needed)


def laid_out(changes: Sequence[Change], step_h: float, needed: int = 1) -> Trace:
    """Return changes in equal steps, to the end of the step in which the last one is."""
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
    events = []
    for line in path.read_text("utf-8").splitlines():
        time_ms, kind, node = line.split(",")
        if kind not in ("add", "remove"):
            raise SpecError(f"{path}: {kind!r} is neither add nor remove", hint="a line is milliseconds,kind,node")
        events.append(Event(int(time_ms), "add" if kind == "add" else "remove", node))
    return sorted(events, key=lambda one: one.time_ms)


def describe(events: Sequence[Event]) -> Nodes:
    """Return how many went, how long they lived, and how many there were."""
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
