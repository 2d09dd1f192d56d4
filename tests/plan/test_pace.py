"""How long a round takes by formula: lines, trips, work, and what hides behind what."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from atoll.plan.lines import Line
from atoll.plan.pace import Ways, connection_bytes_s, pace, pace_on
from atoll.plan.traffic import traffic
from atoll.spec.axes.pace import Block, Delay, OneRound, RoundsLate
from atoll.spec.axes.work import BySpeed
from atoll.spec.fleet import expand, load_fleet
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe

PARAMETERS = 1_000_000
RATE_BYTES_S = 1e6
SAMPLE_S = 0.25


def ways(peers: int, *, trip_s: float = 0.0, rate_bytes_s: float = RATE_BYTES_S) -> Ways:
    rates = np.full(peers, rate_bytes_s)
    apart = trip_s * (1 - np.eye(peers))
    return Ways(up_bytes_s=rates, down_bytes_s=rates, trip_s=apart, one_bytes_s=np.full((peers, peers), np.inf))


def lines(peers: int) -> list[Line]:
    return [Line(name=f"p{i}", up_bytes_s=RATE_BYTES_S, down_bytes_s=RATE_BYTES_S) for i in range(peers)]


def overlapped(overlap: Block | Delay | OneRound | RoundsLate) -> Recipe:
    recipe = load_recipe("diloco")
    return replace(recipe, channel={"outer": replace(recipe.channel["outer"], overlap=overlap)})


@pytest.mark.parametrize("peers", [2, 4, 8])
def test_equal_lines_need_what_every_all_reduce_needs(peers: int) -> None:
    found = pace(load_recipe("diloco"), PARAMETERS, np.full(peers, 1e-9), lines(peers), ways(peers))
    assert found.lines_s == pytest.approx(2 * (peers - 1) / peers * 4 * PARAMETERS / RATE_BYTES_S, rel=0.02)
    assert found.trips_s == 0
    assert "line" in found.binds


def test_no_line_carries_more_than_it_can() -> None:
    fleet = load_fleet("homes")
    machines = expand(fleet)
    for name in ("diloco", "sparseloco", "streaming", "hierarchical"):
        recipe = load_recipe(name)
        moved = traffic(recipe, PARAMETERS, [replace(line, region="") for line in lines(8)])
        assert pace_on(fleet, machines, recipe, PARAMETERS, 1.0).lines_s > 0
        found = pace(recipe, PARAMETERS, np.full(8, 1e-9), lines(8), ways(8))
        assert found.lines_s >= 0.99 * moved.slowest.least_s


def test_latency_costs_six_trips_where_everybody_is_as_far() -> None:
    found = pace(load_recipe("diloco"), PARAMETERS, np.full(4, 1e-9), lines(4), ways(4, trip_s=0.1))
    assert found.trips_s == pytest.approx(0.6)


def test_a_lossy_connection_carries_what_mathis_found() -> None:
    assert connection_bytes_s(np.array(0.1), np.array(0.0)) == np.inf
    assert connection_bytes_s(np.array(0.1), np.array(1e-4)) == pytest.approx(1.22 * 1400 / (0.1 * 0.01))
    slow = replace(ways(4), one_bytes_s=np.full((4, 4), 1e4))
    found = pace(load_recipe("diloco"), PARAMETERS, np.full(4, 1e-9), lines(4), slow)
    assert found.lines_s == pytest.approx(2 * PARAMETERS / 1e4, rel=0.02)
    assert "connection" in found.binds


def test_what_hides_behind_work_is_not_waited_for() -> None:
    steps, batch = 500, load_recipe("diloco").work.batch
    work_s = steps * batch * SAMPLE_S

    def round_s(overlap: Block | Delay | OneRound | RoundsLate, trip_s: float = 0.0) -> float:
        sample_s = np.full(4, SAMPLE_S)
        return float(pace(overlapped(overlap), PARAMETERS, sample_s, lines(4), ways(4, trip_s=trip_s)).round_s)

    exchange_s = round_s(Block()) - work_s
    assert exchange_s == pytest.approx(6.0, rel=0.02)
    assert round_s(OneRound()) == pytest.approx(work_s)
    step_s = batch * SAMPLE_S
    assert round_s(Delay(steps=1)) == pytest.approx(work_s + max(0.0, exchange_s - step_s))
    far_s = 2 * work_s
    assert round_s(RoundsLate(rounds=1), far_s) == pytest.approx((work_s + exchange_s + 6 * far_s) / 2)


def test_the_slowest_decides_unless_work_goes_by_speed() -> None:
    recipe = load_recipe("diloco")
    unequal = np.array([0.1, 0.2])
    quota = 500 * recipe.work.batch
    same = pace(recipe, PARAMETERS, unequal, lines(2), ways(2))
    assert float(same.work_s) == pytest.approx(quota * 0.2)
    assert float(same.samples) == 2 * quota
    by_speed = replace(recipe, work=replace(recipe.work, quota=BySpeed()))
    shared = pace(by_speed, PARAMETERS, unequal, lines(2), ways(2))
    assert float(shared.work_s) == pytest.approx(quota * 0.1)
    assert float(shared.samples) == pytest.approx(1.5 * quota)


def test_draws_are_paced_one_by_one() -> None:
    recipe, several = load_recipe("diloco"), np.array([[0.1, 0.2], [0.3, 0.1]])
    both = pace(recipe, PARAMETERS, several, lines(2), ways(2))
    for place, one in enumerate(several):
        assert both.round_s[place] == pytest.approx(float(pace(recipe, PARAMETERS, one, lines(2), ways(2)).round_s))
