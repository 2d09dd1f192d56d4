"""Moments that travel (DES-LOC): a loop by hand averages the same, whoever inside remembers and whoever crashes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Vector
from atoll.model.engine import TorchEngine
from atoll.model.folder import save_folder
from atoll.model.moments import FIRST, MASS, SECOND, mass_of, steps_of, weights_in
from atoll.model.shape import parts
from atoll.net.identity import short
from atoll.sim.faults import Crash, Fault, SlowCompute
from atoll.sim.scenario import Entrance
from atoll.spec.axes.optimizer import AdamW, Assign, Inner, Lamb, Muon, Sgd
from atoll.spec.axes.pace import Quorum
from atoll.spec.axes.what import Params
from atoll.spec.axes.when import Every, WithMoments
from atoll.spec.run import Folder, Lora, Membership, Run
from tests.few import few_of
from tests.identity.small import BATCH, SAME, apart, ddp, digest_of, diloco, engine_of, steps_over, trained, weights_of
from tests.model.toys import VOCAB
from tests.peer.world import anchor_of, events, once, play

ADAM = AdamW(lr=3e-3)
MUON = Muon(lr=0.02, adamw=ADAM)
NORMUON = replace(MUON, beta2=0.95)
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
        pytest.param(MUON, WHEN, marks=pytest.mark.long),
        (SGD, WithMoments(steps=H, first=2, second=0)),
        pytest.param(ADAM, WithMoments(steps=H, first=1, second=1), marks=pytest.mark.long),
        pytest.param(ADAM, WithMoments(steps=H, first=0, second=2), marks=pytest.mark.long),
        pytest.param(Lamb(lr=0.02), WHEN, marks=pytest.mark.long),
        pytest.param(NORMUON, WHEN, marks=pytest.mark.long),
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


def test_weights_and_momentum_averaged_at_every_step_are_data_parallelism_with_its_momentum() -> None:
    rounds = 5
    run = run_of(SGD, WithMoments(steps=1, first=1, second=0), rounds)
    plain = anchor_of(trained(ddp(outer=SGD, rounds=rounds, start_with=PEERS), PEERS).hosts[0].disk)
    vector = weights_of(trained(run, PEERS))
    assert apart(vector[: plain.weights.size], plain.weights) < SAME
    assert apart(vector[plain.weights.size :], plain.outer["momentum"]) < SAME


def test_one_peer_alone_has_nobody_to_average_with() -> None:
    alone = weights_of(trained(run_of(ADAM, WHEN, 4, peers=1), 1))
    plain = weights_of(trained(run_of(ADAM, Every(steps=H), 4, peers=1), 1))
    assert np.array_equal(alone[: plain.size], plain)


def moments_in(run: Run, vector: Vector) -> dict[str, Vector]:
    """Return what lies behind the weights of a vector, by name."""
    shapes = engine_of(run).shapes
    own = weights_in(engine_of(run).layout)
    return {name: vector[part] for name, part in parts(shapes).items() if part.start >= own}


def test_an_anchor_has_the_moments_that_were_last_averaged_and_their_mass() -> None:
    run = run_of(ADAM, WHEN, 5)
    behind = moments_in(run, weights_of(trained(run, PEERS)))
    assert behind[MASS] == pytest.approx([mass_of(3 * H, ADAM.betas[1])]), "they travelled in the third round"
    for kind, slot, rounds in ((FIRST, "exp_avg", 4), (SECOND, "exp_avg_sq", 3)):
        held = np.concatenate([value for name, value in behind.items() if name.startswith(kind)])
        assert held.any()
        assert apart(held, states(by_hand(ADAM, WHEN, rounds)[0], slot)) < SAME


@pytest.mark.parametrize("beta", [0.95, 0.999, 0.0])
def test_masses_say_of_how_many_steps_they_are_until_they_are_full(beta: float) -> None:
    for steps in (0, 1, 7, 100):
        assert steps_of(float(np.float32(mass_of(steps, beta))), beta) == pytest.approx(
            min(steps, 1) if not beta else steps, rel=1e-2
        )
    assert mass_of(steps_of(1.0, beta), beta) == pytest.approx(1.0, abs=1e-7)


def test_a_mean_of_moments_of_unequal_mass_is_divided_by_the_mean_of_their_masses() -> None:
    """Of equal gradients: however many steps each has seen, what comes of the mean is their square."""
    beta, square, steps = 0.999, 4.0, (3, 640)
    moments = np.mean([mass_of(n, beta) * square for n in steps])
    counted = steps_of(float(np.mean([mass_of(n, beta) for n in steps])), beta)
    assert moments / (1 - beta**counted) == pytest.approx(square)


def states(engine: TorchEngine, slot: str) -> Vector:
    """Return one kind of moment of all tensors, one after the other."""
    return np.concatenate([state_of(engine, name)[slot].flatten().numpy() for name in engine.layout])


@pytest.mark.parametrize("at", few_of((0.3, 0.45, 0.6, 0.75), (0.45,)))
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
    joiner = engine_of(run)
    joiner.assign(weights_of(trained(run, PEERS)))
    assert float(state_of(joiner, "model.norm.weight")["step"]) == pytest.approx(6 * H)
    joiner.train(steps_over(0, 1))
    assert moments_in(run, joiner.weights())[MASS] == pytest.approx([mass_of(6 * H + 1, ADAM.betas[1])])
    assert float(state_of(joiner, "model.norm.weight")["step"]) == pytest.approx(6 * H + 1)


def test_who_joins_before_the_second_moments_travelled_begins_with_none() -> None:
    """A mean of gradients without one of their squares would be divided by next to nothing."""
    run = run_of(ADAM, WithMoments(steps=H, first=1, second=100), 3)
    anchor = weights_of(trained(run, PEERS))
    behind = moments_in(run, anchor)
    assert behind[MASS] == [0] and any(value.any() for value in behind.values())
    joiner, fresh = engine_of(run), engine_of(run_of(ADAM, Every(steps=H), 3))
    joiner.assign(anchor)
    fresh.assign(anchor[: fresh.size])
    for engine in (joiner, fresh):
        engine.train(steps_over(0, 3))
    assert np.array_equal(joiner.weights()[: fresh.size], fresh.weights())


@pytest.mark.parametrize("when", [WHEN, WithMoments(steps=H, first=0, second=2)])
def test_what_is_saved_beside_the_vector_is_taken_back_to_the_bit(when: WithMoments) -> None:
    run = run_of(ADAM, when, 3)
    one, other = engine_of(run), engine_of(run)
    one.train(steps_over(0, 3))
    weights, private = one.weights(), one.private()
    one.assign(weights)
    other.train(steps_over(40, 2))
    other.restore(private)
    other.assign(weights)
    for engine in (one, other):
        engine.train(steps_over(100, 2))
    assert np.array_equal(one.weights(), other.weights())
    assert one.private() == other.private()
    assert (len(private) > 4 * weights_in(one.layout)) == (not when.first), "what travels is not saved twice"


def test_an_engine_that_never_stepped_saves_and_restores_too() -> None:
    run = run_of(MUON, WHEN, 3)
    one, other = engine_of(run), engine_of(run)
    other.train(steps_over(0, 1))
    other.restore(one.private())
    other.assign(one.weights())
    assert np.array_equal(one.weights(), other.weights())


@pytest.mark.parametrize("inner", few_of((MUON, NORMUON, ADAM), (MUON,)))
def test_adapters_keep_their_moments_when_their_own_weights_are_given_back(inner: Inner, tmp_path: Path) -> None:
    """All of an adapter are matrices: with Muon nothing of it counts its steps."""
    base = run_of(inner, WithMoments(steps=H, first=1, second=1), 2)
    save_folder(base, engine_of(base).weights(), tmp_path / "base", vocab_size=VOCAB)
    engine = engine_of(replace(base, model=Folder(path=str(tmp_path / "base"), adapter=Lora(rank=2))))
    engine.train(steps_over(0, 3))
    before = engine.weights()
    assert before[weights_in(engine.layout) :].any()
    engine.assign(before)
    assert np.array_equal(engine.weights(), before)
    engine.train(steps_over(60, 1))


@pytest.mark.parametrize("when", [WithMoments(steps=H, first=0, second=3), pytest.param(WHEN, marks=pytest.mark.long)])
def test_looking_at_the_loss_changes_nothing(when: WithMoments) -> None:
    run = run_of(ADAM, when, 4)
    looks = replace(run, upkeep=replace(run.upkeep, evaluate_every=1))
    assert digest_of(trained(looks, PEERS)) == digest_of(trained(run, PEERS))


def test_who_joins_later_begins_with_the_moments_of_the_anchor_and_counts() -> None:
    run = run_of(ADAM, WithMoments(steps=H, first=1, second=1), 12)
    outcome = play(run, PEERS + 1, build=engine_of, entrances=[Entrance(peer=PEERS, round=5)])
    (joiner,) = [host for host in outcome.hosts if host.place == PEERS]
    committed = [each for _, each in once(outcome, journal.RoundCommitted)]
    counted = [each.version for each in committed if short(joiner.peer) in each.contributors]
    assert counted and min(counted) > 1, "it came later, and took part"
    assert len({anchor_of(host.disk).digest() for host in outcome.hosts}) == 1
    (mass,) = moments_in(run, anchor_of(joiner.disk).weights)[MASS]
    assert mass == pytest.approx(mass_of(12 * H, ADAM.betas[1]), rel=1e-5), "as if it had been there all the time"


@pytest.mark.long
@pytest.mark.parametrize("when", [WHEN, WithMoments(steps=H, first=0, second=2)])
def test_who_is_slow_crashes_and_looks_on_comes_to_the_anchor_of_all(when: WithMoments) -> None:
    """Rounds that do not wait for it: it begins from the anchor again and again, with the moments that go with that."""
    run = run_of(ADAM, when, 10, peers=3)
    quorum = replace(run.recipe.channel["outer"], barrier=Quorum(contributors=2))
    run = replace(run, recipe=replace(run.recipe, channel={"outer": quorum}))
    run = replace(run, upkeep=replace(run.upkeep, evaluate_every=2))
    calm = trained(run, 3)
    faults: list[Fault] = [
        SlowCompute(at_s=0.0, peer=2, for_s=1e3, factor=5.0),
        Crash(at_s=calm.took_s * 0.6, peer=1, restart_after_s=0.2),
    ]
    outcome = trained(run, 3, faults=faults)
    assert len({tuple(each.contributors) for _, each in once(outcome, journal.RoundCommitted)}) > 1
    behind = moments_in(run, weights_of(outcome))
    assert 0 < behind[MASS] <= mass_of(10 * H, ADAM.betas[1]) + 1e-6
    assert all(np.isfinite(value).all() for value in behind.values())
    seconds = np.concatenate([value for name, value in behind.items() if name.startswith(SECOND)])
    assert (seconds >= 0).all() and seconds.any()
