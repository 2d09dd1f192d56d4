"""Worked examples: what they say of tables that change."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.plan import worked

from atoll.facts.book import Facts, load_facts
from atoll.plan.money.clouds import Functions, Machines


def _with(folder: Path, table: str, text: str) -> Facts:
    (folder / f"{table}.csv").write_text(text)
    return load_facts(folder / f"{table}.csv")


def test_the_more_hurry_the_more_is_hired_beside_ones_own(tmp_path: Path) -> None:
    found = [worked.hiring(load_facts(), hurry) for hurry in (1.0, 0.5, 0.25)]
    assert [each.best.hired for each in found] == sorted(each.best.hired for each in found)
    assert not found[0].hybrid_pays and found[1].hybrid_pays and found[2].hybrid_pays
    assert all(each.cloud_only and each.best.paid.total_usd < each.cloud_only.paid.total_usd for each in found)
    slow = _with(tmp_path, "homes", "profile,down_bytes_s,up_bytes_s\nfibre 500,5e6,1e6\n")
    assert worked.hiring(slow, 0.5).best.own == 0, "over a slow line all is hired"


def test_functions_serve_the_site_that_has_hardly_any_data() -> None:
    *_, cheapest = worked.placing(load_facts())
    assert [type(option) for option in cheapest.options] == [Machines, Machines, Functions]


@pytest.mark.parametrize("part", [0.5, 0.25])
def test_a_carbon_budget_is_kept_and_spent_on_clean_sites_first(part: float) -> None:
    everybody, found = worked.budgeted(load_facts(), None), worked.budgeted(load_facts(), part)
    assert everybody.chosen.all()
    assert found.total_g == pytest.approx(part * everybody.total_g, rel=0.05)
    often = found.chosen.mean(axis=0).tolist()
    assert often == sorted(often, reverse=True) and often[0] == 1 > often[-1]


def test_a_run_waits_for_the_sun_where_there_is_some(tmp_path: Path) -> None:
    begin, part = worked.beginning(load_facts(), "US-CAL-CISO", 6.0)
    assert 15 <= begin <= 19 and part < 0.8, "nine to three in California"
    assert worked.beginning(load_facts(), "FR", 6.0)[1] == pytest.approx(1)
    night = [f"mine,{hour},{0.5 if hour < 6 else 7 / 6}" for hour in range(24)]
    (tmp_path / "days.csv").write_text("\n".join(["shape,hour,part", *night]) + "\n")
    (tmp_path / "grids.csv").write_text("code,day,utc_h\nFR,mine,0\n")
    assert worked.beginning(load_facts(tmp_path), "FR", 6.0) == pytest.approx((0.0, 0.5))


def test_stages_cost_less_than_copies_where_leaving_costs_something(tmp_path: Path) -> None:
    found = worked.stepping(load_facts())
    assert found["stages"].total_usd < found["copies"].total_usd
    free = worked.stepping(_with(tmp_path, "egress", "provider,scope,origin,usd_gb\naws,world,any,0\n"))
    assert free["stages"].total_usd == free["copies"].total_usd == found["copies"].usd("compute")


def test_every_example_prints_a_table_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert worked.main([]) == 0
    out = capsys.readouterr().out
    assert all(f"{name}:\n" in out for name in worked.WORKED)
    assert worked.main(["hir"]) == 2
