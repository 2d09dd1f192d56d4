"""Degenerate settings of a recipe equal a known baseline: the cheapest proof that it is wired right.

The training is real (a tiny model on torch), the world around it is simulated.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Step, Vector
from atoll.spec.axes.codec import Codec, Fp32, Significance, Threshold, TopK
from atoll.spec.axes.optimizer import AdamW, Assign, Inner, Lamb, Muon, Outer, Sgd, SignSgd
from atoll.spec.axes.what import Dct, Delta, Feedback, Grad
from atoll.spec.axes.whom import AllGather, Butterfly
from atoll.spec.axes.work import ByRate, Constant, Cosine, Same, Wsd
from atoll.spec.load import load_recipe
from atoll.spec.run import Budget, Run
from atoll.spec.schedule import rate
from atoll.sync.codec import decode, encode
from atoll.sync.frequencies import Frequencies
from atoll.sync.units import whole
from tests.few import few_of
from tests.identity.small import (
    BATCH,
    SAME,
    apart,
    ddp,
    demo,
    digest_of,
    diloco,
    engine_of,
    shipped,
    steps_over,
    trained,
    weights_of,
)
from tests.model.toys import CONTEXT
from tests.peer.world import events, play

MUON = Muon(lr=0.02, adamw=AdamW(lr=3e-3))
MUON_SAME = 10 * SAME
"""Muon brings all singular values of a step near one, those too that are little more than rounding."""


@pytest.mark.parametrize("peers", few_of((2, 3), (3,)))
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


def test_one_lamb_step_of_one_peer_that_is_assigned_is_ddp_with_a_common_lamb() -> None:
    """To rounding: inside, lengths are added up in fp32 and the weights go through a delta."""
    lamb, schedule = Lamb(lr=0.02, weight_decay=0.1), Cosine(warmup_steps=2)
    one = diloco(inner=lamb, outer=Assign(), steps=1, rounds=6, start_with=1, schedule=schedule)
    other = ddp(outer=lamb, rounds=6, start_with=1, schedule=schedule)
    start = engine_of(one).weights()
    weights = weights_of(trained(one, 1))
    assert apart(weights, start) > 1e-3, "it has learned something"
    assert apart(weights, weights_of(trained(other, 1))) < SAME


@pytest.mark.parametrize("outer", [Assign(), pytest.param(Sgd(lr=1.0), marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("inner", "same"),
    [(AdamW(lr=3e-3), SAME), (Sgd(lr=0.3, momentum=0.9), SAME), (Lamb(lr=0.02), SAME), (MUON, MUON_SAME)],
)
def test_one_peer_without_outer_momentum_is_plain_training(inner: Inner, same: float, outer: Outer) -> None:
    run = diloco(inner=inner, outer=outer, steps=3, rounds=4, start_with=1)
    plain = engine_of(run)
    start = plain.weights()
    plain.train(steps_over(0, 12))
    weights = weights_of(trained(run, 1))
    assert apart(weights, start) > 1e-3
    assert apart(weights, plain.weights()) < same


@pytest.mark.parametrize("alpha", [0.5, 0.8])
@pytest.mark.parametrize("inner", [AdamW(lr=3e-3), Sgd(lr=0.3, momentum=0.9)])
def test_one_peer_without_outer_momentum_is_lookahead(inner: Inner, alpha: float) -> None:
    """The slow weights go a part of the way to the fast ones, which start again from there: the same bits."""
    steps, rounds = 3, 4
    run = diloco(inner=inner, outer=Sgd(lr=alpha), steps=steps, rounds=rounds, start_with=1)
    engine = engine_of(run)
    slow = engine.weights()
    for round_ in range(rounds):
        engine.assign(slow)
        engine.train(steps_over(round_ * steps * BATCH, steps))
        slow = slow + np.float32(alpha) * (engine.weights() - slow)
    assert np.array_equal(weights_of(trained(run, 1)), slow)


def test_groups_of_unequal_size_that_pass_on_sums_and_weights_come_to_the_flat_mean_by_samples() -> None:
    tree, flat = (
        trained(
            diloco(
                inner=Sgd(lr=0.3),
                outer=Assign(),
                steps=2,
                rounds=2,
                start_with=5,
                weights="samples",
                route=Butterfly(group=group),
            ),
            5,
        )
        for group in (3, 64)
    )
    assert apart(weights_of(tree), weights_of(flat)) < SAME


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


@pytest.mark.parametrize("peers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_diloco_of_outer_rate_one_without_momentum_is_fedavg_to_the_bit(peers: int) -> None:
    """As shipped, but with FedAvg's local work; FedAvg weighs by samples, 16 each, which rounds nothing."""
    work = replace(load_recipe("fedavg").work, schedule=Constant())
    diloco_, fedavg = (shipped(name, steps=4, rounds=4, start_with=peers, work=work) for name in ("diloco", "fedavg"))
    channel = diloco_.recipe.channel["outer"]
    channel = replace(channel, merge=replace(channel.merge, outer=Sgd(lr=1.0)))
    plain = replace(diloco_, recipe=replace(diloco_.recipe, channel={"outer": channel}))
    found = weights_of(trained(plain, peers))
    assert apart(found, engine_of(plain).weights()) > 1e-3
    assert np.array_equal(found, weights_of(trained(fedavg, peers)))


