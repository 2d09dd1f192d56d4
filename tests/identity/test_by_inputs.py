"""Results rounded by what layers are given: a loop by hand comes to the same, and what travels is as long as ever."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Vector
from atoll.sim.scenario import Outcome
from atoll.spec.axes.codec import Fp16, Sign
from atoll.spec.axes.optimizer import AdamW, Sgd
from atoll.spec.axes.what import ByInputs, Delta, Feedback, Hold, Nearest, Rounding
from atoll.spec.run import Membership, Run
from atoll.sync import by_inputs as rounding
from atoll.sync.codec import decode, encode
from atoll.sync.units import whole
from tests.identity.small import (
    BATCH,
    SAME,
    apart,
    as_it_arrives,
    diloco,
    engine_of,
    steps_over,
    trained,
    weights_of,
)
from tests.peer.world import events

H, ROUNDS = 2, 5
RATE, BETA = 1.2, 0.3
BIT = Sign(block=64)
SEES = ByInputs(damping=0.5, gain=1.1, samples=3)


def seeing(how: Rounding = SEES, peers: int = 1, rounds: int = ROUNDS) -> Run:
    what = Delta(codec=Fp16(), residual=Hold(), result=BIT, owners=Feedback(), rounding=how)
    inner, outer = AdamW(lr=3e-3), Sgd(lr=RATE, momentum=BETA, nesterov=True)
    run = diloco(inner=inner, outer=outer, steps=H, rounds=rounds, start_with=peers, what=what)
    return replace(run, membership=Membership(start_with=peers, contributors_min=peers))


def by_hand(run: Run) -> Vector:
    """Return the anchor of one peer, who owns everything."""
    what = run.recipe.channel["outer"].what
    assert isinstance(what.rounding, ByInputs)
    engine = engine_of(run)
    anchor = engine.weights()
    held, owed, momentum = (np.zeros_like(anchor) for _ in range(3))
    unit = whole(anchor.size, what.codec)
    segments = dict(enumerate(rounding.segments_of(unit, engine.layout, engine.shapes)))
    for number in range(run.budget.rounds):
        engine.assign(anchor - held)
        steps = steps_over(number * H * BATCH, H)
        engine.train(steps)
        wanted = anchor - engine.weights()
        given = as_it_arrives(what.codec, wanted)
        held = wanted - given
        seen = engine.inputs(engine.layout, steps[0].samples[: what.rounding.samples])
        rows = rounding.RowsHere(seen, what.rounding.damping)
        rounds = rounding.Seen(segments, rows, block=BIT.block, gain=what.rounding.gain)
        merged = given + owed
        chunks = [slice(*unit.grid.bounds(index)) for index in range(unit.grid.chunks)]
        made = [rounds.rounded(index, merged[chunk]) for index, chunk in enumerate(chunks)]
        result = np.concatenate([decode(BIT, encode(BIT, each), each.size) for each in made])
        owed = merged - result
        momentum = np.float32(BETA) * momentum + result
        anchor = anchor - (np.float32(RATE) * (result + np.float32(BETA) * momentum)).astype(np.float32)
    return anchor


def test_it_is_what_a_loop_by_hand_comes_to() -> None:
    run = seeing()
    ours = weights_of(trained(run, 1))
    assert apart(ours, by_hand(run)) < SAME
    assert apart(ours, weights_of(trained(seeing(Nearest()), 1))) > 100 * SAME, "else nobody looks at inputs"


@pytest.mark.parametrize("damping", [0.5, 1e9])
def test_much_damping_makes_what_is_nearest(damping: float) -> None:
    """In the first round: a difference in the last place soon turns a sign, and with it the training."""
    nearest, seen = (weights_of(trained(seeing(how, rounds=1), 1)) for how in (Nearest(), ByInputs(damping=damping)))
    assert (apart(seen, nearest) < SAME) == (damping == 1e9)


def test_all_come_to_one_anchor_in_as_many_bytes() -> None:
    nearest, seen = (trained(seeing(how, peers=2), 2) for how in (Nearest(), SEES))
    assert moved_bytes(seen) == moved_bytes(nearest)
    assert len({event.anchor for event in events(seen, journal.RoundApplied) if event.version == ROUNDS}) == 1


def moved_bytes(outcome: Outcome) -> list[int]:
    return [event.sent_bytes for event in events(outcome, journal.ContributionSent)]
