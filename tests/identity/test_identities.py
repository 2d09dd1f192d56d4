"""Degenerate settings of a recipe equal a known baseline: the cheapest proof that it is wired right.

The training is real (a tiny model on torch), the world around it is simulated.
"""

from __future__ import annotations

import numpy as np
import pytest

from atoll.model.compute import Step
from atoll.spec.recipe import AdamW, AllGather, Assign, Cosine, Delta, Feedback, Fp32, Inner, Muon, Outer, Sgd, TopK
from atoll.sync.schedule import rate
from tests.identity.small import BATCH, SAME, apart, ddp, diloco, engine_of, steps_over, trained, weights_of

MUON = Muon(lr=0.02, adamw=AdamW(lr=3e-3))
MUON_SAME = 10 * SAME
"""Muon brings all singular values of a step near one, those too that are little more than rounding."""


@pytest.mark.parametrize("peers", [2, 3])
def test_diloco_with_one_sgd_step_and_outer_rate_one_is_ddp(peers: int) -> None:
    one = diloco(inner=Sgd(lr=0.3), outer=Sgd(lr=1.0), steps=1, rounds=6, start_with=peers)
    other = ddp(outer=Sgd(lr=0.3), rounds=6, start_with=peers)
    start = engine_of(one).weights()
    weights = weights_of(trained(one, peers))
    assert apart(weights, start) > 1e-3, "it has learned something"
    assert apart(weights, weights_of(trained(other, peers))) < SAME


def test_ddp_of_two_is_one_machine_with_the_batches_of_both() -> None:
    # Without decay: a peer's own AdamW spares vectors (norms) from decay, the common one knows no tensors.
    adam = AdamW(lr=3e-3, weight_decay=0.0)
    weights = weights_of(trained(ddp(outer=adam, rounds=5, start_with=2), 2))
    plain = engine_of(diloco(inner=adam, outer=Assign(), steps=1, rounds=1, start_with=1))
    both = 2 * BATCH
    plain.train([Step(samples=tuple(range(at, at + both))) for at in range(0, 5 * both, both)])
    assert apart(weights, plain.weights()) < SAME


@pytest.mark.parametrize("outer", [Assign(), Sgd(lr=1.0)])
@pytest.mark.parametrize(
    ("inner", "same"), [(AdamW(lr=3e-3), SAME), (Sgd(lr=0.3, momentum=0.9), SAME), (MUON, MUON_SAME)]
)
def test_one_peer_without_outer_momentum_is_plain_training(inner: Inner, same: float, outer: Outer) -> None:
    run = diloco(inner=inner, outer=outer, steps=3, rounds=4, start_with=1)
    plain = engine_of(run)
    start = plain.weights()
    plain.train(steps_over(0, 12))
    weights = weights_of(trained(run, 1))
    assert apart(weights, start) > 1e-3
    assert apart(weights, plain.weights()) < same


def test_one_peer_follows_the_schedule_as_plain_training_does() -> None:
    schedule = Cosine(warmup_steps=4, floor=0.1)
    run = diloco(inner=AdamW(lr=3e-3), outer=Assign(), steps=3, rounds=4, start_with=1, schedule=schedule)
    plain = engine_of(run)
    plain.train(steps_over(0, 12, [rate(schedule, step, step / 12) for step in range(12)]))
    assert apart(weights_of(trained(run, 1)), plain.weights()) < SAME


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_fedavg_is_the_mean_of_the_weights(weights: str) -> None:
    peers, steps, rounds = 3, 2, 2
    run = diloco(inner=Sgd(lr=0.3), outer=Assign(), steps=steps, rounds=rounds, start_with=peers, weights=weights)
    engines = [engine_of(run) for _ in range(peers)]
    common = engines[0].weights()
    for round_ in range(rounds):
        for place, engine in enumerate(engines):
            engine.assign(common)
            engine.train(steps_over((round_ * peers + place) * steps * BATCH, steps))
        common = np.stack([engine.weights() for engine in engines]).mean(axis=0, dtype=np.float64).astype(np.float32)
    assert apart(weights_of(trained(run, peers)), common) < SAME