def growing(power: float, *, base: int = 2, peers: int = 3, total: int = 30) -> Run:
    """Return local averaging in rounds that grow, of so many steps of everybody in all."""
    schedule = Cosine(warmup_steps=20, floor=0.1)
    run = diloco(inner=AdamW(lr=3e-3), outer=Assign(), steps=base, rounds=1, start_with=peers, schedule=schedule)
    work = replace(run.recipe.work, quota=ByRate(power=power, most=6))
    budget = Budget(tokens=total * peers * BATCH * CONTEXT)
    return replace(run, recipe=replace(run.recipe, work=work), budget=budget)


def test_qsr_is_a_mean_after_as_many_steps_as_the_base_over_the_square_of_the_rate() -> None:
    base, peers, total = 2, 3, 30
    run = growing(2.0, base=base, peers=peers, total=total)
    schedule, engines = run.recipe.work.schedule, [engine_of(run) for _ in range(peers)]
    common, done = engines[0].weights(), 0
    lengths: list[int] = []
    while done < total:
        fallen = 0.1 + 0.9 * (1 + math.cos(math.pi * done / total)) / 2
        steps = min(round(min(6, base / fallen**2)), total - done)
        rates = [rate(schedule, done + i, (done + i) / total) for i in range(steps)]
        for place, engine in enumerate(engines):
            engine.assign(common)
            engine.train(steps_over((done * peers + place * steps) * BATCH, steps, rates))
        common = np.stack([engine.weights() for engine in engines]).mean(axis=0, dtype=np.float64).astype(np.float32)
        done, lengths = done + steps, [*lengths, steps]
    assert lengths == sorted(lengths[:-1]) + lengths[-1:]
    assert max(lengths) == 6
    assert apart(weights_of(play(run, peers, build=engine_of)), common) < SAME


@pytest.mark.long
def test_rounds_that_do_not_grow_with_the_rate_are_those_of_local_averaging() -> None:
    run = growing(0.0)
    plain = replace(run, recipe=replace(run.recipe, work=replace(run.recipe.work, quota=Same())))
    assert digest_of(play(run, 3, build=engine_of)) == digest_of(play(plain, 3, build=engine_of))
    assert digest_of(play(growing(1.0), 3, build=engine_of)) != digest_of(play(plain, 3, build=engine_of))


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


@pytest.mark.parametrize(
    "codec", [Threshold(least=0.0, scaled=True), pytest.param(Significance(least=0.0), marks=pytest.mark.long)]
)
def test_a_threshold_of_nothing_is_fedavg(codec: Codec) -> None:
    """Gaia's filter at nothing is every update at once; gamma-FedHT's is FedAvg."""
    peers, common = 3, {"inner": Sgd(lr=0.3), "steps": 2, "rounds": 3, "start_with": 3, "outer": Assign()}
    kept = Delta(codec=codec, residual=Feedback(), result=Fp32())
    sparse = diloco(**common, what=kept, route=AllGather())  # type: ignore[arg-type]
    plain = diloco(**common)  # type: ignore[arg-type]
    assert apart(weights_of(trained(sparse, peers)), weights_of(trained(plain, peers))) < SAME


