"""Recipes in which each peer keeps a model of its own, held against plain loops that do the same by hand."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Vector
from atoll.peer.store import anchor_from_bytes
from atoll.sim.faults import Crash
from atoll.sim.scenario import Host, Outcome
from atoll.spec.axes.optimizer import Assign, Outer, Sgd
from atoll.spec.axes.pace import Quorum, StandIn
from atoll.spec.axes.what import Delta, Params, What
from atoll.spec.axes.whom import All, Circles, Drawn, Exponential, Lattice, Neighbours, Pattern, Segments, Whom
from atoll.spec.axes.work import Cosine
from atoll.spec.run import Run
from atoll.swarm.log import CIRCLES, Key
from atoll.swarm.routes.circles import circles_of
from atoll.sync.grid import grid_of
from tests.identity.small import BATCH, SAME, apart, diloco, engine_of, steps_over, trained, weights_of

STEPS, ROUNDS, PEERS = 2, 4, 4
SGD = Sgd(lr=0.3)
HEAVY = Sgd(lr=0.7, momentum=0.5)


def run_of(whom: Whom, *, outer: Outer, what: What | None = None, rounds: int = ROUNDS, peers: int = PEERS) -> Run:
    run = diloco(inner=SGD, outer=outer, steps=STEPS, rounds=rounds, start_with=peers)
    channel = replace(run.recipe.channel["outer"], what=what or Params(), whom=whom)
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


def own_weights(host: Host, version: int) -> Vector:
    """Return a peer's own weights after a round."""
    path = f"checkpoint/{version}.safetensors"
    return anchor_from_bytes(host.disk.file(path), path).weights


def by_hand(run: Run, pattern: Pattern, outcome: Outcome) -> list[Vector]:
    """Return the peers' weights before the last round: local steps and a step towards the mean of each circle."""
    channel = run.recipe.channel["outer"]
    outer = channel.merge.outer
    hosts = sorted(outcome.hosts, key=lambda host: host.peer)
    members = tuple(bytes(host.peer) for host in hosts)
    engines = [engine_of(run) for _ in hosts]
    anchors = [engine.weights() for engine in engines]
    momenta = [np.zeros_like(anchors[0]) for _ in hosts]
    grid = grid_of(anchors[0].size, channel.what.codec)
    for round_ in range(run.budget.rounds - 1):
        for place, engine in enumerate(engines):
            engine.assign(anchors[place])
            engine.train(steps_over((round_ * len(hosts) + place) * STEPS * BATCH, STEPS))
        local = [engine.weights() for engine in engines]
        stepped = [anchor.copy() for anchor in anchors]
        for circle in circles_of(Circles(pattern=pattern), Key("outer", round_ + 1, scope=CIRCLES), members):
            givers = [members.index(peer) for peer in circle.givers]
            chunks = circle.chunks(grid.chunks)
            part = slice(chunks.start * grid.chunk, chunks.stop * grid.chunk)
            for place in (members.index(peer) for peer in circle.takers):
                if isinstance(channel.what, Params):
                    gradient = anchors[place] - np.mean([local[giver] for giver in givers], axis=0)
                else:
                    gradient = np.mean([anchors[giver] - local[giver] for giver in givers], axis=0)
                if isinstance(outer, Sgd):
                    momenta[place] = outer.momentum * momenta[place] + gradient
                    gradient = outer.lr * momenta[place]
                stepped[place][part] = (anchors[place] - gradient).astype(np.float32)[part]
        anchors = stepped
    by_peer = dict(zip(members, anchors, strict=True))
    return [by_peer[bytes(host.peer)] for host in outcome.hosts]


@pytest.mark.parametrize(
    ("pattern", "outer", "what"),
    [
        (Drawn(), HEAVY, Params()),
        pytest.param(Drawn(), HEAVY, Delta(), marks=pytest.mark.long),
        pytest.param(Lattice(side=2), Assign(), Params(), marks=pytest.mark.long),
        (Neighbours(), Assign(), Params()),
        pytest.param(Exponential(), Assign(), Params(), marks=pytest.mark.long),
        (Segments(count=3, sources=1, explore=1.0), Assign(), Params()),
        pytest.param(Neighbours(), HEAVY, Params(), marks=pytest.mark.long),
    ],
)
def test_circles_are_what_a_loop_by_hand_makes_of_them(pattern: Pattern, outer: Outer, what: What) -> None:
    run = run_of(Circles(pattern=pattern), outer=outer, what=what)
    outcome = trained(run, PEERS)
    for host, expected in zip(outcome.hosts, by_hand(run, pattern, outcome), strict=True):
        assert apart(own_weights(host, ROUNDS - 1), expected) < SAME


def test_the_last_round_is_of_all_and_makes_the_model_of_the_run() -> None:
    run = run_of(Circles(pattern=Drawn()), outer=HEAVY)
    outcome = trained(run, PEERS)
    before = {host.anchor for host in outcome.hosts}
    assert len(before) == 1, "all hold one model in the end"
    assert len({own_weights(host, ROUNDS - 1).tobytes() for host in outcome.hosts}) == PEERS, "and had their own"
    engine = engine_of(run)
    local = []
    hosts = sorted(outcome.hosts, key=lambda host: host.peer)
    for place, host in enumerate(hosts):
        engine.assign(own_weights(host, ROUNDS - 1))
        engine.train(steps_over(((ROUNDS - 1) * PEERS + place) * STEPS * BATCH, STEPS))
        local.append(engine.weights())
    assert apart(weights_of(outcome), np.mean(local, axis=0)) < SAME


