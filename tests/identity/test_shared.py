"""What results leave out, held in part by who contributed: a loop by hand comes to the same, and nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Vector
from atoll.sim.faults import Crash, Partition
from atoll.sim.scenario import Entrance
from atoll.spec.axes.codec import Codec, Fp16, Sign, Ternary
from atoll.spec.axes.optimizer import AdamW, Sgd
from atoll.spec.axes.pace import Quorum
from atoll.spec.axes.what import Delta, Feedback, Hold
from atoll.spec.axes.whom import All, Star
from atoll.spec.run import Membership, Run
from tests.few import few_of
from tests.identity.small import (
    BATCH,
    SAME,
    apart,
    as_it_arrives,
    digest_of,
    diloco,
    engine_of,
    steps_over,
    trained,
    weights_of,
)
from tests.peer.world import events, lines, play

PEERS, H, ROUNDS = 2, 2, 5
RATE, BETA = 1.2, 0.3
BIT = Sign(block=64)


def sharing(part: float = 0.25, result: Codec = BIT, decay: float = 1.0, rounds: int = ROUNDS) -> Run:
    what = Delta(codec=BIT, residual=Hold(decay=decay, shared=part), result=result, owners=Feedback())
    inner, outer = AdamW(lr=3e-3), Sgd(lr=RATE, momentum=BETA, nesterov=True)
    run = diloco(inner=inner, outer=outer, steps=H, rounds=rounds, start_with=PEERS, what=what)
    return replace(run, membership=Membership(start_with=PEERS, contributors_min=PEERS))


def by_hand(run: Run) -> tuple[Vector, float]:
    """Return the anchor, and by how much what all hold and owners keep misses what was worked and never arrived."""
    what = run.recipe.channel["outer"].what
    assert isinstance(what.residual, Hold)
    decay, part = np.float32(what.residual.decay), np.float32(what.residual.shared)
    engines = [engine_of(run) for _ in range(PEERS)]
    anchor = engines[0].weights()
    held = [np.zeros_like(anchor) for _ in engines]
    momentum, owed, worked, arrived = (np.zeros(anchor.size, np.float32) for _ in range(4))
    for number in range(run.budget.rounds):
        given = []
        for place, engine in enumerate(engines):
            begun = anchor - (held[place] if decay == 1.0 else decay * held[place])
            engine.assign(begun)
            engine.train(steps_over((number * PEERS + place) * H * BATCH, H))
            wanted = anchor - engine.weights()
            worked = worked + (begun - engine.weights()) / np.float32(PEERS)
            given.append(as_it_arrives(what.codec, wanted))
            held[place] = wanted - given[place]
        mean = np.mean(given, axis=0, dtype=np.float32)
        merged = mean + owed
        result = as_it_arrives(what.merged(), merged)
        owed = merged - result - part * (mean - result)
        for place in range(PEERS):
            held[place] = held[place] + part * (given[place] - result)
        momentum = np.float32(BETA) * momentum + result
        anchor = anchor - (np.float32(RATE) * (result + np.float32(BETA) * momentum)).astype(np.float32)
        arrived = arrived + result
    missing = worked - arrived - owed - sum(held) / PEERS
    return anchor, float(np.abs(missing).max())


@pytest.mark.parametrize(
    ("part", "result", "decay"),
    [
        (0.25, BIT, 1.0),
        pytest.param(1.0, Ternary(block=64), 1.0, marks=pytest.mark.long),
        pytest.param(0.5, Fp16(), 1.0, marks=pytest.mark.long),
        pytest.param(0.25, BIT, 0.7, marks=pytest.mark.long),
    ],
)
def test_it_is_what_a_loop_by_hand_comes_to(part: float, result: Codec, decay: float) -> None:
    ours = weights_of(trained(sharing(part, result, decay), PEERS))
    anchor, missing = by_hand(sharing(part, result, decay))
    assert apart(ours, anchor) < SAME
    assert decay != 1.0 or missing < SAME, "what was worked has arrived, or somebody keeps it"
    if result != Fp16():
        assert apart(ours, by_hand(sharing(0.0, result, decay))[0]) > 100 * SAME, "else nothing is shared"


@pytest.mark.parametrize("part", few_of((0.05, 0.5, 0.95), (0.95,)))
def test_who_crashes_holds_its_share_as_before(part: float) -> None:
    """While it works, when it has contributed, when the result is known to some: owners that share all keep nothing."""
    run = sharing(1.0, Fp16())
    calm = trained(run, PEERS)
    applied = [line.at_s for line in lines(calm, journal.RoundApplied, peer=1)]
    at_s = applied[2] + part * (applied[3] - applied[2])
    crashed = trained(run, PEERS, [Crash(at_s=at_s, peer=1, restart_after_s=0.5)])
    assert digest_of(crashed) == digest_of(calm)


@pytest.mark.long
def test_who_gets_the_state_in_place_of_its_result_says_that_its_share_is_lost() -> None:
    """Cut off between its contribution and the result, for so long that the others' state is fewer bytes."""
    run = sharing(0.5, Fp16(), rounds=100)
    channel = replace(run.recipe.channel["outer"], barrier=Quorum(contributors=2), whom=All(route=Star()))
    run = replace(run, recipe=replace(run.recipe, channel={"outer": channel}), membership=Membership(start_with=3))
    applied = [line.at_s for line in lines(play(run, 3), journal.RoundApplied, peer=1)]
    lost = []
    for part in (0.88, 0.89, 0.9, 0.91):  # one of them is between the two
        at_s = applied[2] + part * (applied[3] - applied[2])
        outcome = play(run, 3, faults=[Partition(at_s=at_s, side=(1,), for_s=45.0)])
        assert events(outcome, journal.StateFetched, peer=1)
        lost += events(outcome, journal.ResidualLost, peer=1)
    assert lost


@pytest.mark.long
def test_who_joins_comes_to_the_anchor_of_all() -> None:
    run = replace(sharing(rounds=8), membership=Membership(start_with=PEERS))
    outcome = play(run, PEERS + 1, build=engine_of, entrances=[Entrance(peer=PEERS, round=3)])
    digests = {event.anchor for event in events(outcome, journal.RoundApplied) if event.version == 8}
    assert len(digests) == 1
