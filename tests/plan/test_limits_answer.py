"""The answer: shipped scenarios, what a file may say, what turns a verdict, and the nearest plan."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from atoll.errors import SpecError
from atoll.plan.limits import answer, bandwidth, cost, drift, memory
from atoll.plan.limits.answer import LIMITS, decide, find, nearest
from atoll.plan.limits.finding import SEVERITY, Limit
from atoll.plan.limits.flip import flip
from atoll.plan.limits.reader import load_scenario, scenario_names, scenario_of, scenario_text
from atoll.plan.limits.regimes import regimes
from atoll.plan.limits.scenario import SHARES, WHOLE, Scenario, paths, said, with_value, worlds
from tests.few import few_of

NAMES = ("homes", "labs", "organisation")


def test_three_scenarios_are_shipped_and_one_says_yes_one_no_and_one_only_if() -> None:
    assert tuple(scenario_names()) == NAMES
    assert {name: decide(load_scenario(name))[0] for name in NAMES} == {
        "homes": "no",
        "labs": "yes",
        "organisation": "only if",
    }


def test_every_number_of_a_shipped_scenario_that_is_no_round_statement_says_where_it_is_from() -> None:
    for name in NAMES:
        s = load_scenario(name)
        for path in {path for limit in LIMITS for path in limit.inputs}:
            held = said(s, path)
            low, high = held.ends
            assert low <= held.value <= high
            assert low == high or held.source != "stated" or path == "peers.count", path


@pytest.mark.parametrize("name", few_of(NAMES, ("homes",)))
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_formula_and_run_agree_within_what_they_state(name: str, limit: Limit) -> None:
    for check in limit.checks(load_scenario(name), 1):
        assert check.agrees, (check.what, check.formula, check.run, check.within)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_a_step_of_a_verdict_is_just_where_it_is_said_to_be(limit: Limit) -> None:
    s = load_scenario("homes")
    before = limit.judge(s).verdict
    for path in limit.inputs:
        turn = flip(s, limit.judge, path)
        if turn is None:
            continue
        assert turn.verdict != before
        assert limit.judge(with_value(s, path, turn.at)).verdict == turn.verdict
        inwards = 1.0 if turn.now > turn.at else -1.0
        nearer = turn.at + (inwards if path in WHOLE else (turn.now - turn.at) * 1e-3)
        assert limit.judge(with_value(s, path, nearer)).verdict == before, path


def test_a_milder_verdict_is_looked_for_past_a_harsher_one() -> None:
    s = with_value(with_value(load_scenario("homes"), "model.parameters", 1.5e9), "goal.budget_usd", 30000.0)
    nearest_, milder = flip(s, cost.judge, "peers.count"), flip(s, cost.judge, "peers.count", milder=True)
    assert nearest_ is not None and nearest_.verdict == "wall" and nearest_.at > 1000
    assert milder is not None and milder.verdict == "no wall" and milder.at < 1000
    assert milder.at == round(milder.at), "peers come whole"


def test_the_model_s_size_does_not_turn_the_verdict_on_bandwidth() -> None:
    assert flip(load_scenario("labs"), bandwidth.judge, "model.parameters") is None


def test_a_finding_has_inputs_checks_tables_and_drawings() -> None:
    found = find(memory.LIMIT, load_scenario("homes"), 0)
    assert found.verdict == "wall" and found.low <= found.number <= found.high
    assert found.checks and found.tables and found.drawings
    assert {each.path for each in found.given} == set(memory.LIMIT.inputs)


def test_the_nearest_plan_removes_every_wall_of_the_homes() -> None:
    s = load_scenario("homes")
    plan = nearest(s)
    assert plan is not None and plan.verdict != "no"
    assert plan.days <= s.goal.deadline_days.value
    assert any("parameters" in change for change in plan.changes), "a smaller model is what memory asks for"


def anything(rng: np.random.Generator) -> Scenario:
    """Return a scenario with half of its numbers drawn from far around."""
    s = load_scenario(NAMES[rng.integers(3)])
    for path in sorted({path for limit in LIMITS for path in limit.inputs}):
        if rng.random() < 0.5:
            value = (said(s, path).value or 1.0) * 10 ** rng.uniform(-2, 2)
            s = with_value(s, path, rng.uniform(0.01, 0.99) if path in SHARES else float(value))
    return with_value(with_value(s, "data.moves", bool(rng.integers(2))), "data.assigned", bool(rng.integers(2)))


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_asked_the_answer_is_yes_only_where_nothing_stands_in_the_way(seed: int) -> None:
    s = anything(np.random.default_rng(seed))
    verdict, binding, _ = decide(s)
    assert (verdict == "yes") == (answer.severity(s) == 0) == (binding == "")
    assert (verdict == "no") == (answer.severity(s) >= 8)
    plan = nearest(s)
    assert plan is None or plan.changes
    assert verdict != "yes" or plan is None, "where nothing stands in the way there is nothing to ease"


def judged(s: Scenario) -> dict[str, int]:
    return {limit.name: SEVERITY[limit.judge(s).verdict] for limit in LIMITS}


@pytest.mark.parametrize(("name", "limit"), [("homes", "memory"), ("organisation", "bandwidth")])
def test_the_first_easing_eases_the_limit_that_binds_worst_and_makes_no_other_a_wall(name: str, limit: str) -> None:
    s = load_scenario(name)
    found = answer._eased(s)
    assert found is not None
    before, after = judged(s), judged(found[1])
    assert after[limit] < before[limit]
    assert not any(after[each] == 2 > before[each] for each in before)


def test_nothing_is_eased_where_nothing_stands_in_the_way() -> None:
    assert answer._eased(load_scenario("labs")) is None


def moved(s: Scenario, path: str) -> list[Scenario]:
    """Return scenarios with only this number changed, near and far."""
    now = said(s, path).value
    values = (0.01, 0.1, 0.3, 0.5, 0.9, 0.99) if path in SHARES else [(now or 1.0) * f for f in (0.01, 0.3, 2.5, 100.0)]
    return [with_value(s, path, float(value)) for value in values if value != now]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_every_number_that_a_limit_hangs_on_is_among_the_inputs_it_shows(limit: Limit) -> None:
    starts = [load_scenario(name) for name in NAMES]
    starts.append(with_value(with_value(starts[0], "data.assigned", False), "work.proportional", False))
    hangs, told = set(), set()
    for s in starts:
        here = limit.judge(s)
        for path in paths(s):
            found = [limit.judge(each) for each in moved(s, path)]
            hangs |= {path} if any((f.verdict, f.number) != (here.verdict, here.number) for f in found) else set()
            told |= {path} if any(f.binds != here.binds for f in found) else set()
    assert hangs <= set(limit.inputs)
    assert set(limit.inputs) <= hangs | told, "none of them is there for nothing"


def test_who_is_late_without_any_wall_is_told_what_eats_the_time() -> None:
    s = with_value(load_scenario("labs"), "goal.deadline_days", 5.0)
    verdict, binding, why = decide(s)
    assert (verdict, binding) == ("no", "peers")
    assert "days" in why
    plan = nearest(s)
    assert plan is not None and plan.verdict != "no"


def test_an_impossible_deadline_is_the_ceiling_s_wall() -> None:
    s = with_value(load_scenario("labs"), "goal.deadline_days", 0.5)
    assert drift.judge(s).verdict == "wall"
    assert decide(s)[:2] == ("no", "drift")


def test_worlds_answer_all_at_once_as_one_by_one() -> None:
    many = worlds(load_scenario("homes"), np.random.default_rng(0), 5)
    for limit in LIMITS:
        drawn = np.broadcast_to(np.asarray(limit.number(many), float), 5)
        assert np.isfinite(drawn).all(), limit.name
    one = load_scenario("homes")
    for path in bandwidth.LIMIT.inputs:
        one = with_value(one, path, float(np.asarray(said(many, path).value)[3]))
    assert float(bandwidth.number(one)) == pytest.approx(float(np.asarray(bandwidth.number(many))[3]))


def test_draws_stay_about_the_value_and_inside_their_ends() -> None:
    s = load_scenario("homes")
    drawn = np.asarray(worlds(s, np.random.default_rng(1), 4000).line.up_mbit.value)
    low, high = s.line.up_mbit.ends
    assert np.quantile(drawn, 0.1) == pytest.approx(low, rel=0.1)
    assert np.quantile(drawn, 0.9) == pytest.approx(high, rel=0.1)


def test_regimes_tell_the_three_scenarios_apart() -> None:
    holds = {name: {each.name for each in regimes(load_scenario(name)) if each.holds} for name in NAMES}
    assert "data may not move" in holds["organisation"] - holds["labs"]
    assert "a model that one peer holds" in holds["labs"] - holds["homes"]
    assert "two to ten clusters with a gigabit" in holds["labs"]
    assert [each.holds for each in regimes(load_scenario("labs"))].count(None) == 1


@pytest.mark.parametrize(
    ("old", "new", "what", "hint"),
    [
        ("up_mbit =", "up_mbits =", "line: unknown key 'up_mbits'", "did you mean 'up_mbit'"),
        ("cap_gb_month = 0", 'cap_gb_month = "none"', "line.cap_gb_month: 'none' is not a number", "{ value = 20"),
        ("cap_gb_month = 0", "cap_gb_month = { valu = 3 }", "line.cap_gb_month: unknown key 'valu'", "mean 'value'"),
        ("deadline_days = 30", "deadline_days = 0", "goal.deadline_days: 0 is out of range", "more than 0"),
        ("quorum = 1.0", "quorum = 1.5", "work.quorum: 1.5 is out of range", "from 0 to 1"),
        ("moves = true", 'moves = "yes"', 'data.moves: "yes" is not true or false', "true or false"),
        ('peers = "known"', 'peers = "friends"', 'trust.peers: unknown choice "friends"', "strangers"),
        ("value = 0.97, low = 0.9,", "value = 0.97, low = 0.98,", "peers.up_share: 0.97 is not between", "low <="),
        ("redundancy = 1.0", "redundancy = 0.9", "work.redundancy: 0.9 is out of range", "at least 1"),
        ("devices = 8", "devices = 7.5", "peers.devices: 7.5 is not a whole number", "8"),
        ("budget_usd = 20000", "", "goal: missing key 'budget_usd'", "add"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_the_place_and_what_to_write(old: str, new: str, what: str, hint: str) -> None:
    text = scenario_text("labs")
    assert old in text
    with pytest.raises(SpecError) as refused:
        scenario_of(text.replace(old, new, 1), "mine.toml")
    assert refused.value.what.startswith(f"mine.toml: {what}")
    assert hint in refused.value.hint


def test_an_unknown_scenario_names_the_known_ones() -> None:
    with pytest.raises(SpecError, match="no scenario is called 'lab'") as refused:
        load_scenario("lab")
    assert "did you mean 'labs'" in refused.value.hint


def test_a_wall_weighs_more_than_all_that_only_binds() -> None:
    labs = load_scenario("labs")
    bound = with_value(with_value(labs, "data.moves", False), "trust.attackers", 0.01)
    assert answer.severity(labs) < answer.severity(bound) < answer.severity(load_scenario("homes"))
    assert decide(bound)[0] == "only if"


def test_asking_for_limits_loads_neither_torch_nor_an_event_loop() -> None:
    code = (
        "import sys, atoll.plan.limits.answer, atoll.plan.limits.fusion;"
        "print({'torch', 'asyncio', 'scipy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