def test_slowmo_is_the_papers_slow_momentum_at_a_constant_inner_rate() -> None:
    peers, steps, rounds, gamma, alpha, beta = 2, 2, 3, 0.3, 0.9, 0.7
    run = diloco(inner=Sgd(lr=gamma), outer=Sgd(lr=alpha, momentum=beta), steps=steps, rounds=rounds, start_with=peers)
    engines = [engine_of(run) for _ in range(peers)]
    before = engines[0].weights()
    slow = np.zeros_like(before)
    for round_ in range(rounds):
        for place, engine in enumerate(engines):
            engine.assign(before)
            engine.train(steps_over((round_ * peers + place) * steps * BATCH, steps))
        mean = np.mean([engine.weights() for engine in engines], axis=0)
        slow = beta * slow + (before - mean) / gamma
        before = (before - alpha * gamma * slow).astype(np.float32)
    assert apart(weights_of(trained(run, peers)), before) < SAME


def test_sparseloco_that_keeps_all_and_feeds_nothing_back_is_fedavg() -> None:
    peers, common = 3, {"inner": Sgd(lr=0.3), "steps": 2, "rounds": 3, "start_with": 3}
    kept = Delta(codec=TopK(keep=16, block=16), residual=Feedback(decay=0.0), result=Fp32())
    sparse = diloco(**common, outer=Sgd(lr=1.0), what=kept, route=AllGather())  # type: ignore[arg-type]
    plain = diloco(**common, outer=Assign())  # type: ignore[arg-type]
    assert apart(weights_of(trained(sparse, peers)), weights_of(trained(plain, peers))) < SAME


def test_sparseloco_is_the_largest_of_each_block_and_the_rest_later() -> None:
    peers, steps, rounds, block, keep, decay = 3, 2, 6, 32, 2, 0.95
    what = Delta(codec=TopK(keep=keep, block=block), residual=Feedback(decay=decay), result=Fp32())
    run = diloco(
        inner=AdamW(lr=3e-3),
        outer=Sgd(lr=1.0),
        steps=steps,
        rounds=rounds,
        start_with=peers,
        what=what,
        route=AllGather(),
    )
    engines = [engine_of(run) for _ in range(peers)]
    common = engines[0].weights()
    assert common.size % block == 0, "no block is short"
    left = [np.zeros_like(common) for _ in engines]
    for round_ in range(rounds):
        sent = []
        for place, engine in enumerate(engines):
            engine.assign(common)
            engine.train(steps_over((round_ * peers + place) * steps * BATCH, steps))
            wanted = decay * left[place] + (common - engine.weights())
            blocks = np.abs(wanted).reshape(-1, block)
            chosen = blocks >= np.sort(blocks, axis=1)[:, -keep, None]
            sent.append(np.where(chosen.reshape(-1), wanted, 0.0))
            left[place] = wanted - sent[place]
        common = (common - np.mean(sent, axis=0)).astype(np.float32)
    assert apart(weights_of(trained(run, peers)), common) < SAME


def test_diloco_keeps_every_peers_own_adam_between_rounds() -> None:
    peers, steps, rounds = 2, 2, 3
    outer = Sgd(lr=0.7, momentum=0.9, nesterov=True)
    run = diloco(inner=AdamW(lr=3e-3), outer=outer, steps=steps, rounds=rounds, start_with=peers)
    engines = [engine_of(run) for _ in range(peers)]
    common = engines[0].weights()
    momentum = np.zeros_like(common)
    for round_ in range(rounds):
        deltas = []
        for place, engine in enumerate(engines):
            engine.assign(common)
            engine.train(steps_over((round_ * peers + place) * steps * BATCH, steps))
            deltas.append(common - engine.weights())
        mean = np.mean(deltas, axis=0)
        momentum = 0.9 * momentum + mean
        common = (common - 0.7 * (mean + 0.9 * momentum)).astype(np.float32)
    assert apart(weights_of(trained(run, peers)), common) < SAME
