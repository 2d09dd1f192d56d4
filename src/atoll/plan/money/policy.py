"""Where to compute next, as a spot market moves: a union of policies and the one function that asks them.

    Stay, OnDemand     one place, whatever happens
    Interrupted        the cheapest place there is, until it is taken away
    EagerNext          likewise, and next time in another region first (SkyPilot's managed jobs)
    Migrate            leaves for a cheaper place as soon as that pays, without waiting to be sent away (DeepSpotCloud)
    Daily              looks at prices once a day only, and is eager when sent away (SkyPilot's choice of zones)
    UniformProgress    spot while it can be had; on demand while behind the line to the deadline (Can't Be Late)

Leaving pays where what is saved on the rest of the work is more than carrying the checkpoint over and paying for the
new place until it works:  (p0 - p1) G R  >  S e + p1 G m + h.  That rule is our reading of DeepSpotCloud's. It takes
for granted that the new place lasts: where zones come and go within hours, R is at most as long as one does
(`lasts_h`), or the rule runs after every cheap zone that opens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from atoll.plan.money.trace import region_of


class Stay(Struct, frozen=True):
    """One zone: wait while it is down."""

    zone: str


class OnDemand(Struct, frozen=True):
    """Never spot."""


class Interrupted(Struct, frozen=True):
    """Move only when sent away, to the cheapest."""


class EagerNext(Struct, frozen=True):
    """Move only when sent away, to the cheapest of another region if there is one."""


class Migrate(Struct, frozen=True, kw_only=True):
    """Move when it pays."""

    hysteresis_usd: float = 0.0
    """What has to be saved beyond the cost of moving."""
    lasts_h: float = float("inf")
    """How long a new place is taken to last: nothing is saved there afterwards."""


class Daily(Struct, frozen=True, kw_only=True):
    """Move when it pays, asked seldom; when sent away, eagerly to another region."""

    every_h: float = 24.0
    hysteresis_usd: float = 0.0
    lasts_h: float = float("inf")


class UniformProgress(Struct, frozen=True):
    """Stay on the line from nothing at the start to everything at the deadline."""


Policy = Stay | OnDemand | Interrupted | EagerNext | Migrate | Daily | UniformProgress


class Sight(Struct, frozen=True, kw_only=True):
    """All that a policy may look at: what is now and was before."""

    names: tuple[str, ...]
    """Of the zones; the place after the last of them is on demand."""
    usd_hour: NDArray[np.float64]
    up: NDArray[np.bool_]
    time_h: float
    step_h: float
    place: int | None
    """Where it runs; None when it does not."""
    home: int | None
    """Where its state lies: where it ran last."""
    left_h: float
    """Of its work ..."""
    unsaved_h: float
    """... and what would have to be done again if it were sent away."""
    work_h: float
    deadline_h: float
    machines: float
    leave_usd: float
    """To carry the state away from where it lies."""
    dead_h: float
    """From the start at a new place until it works."""

    @property
    def on_demand(self) -> int:
        return len(self.names)


def migrate_pays(
    here_usd_hour: float,
    there_usd_hour: float,
    *,
    machines: float,
    left_h: float,
    leave_usd: float,
    dead_h: float,
    hysteresis_usd: float = 0.0,
) -> bool:
    """Return whether the rest of the work is cheaper elsewhere, the move included."""
    saved_usd = (here_usd_hour - there_usd_hour) * machines * left_h
    return saved_usd > leave_usd + there_usd_hour * machines * dead_h + hysteresis_usd


def break_even_h(
    here_usd_hour: float, there_usd_hour: float, *, machines: float, leave_usd: float, dead_h: float
) -> float:
    """Return how much work has to be left for a move to pay; infinite where the other place is no cheaper."""
    if there_usd_hour >= here_usd_hour:
        return float("inf")
    return (leave_usd + there_usd_hour * machines * dead_h) / ((here_usd_hour - there_usd_hour) * machines)


def choose(policy: Policy, sight: Sight) -> int | None:
    """Return the place to be at in this step, or None to wait."""
    match policy:
        case Stay(zone=zone):
            place = sight.names.index(zone)
            return place if sight.up[place] else None
        case OnDemand():
            return sight.on_demand
        case Interrupted():
            return _cheapest(sight) if sight.place is None else sight.place
        case EagerNext():
            return _eager(sight) if sight.place is None else sight.place
        case Migrate(hysteresis_usd=more_usd, lasts_h=lasts_h):
            return _cheapest(sight) if sight.place is None else _moved(sight, sight.place, more_usd, lasts_h)
        case Daily(every_h=every_h, hysteresis_usd=more_usd, lasts_h=lasts_h):
            if sight.place is None:
                return _eager(sight)
            is_due = int(sight.time_h / every_h + 1e-9) != int((sight.time_h - sight.step_h) / every_h + 1e-9)
            return _moved(sight, sight.place, more_usd, lasts_h) if is_due else sight.place
        case UniformProgress():
            return _on_line(sight)
        case _:
            assert_never(policy)


def _cheapest(sight: Sight, among: Iterable[int] | None = None) -> int | None:
    places = [each for each in (range(sight.on_demand) if among is None else among) if sight.up[each]]
    return min(places, key=lambda each: (sight.usd_hour[each], each), default=None)


def _eager(sight: Sight) -> int | None:
    """Return the cheapest place outside the region that sent it away, or else any."""
    if sight.home is None or sight.home == sight.on_demand:
        return _cheapest(sight)
    near = region_of(sight.names[sight.home])
    far = _cheapest(sight, [each for each in range(sight.on_demand) if region_of(sight.names[each]) != near])
    return _cheapest(sight) if far is None else far


def _moved(sight: Sight, place: int, hysteresis_usd: float, lasts_h: float) -> int:
    best = _cheapest(sight)
    if best is None or best == place:
        return place
    pays = migrate_pays(
        sight.usd_hour[place],
        sight.usd_hour[best],
        machines=sight.machines,
        left_h=min(sight.left_h, lasts_h),
        leave_usd=sight.leave_usd,
        dead_h=sight.dead_h,
        hysteresis_usd=hysteresis_usd,
    )
    return best if pays else place


def _on_line(sight: Sight) -> int | None:
    """Return spot where it can be afforded to lose it once more; else on demand if behind; else nothing."""
    spare_h = sight.deadline_h - sight.time_h
    steady = sight.place == sight.on_demand
    unsaved_h = 0.0 if steady else sight.unsaved_h
    if sight.left_h + unsaved_h + sight.dead_h > spare_h - sight.step_h + 1e-9:
        return sight.on_demand
    ahead = sight.work_h - sight.left_h >= sight.work_h * sight.time_h / sight.deadline_h - 1e-9
    if steady and not ahead:
        return sight.on_demand
    if sight.place is not None and not steady:
        return sight.place
    spot = _cheapest(sight)
    if spot is None and (steady or not ahead):
        return sight.on_demand
    return spot
