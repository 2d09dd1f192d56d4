"""CrossPipe's two datacenters (USENIX ATC 2025, tables 5 and 6): seconds per micro-batch of 8 stages, half in each.

Between the fourth and the fifth stage a message takes so many times T_F of delay and of the line; T_F is the 0.038 s
that the paper gives. The rest of a stage is taken from the two cells without delay: 1F1B's gives the way back, ZB-H1's
how it splits into the input's gradient and the weights'. All other cells are predicted. Fixed orders are played with
sends and receives that meet, as NCCL's do; a folded one and the delay-aware ones with messages that are sent and
forgotten. Memory 1.0 is what 1F1B's first stage keeps: 8 micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from bench.plan.row import Gate, Row, table

from atoll.plan.cost.pipeline.events import play
from atoll.plan.cost.pipeline.greedy import delay_aware
from atoll.plan.cost.pipeline.meeting import play_meeting
from atoll.plan.cost.pipeline.orders import one_forward_one_backward, zero_bubble_h1
from atoll.plan.cost.pipeline.parts import Hop, Pipeline, cut, folded, straight

SOURCE = "CrossPipe"
STAGES, FAR, FORWARD_S = 8, 3, 0.038
ERROR_MAX = 0.10
GATED = ("1F1B", "ZBH1")
Cell = dict[str, str]


def rows() -> list[Row]:
    """Return every cell that is not one of the two that the stages were taken from."""
    return [row for name in PREDICTS for row in _rows(name)]


def _rows(name: str) -> list[Row]:
    return [
        Row(
            source=SOURCE,
            setting=f"{name}, delay {cell['latency']} T_F, line {cell['busy']} T_F, {_said(cell)}",
            quantity="s/micro-batch",
            reference=float(cell[name]),
            predicted=PREDICTS[name](cell),
        )
        for cell in table("crosspipe")
        if cell[name] and not (name in GATED and _calibrates(cell))
    ]


def gates() -> list[Gate]:
    """Return what is demanded of the two fixed orders, in all cells with a delay or with layers computed again."""
    return [
        Gate(
            source=SOURCE,
            demand=f"{name}: median error at most {ERROR_MAX:.0%}",
            value=(off := _off(name)),
            holds=off <= ERROR_MAX,
        )
        for name in GATED
    ]


def _off(name: str) -> float:
    return median(abs(row.error) for row in _rows(name))


def _said(cell: Cell) -> str:
    again = ", layers again" if _again(cell) else ""
    return f"{cell['gbs']} micro-batches, memory {float(cell['memory']):.0f}{again}"


def _calibrates(cell: Cell) -> bool:
    return float(cell["latency"]) == float(cell["busy"]) == 0 and not _again(cell) and cell["gbs"] == "16"


def _again(cell: Cell) -> bool:
    return cell["recompute"] == "layerwise"


def stage_s() -> tuple[float, float]:
    """Return a stage's input gradient and weights' gradient, from the cells without delay.

    16 c = (16 + 7)(F + D + W) under 1F1B, and 16 c = 16 (F + D + W) + 7 (F + D - W) under ZB-H1.
    """
    cell = next(each for each in table("crosspipe") if _calibrates(each))
    whole_s = 16 * float(cell["1F1B"]) / (16 + STAGES - 1)
    left_s = (16 * float(cell["ZBH1"]) - 16 * whole_s) / (STAGES - 1)
    weights_s = (whole_s - left_s) / 2
    return whole_s - FORWARD_S - weights_s, weights_s


def _pipeline(cell: Cell) -> Pipeline:
    """Return the eight stages of a cell; who computes layers again does so before the input's gradient."""
    input_s, weights_s = stage_s()
    input_s += FORWARD_S if _again(cell) else 0.0
    hops = [Hop()] * (STAGES - 1)
    hops[FAR] = Hop(latency_s=float(cell["latency"]) * FORWARD_S, busy_s=float(cell["busy"]) * FORWARD_S)
    return straight([FORWARD_S] * STAGES, [input_s] * STAGES, [weights_s] * STAGES, there=hops)


def _one_forward_one_backward(cell: Cell) -> float:
    count = int(cell["gbs"])
    return play_meeting(_pipeline(cell), one_forward_one_backward(STAGES, count)).finish_s / count


def _zero_bubble(cell: Cell) -> float:
    count = int(cell["gbs"])
    return play_meeting(_pipeline(cell), zero_bubble_h1(STAGES, count)).finish_s / count


def _folded(cell: Cell) -> float:
    """Return ZB-V: the order is made for lines that take no time, and played on those that do."""
    near = _pipeline({**cell, "latency": "0", "busy": "0"})
    found = delay_aware(cut(near, folded(STAGES)), int(cell["gbs"]), _room(cell))
    return play(cut(_pipeline(cell), folded(STAGES)), found.orders).finish_s / int(cell["gbs"])


def _aware(cell: Cell) -> float:
    return delay_aware(_pipeline(cell), int(cell["gbs"]), _room(cell)).timeline.finish_s / int(cell["gbs"])


def _aware_folded(cell: Cell) -> float:
    pipeline = cut(_pipeline(cell), folded(STAGES))
    return delay_aware(pipeline, int(cell["gbs"]), _room(cell)).timeline.finish_s / int(cell["gbs"])


def _room(cell: Cell) -> list[float]:
    """Return what each stage may keep; of layers that are computed again only inputs are, so that is no limit."""
    return [float(cell["gbs"]) if _again(cell) else STAGES * float(cell["memory"])] * STAGES


PREDICTS: dict[str, Callable[[Cell], float]] = {
    "1F1B": _one_forward_one_backward,
    "ZBH1": _zero_bubble,
    "ZBV": _folded,
    "CrossUD": _aware,
    "CrossWave": _aware_folded,
}
