"""Sparse averaging, alone and below a rare outer step: held against plain loops that do the same by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.data.order import indices_of
from atoll.model.compute import Engine, Vector
from atoll.peer.store import anchor_from_bytes
from atoll.sim.faults import Crash, Pause
from atoll.spec.axes.merge import Merge
from atoll.spec.axes.optimizer import AdamW, Assign, Sgd
from atoll.spec.axes.pace import Delay, Shift
from atoll.spec.axes.what import Delta, Params
from atoll.spec.axes.when import Every, Fragments
from atoll.spec.axes.work import Work
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.run import Membership, Run
from tests.identity.small import BATCH, SAME, apart, digest_of, diloco, engine_of, steps_over, trained, weights_of
from tests.peer.world import anchor_of, events

ADAM = AdamW(lr=3e-3)
NESTEROV = Sgd(lr=0.7, momentum=0.9, nesterov=True)
PEERS, PARTS = 2, 3
AVERAGE = Merge(outer=Assign())


def sparse(parts: int, every: int = 1) -> Channel:
    """Return a channel that averages one of so many parts, by lot."""
    when = Fragments(steps=parts * every, count=parts, pattern="drawn")
    return Channel(when=when, what=Params(), merge=AVERAGE)


def run_of(rounds: int, **channels: Channel) -> Run:
    run = diloco(inner=ADAM, outer=Assign(), steps=1, rounds=rounds, start_with=PEERS)
    return replace(run, recipe=Recipe(work=Work(inner=ADAM, batch=BATCH), channel=channels))


def below(h: int, parts: int = PARTS) -> dict[str, Channel]:
    """Return both channels: parts at every step, and DiLoCo's outer step every `h`."""
    return {"sparse": sparse(parts), "outer": Channel(when=Every(steps=h), what=Delta(), merge=Merge(outer=NESTEROV))}