def test_a_threshold_that_follows_the_rate_goes_on_sending_while_steps_get_shorter() -> None:
    def last_round_bytes(least: float, scaled: bool) -> int:
        run = diloco(
            inner=Sgd(lr=0.3),
            outer=Assign(),
            steps=2,
            rounds=4,
            start_with=2,
            what=Delta(codec=Threshold(least=least, scaled=scaled), result=Fp32()),
            route=AllGather(),
            schedule=Wsd(decay=1.0),
        )
        counted = events(trained(run, 2), journal.TrafficCounted, peer=0)
        return counted[-1].round_sent_bytes - counted[-2].round_sent_bytes

    framing = last_round_bytes(1e9, False)
    fixed, scaled = last_round_bytes(1e-2, False) - framing, last_round_bytes(1e-2, True) - framing
    assert scaled > 2 * fixed >= 0


def test_what_is_significant_is_a_part_of_its_weight_that_falls_with_the_root_of_the_round() -> None:
    rounds, least = 3, 0.05
    what = Delta(codec=Significance(least=least), residual=Feedback(), result=Fp32())
    run = diloco(inner=Sgd(lr=0.3), outer=Assign(), steps=2, rounds=rounds, start_with=1, what=what, route=AllGather())
    engine = engine_of(run)
    common = engine.weights()
    held = np.zeros_like(common)
    for round_ in range(rounds):
        engine.assign(common)
        engine.train(steps_over(round_ * 2 * BATCH, 2))
        held += common - engine.weights()
        there = np.abs(held) >= np.abs(common) * np.float32(least / np.sqrt(round_ + 1))
        assert 0.01 < there.mean() < 0.99
        common = common - np.where(there, held, np.float32(0))
        held[there] = 0.0
    assert apart(weights_of(trained(run, 1)), common) < SAME


@pytest.mark.parametrize("transform", [None, Dct(tile=16)])
def test_demo_that_keeps_all_and_no_momentum_is_a_sign_step_on_the_mean_gradient(transform: Dct | None) -> None:
    """Frequencies bring back what is next to nothing with another sign: what counts is what is not."""
    peers, rounds, lr = 3, 1 if transform else 3, 1e-3
    what = Grad(codec=TopK(keep=16, block=16), residual=Feedback(decay=0.0), result=Fp32(), transform=transform)
    run = demo(what=what, outer=SignSgd(lr=lr), rounds=rounds, start_with=peers)
    engine = engine_of(run)
    common = engine.weights()
    for round_ in range(rounds):
        engine.assign(common)
        firsts = [(round_ * peers + place) * BATCH for place in range(peers)]
        mean = np.mean([engine.gradient(steps_over(first, 1))[1] for first in firsts], axis=0)
        common = (common - lr * np.sign(mean)).astype(np.float32)
    clear = np.abs(mean) > 1e-7
    assert clear.mean() > 0.5
    assert apart(weights_of(trained(run, peers))[clear], common[clear]) < SAME


def test_demos_momentum_holds_what_was_not_sent() -> None:
    """By the authors' loop: momentum, frequencies, the largest, and what was sent taken out of the values."""
    peers, rounds, lr, decay = 2, 3, 1e-3, 0.9
    codec = TopK(keep=4, block=256)
    what = Grad(codec=codec, residual=Feedback(decay=decay), result=Fp32(), transform=Dct(tile=16))
    run = demo(what=what, outer=SignSgd(lr=lr, weight_decay=0.1), rounds=rounds, start_with=peers)
    engines = [engine_of(run) for _ in range(peers)]
    common = engines[0].weights()
    unit = whole(common.size, codec)
    tiles = Frequencies(Dct(tile=16), unit, engines[0].shapes)
    momenta = [np.zeros_like(common) for _ in range(peers)]
    for round_ in range(rounds):
        received, counts = np.zeros_like(common), np.zeros_like(common)
        for place, engine in enumerate(engines):
            engine.assign(common)
            gradient = engine.gradient(steps_over((round_ * peers + place) * BATCH, 1))[1]
            momenta[place] = decay * momenta[place] + gradient
            frequencies = tiles.of(momenta[place])
            chosen = np.concatenate(
                [sent_of(codec, frequencies[slice(*unit.grid.bounds(i))]) for i in range(unit.grid.chunks)]
            )
            momenta[place] -= tiles.back(chosen)
            received += chosen
            counts += chosen != 0
        step = tiles.back((received / np.maximum(counts, 1)).astype(np.float32))
        common = (common * (1 - lr * 0.1) - lr * np.sign(step)).astype(np.float32)
    same = np.abs(weights_of(trained(run, peers)) - common) < SAME
    assert same.mean() > 0.98, "rounding turns a sign here and there"


def sent_of(codec: TopK, values: Vector) -> Vector:
    return decode(codec, encode(codec, values), values.size)


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
