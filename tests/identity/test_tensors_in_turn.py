"""Tensors in turn (DreamDDP): all of them after the last step are local SGD; else they are what a loop averages."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.model.compute import Vector
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.optimizer import Assign, Sgd
from atoll.spec.axes.what import Delta, Params
from atoll.spec.axes.when import Tensors
from atoll.sync.units import units_of
from tests.few import few_of
from tests.identity.small import BATCH, SAME, apart, diloco, engine_of, in_turns, steps_over, trained, weights_of

INNER = Sgd(lr=0.3, momentum=0.9)


@pytest.mark.parametrize("what", [Params(), pytest.param(Delta(), marks=pytest.mark.long)])
def test_all_tensors_in_the_turn_after_the_last_step_are_local_sgd(what: Params | Delta) -> None:
    peers, period, periods = 2, 3, 2
    when = Tensors(steps=period, count=1, passes=1.5)
    run = in_turns(when, what, inner=INNER, rounds=periods, start_with=peers)
    local = diloco(inner=INNER, outer=Assign(), steps=period, rounds=periods, start_with=peers)
    assert apart(weights_of(trained(run, peers)), weights_of(trained(local, peers))) < SAME


@pytest.mark.parametrize("passes", few_of((0.0, 1.5, 1e6), (1.5,)))
def test_they_are_what_a_loop_by_hand_averages(passes: float) -> None:
    peers, period = 3, 3
    rounds = 2 * period
    when = Tensors(steps=period, count=period, passes=passes)
    run = in_turns(when, Params(), inner=INNER, rounds=rounds, start_with=peers)
    assert apart(weights_of(trained(run, peers)), by_hand(when, peers, rounds)) < SAME


def by_hand(when: Tensors, peers: int, rounds: int) -> Vector:
    """Return the anchor: of each tensor the mean that everybody took last."""
    run = in_turns(when, Params(), inner=INNER, rounds=rounds, start_with=peers)
    engines = [engine_of(run) for _ in range(peers)]
    units = units_of(when, engines[0].layout, Fp32())
    assert len({unit.grid.size for unit in units}) > 1, "turns differ"
    anchor = engines[0].weights()
    for round_ in range(rounds):
        for place, engine in enumerate(engines):
            engine.train(steps_over((round_ * peers + place) * BATCH, 1))
        for first, end in units[round_ % len(units)].spans:
            parts = np.array([engine.weights(first, end) for engine in engines])
            anchor[first:end] = parts.mean(axis=0, dtype=np.float64).astype(np.float32)
            for engine in engines:
                engine.assign(anchor[first:end], first)
    return anchor
