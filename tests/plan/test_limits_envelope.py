"""The envelope: rules really asked, liars really added, and a backdoor really trained."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.plan.limits import backdoor, robust
from atoll.plan.limits import envelope as e


def test_a_rule_on_the_cosine_or_on_the_length_admits_so_much() -> None:
    by_cosine = [float(e.hidden_part(np.inf, cosine)) for cosine in (0.9, 0.7, 0.5, 0.3, 0.1)]
    assert by_cosine == pytest.approx([0.48, 1.02, 1.73, 3.18, 9.95], abs=0.006)
    by_length = [float(e.hidden_part(times, 1e-9)) for times in (1.1, 1.5, 2, 3, 5)]
    assert by_length == pytest.approx([0.46, 1.12, 1.73, 2.83, 4.9], abs=0.006)


@settings(deadline=None, max_examples=25)
@given(st.floats(1.01, 6), st.floats(0.05, 0.98))
def test_what_the_rules_really_take_is_what_the_formula_says(norm_max: float, cosine_min: float) -> None:
    found = robust.hidden_found(norm_max, cosine_min, np.random.default_rng(1))
    assert found == pytest.approx(float(e.hidden_part(norm_max, cosine_min)), rel=1e-6)


TABLE = [
    (0, "none", (0.95, 0.95, 0.93, 0.95, 0.43, 0.95)),
    (10, "sign flip x10", (-0.95, 0.95, 0.68, 0.64, 0.43, 0.95)),
    (10, "a little is enough", (0.93, 0.93, 0.78, 0.91, 0.76, 0.93)),
    (10, "inner product", (0.95, 0.95, 0.80, 0.92, -0.95, 0.95)),
    (10, "full length backwards", (0.75, 0.75, 0.66, 0.71, 0.43, 0.81)),
    (15, "a little is enough", (0.87, 0.87, 0.25, 0.70, 0.20, 0.87)),
    (15, "full length backwards", (-0.13, -0.15, 0.04, -0.35, -1.0, -0.14)),
    (20, "a little is enough", (0.58, 0.57, -0.34, 0.02, -0.36, 0.58)),
]


@pytest.mark.parametrize(("liars", "attack", "expected"), TABLE)
def test_rules_keep_so_much_of_the_truth_under_attack(liars: int, attack: str, expected: tuple[float, ...]) -> None:
    kept = [robust.kept(rule, attack, 50, liars, np.random.default_rng(3)) for rule in robust.rules(liars)]
    assert kept == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("cosine", [0.15, 0.4, 0.8])
def test_liars_turn_the_mean_around_where_the_formula_says(cosine: float) -> None:
    turned = robust.turned_at(cosine, np.random.default_rng(5), size=400)
    assert turned == pytest.approx(float(e.attackers_max(cosine)), abs=0.02)


def test_checking_finds_cheats_after_so_many_and_deters_from_such_a_stake_on() -> None:
    parts = (0.01, 0.05, 0.1, 0.3)
    assert [e.cheats_to(0.99, part) for part in parts] == [459, 90, 44, 13]
    assert [float(e.stake_needed(part)) for part in parts] == pytest.approx([99, 19, 9, 2.33], abs=0.01)
    drawn = np.random.default_rng(6).geometric(0.1, 30000) - 1
    assert drawn.mean() == pytest.approx(float(e.stake_needed(0.1)), rel=0.03)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("fan_in", [3, 8, 9])
def test_a_tree_of_medians_falls_to_so_many_leaves(depth: int, fan_in: int) -> None:
    assert robust.leaves_found(depth, fan_in) == pytest.approx(e.leaves_needed(depth, fan_in))
    trimmed = robust.leaves_found(depth, fan_in, robust.trimmed)
    assert trimmed == pytest.approx(e.leaves_needed(depth, fan_in, 0.25))


def test_a_wide_tree_of_medians_falls_to_a_half_to_the_power_of_its_depth() -> None:
    assert [e.leaves_needed(depth, 10001) for depth in (2, 3, 4, 5)] == pytest.approx(
        [0.25, 0.125, 0.0625, 0.031], abs=0.001
    )


def test_a_wide_tree_of_trimmed_means_falls_to_a_quarter_to_the_power_of_its_depth() -> None:
    assert [e.leaves_needed(depth, 10000, 0.25) for depth in (2, 3)] == pytest.approx([0.0625, 0.016], abs=0.001)


def test_a_backdoor_opens_while_nothing_else_shows() -> None:
    honest, lied = (backdoor.train(part, np.random.default_rng(9)) for part in (0.0, 0.15))
    assert honest.opened < 0.2
    assert lied.opened > 0.9
    assert lied.right == pytest.approx(honest.right, abs=0.02)
    assert lied.loss == pytest.approx(honest.loss, abs=0.02)


def test_hidden_parts_add_up_round_by_round() -> None:
    assert e.displaced(0.7, 100, 0.05, 1.73) == pytest.approx(6.055)
    assert e.unseen_radius(2.0, 1.0, 4000) < e.unseen_radius(2.0, 1.0, 40)
