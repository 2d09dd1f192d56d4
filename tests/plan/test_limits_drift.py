"""Drift and the ceiling: FedAvg really run beside its fixed point, steps really taken beside the critical batch."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.plan.cost.batch import members_for, speed_up
from atoll.plan.limits import drift, quadratics, tiny


@pytest.fixture(scope="module")
def bowls() -> quadratics.Bowls:
    return quadratics.bowls(20, 30, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("steps", "bias", "lost", "rounds"),
    [(1, 0.0, 0.0, 63), (5, 0.32, 0.10, 15), (20, 0.69, 0.46, 6), (100, 0.91, 0.78, 2), (500, 0.92, 0.80, 1)],
)
def test_local_steps_cost_so_much_on_the_quadratics_of_seed_0(
    bowls: quadratics.Bowls, steps: int, bias: float, lost: float, rounds: int
) -> None:
    assert quadratics.bias(bowls, steps, 0.5) == pytest.approx(bias, abs=0.006)
    assert quadratics.gap_lost(bowls, steps, 0.5) == pytest.approx(lost, abs=0.006)
    assert quadratics.rounds_to(bowls, steps, 0.5) == rounds


@pytest.mark.parametrize("steps", [1, 7, 60])
def test_fedavg_really_run_settles_where_the_fixed_point_says(bowls: quadratics.Bowls, steps: int) -> None:
    rounds = quadratics.rounds_to(bowls, steps, 0.5, 1e-10)
    came = quadratics.train(bowls, steps, 0.5, rounds)
    np.testing.assert_allclose(came, quadratics.settled(bowls, steps, 0.5), atol=1e-7)


def test_equal_curvatures_leave_no_bias_and_the_scale_of_the_centres_does_not_matter(bowls: quadratics.Bowls) -> None:
    alike = quadratics.Bowls(np.repeat(bowls.curvatures[:1], 20, 0), bowls.centres)
    assert quadratics.bias(alike, 100, 0.5) < 1e-9
    wider = quadratics.Bowls(bowls.curvatures, 7 * bowls.centres)
    assert quadratics.bias(wider, 20, 0.5) == pytest.approx(quadratics.bias(bowls, 20, 0.5))


def test_the_draw_of_seed_0_is_a_far_one_most_lose_less() -> None:
    biases = [quadratics.bias(quadratics.bowls(20, 30, np.random.default_rng(seed)), 500, 0.5) for seed in range(1, 9)]
    assert max(biases) < 0.92
    assert 0.5 < float(np.median(biases)) < 0.8


@pytest.mark.parametrize(("critical", "expected"), [(4e6, (71, 197, 234, 242)), (16e6, (91, 495, 818, 932))])
def test_so_many_peers_are_worth_so_few(critical: float, expected: tuple[int, ...]) -> None:
    found = [round(float(speed_up(peers, 16384, critical))) for peers in (100, 1000, 5000, 20000)]
    assert found == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(
    ("peers", "own"), [(3, 0.02), (30, 0.02), (300, 0.02), (8, 0.5), (1000, 0.004), (20000, 0.004)]
)
def test_steps_really_taken_gain_as_much_as_the_critical_batch_says(peers: int, own: float) -> None:
    drawn = peers * drift.worth_drawn(peers, own, np.random.default_rng(peers))
    assert drawn == pytest.approx(float(speed_up(peers, own, 1.0)), rel=0.04)


def test_the_critical_batch_of_the_toy_comes_out_of_its_samples() -> None:
    rng = np.random.default_rng(2)
    gradients = drift._mean_gradients(20000, 1, 60, rng)
    signal = float(np.linalg.norm(gradients.mean(0)) ** 2)
    noise = float(gradients.var(0).sum())
    assert noise / signal == pytest.approx(61, rel=0.1)


def test_half_of_the_work_counts_with_just_so_many_peers() -> None:
    peers = round(float(members_for(0.5, 16384, 4e6)))
    assert drift.worth_drawn(peers, 16384 / 4e6, np.random.default_rng(1)) == pytest.approx(0.5, rel=0.04)


def test_a_language_model_drifts_when_texts_differ_and_exchanges_are_rare_and_hardly_otherwise() -> None:
    def above(alpha: float, local_steps: int) -> float:
        world = tiny.world(8, alpha, np.random.default_rng(7))
        rng = np.random.default_rng(8)
        return tiny.train(world, steps=100, local_steps=local_steps, rate=10.0, batch=256, rng=rng).above

    alike = above(np.inf, 1), above(np.inf, 100)
    uneven = above(0.1, 1), above(0.1, 100)
    assert alike[1] < 1.5 * alike[0]
    assert uneven[1] > 3 * uneven[0]


@pytest.mark.long
def test_drift_of_the_trained_model_grows_with_unevenness_and_with_local_steps() -> None:
    ends = {}
    for alpha in (np.inf, 1.0, 0.1):
        for steps in (1, 10, 100):
            runs = []
            for seed in range(5):
                world = tiny.world(8, alpha, np.random.default_rng(seed))
                rng = np.random.default_rng(100 + seed)
                runs.append(tiny.train(world, steps=400, local_steps=steps, rate=10.0, batch=256, rng=rng).above)
            ends[alpha, steps] = float(np.mean(runs))
    assert ends[0.1, 100] > ends[1.0, 100] > ends[np.inf, 100]
    assert ends[0.1, 100] > ends[0.1, 10] > 0.9 * ends[0.1, 1]
