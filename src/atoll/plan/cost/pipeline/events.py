"""A step of a pipeline, played: each device works through its order, messages go over lines one after the other.

A task begins when its device is free and what it needs has arrived. A message occupies its line and then takes the
line's delay; both ends work on meanwhile. With `rendezvous` they do not (`meeting.py`).

Each device's order is fixed, so no queue of events is needed: tasks are played as soon as what they need is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from msgspec import Struct

from atoll.plan.cost.pipeline.parts import Kind, Pipeline, Task


class Timeline(Struct, frozen=True, kw_only=True):
    """What came of it, by device."""

    finish_s: float
    begins_s: tuple[float, ...]
    """When each device began its first task ..."""
    ends_s: tuple[float, ...]
    """... and was done with its last."""
    busy_s: tuple[float, ...]
    kept_max: tuple[float, ...]
    """The most that each kept at once, in the unit of its parts."""

    @property
    def idle_s(self) -> tuple[float, ...]:
        """Return how long each device waited between its first task and its last."""
        rows = zip(self.begins_s, self.ends_s, self.busy_s, strict=True)
        return tuple(end - begin - busy for begin, end, busy in rows)

    @property
    def bubble(self) -> float:
        """Return the part of the devices' time that nobody used."""
        return 1 - sum(self.busy_s) / (len(self.busy_s) * self.finish_s)


def play(pipeline: Pipeline, orders: Sequence[Sequence[Task]]) -> Timeline:
    """Return how a step goes; raise `ValueError` where devices wait for each other for ever."""
    begins_s, ends_s, at = _played(pipeline, orders)
    for device, order in enumerate(orders):
        if at[device] < len(order):
            waits = order[at[device]]
            raise ValueError(f"device {device} waits for ever for {waits.kind}{waits.micro} of part {waits.part}")
    return timeline(pipeline, orders, begins_s, ends_s)


def timeline(
    pipeline: Pipeline, orders: Sequence[Sequence[Task]], begins_s: Sequence[float], ends_s: Sequence[float]
) -> Timeline:
    """Return what came of orders that began and ended at these times."""
    took_s = durations_s(pipeline)
    return Timeline(
        finish_s=max(ends_s),
        begins_s=tuple(begins_s),
        ends_s=tuple(ends_s),
        busy_s=tuple(sum(took_s[kind][part] for kind, part, _ in order) for order in orders),
        kept_max=tuple(kept_max(pipeline, order) for order in orders),
    )


def durations_s(pipeline: Pipeline) -> dict[Kind, list[float]]:
    """Return how long each kind of task takes, by part."""
    forward_s = [part.forward_s for part in pipeline.parts]
    backward_s, weights_s = [part.backward_s for part in pipeline.parts], [part.weights_s for part in pipeline.parts]
    both_s = [part.backward_s + part.weights_s for part in pipeline.parts]
    return {"F": forward_s, "R": forward_s, "D": backward_s, "W": weights_s, "B": both_s}


def kept_max(pipeline: Pipeline, order: Sequence[Task]) -> float:
    """Return the most that a device keeps at once when it does this, one after the other."""
    kinds = {task.kind for task in order}
    done: Kind = "W" if "W" in kinds else "B" if "B" in kinds else "D"
    held = most = 0.0
    for kind, part, _ in order:
        if kind == "F":
            held += pipeline.parts[part].kept
            most = max(most, held)
        elif kind == done:
            held -= pipeline.parts[part].kept
    return most


def way_back(orders: Sequence[Sequence[Task]]) -> tuple[Kind, Kind]:
    """Return what a gradient that arrives makes possible, and what the last part does when it is there itself."""
    kinds = {task.kind for order in orders for task in order}
    back: Kind = "B" if "B" in kinds else "D"
    return ("R" if "R" in kinds else back), back


def _played(pipeline: Pipeline, orders: Sequence[Sequence[Task]]) -> tuple[list[float], list[float], list[int]]:
    """Return when devices began and ended, and how far they came. One loop: planners play thousands of pipelines."""
    took_s, devices, last = durations_s(pipeline), [part.device for part in pipeline.parts], len(pipeline.parts) - 1
    there, back = pipeline.there, pipeline.back
    first_back, own_back = way_back(orders)
    arrived_s: dict[tuple[str, int, int], float] = {}
    lines_s: dict[tuple[int, int], float] = {}
    free_s, begins_s, at = [0.0] * pipeline.devices, [inf] * pipeline.devices, [0] * pipeline.devices
    awake = deque(range(pipeline.devices))
    while awake:
        device = awake.popleft()
        order, now_s = orders[device], free_s[device]
        while at[device] < len(order):
            task: tuple[Kind, int, int] = order[at[device]]
            kind, part, micro = task
            if kind != "W" and (kind != "F" or part):
                ready_s = arrived_s.get(task)
                if ready_s is None:
                    break
                now_s = max(now_s, ready_s)
            if not at[device]:
                begins_s[device] = now_s
            at[device] += 1
            now_s += took_s[kind][part]
            if kind == "F" and part < last:
                target, hop = ("F", part + 1, micro), there[part]
            elif kind == "F" or kind == "R":
                arrived_s[own_back, part, micro] = now_s
                continue
            elif kind != "W" and part:
                target, hop = (first_back, part - 1, micro), back[part - 1]
            else:
                continue
            other = devices[target[1]]
            if other == device:
                arrived_s[target] = now_s
                continue
            line_s = lines_s[device, other] = max(lines_s.get((device, other), 0.0), now_s) + hop.busy_s
            arrived_s[target] = line_s + hop.latency_s
            awake.append(other)
        free_s[device] = now_s
    return begins_s, free_s, at
