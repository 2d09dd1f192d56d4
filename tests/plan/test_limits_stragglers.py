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
    """Our own derivation, drawn beforehand."""
    assert s.waited(sigma, peers, peers) == pytest.approx(slowest, rel=0.025)
    assert s.waited(sigma, peers, int(0.95 * peers)) == pytest.approx(most, rel=0.015)


@pytest.mark.parametrize(
    ("peers", "among", "dropout"),
    [(8, 8, 0.0), (8, 6, 0.1), (8, 8, 0.1), (100, 100, 0.0), (100, 90, 0.05), (1000, 1000, 0.0), (1000, 950, 0.03)],
)
def test_drawn_rounds_last_as_long_as_the_quadrature_says(peers: int, among: int, dropout: float) -> None:
    rounds = 4000 if peers < 100 else 1500 if peers < 1000 else 500
    drawn = s.run(0.5, peers, among, rounds, np.random.default_rng(1), dropout=dropout)
    assert drawn.lasts == pytest.approx(s.waited(0.5, peers, among, dropout), rel=0.03)


@pytest.mark.parametrize(("copies", "among", "stages"), [(8, 8, 3), (40, 36, 12)])
def test_a_pipeline_is_as_slow_as_the_slowest_of_its_stages(copies: int, among: int, stages: int) -> None:
    rng = np.random.default_rng(3)
    times = np.exp(0.5 * rng.standard_normal((3000, copies, stages)) - 0.125).max(2)
    drawn = np.partition(times, among - 1, axis=1)[:, among - 1].mean()
    assert s.waited(0.5, copies, among, 0.0, stages) == pytest.approx(drawn, rel=0.02)


def test_peers_without_spread_need_the_mean_time() -> None:
    assert s.waited(0.0, 100, 100) == pytest.approx(1.0, abs=1e-3)


def test_rounds_that_lack_one_too_many_are_begun_again_as_often_as_drawn_ones() -> None:
    labs = with_value(load_scenario("labs"), "peers.dropout", 0.05)
    drawn = s.run(0.05, 8, 8, 20000, np.random.default_rng(2), dropout=0.05)
    assert float(s.waits(labs, 8).tries) == pytest.approx(1 / drawn.whole, rel=0.02)
    assert float(s.waits(labs, 8).tries) > 1.4


def test_a_quorum_is_counted_in_whole_peers_and_what_comes_after_it_is_lost() -> None:
    few = with_value(load_scenario("labs"), "work.quorum", 0.9)
    assert float(s.waits(few, 8).counts) == 1.0, "0.9 of 8 are 8"
    assert float(s.waits(few, 20).counts) == 0.9


def test_a_quorum_that_never_comes_together_never_ends() -> None:
    gone = with_value(load_scenario("homes"), "peers.dropout", 0.3)
    assert s.judge(gone).says == "a round never ends"
    assert s.judge(gone).verdict == "binds"
    assert 2 < float(s.number(s.relaxed(gone))) < 3, "with fewer to wait for it ends"


def test_equal_work_on_unequal_machines_runs_at_the_slowest_of_them() -> None:
    cards = np.array([25.5, 44.0, 58.0, 59.5, 71.2, 88.0])  # what a round of equal work would have to wait for
    part = float(cards.min() / cards.mean())
    even = with_value(with_value(load_scenario("homes"), "peers.spread", 1e-6), "peers.slowest", part)
    equal = with_value(even, "work.proportional", False)
    assert float(s.number(equal)) == pytest.approx((1 / cards).max() * cards.mean(), rel=1e-3)
    assert float(s.number(even)) == pytest.approx(1.0, rel=1e-3)


def test_few_peers_who_often_miss_a_round_are_eased_by_a_quorum_and_not_a_wall() -> None:
    often = with_value(load_scenario("labs"), "peers.dropout", 0.15)
    assert s.judge(often).verdict == "binds"
    assert s.judge(s.relaxed(often)).verdict == "no wall"
    assert s.judge(with_value(often, "peers.dropout", 0.6)).verdict == "wall"
