"""Stragglers: the mean of the k-th of R drawn times, by quadrature and by drawing."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.plan.limits import stragglers as s
from atoll.plan.limits.reader import load_scenario
from atoll.plan.limits.scenario import with_value


@pytest.mark.parametrize(
    ("sigma", "peers", "slowest", "most"),
    [
        (0.25, 10, 1.44, 1.25), (0.25, 100, 1.82, 1.44), (0.25, 1000, 2.18, 1.46), (0.25, 10000, 2.54, 1.46),
        (0.5, 10, 2.01, 1.50), (0.5, 100, 3.17, 1.97), (0.5, 1000, 4.56, 2.01), (0.5, 10000, 6.24, 2.01),
    ],
)  # fmt: skip
def test_the_slowest_and_the_first_95_of_a_hundred_need_so_many_mean_times(
    sigma: float, peers: int, slowest: float, most: float
) -> None:
    assert s.waited(sigma, peers, peers) == pytest.approx(slowest, rel=0.025)
    assert s.waited(sigma, peers, int(0.95 * peers)) == pytest.approx(most, rel=0.015)


@pytest.mark.parametrize(("peers", "among"), [(8, 8), (8, 6), (100, 100), (100, 90), (1000, 1000), (1000, 950)])
def test_drawn_rounds_last_as_long_as_the_quadrature_says(peers: int, among: int) -> None:
    drawn = s.run(0.5, peers, among, 1500 if peers < 1000 else 500, np.random.default_rng(1))
    assert drawn == pytest.approx(s.waited(0.5, peers, among), rel=0.03)


def test_peers_without_spread_need_the_mean_time() -> None:
    assert s.waited(0.0, 100, 100) == pytest.approx(1.0, abs=1e-3)


def test_everybody_finishes_ever_more_rarely() -> None:
    assert [float(s.all_finish(0.01, peers)) for peers in (10, 100, 1000)] == pytest.approx(
        [0.904, 0.366, 4.3e-5], rel=0.01
    )


def test_exponential_times_grow_with_the_logarithm_and_pareto_times_with_a_power() -> None:
    assert s.exponential_slowest(1000) == pytest.approx(np.log(1000) + 0.577, abs=0.001)
    assert s.pareto_slowest(2.0, 4000) / s.pareto_slowest(2.0, 1000) == pytest.approx(2.0)
    rng = np.random.default_rng(2)
    drawn = (rng.pareto(3.0, (4000, 200)) + 1).max(1).mean() / 1.5
    assert s.pareto_slowest(3.0, 200) == pytest.approx(drawn, rel=0.05)


def test_a_deadline_gains_by_leaving_out_the_slowest_and_loses_by_leaving_out_too_many() -> None:
    times = np.array([1.0] * 9 + [10.0])
    close, lost = s.deadline(times, 0.1)
    assert close == 1.0
    assert lost == pytest.approx(0.1)


def test_a_steam_like_mix_with_equal_work_runs_at_its_slowest() -> None:
    cards = np.array([25.5, 44.0, 58.0, 59.5, 71.2, 88.0])
    assert cards.min() / cards.mean() == pytest.approx(0.44, abs=0.01)
    assert s._slowdown(0.0, 6, 1.0, float(cards.min() / cards.mean()), False) == pytest.approx(1 / 0.442, rel=0.01)
    assert s._slowdown(0.0, 6, 1.0, 0.44, True) == pytest.approx(1.0, abs=1e-3)


def test_few_peers_who_often_miss_a_round_are_eased_by_a_quorum_and_not_a_wall() -> None:
    often = with_value(load_scenario("labs"), "peers.dropout", 0.15)
    assert s.judge(often).verdict == "binds"
    assert s.judge(s.relaxed(often)).verdict == "no wall"
    assert s.judge(with_value(often, "peers.dropout", 0.6)).verdict == "wall"
