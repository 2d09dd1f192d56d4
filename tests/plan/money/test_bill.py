"""A bill adds up, whatever is on it, and prices traffic by where it comes from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.plan.money.bill import Owned, Rented, Step, Stored, Tariff, bill, egress_usd, paid_usd, units

money = st.floats(0, 1e4)
some = st.floats(0.01, 1e3)


@settings(max_examples=25)
@given(some, some, money, some, some, money, money, money)
def test_the_parts_of_a_bill_add_up_to_it_and_their_shares_to_one(
    count: float, hours: float, price: float, kw: float, gb: float, usd_gb: float, control: float, checks: float
) -> None:
    paid = bill(
        [
            Rented(name="hired", count=count, hours=hours, usd_hour=price),
            Owned(name="ours", count=count, hours=hours, power_kw=kw, usd_kwh=0.2, wear_usd_hour=0.1),
        ],
        traffic_gb={("a", "b"): gb, ("b", "a"): 2 * gb},
        tariffs=[Tariff(source="a", usd_gb=usd_gb), Tariff(source="b", usd_gb=2 * usd_gb)],
        stored=[Stored(size_gb=gb, usd_gb_month=0.02, months=2)],
        control_usd_hour=control,
        hours=hours,
        verification_usd=checks,
    )
    assert sum(paid.by_kind.values()) == pytest.approx(paid.total_usd)
    assert sum(paid.share(kind) for kind in paid.by_kind) == pytest.approx(1)
    assert paid.usd("compute") == pytest.approx(count * hours * price)
    assert paid.usd("egress") == pytest.approx(5 * gb * usd_gb)
    assert paid.usd("energy") == pytest.approx(count * hours * kw * 0.2)
    assert paid.usd("storage") == pytest.approx(gb * 0.04)


def test_a_price_that_changes_is_paid_as_long_as_it_holds() -> None:
    steps = (Step(0, 2.0), Step(10, 1.0), Step(30, 4.0))
    assert paid_usd(steps, 5) == 10
    assert paid_usd(steps, 25) == 20 + 15
    assert paid_usd(steps, 40) == 20 + 20 + 40
    with pytest.raises(SpecError, match="hour 0"):
        paid_usd((Step(1, 2.0),), 5)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(0.1, 20), st.floats(0, 9)), min_size=1, max_size=6), st.floats(0.1, 80))
def test_paying_by_steps_is_the_integral_of_the_price(spans: list[tuple[float, float]], hours: float) -> None:
    starts = np.concatenate([[0.0], np.cumsum([span for span, _ in spans])[:-1]])
    steps = tuple(Step(float(start), price) for start, (_, price) in zip(starts, spans, strict=True))
    grid = (np.arange(5_000) + 0.5) * hours / 5_000
    prices = np.array([price for _, price in spans])[np.searchsorted(starts, grid, side="right") - 1]
    assert paid_usd(steps, hours) == pytest.approx(prices.mean() * hours, rel=4e-3, abs=4e-3 * hours)


def test_traffic_is_priced_by_its_source_and_the_pair_goes_before_the_source() -> None:
    tariffs = [
        Tariff(source="sydney", usd_gb=0.098),
        Tariff(source="virginia", usd_gb=0.02),
        Tariff(source="sydney", target="melbourne", usd_gb=0.01),
    ]
    assert egress_usd("sydney", "virginia", 100, tariffs) == pytest.approx(9.8)
    assert egress_usd("virginia", "sydney", 100, tariffs) == pytest.approx(2)
    assert egress_usd("sydney", "melbourne", 100, tariffs) == pytest.approx(1)
    assert egress_usd("sydney", "sydney", 100, tariffs) == 0
    with pytest.raises(SpecError, match="'tokyo'"):
        egress_usd("tokyo", "sydney", 1, tariffs)


def test_tiers_cost_what_lies_in_each() -> None:
    tiers = [Tariff(source="us", usd_gb=0.0), Tariff(source="us", usd_gb=0.09, from_gb=1)]
    tiers.append(Tariff(source="us", usd_gb=0.05, from_gb=101))
    assert egress_usd("us", "", 0.5, tiers) == 0
    assert egress_usd("us", "", 51, tiers) == pytest.approx(50 * 0.09)
    assert egress_usd("us", "", 201, tiers) == pytest.approx(100 * 0.09 + 100 * 0.05)


def test_a_bill_may_hold_draws_of_its_inputs() -> None:
    price, kilowatts = np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.4, 0.5])
    paid = bill(
        [
            Rented(name="hired", count=2, hours=10, usd_hour=price),  # type: ignore[arg-type]
            Owned(name="ours", count=3, hours=10, power_kw=kilowatts, usd_kwh=0.1),  # type: ignore[arg-type]
        ]
    )
    assert np.allclose(paid.total_usd, 20 * price + 3 * kilowatts)
    assert np.allclose(paid.share("energy"), 3 * kilowatts / (20 * price + 3 * kilowatts))


def test_units_are_the_bill_over_what_was_done() -> None:
    paid = bill(
        [Rented(name="hired", count=1, hours=1, usd_hour=3.0)],
        traffic_gb={("a", "b"): 10.0},
        tariffs=[Tariff(source="a", usd_gb=0.1)],
    )
    found = units(paid, tokens=4e6, samples=2e6, flop=8.64e19 * 2, energy_kwh=5)
    assert (found.usd_token, found.usd_1m_samples, found.usd_pflop_day) == pytest.approx((1e-6, 2.0, 2.0))
    assert (found.kwh_pflop_day, found.egress_share) == pytest.approx((2.5, 0.25))


def test_what_costs_nothing_has_no_shares_and_draws_of_work_are_units_of_each() -> None:
    free = bill([Owned(name="given", count=3, hours=10, power_kw=0.5, usd_kwh=0.0)])
    assert (free.total_usd, free.share("egress"), units(free).usd_token) == (0, 0, 0)
    paid = bill([Rented(name="hired", count=1, hours=1, usd_hour=6.0)])
    found = units(paid, tokens=np.array([1.0, 2.0, 3.0]))  # type: ignore[arg-type]
    assert np.allclose(found.usd_token, [6, 3, 2])
