"""What was published holds, and every gate could have failed."""

from __future__ import annotations

import pytest
from bench.plan import howcw, money


@pytest.mark.parametrize("source", [howcw, money])
def test_every_gate_of_a_source_holds(source: object) -> None:
    gates = source.gates()  # type: ignore[attr-defined]
    assert gates
    assert not [gate for gate in gates if not gate.holds]


def test_the_bills_that_say_how_much_was_sent_are_not_among_the_rows_that_they_predict() -> None:
    settings = [(row.setting, row.quantity) for row in howcw.rows()]
    assert len(settings) == len(set(settings))
    assert ("RoBERTaXLM 2+2 azure x1", "$/h external") not in settings
    assert ("RoBERTaXLM 4x2 gc x1", "$/h external") not in settings


def test_the_law_of_granularity_is_a_best_case_that_is_hardly_missed() -> None:
    gains = [row for row in howcw.rows() if row.quantity == "gain"]
    assert len(gains) == 8
    assert all(-0.02 < row.error < 0.04 for row in gains)
