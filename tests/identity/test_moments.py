"""Moments that travel (DES-LOC): a loop by hand averages the same, whoever inside remembers and whoever crashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Vector
from atoll.model.engine import TorchEngine
from atoll.model.moments import STEPS, weights_in
from atoll.model.shape import parts
from atoll.sim.faults import Crash
from atoll.spec.axes.optimizer import AdamW, Assign, Inner, Lamb, Muon, Sgd
from atoll.spec.axes.what import Params
from atoll.spec.axes.when import Every, WithMoments
from atoll.spec.run import Membership, Run
from tests.identity.small import BATCH, SAME, apart, ddp, digest_of, diloco, engine_of, steps_over, trained, weights_of
from tests.peer.world import anchor_of, events

ADAM = AdamW(lr=3e-3)
MUON = Muon(lr=0.02, adamw=ADAM)
SGD = Sgd(lr=0.3, momentum=0.9)
PEERS, H = 2, 2
WHEN = WithMoments(steps=H, first=2, second=3)


def run_of(inner: Inner, when: WithMoments | Every, rounds: int, peers: int = PEERS) -> Run:
    run = diloco(inner=inner, outer=Assign(), steps=H, rounds=rounds, start_with=peers)
    channel = replace(run.recipe.channel["outer"], when=when, what=Params())
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


def by_hand(inner: Inner, when: WithMoments, rounds: int) -> list[TorchEngine]:
    """Return ordinary engines, of which weights and, in their turns, what torch remembers were averaged."""
    engines = [engine_of(run_of(inner, Every(steps=H), rounds)) for _ in range(PEERS)]
    for number in range(rounds):
        for place, engine in enumerate(engines):
            engine.train(steps_over((number * PEERS + place) * H * BATCH, H))
        mean = np.stack([engine.weights() for engine in engines]).mean(axis=0, dtype=np.float32)
        for engine in engines:
            engine.assign(mean)
        first, second = when.due(number + 1)
        average(engines, ("exp_avg", "momentum_buffer") * first + ("exp_avg_sq", "row_squares") * second)
    return engines


def average(engines: Sequence[TorchEngine], slots: Sequence[str]) -> None:
    """Replace some of what everybody's optimizers remember by its mean."""
    for name in engines[0].layout:
        states = [state_of(engine, name) for engine in engines]
        for slot in {*slots} & states[0].keys():
            mean = torch.stack([state[slot] for state in states]).mean(dim=0)
            for state in states:
                state[slot].copy_(mean)


def state_of(engine: TorchEngine, name: str) -> dict[str, torch.Tensor]:
    parameter = engine._trained[name]
    (optimizer,) = (each for each in engine._optimizers if parameter in each.state)
    state: dict[str, torch.Tensor] = optimizer.state[parameter]
    return state


@pytest.mark.parametrize(
    ("inner", "when"),
    [
        (ADAM, WHEN),
        (MUON, WHEN),
        (SGD, WithMoments(steps=H, first=2, second=0)),
        pytest.param(ADAM, WithMoments(steps=H, first=1, second=1), marks=pytest.mark.long),
        pytest.param(ADAM, WithMoments(steps=H, first=0, second=2), marks=pytest.mark.long),
        pytest.param(Lamb(lr=0.02), WHEN, marks=pytest.mark.long),
        pytest.param(replace(MUON, beta2=0.95), WHEN, marks=pytest.mark.long),
        pytest.param(replace(SGD, nesterov=True), WithMoments(steps=H, first=3, second=0), marks=pytest.mark.long),
    ],
)
def test_it_is_what_a_loop_by_hand_averages(inner: Inner, when: WithMoments) -> None:
    rounds = 7
    anchor = weights_of(trained(run_of(inner, when, rounds), PEERS))
    engines = by_hand(inner, when, rounds)
    expected = engines[0].weights()
    assert apart(anchor[: expected.size], expected) < SAME
    kept = weights_of(trained(run_of(inner, Every(steps=H), rounds), PEERS))
    if isinstance(inner, AdamW | Lamb | Muon):
        assert apart(kept, expected) > 10 * SAME, "what is remembered matters"


def test_weights_and_momentum_averaged_at_every_step_are_data_parallelism() -> None:
    rounds = 5
    run = run_of(SGD, WithMoments(steps=1, first=1, second=0), rounds)
    plain = weights_of(trained(ddp(outer=SGD, rounds=rounds, start_with=PEERS), PEERS))
    assert apart(weights_of(trained(run, PEERS))[: plain.size], plain) < SAME


def test_one_peer_alone_has_nobody_to_average_with() -> None:
    alone = weights_of(trained(run_of(ADAM, WHEN, 4, peers=1), 1))
    plain = weights_of(trained(run_of(ADAM, Every(steps=H), 4, peers=1), 1))
    assert np.array_equal(alone[: plain.size], plain)


def moments_in(run: Run, vector: Vector) -> dict[str, Vector]:
    """Return what lies behind the weights of a vector, by name."""
    shapes = engine_of(run).shapes
    own = weights_in(engine_of(run).layout)
    return {name: vector[part] for name, part in parts(shapes).items() if part.start >= own}


