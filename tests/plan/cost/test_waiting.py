"""Stragglers, churn, critical batch and local steps: closed forms beside draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.plan.cost import batch, churn, local
from atoll.plan.cost import stragglers as s

DRAW = np.random.Generator(np.random.PCG64(7))


@pytest.mark.parametrize(
    ("sigma", "members", "slowest", "most"),
    [
        (0.25, 10, 1.44, 1.25),
        (0.25, 100, 1.82, 1.44),
        (0.25, 1000, 2.18, 1.46),
        (0.25, 10_000, 2.54, 1.46),
        (0.5, 10, 2.01, 1.50),
        (0.5, 100, 3.17, 1.97),
        (0.5, 1000, 4.56, 2.01),
        (0.5, 10_000, 6.24, 2.01),
    ],
)
def test_the_slowest_of_many_and_a_quorum(sigma: float, members: int, slowest: float, most: float) -> None:
    """Expected values are of draws, good to about 2 %."""
    spread = s.Lognormal(sigma=sigma)
    assert s.expected_max(spread, members) == pytest.approx(slowest, rel=0.02)
    nine_of_ten = s.expected_rank(spread, 9, 10) if members == 10 else s.quorum_time(spread, members, 0.95)
    assert nine_of_ten == pytest.approx(most, rel=0.035)


def test_closed_forms_are_the_integral() -> None:
    for members in (1, 2, 10, 1000):
        assert s.expected_max(s.Exponential(), members) == pytest.approx(s.exponential_max(members), rel=1e-6)
        assert s.expected_max(s.Pareto(alpha=2.5), members) == pytest.approx(s.pareto_max(2.5, members), rel=1e-3)
        assert s.expected_max(s.Lognormal(sigma=0.5), 1) == pytest.approx(1.0, rel=1e-6)
    assert s.exponential_max(1000) == pytest.approx(math.log(1000) + 0.5777, abs=1e-3)


@pytest.mark.parametrize("spread", [s.Lognormal(sigma=0.6), s.Exponential(), s.Pareto(alpha=3.0)])
def test_draws_agree_with_the_integral(spread: s.Spread) -> None:
    times = np.sort(s.above(spread, DRAW.random((20_000, 20))), axis=1)
    assert times.mean() == pytest.approx(1.0, rel=0.02)
    for rank in (1, 10, 19, 20):
        assert times[:, rank - 1].mean() == pytest.approx(s.expected_rank(spread, rank, 20), rel=0.03)


def test_the_usual_estimate_for_lognormal_times_is_too_high() -> None:
    for members in (10, 1000):
        exact = s.expected_max(s.Lognormal(sigma=0.5), members) * math.exp(0.5**2 / 2)
        assert 1.1 < s.lognormal_max_over_median(0.5, members) / exact < 1.4


def test_nobody_drops_out_of_a_thousand_never() -> None:
    assert s.all_finish(0.01, np.array([10, 100, 1000])) == pytest.approx([0.904, 0.366, 4.3e-5], rel=0.01)


def test_equal_work_wastes_unequal_speeds_and_proportional_work_does_not() -> None:
    speeds = [25.5, 44.0, 58.0, 97.5]
    assert s.equal_work_part(speeds) == pytest.approx(25.5 / 56.25)
    assert s.proportional_steps(speeds, 100) == [26, 45, 59, 100]
    assert s.proportional_part(speeds, 1000) > 0.99
    assert s.proportional_part(speeds, 1) == pytest.approx(s.equal_work_part(speeds))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=12), st.floats(0, 5), st.booleans())
def test_no_other_deadline_is_better(times: list[float], overhead: float, partial: bool) -> None:
    deadline, rate = s.best_deadline(times, overhead, partial=partial)
    for other in [*times, *np.linspace(0.1, 10, 40)]:
        done = sum(min(1, other / t) if partial else t <= other for t in times)
        assert done / (other + overhead) <= rate + 1e-9
    assert deadline in times


def test_a_pipeline_needs_all_of_its_stages() -> None:
    assert churn.pipeline_availability(0.99, np.array([59, 338])) == pytest.approx([0.55, 0.03], abs=0.005)
    assert churn.pipeline_availability(0.99, 338, 2) == pytest.approx(0.967, abs=0.001)
    assert churn.availability(3.0, 1.0) == 0.75


@given(st.floats(0.3, 0.999), st.integers(1, 200), st.floats(0.5, 0.999))
def test_so_many_copies_suffice_and_one_less_does_not(machine: float, stages: int, wanted: float) -> None:
    copies = churn.copies_needed(machine, stages, wanted)
    assert churn.pipeline_availability(machine, stages, copies) >= wanted - 1e-6
    assert copies == 1 or churn.pipeline_availability(machine, stages, copies - 1) < wanted + 1e-6


def test_a_quorum_is_met_as_often_as_draws_say() -> None:
    there = (DRAW.random((20_000, 12)) < 0.8).sum(axis=1)
    assert churn.quorum_met(0.8, 12, 9) == pytest.approx((there >= 9).mean(), abs=0.01)
    assert churn.tries_until_quorum(0.8, 12, 9) == pytest.approx(1 / (there >= 9).mean(), rel=0.02)
    assert churn.quorum_met(0.8, 12, 0) == 1 and churn.tries_until_quorum(0.0, 3, 1) == math.inf


def test_rounds_that_begin_again_take_what_playing_them_takes() -> None:
    round_s, up_s, members, restart_s = 100.0, 2000.0, 10, 20.0
    totals = np.zeros(4000)
    open_ = np.ones(4000, bool)
    while open_.any():
        fails = DRAW.exponential(up_s / members, 4000)
        totals += np.where(open_, np.where(fails < round_s, fails + restart_s, round_s), 0.0)
        open_ &= fails < round_s
    found = churn.round_with_restarts_s(round_s, up_s, members, restart_s)
    assert found == pytest.approx(totals.mean(), rel=0.05)


def test_what_is_lost_of_a_machines_time_is_its_unfinished_rounds() -> None:
    lives = DRAW.exponential(5.0, 50_000)
    assert churn.lost_part(1.0, 5.0) == pytest.approx((lives % 1.0).sum() / lives.sum(), rel=0.03)
    assert churn.survives(1.0, 5.0) == pytest.approx((lives > 1).mean(), abs=0.01)


def test_beyond_the_critical_batch_peers_are_worth_little() -> None:
    peers = np.array([100, 1000, 5000, 20000])
    assert batch.speed_up(peers, 16384, 4e6) == pytest.approx([71, 197, 234, 242], abs=0.6)
    assert batch.speed_up(peers, 16384, 16e6) == pytest.approx([91, 495, 818, 932], abs=1)
    assert batch.speed_up(1e12, 16384, 4e6) == pytest.approx(batch.speed_up_max(16384, 4e6), rel=1e-6)
    half = batch.members_for(0.5, 16384, 4e6)
    assert batch.speed_up(half, 16384, 4e6) == pytest.approx(half / 2)


CABLE, FIBRE, CARD = 20e6 / 8, 500e6 / 8, 165.2e12 * 0.30


@pytest.mark.parametrize(
    ("rate", "parts"), [(CABLE, (0.38, 0.55, 0.978)), (FIBRE, (0.94, 0.97, 0.999))], ids=["cable", "fibre"]
)
def test_the_tax_of_exchanging_knows_no_model(rate: float, parts: tuple[float, ...]) -> None:
    for (size, factor), part in zip(((2.0, 1.0), (1.0, 1.0), (4.0, 146.0)), parts, strict=True):
        tax = local.tax(500, 16384, CARD, rate, size, factor)
        assert 1 / (1 + tax) == pytest.approx(part, abs=0.006)
        for parameters in (1e9, 7e10):
            compute_s = local.local_s(500, 16384, parameters, CARD)
            exchange_s = 2 * local.exchange_bytes(parameters, size, factor) / rate
            assert local.computed_part(compute_s, exchange_s) == pytest.approx(1 / (1 + tax))


def test_so_many_steps_keep_the_computed_part() -> None:
    steps = local.steps_for(0.9, 16384, CARD, CABLE, 2.0)
    assert 1 / (1 + local.tax(steps, 16384, CARD, CABLE, 2.0, 1.0)) == pytest.approx(0.9)


def test_an_exchange_beside_the_next_steps_costs_nothing_while_it_is_shorter() -> None:
    assert local.overlapped_part(np.array([10.0, 10.0]), np.array([5.0, 20.0])).tolist() == [1.0, 0.5]


def test_a_swarm_spreads_as_fast_as_its_uplinks() -> None:
    assert local.spread_s(1e9, CABLE, CABLE, 250e6 / 8, 1000) == pytest.approx(1e9 / CABLE, rel=0.01)
    assert local.spread_s(1e9, 1e9, 1e3, 1e9, 10) == pytest.approx(10 * 1e9 / 1e9, rel=0.01)


def test_rare_exchanges_are_at_most_half_of_all_once_h_is_the_ratio_of_the_lines() -> None:
    near, far = (0.0, 50e9), (0.0, 1.25e9)
    every = near[1] / far[1]
    always = local.wall_clock_s(0.0, 100, 1e9, 64, near, far)
    rarely = local.wall_clock_s(0.0, 100, 1e9, 64, near, far, replicas=2, every=every)
    outer = 100 / every * 2e9 / far[1] * (1 - 1 / 64)
    assert rarely < always / 15
    assert outer / rarely == pytest.approx(0.5, abs=0.02)
