"""Contributions in forms of their own: at 32 bits it is data parallelism to the bit, and else each as it arrives."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.sim.scenario import key_of
from atoll.spec.axes.codec import Fp16
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.work import Constant
from atoll.spec.load import load_recipe
from tests.identity.small import BATCH, SAME, apart, ddp, digest_of, engine_of, steps_over, trained, weights_of
from tests.peer.world import events

ROUNDS = 4


def test_at_32_bits_it_is_data_parallelism_to_the_bit() -> None:
    shipped = load_recipe("sagq")
    outer = next(iter(shipped.channel.values())).merge.outer
    assert isinstance(outer, Sgd)
    plain = ddp(outer=outer, rounds=ROUNDS, start_with=2)
    work = replace(shipped.work, batch=BATCH, schedule=Constant())
    outcome = trained(replace(plain, recipe=replace(shipped, work=work)), 2)
    assert not events(outcome, journal.KnobsTurned)
    assert digest_of(outcome) == digest_of(trained(plain, 2))


@pytest.mark.long
def test_one_peer_in_half_as_many_bits_is_a_mean_of_what_arrives_of_each() -> None:
    run = ddp(outer=Sgd(lr=0.3), rounds=ROUNDS, start_with=2)
    ((name, channel),) = run.recipe.channel.items()
    coarse = sorted(key_of(0, place).peer for place in range(2))[1]
    forms = replace(channel, forms={coarse.hex(): Fp16()})
    run = replace(run, recipe=replace(run.recipe, channel={name: forms}))
    engine = engine_of(run)
    weights = engine.weights()
    for round_ in range(ROUNDS):
        engine.assign(weights)
        came = []
        for place in range(2):
            _, gradient = engine.gradient([steps_over((round_ * 2 + place) * BATCH, 1)[0]])
            came.append(gradient.astype(np.float16).astype(np.float32) if place else gradient)
        weights = weights - np.float32(0.3) * np.mean(came, axis=0)
    assert apart(weights_of(trained(run, 2)), weights) < SAME
