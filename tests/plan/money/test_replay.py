"""Every policy plays the same game; nobody beats hindsight; the migrate rule is never sorry while prices stay."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from bench.plan import markets as bench_markets
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from atoll.errors import SpecError
from atoll.plan.money.policy import (
    Daily,
    EagerNext,
    Interrupted,
    Migrate,
    OnDemand,
    Policy,
    Stay,
    UniformProgress,
    break_even_h,
    migrate_pays,
)
from atoll.plan.money.replay import Job, compared, hindsight_usd, replay
from atoll.plan.money.trace import Trace
from tests.plan.money.market import jobs, markets, trace

POLICIES: tuple[Policy, ...] = (Interrupted(), EagerNext(), Migrate(), Migrate(hysteresis_usd=2.0), Daily(every_h=5))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_policy_pays_less_than_hindsight(data: st.DataObject) -> None:
    market = data.draw(markets())
    job = data.draw(jobs(market))
    policies = (*POLICIES, UniformProgress()) if job.on_demand_usd_hour is not None else POLICIES
    found = compared(market, job, policies)
    for each in (*found.outcomes, *found.static):
        if each.is_done:
            assert each.usd >= found.hindsight_usd - 1e-9
            assert each.finish_h <= (job.deadline_h or math.inf)
    if job.on_demand_usd_hour is not None:
        assert math.isfinite(found.hindsight_usd)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_hindsight_is_what_trying_everything_finds(data: st.DataObject) -> None:
    market = data.draw(markets(steps_max=7, zones_max=2))
    job = data.draw(jobs(market))
    assert hindsight_usd(market, job) == pytest.approx(_tried(market, job))


def _tried(market: Trace, job: Job) -> float:
    """Return the least over every sequence of places, played by the rules with saves whenever they help."""
    leave = [job.state_gb * job.egress_usd_gb[name] for name in (*market.zones, "on demand")]
    end = market.steps if job.deadline_h is None else int(job.deadline_h)
    steady, count = job.on_demand_usd_hour, len(market.zones)

    @cache
    def least(now: int, home: int, dead: int, left: int) -> float:
        if left == 0:
            return 0.0
        if now == end:
            return math.inf
        running = dead >= 0 and (home == count or bool(market.up[now, home]))
        best = least(now + 1, home, -1, left)
        for place in range(count + 1):
            price = steady if place == count else market.usd_hour[now, place]
            if price is None or (place < count and not market.up[now, place]):
                continue
            waits = dead if running and place == home else int(job.move_h)
            paid = price * job.machines + (leave[home] if home not in (-1, place) else 0.0)
            then = least(now + 1, place, waits - 1, left) if waits > 0 else least(now + 1, place, 0, left - 1)
            best = min(best, paid + then)
        return best

    return least(0, -1, -1, int(job.work_h))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_uniform_progress_is_never_late_where_on_demand_could_be_in_time(data: st.DataObject) -> None:
    market = data.draw(markets(steps_max=40))
    job = data.draw(jobs(market, on_demand=True))
    assert replay(market, job, OnDemand()).is_done
    assert replay(market, job, UniformProgress()).is_done


def test_uniform_progress_uses_spot_while_ahead_and_on_demand_while_behind() -> None:
    down = [[0]] * 4
    market = trace([[1.0]] * 24, [[1]] * 8 + down + [[1]] * 12)
    calm = Job(work_h=12, on_demand_usd_hour=4, deadline_h=24, save_every_h=1)
    assert replay(market, calm, UniformProgress()).on_demand_h == 0, "eight hours ahead: it waits"
    hurry = replay(market, Job(work_h=20, on_demand_usd_hour=4, deadline_h=24, save_every_h=1), UniformProgress())
    assert 0 < hurry.on_demand_h <= 4 and hurry.is_done
    assert hurry.compute_usd == 4 * hurry.on_demand_h + (20 - hurry.on_demand_h)


@settings(max_examples=50)
@given(st.floats(0.1, 20), st.floats(0.1, 20), st.floats(1, 64), st.floats(0.1, 500), st.floats(0, 50), st.floats(0, 3))
def test_a_move_that_pays_is_never_regretted_while_prices_stay(
    here: float, there: float, machines: float, left_h: float, leave_usd: float, dead_h: float
) -> None:
    pays = migrate_pays(here, there, machines=machines, left_h=left_h, leave_usd=leave_usd, dead_h=dead_h)
    stay_usd = here * machines * left_h
    move_usd = leave_usd + there * machines * (dead_h + left_h)
    assume(not math.isclose(stay_usd, move_usd))
    assert pays == (move_usd < stay_usd)
    even_h = break_even_h(here, there, machines=machines, leave_usd=leave_usd, dead_h=dead_h)
    assume(not math.isclose(even_h, left_h))
    assert pays == (left_h > even_h)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_who_migrates_never_pays_more_than_who_waits_where_prices_change_once(data: st.DataObject) -> None:
    before = data.draw(st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=2, max_size=4))
    after = data.draw(st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=len(before), max_size=len(before)))
    first = data.draw(st.integers(1, 9))
    market = trace([before] * first + [after] * 40, [[1] * len(before)] * (first + 40))
    job = data.draw(jobs(market, on_demand=False))
    job = replace(job, work_h=min(job.work_h, 30.0), deadline_h=None)
    moved, waited = replay(market, job, Migrate()), replay(market, job, Interrupted())
    assert moved.usd <= waited.usd + 1e-9


def test_who_is_sent_away_loses_what_was_not_saved_and_pays_for_starting_again() -> None:
    market = trace([[2.0, 3.0]] * 12, [[1, 1]] * 5 + [[0, 1]] * 7)
    job = Job(work_h=6, state_gb=10, egress_usd_gb={"zone-0a": 0.1}, move_h=1, save_every_h=3)
    found = replay(market, job, Interrupted())
    assert (found.sent_away, found.moves, found.lost_h) == (1, 1, 1), "four hours of work, three of them saved"
    assert found.compute_usd == 5 * 2.0 + (1 + 3) * 3.0
    assert found.egress_usd == 1.0
    assert found.finish_h == 9
    waits = replay(market, job, Stay("zone-0a"))
    assert not waits.is_done and waits.waited_h == 7 and waits.egress_usd == 0


def test_who_comes_back_to_where_its_state_lies_carries_nothing() -> None:
    market = trace([[1.0]] * 8, [[1], [1], [0], [0], [1], [1], [1], [1]])
    found = replay(market, Job(work_h=4, state_gb=10, egress_usd_gb={"zone-0a": 1.0}), Interrupted())
    assert (found.moves, found.egress_usd, found.sent_away, found.finish_h) == (0, 0.0, 1, 6)


def test_who_leaves_of_its_own_accord_saves_first() -> None:
    market = trace([[2.0, 3.0]] * 3 + [[2.0, 0.5]] * 3 + [[2.0, 9.0]] * 9, [[1, 1]] * 5 + [[1, 0]] * 10)
    found = replay(market, Job(work_h=10, save_every_h=9), Migrate())
    assert (found.moves, found.sent_away) == (2, 1)
    assert found.lost_h == 2, "the three hours before it moved are safe, the two after it are not"


def test_eager_goes_to_another_region_where_interrupted_stays_near() -> None:
    market = Trace(
        zones=("us-east-1a", "us-east-1b", "us-west-2a"),
        step_h=1.0,
        usd_hour=np.array([[1.0, 2.0, 3.0]] * 6),
        up=np.array([[1, 1, 1]] * 2 + [[0, 1, 1]] * 4, dtype=bool),
    )
    job = Job(work_h=4)
    assert replay(market, job, Interrupted()).compute_usd == 2 * 1 + 2 * 2
    assert replay(market, job, EagerNext()).compute_usd == 2 * 1 + 2 * 3


def test_who_looks_once_a_day_moves_once_a_day() -> None:
    prices = [[1.0, 2.0] if (hour // 6) % 2 else [2.0, 1.0] for hour in range(96)]
    market = trace(prices, [[1, 1]] * 96)
    often, daily = (replay(market, Job(work_h=90), each) for each in (Migrate(), Daily(every_h=24)))
    assert often.moves > 3 * daily.moves
    assert often.usd < daily.usd


def test_who_minds_that_zones_do_not_last_does_not_run_after_every_cheap_one() -> None:
    market = trace([[2.0, 1.5]] * 60, [[1, hour % 4 == 0] for hour in range(60)])
    job = Job(work_h=40, move_h=1, save_every_h=1)
    runs_after, minds = replay(market, job, Migrate()), replay(market, job, Migrate(lasts_h=1.0))
    assert runs_after.sent_away > 5 and minds.sent_away <= 1
    assert minds.usd < runs_after.usd


def test_policies_on_a_market_of_ones_own_are_printed_beside_hindsight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "market.csv"
    rows = ["0,us-east-1a,10,8", "0,us-west-2a,12,8", "20,us-east-1a,10,0", "26,us-east-1a,10,8", "90,us-west-2a,12,8"]
    file.write_text("\n".join(["time_h,zone,usd_hour,available", *rows]), "utf-8")
    bench_markets.main([str(file)])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1 + len(bench_markets.POLICIES) + 2
    assert all(float(line[30:].split()[0]) >= 1 for line in said[1:]), "nobody pays less than hindsight"
    assert "2.50" in said[-1], "on demand costs two and a half times as much here"


def test_a_job_without_work_is_refused() -> None:
    with pytest.raises(SpecError, match="work"):
        replay(trace([[1.0]], [[1]]), Job(work_h=0), OnDemand())
