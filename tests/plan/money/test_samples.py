"""What samples and iterations cost: shares of calls, the law of granularity, edges that are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.plan.money.bill import Tariff
from atoll.plan.money.iteration import Group, iteration_bill, pipeline_hops, ring_hops
from atoll.plan.money.samples import (
    granularity,
    group_shares,
    hour_bill,
    pair_shares,
    speedup,
    usd_1m_samples,
)

CONTINENTS = ("us", "eu", "asia", "oceania")
GCP = [
    Tariff(source=a, target=b, usd_gb=usd_gb)
    for a, b, usd_gb in (("a1", "a2", 0.01), ("a1", "west", 0.02), ("a2", "west", 0.02), ("a1", "eu", 0.05))
]
TARIFFS = [*GCP, *(Tariff(source=one.target, target=one.source, usd_gb=one.usd_gb) for one in GCP)]
"""What Sailor's simulator assumes: two zones, two regions, two continents."""


def test_the_law_of_granularity_gives_the_gains_that_its_authors_name() -> None:
    assert speedup(1, 2) == pytest.approx(1.33, abs=0.005)
    assert speedup(10, 2) == pytest.approx(1.83, abs=0.005)


@settings(max_examples=50)
@given(st.floats(0.01, 1e3), st.floats(0.01, 1e3), st.floats(1, 64))
def test_more_machines_gain_what_a_shorter_calculation_does(calc_s: float, comm_s: float, k: float) -> None:
    granular = granularity(calc_s, comm_s)
    assert speedup(granular, k) == pytest.approx((calc_s + comm_s) / (calc_s / k + comm_s))
    assert speedup(granular, k) * (1 + 1e-12) >= 1 and speedup(granular, k) <= k * (1 + 1e-12)


def test_a_third_of_what_two_and_two_send_stays_within() -> None:
    shares = pair_shares(["gc", "gc", "aws", "aws"])
    assert shares[("gc", "gc")] + shares[("aws", "aws")] == pytest.approx(1 / 3)
    assert shares[("gc", "aws")] == shares[("aws", "gc")] == pytest.approx(1 / 3)


def test_of_two_on_each_of_four_continents_eight_of_twenty_calls_stay_within() -> None:
    shares = group_shares([place for place in CONTINENTS for _ in range(2)])
    assert sum(share for (a, b), share in shares.items() if a == b) == pytest.approx(8 / 20)
    assert sum(share for (a, b), share in shares.items() if a != b and "oceania" not in (a, b)) == pytest.approx(6 / 20)
    assert sum(share for (a, b), share in shares.items() if a != b and "oceania" in (a, b)) == pytest.approx(6 / 20)


def test_three_of_one_place_call_each_other_six_times_before_their_place_calls_once() -> None:
    shares = group_shares(["us", "us", "us", "eu"])
    assert shares == pytest.approx({("us", "us"): 6 / 8, ("us", "eu"): 1 / 8, ("eu", "us"): 1 / 8})


@settings(max_examples=30)
@given(st.lists(st.sampled_from(CONTINENTS), min_size=2, max_size=9))
def test_shares_add_up_to_one_and_alone_at_every_place_both_ways_are_the_same(places: list[str]) -> None:
    assert sum(pair_shares(places).values()) == pytest.approx(1)
    if len(set(places)) > 1:
        assert sum(group_shares(places).values()) == pytest.approx(1)
        assert pair_shares(sorted(set(places))) == pytest.approx(group_shares(sorted(set(places))))


def test_the_same_traffic_costs_more_from_where_traffic_is_dear() -> None:
    places = ["virginia", "virginia", "sydney", "sydney"]
    tariffs = [Tariff(source="virginia", usd_gb=0.02), Tariff(source="sydney", usd_gb=0.098)]
    hour = hour_bill(places, {"virginia": 0.5, "sydney": 0.7}, pair_shares(places), 30.0, tariffs)
    assert hour.usd("compute") == pytest.approx(2 * 0.5 + 2 * 0.7)
    assert hour.at("virginia").usd("egress") == pytest.approx(120 / 3 * 0.02)
    assert hour.at("sydney").usd("egress") == pytest.approx(120 / 3 * 0.098)
    assert usd_1m_samples(hour.total_usd, 100) == pytest.approx(hour.total_usd / 0.36)


def test_a_ring_moves_twice_what_it_reduces_but_for_one_share() -> None:
    hops = ring_hops(["a1", "a1", "a2", "west"], 8e9)
    assert [(hop.source, hop.target) for hop in hops] == [("a1", "a1"), ("a1", "a2"), ("a2", "west"), ("west", "a1")]
    assert {hop.size_bytes for hop in hops} == {12e9}
    assert ring_hops(["a1"], 8e9) == []


def test_an_iteration_costs_its_hire_and_what_is_cut() -> None:
    groups = [Group(zone="a1", count=8, usd_hour=3.673), Group(zone="west", count=4, usd_hour=2.86)]
    hops = [*pipeline_hops(["a1", "a1", "west"], 16e6, 32), *ring_hops(["a1", "a1"], 1e9)]
    paid = iteration_bill(groups, 7.2, hops, TARIFFS, control_usd_hour=0.19)
    assert paid.usd("compute") == pytest.approx((8 * 3.673 + 4 * 2.86) * 7.2 / 3600)
    assert paid.usd("egress") == pytest.approx(2 * 32 * 16e6 / 1e9 * 0.02), "both ways over the cut, nothing within"
    assert paid.usd("control") == pytest.approx(0.19 * 7.2 / 3600)
    assert paid.times(1000).total_usd == pytest.approx(1000 * paid.total_usd)


def test_between_regions_a_pipeline_is_cheaper_than_copies_of_a_large_model() -> None:
    """Of 30 billion parameters in fp16 an iteration reduces 60 GB; activations of 64 micro-batches are 4 GB."""
    copies = iteration_bill([], 10.0, ring_hops(["a1", "west"], 60e9), TARIFFS)
    stages = iteration_bill([], 10.0, pipeline_hops(["a1", "west"], 2 * 2048 * 7168 * 2, 64), TARIFFS)
    assert copies.usd("egress") > 10 * stages.usd("egress")


def test_iterations_may_be_draws() -> None:
    times_s = np.array([1.0, 2.0, 4.0])
    paid = iteration_bill([Group(zone="a1", count=1, usd_hour=3600.0)], times_s, [], [])  # type: ignore[arg-type]
    assert np.allclose(paid.total_usd, times_s)
