"""Cost: hours, money and energy of known trainings, and from which efficiency on a device pays."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.plan.limits import cost as c
from atoll.plan.limits.reader import load_scenario
from atoll.plan.limits.scenario import with_value

H100, CARD_4090, CARD_3090, CARD_3060 = 989e12 * 0.4, 165.2e12 * 0.35, 71.2e12 * 0.35, 25.5e12 * 0.35
SMALL, HUGE = c.train_flop(7e9, 140e9), c.train_flop(405e9, 15.6e12)


def test_seven_billion_parameters_cost_so_much_in_one_place() -> None:
    hours = float(c.device_hours(SMALL, H100, 0.98))
    assert hours == pytest.approx(4213, rel=0.001)
    assert hours * 3.07 == pytest.approx(12.9e3, rel=0.01)
    assert float(c.energy_kwh(hours, 1275, 1.15)) == pytest.approx(6.2e3, rel=0.01)


@pytest.mark.parametrize(
    ("card", "watts", "hours", "mwh", "electricity_usd"),
    [
        (CARD_4090, 550, 38840, 21.4, 3.5e3),
        (CARD_3090, 450, 90122, 40.6, 6.7e3),
        (CARD_3060, 250, 251634, 62.9, 10.4e3),
    ],
)
def test_the_same_on_consumer_cards(
    card: float, watts: float, hours: float, mwh: float, electricity_usd: float
) -> None:
    found = float(c.device_hours(SMALL, card, 0.8, 1.1))
    assert found == pytest.approx(hours, rel=0.001)
    assert float(c.energy_kwh(found, watts)) / 1000 == pytest.approx(mwh, rel=0.01)
    assert float(c.energy_kwh(found, watts)) * 0.165 == pytest.approx(electricity_usd, rel=0.01)


def test_a_frontier_model_takes_ten_thousand_cards_three_years() -> None:
    central, cards = float(c.device_hours(HUGE, H100, 0.98)), float(c.device_hours(HUGE, CARD_4090, 0.8, 1.1))
    assert central == pytest.approx(27.2e6, rel=0.01)
    assert cards == pytest.approx(250e6, rel=0.01)
    assert cards / 10000 / 8760 == pytest.approx(2.9, abs=0.05)
    assert float(c.energy_kwh(cards, 550)) * 369e-9 == pytest.approx(50.8, rel=0.01)
    assert float(c.energy_kwh(central, 1275, 1.15)) * 369e-9 == pytest.approx(14.7, rel=0.01)


@pytest.mark.parametrize(
    ("usd_hour", "card", "even"),
    [
        (0.386, CARD_4090, 0.95),
        (0.44, 209.5e12 * 0.35, 0.85),
        (0.55 * 0.165, CARD_4090, 0.22),
        (0.45 * 0.165, CARD_3090, 0.42),
    ],
)
def test_a_device_pays_from_such_an_efficiency_on(usd_hour: float, card: float, even: float) -> None:
    assert float(c.even_efficiency(usd_hour, card, 3.07, H100, 1.1)) == pytest.approx(even, abs=0.01)


@pytest.mark.parametrize("name", ["homes", "labs", "organisation"])
def test_a_training_played_round_by_round_takes_the_hours_of_the_formula(name: str) -> None:
    s = load_scenario(name)
    played = c.run(s, 300, np.random.default_rng(3))
    assert played == pytest.approx(float(c.bill(s).hours), rel=0.04)


def test_waiting_for_everybody_costs_what_drawn_rounds_cost() -> None:
    s = with_value(with_value(load_scenario("homes"), "work.quorum", 1.0), "peers.count", 100.0)
    assert c.run(s, 400, np.random.default_rng(4)) == pytest.approx(float(c.bill(s).hours), rel=0.05)
