"""Cost: hours, money and energy of known trainings, and trainings played round by round."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.plan.cost.flops import six_n_d
from atoll.plan.limits import cost as c
from atoll.plan.limits.reader import load_scenario
from atoll.plan.limits.scenario import Scenario, with_value
from tests.few import few_of

H100, CARD_4090, CARD_3090, CARD_3060 = 989e12 * 0.4, 165.2e12 * 0.35, 71.2e12 * 0.35, 25.5e12 * 0.35
SMALL, HUGE = six_n_d(7e9, 140e9), six_n_d(405e9, 15.6e12)


def test_seven_billion_parameters_cost_so_much_in_one_place() -> None:
    """Our own derivation, worked out beforehand, as all of these."""
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


def even(s: Scenario) -> float:
    return float(c._even(s).rows[-1][2])


def test_at_the_efficiency_that_breaks_even_both_bills_are_the_same() -> None:
    s = with_value(with_value(load_scenario("labs"), "central.efficiency", 0.5), "power.usd_kwh", 0.9)
    hours = float(c.device_hours(six_n_d(7e9, 140e9), 312e12 * 0.4, even(s)))
    assert hours * float(c.electricity_usd_hour(s)) == pytest.approx(float(c.central_bill(s).usd), rel=0.02)
    assert even(s) == pytest.approx(even(with_value(s, "central.efficiency", 1.0)) / 2, abs=0.011)


def changed(name: str, **paths: float) -> Scenario:
    s = load_scenario(name)
    for path, value in paths.items():
        s = with_value(s, path.replace("__", "."), value)
    return s


PLAYED = {
    "homes, in pipelines": changed("homes"),
    "labs": changed("labs"),
    "organisation": changed("organisation"),
    "homes who hold the model": changed("homes", model__parameters=5e8),
    "waiting for everybody": changed("homes", model__parameters=5e8, peers__count=40.0, work__quorum=1.0),
    "0.9 of eight": changed("labs", work__quorum=0.9, peers__spread=0.4),
    "equal work": with_value(changed("labs", peers__slowest=0.6), "work.proportional", False),
    "everything three and a half times": changed("labs", work__redundancy=3.5),
    "often gone": changed("labs", peers__up_share=0.6, peers__dropout=0.08),
    "one alone": changed("labs", peers__count=1.0, peers__dropout=0.2),
}


@pytest.mark.parametrize("name", few_of(PLAYED, ("homes, in pipelines", "0.9 of eight", "often gone", "one alone")))
def test_a_training_played_round_by_round_takes_the_hours_the_days_and_the_money_of_the_formula(name: str) -> None:
    s = PLAYED[name]
    rounds = 30_000 if name == "waiting for everybody" else 6000 if s.peers.count.value < 100 else 400
    played, bill = c.run(s, rounds, np.random.default_rng(3)), c.bill(s)
    assert played.hours == pytest.approx(float(bill.hours), rel=0.04)
    assert played.days == pytest.approx(float(bill.days), rel=0.04)
    assert played.usd == pytest.approx(float(bill.usd), rel=0.04)


def test_dearer_than_a_central_cluster_binds_only_while_the_data_may_go_there() -> None:
    s = with_value(load_scenario("organisation"), "data.moves", True)
    assert float(c.number(s)) > 1
    assert c.judge(s).verdict == "binds"
    assert c.judge(load_scenario("organisation")).verdict == "no wall"
    assert c.judge(with_value(s, "goal.budget_usd", 1000.0)).verdict == "wall"