def test_an_anchor_has_the_moments_that_were_last_averaged_and_how_many_steps_they_are_of() -> None:
    run = run_of(ADAM, WHEN, 5)
    outcome = trained(run, PEERS)
    behind = moments_in(run, weights_of(outcome))
    assert behind[STEPS] == [3 * H], "the second ones travelled in the third round"
    engines = by_hand(ADAM, WHEN, 4)
    for name, slot in (("first moment of ", "exp_avg"), ("second moment of ", "exp_avg_sq")):
        moments = np.concatenate([value for key, value in behind.items() if key.startswith(name)])
        if slot == "exp_avg":  # in the fourth
            mean = np.mean([states(engine, slot) for engine in engines], axis=0)
            assert apart(moments, mean) < SAME
        assert moments.any()


def states(engine: TorchEngine, slot: str) -> Vector:
    """Return one kind of moment of all tensors, one after the other."""
    return np.concatenate([state_of(engine, name)[slot].flatten().numpy() for name in engine.layout])


@pytest.mark.parametrize("at", [0.45, *(pytest.param(each, marks=pytest.mark.long) for each in (0.3, 0.6, 0.75))])
def test_who_crashes_comes_back_with_moments_of_its_own(at: float) -> None:
    run = replace(run_of(ADAM, WHEN, 9), membership=Membership(start_with=PEERS, contributors_min=PEERS))
    calm = trained(run, PEERS)
    crashed = trained(run, PEERS, faults=[Crash(at_s=calm.took_s * at, peer=1, restart_after_s=1.0)])
    assert len(events(crashed, journal.PeerStarted)) == PEERS + 1
    assert digest_of(crashed) == digest_of(calm)


def test_how_far_apart_peers_came_is_told_of_their_weights_alone() -> None:
    run = run_of(ADAM, WithMoments(steps=H, first=1, second=2), 4)
    outcome, engines = trained(run, PEERS), [engine_of(run) for _ in range(PEERS)]
    for place, engine in enumerate(engines):
        engine.train(steps_over(place * H * BATCH, H))
    weights = [engine.weights()[: weights_in(engine.layout)] for engine in engines]
    mean = np.mean(weights, axis=0)
    distances = [float(np.linalg.norm(each - mean) / np.linalg.norm(mean)) for each in weights]
    told = [event.apart for event in events(outcome, journal.RoundApplied) if event.version == 1]
    assert sorted(told) == pytest.approx(sorted(distances), rel=1e-3)
    assert all(event.apart for event in events(outcome, journal.RoundApplied)), "in every round"


def test_who_joins_begins_with_what_all_remembered() -> None:
    run = run_of(ADAM, WithMoments(steps=H, first=1, second=1), 6)
    anchor = weights_of(trained(run, PEERS))
    joiner = engine_of(run)
    joiner.assign(anchor)
    behind = moments_in(run, joiner.weights())
    assert behind[STEPS] == [6 * H]
    joiner.train(steps_over(0, 1))
    assert moments_in(run, joiner.weights())[STEPS] == [6 * H + 1]
    assert float(state_of(joiner, "model.norm.weight")["step"]) == 6 * H + 1


def test_who_joins_before_the_second_moments_travelled_begins_with_none() -> None:
    """A mean of gradients without one of their squares would be divided by next to nothing."""
    run = run_of(ADAM, WithMoments(steps=H, first=1, second=100), 3)
    anchor = weights_of(trained(run, PEERS))
    behind = moments_in(run, anchor)
    assert behind[STEPS] == [0] and any(value.any() for value in behind.values())
    joiner, fresh = engine_of(run), engine_of(run_of(ADAM, Every(steps=H), 3))
    joiner.assign(anchor)
    fresh.assign(anchor[: fresh.size])
    for engine in (joiner, fresh):
        engine.train(steps_over(0, 3))
    assert np.array_equal(joiner.weights()[: fresh.size], fresh.weights())


def test_what_is_saved_is_taken_back_to_the_bit() -> None:
    run = run_of(ADAM, WHEN, 3)
    one, other = engine_of(run), engine_of(run)
    one.train(steps_over(0, 3))
    weights, private = one.weights(), one.private()
    other.train(steps_over(40, 2))
    other.restore(private)
    other.assign(weights)
    for engine in (one, other):
        engine.train(steps_over(100, 2))
    assert np.array_equal(one.weights(), other.weights())
    assert one.private() == other.private()


def test_an_engine_that_never_stepped_saves_and_restores_too() -> None:
    run = run_of(MUON, WHEN, 3)
    one, other = engine_of(run), engine_of(run)
    other.train(steps_over(0, 1))
    other.restore(one.private())
    other.assign(one.weights())
    assert np.array_equal(one.weights(), other.weights())


def test_members_may_join_while_moments_travel() -> None:
    run = replace(run_of(ADAM, WHEN, 9), membership=Membership(start_with=2, contributors_min=2))
    outcome = trained(run, 3)
    assert anchor_of(outcome.hosts[2].disk).version == 9
