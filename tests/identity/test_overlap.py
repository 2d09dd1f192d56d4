"""Recipes that do not wait for results, held against plain loops that do the same by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from msgspec.structs import replace

from atoll.peer.private import opened
from atoll.sim.faults import Crash, Pause
from atoll.spec.axes.codec import Fp32, TopK
from atoll.spec.axes.optimizer import AdamW, Assign, Inner, Outer, Sgd
from atoll.spec.axes.pace import Blend, Block, Delay, OneRound, Overlap, RoundsLate, Shift
from atoll.spec.axes.what import Feedback, Grad
from atoll.spec.axes.when import Fragments
from atoll.spec.axes.work import Constant, Work
from tests.few import few_of
from tests.identity.small import (
    BATCH,
    SAME,
    apart,
    ddp,
    digest_of,
    diloco,
    engine_of,
    shipped,
    steps_over,
    trained,
    weights_of,
)

NESTEROV = Sgd(lr=0.7, momentum=0.9, nesterov=True)
ADAM, SGD = AdamW(lr=3e-3), Sgd(lr=0.3)
STEPS, ROUNDS = 3, 4


@pytest.mark.parametrize("outer", [NESTEROV, Assign()])
def test_one_eager_peer_is_diloco(outer: Outer) -> None:
    eager = diloco(inner=ADAM, outer=outer, steps=STEPS, rounds=ROUNDS, start_with=1, overlap=OneRound())
    plain = diloco(inner=ADAM, outer=outer, steps=STEPS, rounds=ROUNDS, start_with=1)
    assert apart(weights_of(trained(eager, 1)), weights_of(trained(plain, 1))) < SAME


@pytest.mark.parametrize("overlap", [Delay(steps=STEPS, reconcile=Shift()), Delay(steps=2, reconcile=Blend(keep=1.0))])
@pytest.mark.parametrize("inner", [ADAM, SGD])
def test_one_peer_that_assigns_its_own_mean_is_plain_training(overlap: Overlap, inner: Inner) -> None:
    run = diloco(inner=inner, outer=Assign(), steps=STEPS, rounds=ROUNDS, start_with=1, overlap=overlap)
    plain = engine_of(run)
    plain.train(steps_over(0, STEPS * ROUNDS))
    assert apart(weights_of(trained(run, 1)), plain.weights()) < SAME


@pytest.mark.parametrize("peers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_delayed_averaging_that_waits_is_local_sgd_to_the_bit(peers: int) -> None:
    """D = 0 is `block` here. FedAvg, as its own file has it, weighs by samples, 16 each, which rounds nothing."""
    runs = [
        shipped("dga", steps=4, rounds=ROUNDS, start_with=peers, overlap=Block()),
        shipped("fedavg", steps=4, rounds=ROUNDS, start_with=peers),
    ]
    dga, fedavg = (replace(run, recipe=replace(run.recipe, work=_at_once(run.recipe.work))) for run in runs)
    found = weights_of(trained(dga, peers))
    assert apart(found, engine_of(dga).weights()) > 1e-3
    assert np.array_equal(found, weights_of(trained(fedavg, peers)))


def _at_once(work: Work) -> Work:
    """Return work at the full rate from the first step on."""
    return replace(work, schedule=Constant())


def test_delayed_averaging_is_the_mean_in_place_of_ones_own_so_many_steps_later() -> None:
    peers, late = 2, 2
    overlap = Delay(steps=late, reconcile=Shift())
    run = diloco(inner=SGD, outer=Assign(), steps=STEPS, rounds=ROUNDS, start_with=peers, overlap=overlap)
    engines = [engine_of(run) for _ in range(peers)]
    anchor = engines[0].weights()
    sums = [np.zeros_like(anchor) for _ in range(peers)]
    for round_ in range(ROUNDS):
        mean = np.mean(sums, axis=0)
        for place, engine in enumerate(engines):
            samples = steps_over((round_ * peers + place) * STEPS * BATCH, STEPS)
            start = engine.weights()
            engine.train(samples[:late])
            engine.assign((engine.weights() - (mean - sums[place])).astype(np.float32))
            engine.train(samples[late:])
            sums[place] = start - (mean - sums[place]) - engine.weights()
        anchor = anchor - np.mean(sums, axis=0)
    assert apart(weights_of(trained(run, peers)), anchor.astype(np.float32)) < SAME


def test_a_blend_starts_the_outer_step_from_the_old_anchor_and_keeps_some_of_the_newer_steps() -> None:
    peers, late, keep = 2, 1, 0.5
    overlap = Delay(steps=late, reconcile=Blend(keep=keep))
    run = diloco(inner=ADAM, outer=NESTEROV, steps=STEPS, rounds=ROUNDS, start_with=peers, overlap=overlap)
    engines = [engine_of(run) for _ in range(peers)]
    anchor = engines[0].weights()
    momentum = np.zeros_like(anchor)
    for round_ in range(ROUNDS):
        deltas = []
        for place, engine in enumerate(engines):
            samples = steps_over((round_ * peers + place) * STEPS * BATCH, STEPS)
            engine.train(samples[:late])
            if round_:
                engine.assign(np.float32(keep) * engine.weights() + np.float32(1 - keep) * anchor)
            engine.train(samples[late:])
            deltas.append(anchor - engine.weights())
        mean = np.mean(deltas, axis=0)
        momentum = 0.9 * momentum + mean
        anchor = (anchor - 0.7 * (mean + 0.9 * momentum)).astype(np.float32)
    assert apart(weights_of(trained(run, peers)), anchor) < SAME


@pytest.mark.parametrize("eager", [True, False])
def test_a_round_late_everybody_starts_from_the_mean_of_the_round_before(eager: bool) -> None:
    peers = 2
    run = diloco(
        inner=ADAM, outer=NESTEROV, steps=STEPS, rounds=ROUNDS, start_with=peers, overlap=OneRound(eager=eager)
    )
    engines = [engine_of(run) for _ in range(peers)]
    anchor = engines[0].weights()
    starts, momenta = [anchor.copy() for _ in engines], [np.zeros_like(anchor) for _ in engines]
    stale, before = np.zeros_like(anchor), [np.zeros_like(anchor) for _ in engines]
    momentum = np.zeros_like(anchor)
    for round_ in range(ROUNDS):
        deltas = []
        for place, engine in enumerate(engines):
            engine.assign(starts[place])
            engine.train(steps_over((round_ * peers + place) * STEPS * BATCH, STEPS))
            deltas.append(starts[place] - engine.weights())
        for place, fresh in enumerate(deltas):
            step = stale + (fresh - before[place]) / peers if eager else stale
            momenta[place] = 0.9 * momenta[place] + step
            starts[place] = (starts[place] - 0.7 * (step + 0.9 * momenta[place])).astype(np.float32)
        stale, before = np.mean(deltas, axis=0), deltas
        momentum = 0.9 * momentum + stale
        anchor = (anchor - 0.7 * (stale + 0.9 * momentum)).astype(np.float32)
    assert apart(weights_of(trained(run, peers)), anchor) < SAME


def test_gradients_one_round_late_are_those_of_the_anchor_before_the_last() -> None:
    peers, rounds, lr = 2, 5, 0.3
    run = ddp(outer=Sgd(lr=lr), rounds=rounds, start_with=peers, overlap=OneRound(eager=False))
    engine = engine_of(run)
    anchors = [engine.weights(), engine.weights()]
    for round_ in range(rounds):
        engine.assign(anchors[-2])
        both = 2 * BATCH
        _, gradient = engine.gradient([steps_over(round_ * both, 1)[0], steps_over(round_ * both + BATCH, 1)[0]])
        anchors.append(anchors[-1] - np.float32(lr) * gradient)
    assert apart(weights_of(trained(run, peers)), anchors[-1]) < SAME


@pytest.mark.parametrize(
    ("late", "what"),
    [
        pytest.param(1, Grad(), marks=pytest.mark.long),
        pytest.param(3, Grad(), marks=pytest.mark.long),
        (3, Grad(codec=TopK(keep=8, block=64), residual=Feedback(), result=Fp32())),
    ],
    ids=["one", "three", "three-compressed"],
)
def test_gradients_rounds_late_with_feedback_are_delayed_error_feedback_descent_by_hand(late: int, what: Grad) -> None:
    """DD-EF-SGD: the mean of C(e + g) of gradients at the weights of so many steps before; e is what C leaves out."""
    peers, rounds, lr = 2, 7, 0.3
    run = ddp(outer=Sgd(lr=lr), rounds=rounds, start_with=peers, overlap=RoundsLate(rounds=late), what=what)
    engine = engine_of(run)
    weights = [engine.weights()]
    left_out = [np.zeros_like(weights[0]) for _ in range(peers)]
    for round_ in range(rounds):
        engine.assign(weights[max(0, round_ - late)])
        sent = []
        for place in range(peers):
            _, gradient = engine.gradient([steps_over((round_ * peers + place) * BATCH, 1)[0]])
            wanted = left_out[place] + gradient
            sent.append(_kept(what, wanted))
            left_out[place] = wanted - sent[-1]
        weights.append(weights[-1] - np.float32(lr) * np.mean(sent, axis=0))
    assert apart(weights_of(trained(run, peers)), weights[-1]) < SAME


def _kept(what: Grad, values: np.ndarray) -> np.ndarray:
    """Return the eight largest of every 64, where only those are sent."""
    if what == Grad():
        return values
    kept = np.zeros_like(values)
    for first in range(0, values.size, 64):
        block = values[first : first + 64]
        places = first + np.argsort(-np.abs(block), kind="stable")[: -(-8 * block.size // 64)]
        kept[places] = values[places]
    return kept


@pytest.mark.long
def test_one_round_late_is_the_same_in_either_words() -> None:
    runs = [
        ddp(outer=Sgd(lr=0.3), rounds=4, start_with=2, overlap=overlap)
        for overlap in (OneRound(eager=False), RoundsLate(rounds=1))
    ]
    assert digest_of(trained(runs[0], 2)) == digest_of(trained(runs[1], 2))


@pytest.mark.parametrize(
    "overlap", [OneRound(), Delay(steps=2, reconcile=Shift()), pytest.param(Delay(steps=1), marks=pytest.mark.long)]
)
def test_a_peer_that_crashes_while_it_goes_on_comes_to_the_same_model(overlap: Overlap) -> None:
    """Its lease, its weights and its optimizer are those of its last contribution: the steps since are taken again."""
    run = diloco(inner=ADAM, outer=NESTEROV, steps=STEPS, rounds=ROUNDS, start_with=2, overlap=overlap)
    calm = trained(run, 2)
    crashed = trained(run, 2, faults=[Crash(at_s=calm.took_s * 0.6, peer=1, restart_after_s=1.0)])
    paused = trained(run, 2, faults=[Pause(at_s=calm.took_s * 0.4, peer=1, for_s=1.5)])
    assert digest_of(paused) == digest_of(calm)
    assert digest_of(crashed) == digest_of(calm)


# fragments


def test_one_fragment_without_delay_is_diloco_to_the_bit() -> None:
    one = diloco(inner=ADAM, outer=NESTEROV, steps=STEPS, rounds=ROUNDS, start_with=2, fragments=1)
    plain = diloco(inner=ADAM, outer=NESTEROV, steps=STEPS, rounds=ROUNDS, start_with=2)
    assert digest_of(trained(one, 2)) == digest_of(trained(plain, 2))


@pytest.mark.parametrize(("late", "keep"), few_of([(0, 0.0), (1, 0.5), (2, 0.0)], ((0, 0.0), (1, 0.5))))
def test_fragments_in_turn_start_their_outer_step_from_their_own_last_one(late: int, keep: float) -> None:
    """Streaming DiLoCo by hand: fragment p goes out every H steps, and comes back `late` steps later."""
    peers, fragments, spacing, rounds = 2, 2, 2, 7
    overlap = Delay(steps=late, reconcile=Blend(keep=keep)) if late else None
    run = diloco(
        inner=ADAM,
        outer=NESTEROV,
        steps=fragments * spacing,
        rounds=rounds,
        start_with=peers,
        overlap=overlap,
        fragments=fragments,
    )
    engines = [engine_of(run) for _ in range(peers)]
    anchor = engines[0].weights()
    momentum = np.zeros_like(anchor)
    owner = fragment_of_each_element(engines[0].layout)
    back: np.ndarray | None = None
    for round_ in range(rounds):
        deltas = []
        for place, engine in enumerate(engines):
            samples = steps_over((round_ * peers + place) * spacing * BATCH, spacing)
            engine.train(samples[:late])
            if back is not None:
                mixed = np.float32(keep) * engine.weights() + np.float32(1 - keep) * anchor
                engine.assign(np.where(back, mixed, engine.weights()))
            engine.train(samples[late:])
            deltas.append(anchor - engine.weights())
        back = owner == round_ % fragments
        mean = np.mean(deltas, axis=0)
        momentum = np.where(back, 0.9 * momentum + mean, momentum)
        anchor = np.where(back, anchor - 0.7 * (mean + 0.9 * momentum), anchor).astype(np.float32)
    assert apart(weights_of(trained(run, peers)), anchor) < SAME


def test_streaming_that_keeps_all_of_its_own_is_local_training() -> None:
    """With alpha = 1, in fragments and 4 bits as shipped: whatever comes back, everybody's weights stay its own."""
    peers, fragments, spacing, rounds = 3, 2, 2, 5
    alone = Delay(steps=1, reconcile=Blend(keep=1.0))
    run = shipped("streaming", steps=STEPS, rounds=rounds, start_with=peers, overlap=alone)
    channel = replace(run.recipe.channel["outer"], when=Fragments(steps=fragments * spacing, count=fragments))
    run = replace(run, recipe=replace(run.recipe, work=_at_once(run.recipe.work), channel={"outer": channel}))
    outcome = trained(run, peers)
    for place, host in enumerate(sorted(outcome.hosts, key=lambda host: host.peer)):
        engine = engine_of(run)
        for round_ in range(rounds):
            engine.train(steps_over((round_ * peers + place) * spacing * BATCH, spacing))
        own = opened(host.disk.files()[f"private/{rounds}.safetensors"])[1]["local"]
        assert np.array_equal(own, engine.weights())
    assert apart(weights_of(outcome), engine_of(run).weights()) > 1e-3, "though the anchor moves"


def fragment_of_each_element(layout: Mapping[str, int]) -> np.ndarray:
    """Return which of two fragments each element is in: layers in turn, and with them what is before and after."""
    homes = {"embed": 0, "layers.0": 0, "layers.1": 1, "model.norm": 1, "lm_head": 1}
    found = {name: next(home for part, home in homes.items() if part in name) for name in layout}
    return np.concatenate([np.full(size, found[name]) for name, size in layout.items()])
