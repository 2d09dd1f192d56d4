"""FusionAI's fifty against four: parity by what makers promise, collapse over homes' lines, and the money."""

from __future__ import annotations

import pytest
from bench.plan import fusionai

from atoll.plan.limits import fusion as f

E = f.example()


def test_peaks_are_at_parity_and_so_is_a_pipeline_whose_lines_keep_up() -> None:
    assert f.peak_ratio(E.many, E.few) == pytest.approx(0.984, abs=0.0005)
    played = f.pace_s(E, E.many, 2 * f.line_needed_mbit(E), 150) / f.pace_s(E, E.few, E.few.up_mbit, 150)
    assert played == pytest.approx(0.984, abs=0.01)


def test_below_the_line_that_is_needed_throughput_falls_with_the_line() -> None:
    needed = f.line_needed_mbit(E)
    enough, half = (f.pace_s(E, E.many, line, 150) for line in (needed, needed / 2))
    assert half / enough == pytest.approx(0.5, abs=0.03), "a line that is just enough is not more than that"
    assert float(f.ratio(E, needed)) == pytest.approx(f.peak_ratio(E.many, E.few), rel=1e-6)
    assert float(f.ratio(E)) < 0.01, "a home's uplink"


def test_pipelines_played_are_as_fast_as_the_formula_says() -> None:
    for check in f.checks(E):
        assert check.agrees, (check.what, check.formula, check.run)


def test_a_sample_is_a_dozen_times_as_long_on_its_way() -> None:
    compute = E.many.count * f.compute_s(E, E.many) / (E.few.count * f.compute_s(E, E.few))
    assert compute == pytest.approx(12.7, abs=0.05)


def test_three_years_cost_so_much_and_are_even_at_such_a_price_of_power() -> None:
    assert f.total_usd(E, E.many, usd=699) == pytest.approx(104e3, rel=0.01)
    assert f.total_usd(E, E.many) == pytest.approx(88e3, rel=0.01)
    assert f.total_usd(E, E.few) == pytest.approx(109e3, rel=0.01)
    even = f.even_usd_kwh(E)
    assert even == pytest.approx(0.22, abs=0.002)
    assert f.total_usd(E, E.many, usd_kwh=even) == pytest.approx(f.total_usd(E, E.few, usd_kwh=even))


def test_the_gates_of_the_claim_hold() -> None:
    assert fusionai.rows()
    assert all(gate.holds for gate in fusionai.gates())
