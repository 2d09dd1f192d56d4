"""A step of a pipeline whose sends and receives meet, and whose devices wait for both.

A device that has made something posts its sending together with the receiving of what it needs next; a message starts
when both of its ends have posted it, and neither goes on to its next task that communicates before it has arrived.
What needs no message (the weights' gradients) is done meanwhile. That is how NCCL's paired send and receive behave in a
framework that waits for both, and it lays the delay of a line open about once per micro-batch, where messages that are
sent and forgotten hide a part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from atoll.plan.cost.pipeline.events import Timeline, durations_s, timeline, way_back
from atoll.plan.cost.pipeline.parts import Pipeline, Task


def play_meeting(pipeline: Pipeline, orders: Sequence[Sequence[Task]]) -> Timeline:
    """Return how a step goes; raise `ValueError` where devices wait for each other for ever."""
    return _Meeting(pipeline, orders).run()


class _Meeting:
    """The state of one play."""

    def __init__(self, pipeline: Pipeline, orders: Sequence[Sequence[Task]]) -> None:
        self._pipeline, self._orders, self._took_s = pipeline, orders, durations_s(pipeline)
        self._first_back, self._own_back = way_back(orders)
        self._arrived_s: dict[Task, float] = {}
        self._after: dict[Task, Task] = {}
        """What a device receives next, by the task after which that is posted."""
        self._posted_s: dict[Task, float] = {}
        self._parked: dict[Task, tuple[int, float]] = {}
        """What waits for its receiver: from which device, and since when."""
        self._lines_s: dict[tuple[int, int], float] = {}
        devices = pipeline.devices
        self._free_s, self._begins_s, self._at = [0.0] * devices, [inf] * devices, [0] * devices
        self._sent_s: list[float | None] = [0.0] * devices
        """When what each device sent last had arrived; None: that is not known yet."""
        self._awake = deque(range(devices))

    def run(self) -> Timeline:
        for order in self._orders:
            talking = [task for task in order if task.kind != "W"]
            self._posted_s[talking[0]] = 0.0
            self._after |= dict(pairwise(talking))
        while self._awake:
            self._advance(self._awake.popleft())
        for device, order in enumerate(self._orders):
            if self._at[device] < len(order):
                raise ValueError(f"device {device} waits for ever, as its order stands")
        return timeline(self._pipeline, self._orders, self._begins_s, self._free_s)

    def _advance(self, device: int) -> None:
        """Play a device's tasks as far as it is known when they begin."""
        order = self._orders[device]
        while self._at[device] < len(order):
            task = order[self._at[device]]
            ready_s = 0.0 if task.kind == "W" else self._ready_s(device, task)
            if ready_s is None:
                return
            begin_s = max(self._free_s[device], ready_s)
            if not self._at[device]:
                self._begins_s[device] = begin_s
            self._at[device] += 1
            self._free_s[device] = begin_s + self._took_s[task.kind][task.part]
            self._finish(device, task, self._free_s[device])

    def _ready_s(self, device: int, task: Task) -> float | None:
        """Return when a task that communicates could begin; None: that is not known yet."""
        sent_s = self._sent_s[device]
        arrived_s = 0.0 if task.kind == "F" and not task.part else self._arrived_s.get(task)
        return None if sent_s is None or arrived_s is None else max(sent_s, arrived_s)

    def _finish(self, device: int, task: Task, now_s: float) -> None:
        """Post what is received next, then send what was made."""
        if task in self._after:
            self._post(self._after[task], now_s)
        kind, part, micro = task
        if kind == "F" and part < len(self._pipeline.parts) - 1:
            self._send(device, Task("F", part + 1, micro), now_s)
        elif kind in "FR":
            self._arrived_s[Task(self._own_back, part, micro)] = now_s
        elif kind in "BD" and part:
            self._send(device, Task(self._first_back, part - 1, micro), now_s)

    def _post(self, target: Task, now_s: float) -> None:
        """Post a receiving; who waits with a message for it sends that now."""
        self._posted_s[target] = now_s
        if target in self._parked:
            device, made_s = self._parked.pop(target)
            self._meet(device, target, max(made_s, now_s))

    def _send(self, device: int, target: Task, made_s: float) -> None:
        other = self._pipeline.parts[target.part].device
        if other == device:
            self._arrived_s[target] = made_s
        elif target in self._posted_s:
            self._meet(device, target, max(made_s, self._posted_s[target]))
        else:
            self._sent_s[device] = None
            self._parked[target] = (device, made_s)

    def _meet(self, device: int, target: Task, start_s: float) -> None:
        """Let a message go that both ends are there for, after those that went before it."""
        other = self._pipeline.parts[target.part].device
        there = target.kind == "F"
        hop = self._pipeline.there[target.part - 1] if there else self._pipeline.back[target.part]
        line_s = max(self._lines_s.get((device, other), 0.0), start_s) + hop.busy_s
        self._lines_s[device, other] = line_s
        self._sent_s[device] = self._arrived_s[target] = line_s + hop.latency_s
        self._awake += (device, other)
