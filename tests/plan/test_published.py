"""What was published of schedules and plans, and whether the planner still says it."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from bench.plan import bubbles, crosspipe, sailor
from bench.plan.__main__ import sources
from bench.plan.row import PUBLISHED, table

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "measured.md"


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


@pytest.mark.long
def test_what_was_published_and_what_is_ours_is_counted_apart_as_the_report_says() -> None:
    rows = [row for module in sources() for row in module.rows()]
    said = re.search(
        r"against (\d+) published figures, and apart from them against (\d+) of\s+our\s+own", REPORT.read_text()
    )
    assert said is not None
    counted = [sum(row.basis == basis for row in rows) for basis in ("published", "ours")]
    assert counted == [int(said[1]), int(said[2])]
    assert {row.source for row in rows if row.basis == "ours"} >= {"DT-FM formulas", "Varuna's rule"}
    assert len({(row.source, row.setting, row.quantity) for row in rows}) == len(rows), "no figure counts twice"


def test_no_published_row_is_named_in_the_package() -> None:
    names = {path.stem for path in PUBLISHED.iterdir()}
    texts = [path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py")]
    assert names and not [
        name for name in names if any(f"{name}.csv" in text or "bench.plan.row" in text for text in texts)
    ]
