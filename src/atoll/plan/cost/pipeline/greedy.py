"""Orders that come out of playing: whenever a device is free, a rule picks from what could begin, within its memory.

    delay-aware   there and back in turn; the weights' gradients fill what waiting is left (the greedy form of
                  CrossPipe). Devices that are far from each other so run further ahead, as far as memory allows:
                  a line's delay is paid once and not per micro-batch
    Varuna's      W, D, R, F: whatever is furthest along first, and what was computed again is used at once

The order found is a fixed one and can be played with other times (`events.play`). Of pipelines so small that every
order can be tried it is the best in nine of ten, and at most 8 % off.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import inf

from msgspec import Struct

from atoll.plan.cost.pipeline.events import Timeline, durations_s, timeline
from atoll.plan.cost.pipeline.parts import Kind, Orders, Pipeline, Task

SLACK = 1e-9
"""Of the memory's unit: sums of kept parts are rounded."""


class Found(Struct, frozen=True):
    """An order, and how it went."""

    orders: Orders
    timeline: Timeline


def delay_aware(pipeline: Pipeline, micro_batches: int, limits: Sequence[float] | None = None) -> Found:
    """Return the better of two orders, of what each device may keep at once; none: everything may be kept.

    One makes weights' gradients whenever it would otherwise wait, the other only if nothing that others wait for is due
    before one of them would be done.
    """
    found = [_Dispatch(pipeline, micro_batches, limits, patience).run() for patience in (0.0, 1.0)]
    return min(found, key=lambda each: each.timeline.finish_s)


def varuna(pipeline: Pipeline, micro_batches: int) -> Found:
    """Return Varuna's order: nothing but a stage's input is kept, so all but the last compute again."""
    return _Dispatch(pipeline, micro_batches, None, 0.0, again=True).run()


class _Dispatch:
    """The state of one play: what each part does next of each kind, and when that could begin."""

    def __init__(
        self,
        pipeline: Pipeline,
        micro_batches: int,
        limits: Sequence[float] | None,
        patience: float,
        again: bool = False,
    ) -> None:
        self._pipeline, self._patience, self._rule_again = pipeline, patience, again
        self._room = limits or [inf] * pipeline.devices
        self._on = [pipeline.on(device) for device in range(pipeline.devices)]
        self._check()
        parts = range(len(pipeline.parts))
        self._ready_s: dict[Kind, list[list[float]]] = {
            kind: [[inf] * (micro_batches + 1) for _ in parts] for kind in ("F", "D", "W", "R")
        }
        self._ready_s["F"][0][:micro_batches] = [0.0] * micro_batches
        self._next: dict[Kind, list[int]] = {kind: [0] * len(parts) for kind in ("F", "D", "W", "R")}
        self._left = micro_batches * (len(parts) * (4 if again else 3) - (1 if again else 0))
        self._held = [0.0] * pipeline.devices
        self._later = [self._kept_after(part) for part in parts]
        self._free_s, self._took_s = [0.0] * pipeline.devices, durations_s(pipeline)
        self._begins_s = [inf] * pipeline.devices
        self._line_free_s: dict[tuple[int, int], float] = {}
        self._orders: Orders = [[] for _ in range(pipeline.devices)]
        self._turn: list[Kind] = ["F"] * pipeline.devices
        """What each device did last that others wait for."""
        self._wakes = [(0.0, device) for device in range(pipeline.devices)]

    def _check(self) -> None:
        for device, parts in enumerate(self._on):
            if sum(self._pipeline.parts[part].kept for part in parts) > self._room[device] + SLACK:
                raise ValueError(f"device {device} has no room for one micro-batch")

    def _kept_after(self, part: int) -> float:
        """Return what the parts keep that come after one on its device."""
        device = self._pipeline.parts[part].device
        return sum(self._pipeline.parts[other].kept for other in self._on[device] if other > part)

    def run(self) -> Found:
        while self._wakes:
            now_s, device = heapq.heappop(self._wakes)
            if self._free_s[device] <= now_s:
                task = self._chosen(device, now_s)
                if task is not None:
                    self._do(device, task, now_s)
        assert not self._left, "there is always room for the oldest micro-batch to go on"
        return Found(self._orders, timeline(self._pipeline, self._orders, self._begins_s, self._free_s))

    def _chosen(self, device: int, now_s: float) -> Task | None:
        """Return what a free device does now; None: it waits."""
        for kind in self._wishes(device):
            if kind == "W" and self._patience and self._is_due(device, now_s):
                return None
            for part in reversed(self._on[device]):
                micro = self._next[kind][part]
                if self._ready_s[kind][part][micro] <= now_s and (kind != "F" or self._fits(device, part)):
                    return Task(kind, part, micro)
        return None

    def _wishes(self, device: int) -> Sequence[Kind]:
        """Return what a device would rather do, in this order."""
        if self._rule_again:
            return ("D",) if self._turn[device] == "R" else ("W", "D", "R", "F")
        return ("F", "D", "W") if self._turn[device] == "D" else ("D", "F", "W")

    def _is_due(self, device: int, now_s: float) -> bool:
        """Return whether something that others wait for comes before a weights' gradient would be done."""
        soon_s = now_s + self._patience * max(self._pipeline.parts[part].weights_s for part in self._on[device])
        for part in self._on[device]:
            if self._ready_s["D"][part][self._next["D"][part]] < soon_s:
                return True
            if self._ready_s["F"][part][self._next["F"][part]] < soon_s and self._fits(device, part):
                return True
        return False

    def _fits(self, device: int, part: int) -> bool:
        """Return whether there is room, and for what comes after on the same device."""
        wanted = self._held[device] + self._pipeline.parts[part].kept + self._later[part]
        return wanted <= self._room[device] + SLACK

    def _do(self, device: int, task: Task, now_s: float) -> None:
        self._orders[device].append(task)
        self._left -= 1
        self._next[task.kind][task.part] = task.micro + 1
        self._begins_s[device] = min(self._begins_s[device], now_s)
        end_s = self._free_s[device] = now_s + self._took_s[task.kind][task.part]
        if task.kind == "W":
            self._held[device] -= self._pipeline.parts[task.part].kept
        else:
            self._turn[device] = task.kind
            self._held[device] += self._pipeline.parts[task.part].kept if task.kind == "F" else 0.0
        heapq.heappush(self._wakes, (end_s, device))
        self._make(device, task, end_s)

    def _make(self, device: int, task: Task, end_s: float) -> None:
        """Let what a task makes possible be ready when it has arrived."""
        kind, part, micro = task
        if kind == "F" and part < len(self._pipeline.parts) - 1:
            self._tell(device, Task("F", part + 1, micro), end_s)
        elif kind in "FR":
            self._ready_s["D"][part][micro] = end_s
        elif kind == "D":
            self._ready_s["W"][part][micro] = end_s
            if part > 0:
                self._tell(device, Task("R" if self._rule_again else "D", part - 1, micro), end_s)

    def _tell(self, device: int, target: Task, when_s: float) -> None:
        other = self._pipeline.parts[target.part].device
        if other != device:
            there = target.kind == "F"
            hop = self._pipeline.there[target.part - 1] if there else self._pipeline.back[target.part]
            free_s = max(self._line_free_s.get((device, other), 0.0), when_s) + hop.busy_s
            self._line_free_s[device, other] = free_s
            when_s = free_s + hop.latency_s
        self._ready_s[target.kind][target.part][target.micro] = when_s
        if when_s >= self._free_s[other] or other == device:
            heapq.heappush(self._wakes, (when_s, other))
