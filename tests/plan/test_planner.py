"""Plans: on the front, within memory, with ranges and reasons; a clear no where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from msgspec.structs import replace

from atoll.errors import SpecError
from atoll.facts.book import load_facts
from atoll.plan.cost.holds import device_bytes
from atoll.plan.files import fleet_text, run_text, toml
from atoll.plan.goal import Goal, size_named
from atoll.plan.offers import untold
from atoll.plan.planner import Verdict, plan
from atoll.plan.spread import range_of, spread
from atoll.plan.stages import job_of
from atoll.spec.fleet import Churn, Device, Fleet, Machine, expand, load_fleet, played
from atoll.spec.load import load_recipe, load_run
from atoll.spec.terms import Rented

FACTS = load_facts()
RECIPES = ("ddp", "diloco", "opendiloco")
GOAL = Goal(size=size_named("125m"), vocab=1024, context=512, tokens=10**9, batch_tokens=2**17)


def planned(goal: Goal, fleet: str = "homes", **changes: object) -> Verdict:
    where = load_fleet(fleet)
    machines = [replace(machine, **changes) for machine in expand(where)]
    return plan(goal, where, machines, RECIPES, FACTS)


def test_nothing_that_was_looked_at_beats_a_plan_in_everything() -> None:
    verdict = planned(GOAL)
    assert verdict.plans
    for each in verdict.plans:
        mine = float(each.middle.time_s), float(each.middle.usd), float(each.middle.carbon_g)
        for other in verdict.judged:
            if other.proven:
                assert not all(1.05 * theirs < ours for theirs, ours in zip(other.takes, mine, strict=True))


def test_a_round_has_the_steps_of_its_offer() -> None:
    for each in planned(GOAL).judged:
        assert each.middle.pace.steps == each.offer.steps
        if not each.offer.alone and "speed" not in each.offer.name:
            work = each.offer.run.recipe.work
            samples = each.offer.steps * work.batch * len(each.offer.crew.machines)
            assert float(each.middle.pace.samples) == pytest.approx(samples)


def test_somebody_is_best_in_time_in_money_and_in_carbon() -> None:
    verdict = planned(GOAL)
    assert {name for each in verdict.plans for name in each.best} == {"time", "money", "carbon"}
    fastest = next(each for each in verdict.plans if "time" in each.best)
    assert float(fastest.middle.time_s) == min(each.takes[0] for each in verdict.judged if each.proven)


def test_middles_lie_within_ranges_and_inputs_move_them() -> None:
    for each in planned(GOAL).plans:
        for found in (each.time_s, each.usd, each.energy_kwh, each.carbon_g):
            assert 0 < found.low < found.middle < found.high
        assert {sway.name for sway in each.sways if sway.matters} >= {"computing", "electricity", "grid"}
        assert all(sway.source and sway.as_of for sway in each.sways)


def test_an_impossible_deadline_gets_a_no_with_the_nearest_way() -> None:
    verdict = planned(replace(GOAL, deadline_s=60.0))
    assert not verdict.plans
    assert verdict.nearest is not None
    assert "time" in verdict.why_not
    assert "instead of 1 min" in verdict.why_not
    assert verdict.nearest.keeps == 0


def test_a_goal_that_a_plan_keeps_to_is_kept_by_all_of_them() -> None:
    free = planned(GOAL)
    limit = 1.5 * min(each.takes[0] for each in free.judged if each.proven)
    for each in planned(replace(GOAL, deadline_s=limit)).plans:
        assert float(each.middle.time_s) <= limit


def test_a_model_that_no_machine_holds_is_refused_with_the_memory_it_needs() -> None:
    verdict = planned(replace(GOAL, size=size_named("70b")))
    assert not verdict.plans
    assert "no machine holds a model" in verdict.why_not
    assert "GB" in verdict.why_not


def test_a_model_that_fits_no_machine_is_cut_over_several_and_that_is_a_plan_only() -> None:
    fleet = load_fleet("lan")
    small = [
        replace(each, device=replace(each.device, memory_bytes=800 * 10**6), availability=Churn(up_s=9.0, down_s=1.0))
        for each in expand(fleet)
    ]
    verdict = plan(GOAL, fleet, small, RECIPES, FACTS)
    assert not verdict.plans
    assert verdict.staged is not None
    placed = verdict.staged.placement
    assert len(placed.stages) > 1
    assert "one peer" in placed.plan_only
    assert [stage.first for stage in placed.stages] == [0, *(stage.end for stage in placed.stages[:-1])]
    layers = job_of(GOAL).layers
    for stage in placed.stages:
        assert sum(layer.state_bytes for layer in layers[stage.first : stage.end]) <= 800 * 10**6
    assert verdict.staged.there == pytest.approx(0.9 ** len(placed.stages), rel=1e-6)
    assert 0 < verdict.staged.time_s.low < verdict.staged.time_s.middle < verdict.staged.time_s.high


def test_data_that_may_not_move_make_it_a_plan_only() -> None:
    assert all("one corpus" in each.offer.plan_only for each in planned(replace(GOAL, data_stays=True)).plans)


def test_a_machine_that_comes_and_goes_counts_for_less() -> None:
    steady = planned(GOAL).judged[0].middle
    often = planned(GOAL, availability=Churn(up_s=3600.0, down_s=3600.0)).judged[0].middle
    assert often.present < 0.5 < 0.85 < steady.present
    assert float(often.time_s) > 1.5 * float(steady.time_s)


def test_rent_is_paid_for_the_hours_a_machine_is_there() -> None:
    verdict = planned(GOAL, "lan", terms=Rented(usd_hour=2.0))
    for each in verdict.plans:
        hours = float(each.middle.time_s) / 3600
        assert float(each.middle.usd) == pytest.approx(2.0 * hours * len(each.offer.crew.machines))


def test_what_leaves_a_cloud_region_is_paid_by_its_source() -> None:
    fleet = load_fleet("lan")
    rented = Rented(usd_hour=1e-6)
    places = ("aws:us-east-1", "aws:us-east-1", "aws:ap-southeast-2", "aws:ap-southeast-2")
    machines = [replace(m, region=place, terms=rented) for m, place in zip(expand(fleet), places, strict=True)]
    verdict = plan(GOAL, fleet, machines, ("ddp",), FACTS)
    (together,) = (each for each in verdict.judged if len(each.offer.crew.machines) == 4)
    paid = {part.site: float(part.usd) for part in together.middle.bill.parts if part.kind == "egress"}
    prices = [FACTS.egress(one, other).usd_gb for one, other in (places[::3], places[::-3])]
    assert paid[places[3]] / paid[places[0]] == pytest.approx(prices[1] / prices[0], rel=0.02)
    near = next(each for each in verdict.judged if len(each.offer.crew.machines) == 2)
    assert not any(part.kind == "egress" for part in near.middle.bill.parts)


def test_a_fact_of_ones_own_changes_the_numbers(tmp_path: Path) -> None:
    (tmp_path / "electricity.csv").write_text("market,usd_kwh,source,as_of\nWorld residential,1.65,mine,2026-11\n")
    fleet = load_fleet("homes")
    dear = plan(GOAL, fleet, expand(fleet), RECIPES, load_facts(tmp_path / "electricity.csv"))
    cheap = planned(GOAL)
    assert dear.judged[0].takes[1] == pytest.approx(10 * cheap.judged[0].takes[1], rel=0.01)


def test_recipes_whose_time_nobody_can_tell_are_left_out_with_the_reason() -> None:
    for name, why in (("noloco", "circles"), ("intellect-1", "in turn"), ("auto", "knobs")):
        assert why in untold(load_recipe(name))
    assert untold(load_recipe("sparseloco")) == ""


def machines_of(draw: some.DrawFn) -> list[Machine]:
    def machine(place: int) -> Machine:
        rate = draw(some.floats(1e5, 1e9))
        churn = Churn(up_s=draw(some.floats(600, 1e6)), down_s=draw(some.floats(0, 1e5)))
        return Machine(
            name=f"m{place}",
            region=draw(some.sampled_from(["us-west", "us-east", "eu"])),
            device=Device(flop_s=draw(some.floats(1e12, 1e15)), memory_bytes=draw(some.integers(10**9, 10**11))),
            up_bytes_s=rate,
            down_bytes_s=rate * draw(some.floats(1, 20)),
            disk_bytes=10**12,
            availability=churn,
        )

    return [machine(place) for place in range(draw(some.integers(1, 6)))]


@some.composite
def cases(draw: some.DrawFn) -> tuple[Goal, list[Machine]]:
    size = size_named(draw(some.sampled_from(["15m", "125m", "1b", "8b"])))
    return replace(GOAL, size=size, context=draw(some.sampled_from([128, 1024]))), machines_of(draw)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(cases())
def test_no_plan_asks_more_of_a_machine_than_it_has(case: tuple[Goal, list[Machine]]) -> None:
    goal, machines = case
    fleet: Fleet = load_fleet("homes")
    verdict = plan(goal, fleet, machines, ("diloco",), FACTS)
    for each in verdict.judged:
        work, pace = each.offer.run.recipe.work, each.middle.pace
        for machine in each.offer.crew.machines:
            at_once = work.micro_batch or work.batch
            need = device_bytes(
                goal.size, goal.vocab, goal.context, at_once, work.inner, recompute=each.offer.recompute
            )
            assert need <= machine.device.memory_bytes
            assert isinstance(machine.availability, Churn)
        there = [m.availability.up_s / (m.availability.up_s + m.availability.down_s) for m in machines]  # type: ignore[union-attr]
        assert each.middle.present <= max(there) + 1e-9
        for kind in each.scene.kinds:
            for (one, _), size_bytes in kind.flows.items():
                line = each.scene.ways.up_bytes_s[each.scene.members.index(one)]
                assert size_bytes <= 1.001 * float(pace.lines_s) / kind.part * line
    assert verdict.plans or verdict.why_not


# files


def test_the_run_file_of_a_plan_is_the_run_that_was_judged(tmp_path: Path) -> None:
    for each in planned(GOAL).plans:
        path = tmp_path / "run.toml"
        path.write_text(run_text(each.offer, GOAL.tokens, "about\nit"), "utf-8")
        assert load_run(path) == each.offer.run


def test_the_fleet_file_of_a_plan_has_its_machines_and_links(tmp_path: Path) -> None:
    fleet = load_fleet("town")
    (first, *_) = (each for each in planned(GOAL, "town").judged if not each.offer.alone)
    path = tmp_path / "fleet.toml"
    path.write_text(fleet_text(fleet, first.offer.crew), "utf-8")
    again = load_fleet(path)
    assert [played(each) for each in expand(again)] == [played(each) for each in first.offer.crew.machines]
    assert again.links == fleet.links


def test_texts_and_tables_survive_toml() -> None:
    import tomllib

    tree = {"a": 'quote " and é', "b": {"c": [1, 2.5, True], "d": {"kind": "x"}}, "e": [{"f": 1}, {"f": {"g": 2}}]}
    assert tomllib.loads(toml(tree)) == tree


# spreads


def test_a_tenth_of_draws_lies_beyond_either_end() -> None:
    about = spread(0.5, 1.0, 3.0, "here")
    drawn = about.at(np.random.default_rng(0).standard_normal(100_000))
    found = range_of(drawn)
    assert (found.low, found.middle, found.high) == pytest.approx((0.5, 1.0, 3.0), rel=0.02)


def test_what_is_nothing_stays_nothing() -> None:
    assert spread(0.0, 0.0, 0.0, "here").at(np.array([-2.0, 0.0, 2.0])).tolist() == [0.0, 0.0, 0.0]


def test_a_size_that_does_not_exist_is_named_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="no size '126m'") as refused:
        size_named("126m")
    assert "125m" in refused.value.hint


def test_planning_loads_neither_torch_nor_an_event_loop() -> None:
    code = (
        "import sys, pkgutil, importlib, atoll.plan as p\n"
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(p.__path__, 'atoll.plan.')]\n"
        "print(sorted({'torch', 'asyncio'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]", said.stdout
