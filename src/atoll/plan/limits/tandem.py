"""Stages in a row, each with one line to the world: what they send, and how long many micro-batches take, played out.

A stage in the middle sends activations on and gradients back, both through its own uplink; of two stages each sends
only one of them. While the line is busy the device goes on with other micro-batches, so what is slower of the two sets
the pace (`cost.pipeline.closed.overlapped_s`):

    T(n) = sum (C_p + R_p) + (n - 1) max over p of max(C_p, R_p)         R: the time that a line is occupied

A delay occupies nobody: it makes the way through longer and the pace no slower.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, Literal

import numpy as np

from atoll.plan.cost.collective import boundary_bytes
from atoll.plan.cost.pipeline.closed import boundary_rate_bytes_s

FORWARD = 1 / 3
"""Of a stage's work on a micro-batch: back is two products for each one there."""


def directions(stages: Any) -> Any:
    """Return in how many directions a stage's uplink carries activations or their gradients."""
    return np.minimum(2.0, np.maximum(stages - 1.0, 0.0))


def uplink_bytes(tokens: Any, hidden: Any, stages: Any) -> Any:
    """Return what the busiest stage sends for so many tokens, 16 bits an activation."""
    return directions(stages) * boundary_bytes(1.0, tokens, hidden)


def uplink_needed_bytes_s(flop_s: Any, parameters: Any, stages: Any, hidden: Any) -> Any:
    """Return the uplink with which a stage sends as fast as it computes."""
    return directions(stages) * boundary_rate_bytes_s(flop_s, stages, parameters, hidden)


Work = Literal["there", "back"]


class _Stage:
    """A stage at work: what waits for its device, what waits for its line. Gradients go first at both."""

    def __init__(self) -> None:
        self.waits: dict[Work, list[int]] = {"back": [], "there": []}
        self.sends: dict[Work, list[int]] = {"back": [], "there": []}
        self.computing = self.sending = False


def play_s(stages: int, compute_s: float, hop_s: float, batches: int, latency_s: float = 0.0) -> float:
    """Return when so many micro-batches are through and back, with room for all that is under way.

    `compute_s` is a stage's work on one, `hop_s` the time that one message, activations or gradients, occupies a line.
    """
    row = [_Stage() for _ in range(stages)]
    events: list[tuple[float, int, str, int, Work, int]] = []
    row[0].waits["there"] = list(range(batches))
    number = done = 0
    now_s = 0.0

    def at(time_s: float, what: str, stage: int, work: Work, batch: int) -> None:
        nonlocal number
        number += 1
        heappush(events, (time_s, number, what, stage, work, batch))

    def go_on(place: int) -> None:
        """Let a stage's device and line take up what waits for them."""
        stage = row[place]
        for work in ("back", "there"):
            if stage.waits[work] and not stage.computing:
                stage.computing = True
                takes_s = compute_s * (FORWARD if work == "there" else 1 - FORWARD)
                at(now_s + takes_s, "computed", place, work, stage.waits[work].pop(0))
            if stage.sends[work] and not stage.sending:
                stage.sending = True
                at(now_s + hop_s, "sent", place, work, stage.sends[work].pop(0))

    go_on(0)
    while done < batches:
        now_s, _, what, place, work, batch = heappop(events)
        match what, work:
            case "computed", "there" if place == stages - 1:
                row[place].computing = False
                row[place].waits["back"].append(batch)
            case "computed", "back" if place == 0:
                row[place].computing = False
                done += 1
            case "computed", _:
                row[place].computing = False
                row[place].sends[work].append(batch)
            case "sent", _:
                row[place].sending = False
                at(now_s + latency_s, "arrived", place + (1 if work == "there" else -1), work, batch)
            case _:
                row[place].waits[work].append(batch)
        go_on(place)
    return now_s
