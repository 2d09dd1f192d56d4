"""Gradients over each link by itself, held against data parallelism and against a plain loop that does it by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from atoll import journal
from atoll.model.compute import Vector
from atoll.net.identity import short
from atoll.sim.faults import Crash
from atoll.sim.scenario import Outcome
from atoll.spec.axes.codec import Fp32, MaxN
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.what import Feedback, Grad
from atoll.spec.axes.when import TargetBatch
from atoll.spec.axes.whom import Circles
from atoll.spec.axes.work import Constant
from atoll.spec.load import load_recipe
from atoll.spec.run import Run
from tests.identity.small import BATCH, SAME, apart, ddp, engine_of, mesh, steps_over, trained, weights_of
from tests.identity.test_circles import own_weights
from tests.peer.world import events

SGD = Sgd(lr=0.3)
PEERS, TEACH_EVERY, ROUNDS = 3, 3, 8
"""Of the rounds the third, the sixth and the last are without work."""
SPARSE = Grad(codec=MaxN(least=20.0, most=20.0), residual=Feedback(), result=Fp32())


def shipped(*, n: float, pull: float, rounds: int, peers: int) -> Run:
    """Return the shipped recipe, cut down, with everybody's N and with how far all move towards the best."""
    run, recipe = ddp(outer=SGD, rounds=rounds, start_with=peers), load_recipe("dlion")
    channel = recipe.channel["outer"]
    assert isinstance(channel.whom, Circles)
    assert channel.mesh is not None
    channel = replace(
        channel,
        when=TargetBatch(samples=BATCH * peers),
        what=replace(channel.what, codec=MaxN(least=n, most=n)),
        whom=replace(channel.whom, pattern=replace(channel.mesh, teach_every=TEACH_EVERY, pull=pull)),
        merge=replace(channel.merge, outer=SGD),
    )
    work = replace(recipe.work, batch=BATCH, schedule=Constant())
    return replace(run, recipe=replace(recipe, work=work, channel={"outer": channel}))


def test_of_equal_speeds_with_everything_sent_and_nothing_learnt_it_is_data_parallelism_to_the_bit() -> None:
    """N = 100 and lambda = 0; rounds in which weights travel move nothing then."""
    rounds, peers = 6, 2
    outcome = trained(shipped(n=100.0, pull=0.0, rounds=rounds, peers=peers), peers)
    plain = ddp(outer=SGD, rounds=rounds - 2, start_with=peers)
    assert np.array_equal(weights_of(outcome), weights_of(trained(plain, peers)))
    for host in outcome.hosts:
        assert np.array_equal(own_weights(host, rounds - 1), weights_of(outcome))


def by_hand(run: Run, outcome: Outcome, n: float, pull: float) -> dict[bytes, list[Vector]]:
    """Return everybody's weights after every round but the last."""
    members = sorted(bytes(host.peer) for host in outcome.hosts)
    engine = engine_of(run)
    ends = list(accumulate(engine.layout.values(), initial=0))
    best = {event.version: event.who for event in events(outcome, journal.TeacherChosen)}
    weights = {peer: [engine.weights()] for peer in members}
    kept = {(one, other): np.zeros(engine.size, np.float32) for one in members for other in members}
    lease = 0
    for version in range(1, run.budget.rounds):
        if version % TEACH_EVERY == 0:
            (taught,) = (weights[peer][-1] for peer in members if short(peer) == best[version])
            for peer in members:
                weights[peer].append((weights[peer][-1] + pull * (taught - weights[peer][-1])).astype(np.float32))
            continue
        came: dict[bytes, list[Vector]] = {peer: [] for peer in members}
        for giver in members:
            engine.assign(weights[giver][-1])
            _, gradient = engine.gradient(steps_over(lease, 1))
            lease += BATCH
            for taker in members:
                wanted = gradient + kept[giver, taker]
                large = np.ones(engine.size, bool) if giver == taker else near_the_largest(wanted, ends, n)
                kept[giver, taker] = np.where(large, 0, wanted)
                came[taker].append(np.where(large, wanted, 0))
        for peer in members:
            weights[peer].append((weights[peer][-1] - SGD.lr * np.mean(came[peer], axis=0)).astype(np.float32))
    return weights


def near_the_largest(values: Vector, ends: Sequence[int], n: float) -> NDArray[np.bool_]:
    """Return which values are within n % of the largest of their tensor."""
    parts = [values[a:b] for a, b in pairwise(ends)]
    return np.concatenate([np.abs(part) >= (1 - n / 100) * np.abs(part).max() for part in parts])


@pytest.mark.parametrize("rounds", [5, pytest.param(ROUNDS, marks=pytest.mark.long)])
def test_links_and_a_teacher_are_what_a_loop_by_hand_makes_of_them(rounds: int) -> None:
    run = mesh(SPARSE, outer=SGD, rounds=rounds, start_with=PEERS, teach_every=TEACH_EVERY)
    outcome = trained(run, PEERS)
    expected = by_hand(run, outcome, 20.0, 0.75)
    for host in outcome.hosts:
        assert apart(own_weights(host, rounds - 1), expected[bytes(host.peer)][rounds - 1]) < SAME
    mean = np.mean([each[-1] for each in expected.values()], axis=0)
    assert apart(weights_of(outcome), mean) < SAME, "which is the last round"
    assert len({own_weights(host, rounds - 1).tobytes() for host in outcome.hosts}) == PEERS, "all had their own"
    parts = [part for event in events(outcome, journal.LinksFilled) for part in event.parts.values()]
    assert 0 < min(parts) <= max(parts) < 0.9


@pytest.mark.long
@pytest.mark.parametrize("at", [journal.LinksFilled, journal.TeacherChosen])
def test_a_crash_loses_nothing_of_what_is_kept_for_each_link(at: type) -> None:
    run = mesh(SPARSE, outer=SGD, rounds=ROUNDS, start_with=PEERS, teach_every=TEACH_EVERY)
    calm = trained(run, PEERS)
    at_s = [line.at_s for line in calm.lines if isinstance(line.event, at)][-1] + 1e-3
    crashed = trained(run, PEERS, faults=[Crash(at_s=at_s, peer=2, restart_after_s=0.5)])
    assert len(events(crashed, journal.PeerStarted)) == PEERS + 1
    assert apart(weights_of(crashed), weights_of(calm)) < SAME
