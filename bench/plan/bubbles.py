"""What is known of schedules and bytes to the digit, and two sets of measurements that show a trend.

Zero-bubble's formulas (the table of its repository) are met exactly by playing them, and so are the slots of Varuna's
rule, which were counted by a second program written from the rule alone. Bytes of GPT-3 1.3B in eight stages are
Together's. Measured bubbles (p = 8, m = 24, as others report them) are of real stages whose times we do not know: they
are played with F = D = 2 W, which is our assumption, and only their order is demanded; ZB-2p's solver shortens each
device's own span and ours the whole step, so that its row stays far off. What formulas or a rule come to was computed
by us: those rows are "ours".
"""

from __future__ import annotations

from itertools import pairwise

from bench.plan.row import Basis, Gate, Row, table

from atoll.plan.cost.collective import all_reduce_bytes, boundary_bytes, pipeline_bytes
from atoll.plan.cost.pipeline.closed import bubble_part
from atoll.plan.cost.pipeline.events import Timeline, play
from atoll.plan.cost.pipeline.greedy import delay_aware, varuna
from atoll.plan.cost.pipeline.orders import one_forward_one_backward, zero_bubble_h1, zero_bubble_h2
from atoll.plan.cost.pipeline.parts import Pipeline, straight

STAGES, MICRO_BATCHES = 8, 24
EXACT = 1e-9
ROUNDED = 0.001


def rows() -> list[Row]:
    """Return all of them."""
    return [*_formulas(), *_slots(), *_bytes(), *_measured()]


def gates() -> list[Gate]:
    """Return what is demanded of each set."""
    measured = sorted(_measured(), key=lambda row: -row.reference)
    falls = all(one.predicted >= other.predicted for one, other in pairwise(measured))
    return [
        _exact("zero-bubble", [row for row in _formulas() if row.reference], EXACT),
        _exact("Varuna's rule", _slots(), EXACT),
        _exact("Together", _bytes(), ROUNDED),
        Gate(source="zero-bubble", demand="measured bubbles come in this order", value=float(falls), holds=falls),
    ]


def _exact(source: str, some: list[Row], error_max: float) -> Gate:
    worst = max(abs(row.error) for row in some)
    return Gate(source=source, demand=f"error at most {error_max:g}", value=worst, holds=worst <= error_max)


def _even(weights_s: float = 1.0) -> Pipeline:
    return straight([1.0] * STAGES, [1.0] * STAGES, [weights_s] * STAGES)


def _idle(found: Timeline) -> float:
    """Return the part of its own time that the worst device waits: each takes its optimizer's step by itself."""
    idle_s = max(found.idle_s)
    return idle_s / (idle_s + max(found.busy_s))


def _formulas() -> list[Row]:
    """Return bubbles as multiples of 1F1B's idle time, for F = D = W."""
    plain = max(play(_even(), one_forward_one_backward(STAGES, MICRO_BATCHES)).idle_s)
    first = max(play(_even(), zero_bubble_h1(STAGES, MICRO_BATCHES)).idle_s)
    second = max(play(_even(), zero_bubble_h2(STAGES, MICRO_BATCHES)).idle_s)
    part = bubble_part(STAGES, MICRO_BATCHES)
    played = play(_even(), one_forward_one_backward(STAGES, MICRO_BATCHES)).bubble
    named = [("1F1B", "part", part, played), ("ZB1P", "of 1F1B", 1 / 3, first / plain)]
    made = [_row("zero-bubble", f"{name}, p 8, m 24", f"bubble, {what}", x, y, "ours") for name, what, x, y in named]
    return [*made, _row("zero-bubble", "ZB2P, p 8, m 24", "busy, part", 1.0, 1 - second / plain, "ours")]


def _slots() -> list[Row]:
    found = []
    for each in table("varuna_slots"):
        stages, count = int(each["stages"]), int(each["micro_batches"])
        timeline = varuna(straight([1.0] * stages, [1.0] * stages, [1.0] * stages), count).timeline
        setting = f"P {stages}, M {count}"
        idle = timeline.finish_s - timeline.busy_s[0]
        found.append(_row("Varuna's rule", setting, "slots", float(each["slots"]), timeline.finish_s, "ours"))
        found.append(_row("Varuna's rule", setting, "idle slots of stage 0", float(each["idle"]), idle, "ours"))
    return found


def _bytes() -> list[Row]:
    boundary = boundary_bytes(1, 2048, 2048, 4.0)
    setting = "GPT-3 1.3B, 8 stages, 64 sequences"
    return [
        _row("Together", setting, "pipeline, GB/step", 15.03, pipeline_bytes(boundary, 8, 64) / 1e9),
        _row("Together", setting, "data parallel, GB/step", 10.4, all_reduce_bytes(1.3e9 * 4, 1e12) / 1e9),
    ]


def _measured() -> list[Row]:
    room = [2.0 * STAGES] * STAGES
    found = {
        "1F1B": play(_even(0.5), one_forward_one_backward(STAGES, MICRO_BATCHES)),
        "ZB-1p": play(_even(0.5), zero_bubble_h1(STAGES, MICRO_BATCHES)),
        "ZB-H2": play(_even(0.5), zero_bubble_h2(STAGES, MICRO_BATCHES)),
        "ZB-2p": delay_aware(_even(0.5), MICRO_BATCHES, room).timeline,
    }
    published = {each["schedule"]: float(each["bubble"]) for each in table("zero_bubble")}
    said = "p 8, m 24, F = D = 2 W assumed"
    return [_row("zero-bubble", f"{name}, {said}", "bubble", published[name], _idle(found[name])) for name in found]


def _row(
    source: str, setting: str, quantity: str, reference: float, predicted: float, basis: Basis = "published"
) -> Row:
    return Row(source=source, setting=setting, quantity=quantity, basis=basis, reference=reference, predicted=predicted)