@pytest.mark.parametrize(
    "pattern",
    [
        Drawn(size=PEERS),
        pytest.param(Lattice(side=PEERS, dimensions=1), marks=pytest.mark.long),
        pytest.param(Segments(count=1, sources=PEERS - 1), marks=pytest.mark.long),
    ],
)
def test_one_circle_of_everybody_is_an_exchange_of_all(pattern: Pattern) -> None:
    """NoLoCo in one group is DiLoCo with heavy-ball momentum, Moshpit on a line of all is an all-reduce.

    BACombo that takes its one segment of everybody is FedAvg.
    """
    for outer in (HEAVY, Assign()):
        circles = trained(run_of(Circles(pattern=pattern), outer=outer), PEERS)
        everybody = trained(run_of(All(), outer=outer, what=Delta()), PEERS)
        for host in circles.hosts:
            assert apart(own_weights(host, ROUNDS - 1), own_weights(everybody.hosts[0], ROUNDS - 1)) < SAME


@pytest.mark.long
def test_a_round_of_all_every_time_is_local_sgd() -> None:
    always = trained(run_of(Circles(pattern=Neighbours(), all_every=1), outer=Assign()), PEERS)
    local_sgd = trained(run_of(All(), outer=Assign(), what=Delta()), PEERS)
    assert apart(weights_of(always), weights_of(local_sgd)) < SAME


def hasty(run: Run, contributors: int) -> Run:
    """Return a run that waits for so many of each circle, and whose late lend their weights."""
    channel = replace(run.recipe.channel["outer"], barrier=Quorum(contributors=contributors), late=StandIn())
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


@pytest.mark.long
@pytest.mark.parametrize(
    ("whom", "contributors"),
    [(Circles(pattern=Drawn(), all_every=1), 1), (Circles(pattern=Lattice(side=PEERS, dimensions=1)), PEERS)],
)
def test_groups_of_everybody_that_wait_for_all_are_model_averaging(whom: Circles, contributors: int) -> None:
    """WAGMA-SGD with a mean of all at every step, or with S = P, where nobody is late."""
    groups = trained(hasty(run_of(whom, outer=Assign()), contributors), PEERS)
    everybody = trained(run_of(All(), outer=Assign(), what=Delta()), PEERS)
    assert apart(weights_of(groups), weights_of(everybody)) < SAME


@pytest.mark.long
def test_weights_that_travel_come_to_the_same_as_deltas() -> None:
    for outer in (Assign(), HEAVY):
        weights, deltas = (trained(run_of(All(), outer=outer, what=what), PEERS) for what in (Params(), Delta()))
        assert apart(weights_of(weights), weights_of(deltas)) < SAME


def _spread(outcome: Outcome, version: int) -> float:
    weights = np.stack([own_weights(host, version) for host in outcome.hosts])
    return float(np.linalg.norm(weights - weights.mean(axis=0)))


@pytest.mark.long
def test_pairs_with_a_pull_stay_together_and_drift_apart_without() -> None:
    rounds = 12
    pulled = run_of(Circles(pattern=Drawn()), outer=HEAVY, rounds=rounds)
    free = run_of(Circles(pattern=Drawn()), outer=HEAVY, what=Delta(), rounds=rounds)
    near, far = (_spread(trained(run, PEERS), rounds - 1) for run in (pulled, free))
    assert far > 1.5 * near


@pytest.mark.long
def test_how_far_apart_pairs_are_does_not_grow_in_fifty_rounds_and_falls_with_the_rate() -> None:
    rounds = 50
    constant = run_of(Circles(pattern=Drawn()), outer=HEAVY, rounds=rounds)
    falling = replace(constant, recipe=replace(constant.recipe, work=replace(constant.recipe.work, schedule=Cosine())))
    stays, falls = (_apart_by_thirds(trained(run, PEERS)) for run in (constant, falling))
    assert stays[2] < 1.25 * stays[0]
    assert falls[2] < 0.6 * stays[2]


@pytest.mark.long
def test_without_the_pull_they_go_on_drifting_apart() -> None:
    few, many = (run_of(Circles(pattern=Drawn()), outer=HEAVY, what=Delta(), rounds=rounds) for rounds in (12, 50))
    assert _spread(trained(many, PEERS), 49) > 2 * _spread(trained(few, PEERS), 11)


def _apart_by_thirds(outcome: Outcome) -> list[float]:
    """Return how far peers were from the mean they took, as a part of its length, in each third of the rounds."""
    applied = [line.event for line in outcome.lines if isinstance(line.event, journal.RoundApplied)]
    thirds = np.array_split(np.arange(1, max(event.version for event in applied)), 3)
    return [float(np.mean([event.apart for event in applied if event.version in third])) for third in thirds]


def test_how_far_apart_peers_were_is_in_the_journal_of_a_round_of_all() -> None:
    outcome = trained(run_of(Circles(pattern=Drawn()), outer=HEAVY), PEERS)
    told = [
        line.event.apart
        for line in outcome.lines
        if isinstance(line.event, journal.RoundApplied) and line.event.version == ROUNDS
    ]
    assert len(told) == PEERS
    assert all(0 < each < 1 for each in told)


def test_who_crashes_and_comes_back_ends_with_the_others() -> None:
    run = run_of(Circles(pattern=Drawn()), outer=HEAVY, rounds=6)
    calm = trained(run, PEERS)
    at_s = next(line.at_s for line in calm.lines if isinstance(line.event, journal.RoundCommitted)) + 0.01
    crashed = trained(run, PEERS, faults=[Crash(at_s=at_s, peer=2, restart_after_s=1.0)])
    starts = [line.event for line in crashed.lines if isinstance(line.event, journal.PeerStarted)]
    assert len(starts) == PEERS + 1, "one of them began twice, and all ended on one model"
