"""What was published of schedules and plans, and whether the planner still says it."""

from __future__ import annotations

from types import ModuleType

import pytest
from bench.plan import bubbles, crosspipe, sailor
from bench.plan.row import table


@pytest.mark.parametrize("source", [sailor, crosspipe, bubbles], ids=["sailor", "crosspipe", "bubbles"])
def test_gates_hold(source: ModuleType) -> None:
    for gate in source.gates():
        assert gate.holds, f"{gate.source}: {gate.demand}, found {gate.value}"


def test_every_plan_is_predicted_and_every_doubt_has_a_reason() -> None:
    rows = [row for row in sailor.rows() if row.quantity == "s/step"]
    assert len(rows) == 26
    assert sum("(" in row.setting for row in rows) == 5
    assert all(row.predicted > 0 for row in rows)


def test_layers_of_the_stages_come_from_two_cells_only() -> None:
    input_s, weights_s = crosspipe.stage_s()
    assert input_s + weights_s + crosspipe.FORWARD_S == pytest.approx(16 * 0.151 / 23)
    calibrating = [cell for cell in table("crosspipe") if crosspipe._calibrates(cell)]
    assert len(calibrating) == 1