def part_of(turn: int, size: int, parts: int = PARTS) -> np.ndarray:
    """Return which elements are averaged in a turn: of a random order of all, another in each pass, the next part."""
    lap, place = divmod(turn, parts)
    order = indices_of(np.arange(size) + lap * size, size, 0)
    return order[size * place // parts : size * (place + 1) // parts]


def one_step_each(engines: Sequence[Engine], step: int) -> None:
    for place, engine in enumerate(engines):
        engine.train(steps_over((step * PEERS + place) * BATCH, 1))


def average(engines: Sequence[Engine], which: np.ndarray | slice) -> Vector:
    """Replace some weights of everybody by their mean, and return it."""
    mean: Vector = np.stack([engine.weights()[which] for engine in engines]).mean(axis=0, dtype=np.float32)
    for engine in engines:
        weights = engine.weights()
        weights[which] = mean
        engine.assign(weights)
    return mean


def test_all_parameters_at_every_step_is_averaging_at_every_step_to_the_bit() -> None:
    """p = 1."""
    every = Channel(when=Every(steps=1), what=Params(), merge=AVERAGE)
    assert digest_of(trained(run_of(3, outer=sparse(1)), PEERS)) == digest_of(trained(run_of(3, outer=every), PEERS))


def test_parts_by_lot_are_averaged_and_all_else_stays_everybodys_own() -> None:
    """And the last round is the mean of all."""
    rounds = PARTS + 3
    run = run_of(rounds, outer=sparse(PARTS))
    engines = [engine_of(run) for _ in range(PEERS)]
    anchor = engines[0].weights()
    for step in range(rounds - 1):
        one_step_each(engines, step)
        which = part_of(step, anchor.size)
        anchor[which] = average(engines, which)
    assert apart(engines[0].weights(), engines[1].weights()) > 100 * SAME, "they have models of their own"
    one_step_each(engines, rounds - 1)
    outcome = trained(run, PEERS)
    before = anchor_from_bytes(outcome.hosts[0].disk.files()[f"checkpoint/{rounds - 1}.safetensors"], "")
    assert apart(before.weights, anchor) < SAME, "every part as it was last averaged"
    assert apart(weights_of(outcome), average(engines, slice(None))) < SAME


@pytest.mark.long
@pytest.mark.parametrize("late", [1, 2])
def test_a_part_that_is_averaged_while_steps_go_on_takes_the_place_of_what_was_sent(late: int) -> None:
    """LOSCAR-SGD by hand: in its coordinates the mean, plus what was done since; elsewhere everybody's own."""
    steps, rounds = 3, 2 * PARTS + 1
    when = Fragments(steps=PARTS * steps, count=PARTS, pattern="drawn")
    overlap = Delay(steps=late, reconcile=Shift())
    run = run_of(rounds, outer=Channel(when=when, what=Delta(), merge=AVERAGE, overlap=overlap))
    engines = [engine_of(run) for _ in range(PEERS)]
    anchor = engines[0].weights()
    sent: list[Vector] = []
    for round_ in range(rounds):
        which = part_of(max(0, round_ - 1), anchor.size)
        for place, engine in enumerate(engines):
            samples = steps_over((round_ * PEERS + place) * steps * BATCH, steps)
            engine.train(samples[:late])
            if round_:
                weights = engine.weights()
                weights[which] += anchor[which] - sent[place][which]
                engine.assign(weights)
            engine.train(samples[late:])
        sent = [engine.weights() for engine in engines]
        which = part_of(round_, anchor.size)
        anchor[which] = np.mean([weights[which] for weights in sent], axis=0)
    assert apart(weights_of(trained(run, PEERS)), anchor) < SAME


@pytest.mark.parametrize("first_the_part", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_rare_outer_step_above_sparse_averaging(first_the_part: bool) -> None:
    """Where both are due the outer step goes alone: to average a part just before it would change nothing."""
    h, rounds = 3, 8
    run = run_of(rounds, **below(h))
    engines = [engine_of(run) for _ in range(PEERS)]
    anchor = engines[0].weights()
    start, momentum, turn, distances = anchor.copy(), np.zeros_like(anchor), 0, []
    for step in range(rounds):
        one_step_each(engines, step)
        if (step + 1) % h:
            which = part_of(turn, anchor.size)
            anchor[which] = average(engines, which)
            turn += 1
            continue
        mean = np.mean([engine.weights() for engine in engines], axis=0)
        distances += [distance(engine.weights(), mean) for engine in engines]
        if first_the_part:
            average(engines, part_of(turn, anchor.size))
        delta = start - average(engines, slice(None))
        momentum = 0.9 * momentum + delta
        anchor = start = (start - 0.7 * (delta + 0.9 * momentum)).astype(np.float32)
        anchor = anchor.copy()
        for engine in engines:
            engine.assign(anchor)
    outcome = trained(run, PEERS)
    held = anchor_of(outcome.hosts[0].disk)
    assert apart(held.weights, anchor) < SAME
    assert apart(held.start, start) < SAME, "what outer steps start from is not moved by sparse ones"
    assert apart(held.outer["momentum"], momentum.astype(np.float32)) < SAME
    told = [event.apart for event in events(outcome, journal.RoundApplied) if event.channel == "outer"]
    assert sorted(told) == pytest.approx(sorted(distances), rel=1e-3), "how far apart peers had come"


def distance(weights: Vector, mean: Vector) -> float:
    return float(np.linalg.norm(weights - mean) / np.linalg.norm(mean))


@pytest.mark.long
def test_rounds_of_several_steps_and_an_outer_average_of_weights() -> None:
    """The rarest channel may average too: then the run's model is the mean of all weights, and nothing else is kept."""
    rounds, every = 4, 2
    outer = Channel(when=Every(steps=2 * every), what=Params(), merge=AVERAGE)
    run = run_of(rounds, outer=outer, sparse=sparse(PARTS, every))
    engines = [engine_of(run) for _ in range(PEERS)]
    for round_ in range(rounds):
        for place, engine in enumerate(engines):
            engine.train(steps_over((round_ * PEERS + place) * every * BATCH, every))
        which = slice(None) if round_ % 2 else part_of(round_ // 2, engines[0].size)
        mean = average(engines, which)
    held = anchor_of(trained(run, PEERS).hosts[0].disk)
    assert apart(held.weights, mean) < SAME
    assert not held.outer


@pytest.mark.long
@pytest.mark.parametrize("at", [0.45, 0.6])
def test_a_peer_that_crashes_between_sparse_rounds_comes_back_with_its_own_weights(at: float) -> None:
    run = run_of(9, **below(4))
    calm = trained(run, PEERS)
    crashed = trained(run, PEERS, faults=[Crash(at_s=calm.took_s * at, peer=1, restart_after_s=1.0)])
    paused = trained(run, PEERS, faults=[Pause(at_s=calm.took_s * at, peer=1, for_s=1.5)])
    assert digest_of(paused) == digest_of(calm)
    assert digest_of(crashed) == digest_of(calm)


@pytest.mark.long
def test_half_a_percent_at_every_step_keeps_peers_near_each_other() -> None:
    """Mean square distance from the mean before an outer step: a half at most of what it is without sparse rounds."""
    peers, h = 4, 200
    run = run_of(h, **below(h, parts=200))
    run = replace(run, upkeep=replace(run.upkeep, checkpoint_every=h), membership=Membership(start_with=peers))
    told = [event.apart for event in events(trained(run, peers), journal.RoundApplied) if event.channel == "outer"]
    engines = [engine_of(run) for _ in range(peers)]
    for step in range(h):
        for place, engine in enumerate(engines):
            engine.train(steps_over((step * peers + place) * BATCH, 1))
    mean = np.mean([engine.weights() for engine in engines], axis=0)
    alone = [distance(engine.weights(), mean) for engine in engines]
    assert len(told) == peers
    assert np.mean(np.square(told)) < 0.5 * np.mean(np.square(alone))
