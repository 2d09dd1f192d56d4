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
    (0, "none", (0.95, 0.95, 0.93, 0.95, 0.95, 0.43)),
    (10, "sign flip x10", (-0.95, 0.95, 0.68, 0.64, 0.95, 0.43)),
    (10, "a little is enough", (0.93, 0.93, 0.78, 0.91, 0.93, 0.76)),
    (10, "inner product", (0.95, 0.95, 0.80, 0.92, 0.95, -0.95)),
    (10, "full length backwards", (0.75, 0.75, 0.66, 0.71, 0.81, 0.43)),
    (15, "a little is enough", (0.87, 0.87, 0.25, 0.70, 0.87, 0.20)),
    (15, "full length backwards", (-0.13, -0.15, 0.04, -0.35, -0.14, -1.0)),
    (20, "a little is enough", (0.58, 0.57, -0.34, 0.02, 0.58, -0.36)),
]


@pytest.mark.parametrize(("liars", "attack", "expected"), TABLE)
def test_rules_keep_so_much_of_the_truth_under_attack(liars: int, attack: str, expected: tuple[float, ...]) -> None:
    """Drawn beforehand, with 12 of 50 trimmed at either end: a quarter is 13 for the engine, which rounds up."""
    for (name, rule), wanted in zip(robust.rules(liars, trim=12 / 50).items(), expected, strict=True):
        found = robust.kept(rule, attack, 50, liars, np.random.default_rng(3))
        assert found == pytest.approx(wanted, abs=0.035), name


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
    trimmed = robust.leaves_found(depth, fan_in, robust.rules(0)["trim 25%"])
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
    honest, across = np.eye(2)
    hidden = float(e.hidden_part(2.0, 0.1))
    weights = np.zeros(2)
    for _ in range(100):  # one of twenty sends what passes, all are averaged, a rate of 0.7
        updates = [honest] * 19 + [honest + hidden * across]
        assert robust.passes(updates[-1], honest, 2.0000001, 0.1)
        weights += 0.7 * np.mean(updates, axis=0)
    assert weights[1] == pytest.approx(e.displaced(0.7, 100, 0.05, hidden))


@pytest.mark.parametrize("samples", [100, 1000])
def test_a_held_out_loss_shows_moved_weights_every_other_time_at_the_radius(samples: int) -> None:
    found = robust.unseen_found(2.0, 3.0, samples, np.random.default_rng(8))
    assert found == pytest.approx(e.unseen_radius(2.0, 3.0, samples), rel=0.03)


def test_the_signal_that_liars_leave_is_what_the_engine_s_rule_leaves() -> None:
    for cosine, liars in ((0.3, 40), (0.3, 120), (0.8, 100)):
        left = robust.crowd(cosine, 400, np.random.default_rng(liars)).left(liars)
        assert left == pytest.approx(float(e.signal_left(liars / 400, cosine)), abs=0.03)


# the rules that are tried are those of a round


def plain(rule: str, updates: robust.Matrix) -> robust.Vector:
    """Return what a rule is in plain words of numpy, by which the engine's is held."""
    lengths = np.linalg.norm(updates, axis=1)
    middle = np.sort(lengths)[(len(lengths) - 1) // 2]
    match rule:
        case "mean":
            return np.asarray(updates.mean(0))
        case "norm clip":
            return np.asarray((updates * np.minimum(1, middle / lengths)[:, None]).mean(0))
        case "median":
            return np.asarray(np.median(updates, axis=0))
        case "trim 25%":
            cut = int(np.ceil(len(updates) / 4))
            return np.asarray(np.sort(updates, axis=0)[cut:-cut].mean(0))
        case _:
            at = plain("norm clip", updates)
            for _ in range(20):
                ways = updates - at
                far = np.linalg.norm(ways, axis=1)
                at = at + (ways * np.minimum(1, middle / np.maximum(far, 1e-30))[:, None]).mean(0)
            return np.asarray(at)


@pytest.mark.parametrize("rule", ["mean", "norm clip", "median", "trim 25%", "centred clip"])
@pytest.mark.parametrize("peers", [5, 8, 20])
def test_the_engine_s_rule_is_the_one_its_name_says_element_for_element(rule: str, peers: int) -> None:
    rng = np.random.default_rng(peers)
    updates = rng.standard_normal((peers, 60)) * rng.uniform(0.2, 5, (peers, 1))
    np.testing.assert_allclose(robust.rules(1)[rule](updates), plain(rule, updates), atol=2e-5)
