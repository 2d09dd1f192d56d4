"""States of regions and the one above them, really trained and held against plain loops and against what they equal."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from atoll.model.compute import Engine, Step, Vector
from atoll.net.identity import short
from atoll.sim.faults import SlowCompute
from atoll.sim.homes import beginnings
from atoll.sim.retell import Committed, commits
from atoll.sim.scenario import Outcome
from atoll.spec.axes.optimizer import AdamW, DelayedNesterov, Outer, Sgd
from atoll.spec.axes.pace import Carry, Quorum, Regional
from atoll.spec.axes.whom import Circles, Regions
from atoll.spec.run import Run
from tests.identity.small import BATCH, SAME, apart, diloco, engine_of, trained, weights_of
from tests.peer.world import log_of

STEPS, ROUNDS = 3, 16
DELAYED = DelayedNesterov(lr=0.7, momentum=0.9, every=3)
PLAIN = Regional(outer=Sgd(lr=1.0), pushes=1, take=1.0)
"""Whatever a region takes in it tells at once, and what is above is then where it stands."""
ABOVE = Regional(outer=DelayedNesterov(lr=0.6, momentum=0.5, every=2), pushes=3, take=0.25)
ONE, TWO = ("east",) * 3, ("east", "west", "west", "east")
SLOW = SlowCompute(at_s=0.0, peer=2, for_s=1e6, factor=6000.0)
"""So slow that some of the others' rounds go by before it has taken its steps."""


def run_of(home: Regional, *, peers: int, quorum: int = 1, outer: Outer = DELAYED, rounds: int = ROUNDS) -> Run:
    run = diloco(inner=AdamW(lr=3e-3), outer=outer, steps=STEPS, rounds=rounds, start_with=peers)
    barrier, whom = Quorum(contributors=quorum), Circles(pattern=Regions())
    channel = replace(run.recipe.channel["outer"], whom=whom, barrier=barrier, late=Carry(), home=home)
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


class Level:
    """Weights, and a Delayed Nesterov that moves them; or plain descent."""

    def __init__(self, outer: Outer, weights: Vector) -> None:
        self.outer, self.weights = outer, weights
        self.momentum, self.buffer, self.pushes = np.zeros_like(weights), np.zeros_like(weights), 0

    def push(self, deltas: list[Vector]) -> None:
        delta = np.mean(deltas, axis=0)
        for _ in deltas:
            if isinstance(self.outer, Sgd):
                self.weights = self.weights - self.outer.lr * delta
                continue
            assert isinstance(self.outer, DelayedNesterov)
            every, beta = self.outer.every, self.outer.momentum
            self.pushes += 1
            self.buffer, step = self.buffer + delta / every, delta / every
            if self.pushes % every == 0:
                self.momentum, self.buffer = beta * self.momentum + self.buffer, np.zeros_like(delta)
                step = beta * self.momentum + delta / every
            self.weights = self.weights - self.outer.lr * step


class ByHand:
    """The paper's two levels, in the order in which the log says that contributions came."""

    def __init__(self, run: Run, outcome: Outcome) -> None:
        self.channel = run.recipe.channel["outer"]
        assert isinstance(self.channel.home, Regional)
        self.home = self.channel.home
        self.engines = {bytes(host.peer): engine_of(run) for host in outcome.hosts}
        first = next(iter(self.engines.values())).weights()
        self.above = Level(self.home.outer, first)
        self.began, _ = beginnings(outcome.lines)
        self.regions: dict[bytes, Level] = {}
        self.references: dict[bytes, Vector] = {}
        self.had = {(peer, 0): first for peer in self.engines}
        """What everybody had as each version."""
        for each in commits(log_of(outcome)):
            self._commit(each)

    def _commit(self, each: Committed) -> None:
        for group in each.announced.groups:
            if group[0] not in self.regions:  # all begin where the state above is
                level = Level(self.channel.merge.outer, self.above.weights)
                self.regions |= dict.fromkeys(group, level)
                self.references |= dict.fromkeys(group, level.weights)
        told = []
        for group in each.announced.groups:
            in_ = [peer for peer in group if peer in each.contributors]
            if in_ and each.announced.tells is None:
                self.regions[group[0]].push([self._trained(each, peer) for peer in in_])
            elif in_:
                told.append(group)
        if told:
            self.above.push([self.references[group[0]] - self.regions[group[0]].weights for group in told])
        for group in told:
            level, take = self.regions[group[0]], self.home.take
            level.weights = (1 - take) * level.weights + take * self.above.weights
            self.references |= dict.fromkeys(group, level.weights)
        if each.announced.tells == ():
            self.regions = {}
        self.had |= {
            (peer, each.version): self.regions[peer].weights if self.regions else self.above.weights
            for peer in each.announced.members
        }

    def _trained(self, each: Committed, peer: bytes) -> Vector:
        (began,) = self.began[short(peer), each.version]
        return way(self.engines[peer], self.had[peer, began], each.announced.leases[peer])


def way(engine: Engine, start: Vector, lease: list[int]) -> Vector:
    """Return how far local steps on a lease lead from somewhere."""
    start = start.astype(np.float32)
    engine.assign(start)
    engine.train([Step(samples=tuple(lease[i : i + BATCH]), rate=1.0) for i in range(0, len(lease), BATCH)])
    return start - engine.weights()


@pytest.mark.long
def test_halos_is_what_a_loop_by_hand_makes_of_its_regions() -> None:
    run = run_of(ABOVE, peers=len(TWO), rounds=24)
    outcome = trained(run, len(TWO), places=TWO, faults=[SLOW])
    told = [each for each in commits(log_of(outcome)) if each.announced.tells]
    assert len({tuple(each.contributors) for each in told}) >= 2, "both regions told"
    assert max(stale for each in commits(log_of(outcome)) for stale in each.staleness) > 2
    assert apart(weights_of(outcome), ByHand(run, outcome).above.weights) < 10 * SAME


@pytest.mark.parametrize("quorum", [1, pytest.param(3, marks=pytest.mark.long)])
def test_in_one_region_that_tells_at_once_and_takes_all_it_is_asynchronous_local_sgd(quorum: int) -> None:
    """By a loop of one level, which knows nothing of telling."""
    run = run_of(PLAIN, peers=len(ONE), quorum=quorum)
    outcome = trained(run, len(ONE), places=ONE, faults=[SLOW])
    rounds = commits(log_of(outcome))
    pushes = [each for each in rounds if each.announced.tells is None]
    assert 2 * len(pushes) >= len(rounds) - 2, "every second one tells"
    engines = {bytes(host.peer): engine_of(run) for host in outcome.hosts}
    began, _ = beginnings(outcome.lines)
    level = Level(DELAYED, next(iter(engines.values())).weights())
    had = {0: level.weights}
    for each in rounds:
        if each.announced.tells is None:
            deltas = []
            for peer in each.contributors:
                (start,) = began[short(peer), each.version]
                deltas.append(way(engines[peer], had[start], each.announced.leases[peer]))
            level.push(deltas)
        had[each.version] = level.weights
    assert apart(weights_of(outcome), level.weights) < 10 * SAME
