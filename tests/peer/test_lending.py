"""Circles that wait for nobody: who is late lends what it has, and joins what its circle made as one more."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Vector
from atoll.peer.store import anchor_from_bytes
from atoll.sim.check import violations
from atoll.sim.compute import MARKS, delta_of, first_weights
from atoll.sim.faults import Fault, SlowCompute
from atoll.sim.retell import commits
from atoll.sim.scenario import Outcome, Scenario, simulate
from atoll.spec.axes.pace import Discard, Full
from atoll.spec.axes.whom import Circles, Lattice, Pattern
from atoll.spec.run import Run
from atoll.sync.overlap import one_more
from tests.peer.world import DELAYS_S, counting_run, events, log_of, machines, once, play, sized

PEERS, ROUNDS, TAU, SIZE = 6, 20, 10, 256
THREES = Lattice(side=3)
STEP_S = 2.0
BATCH = 40
"""Samples of 50 ms: what the exchange takes is little beside them."""


def run_of(*, waits: bool = False, rounds: int = ROUNDS, pattern: Pattern = THREES) -> Run:
    """Return a run in groups of three, or one that is the same but waits for everybody."""
    run = counting_run("wagma", rounds=rounds, start_with=PEERS)
    channel = run.recipe.channel["outer"]
    whom = Circles(pattern=pattern, all_every=TAU)
    channel = replace(channel, whom=whom)
    if waits:
        channel = replace(channel, barrier=Full(), late=Discard())
    recipe = replace(run.recipe, work=replace(run.recipe.work, batch=BATCH), channel={"outer": channel})
    return replace(run, recipe=recipe)


def slow_steps() -> list[Fault]:
    """Return that at any time one peer, another every six seconds, is half as fast: a whole step long at least."""
    rng = np.random.default_rng(5)
    return [SlowCompute(at_s=6.0 * i, peer=int(rng.integers(PEERS)), factor=2.0, for_s=6.0) for i in range(20)]


@cache
def step_s(*, waits: bool, slow: bool) -> float:
    """Return what a step takes on average, rounds of all included."""
    run = run_of(waits=waits)
    outcome = play(run, PEERS, faults=slow_steps() if slow else [])
    assert violations(run, outcome) == []
    began = min(at_s for at_s, _ in once(outcome, journal.RoundAnnounced))
    return (max(at_s for at_s, _ in once(outcome, journal.RoundCommitted)) - began) / ROUNDS


@pytest.mark.long
def test_slow_steps_of_others_cost_less_than_a_tenth_and_waiting_for_them_costs_much_more() -> None:
    even = step_s(waits=True, slow=False)
    assert STEP_S < even < 1.2 * STEP_S
    assert step_s(waits=False, slow=True) < 1.1 * even
    assert step_s(waits=True, slow=True) > 1.4 * even


def with_one_slow(run: Run, peers: int, factor: float) -> Outcome:
    """Play it where one machine takes so many times as long as the others."""
    fast = machines(peers)
    slow = replace(fast[1], device=replace(fast[1].device, flop_s=fast[1].device.flop_s / factor))
    fleet = [fast[0], slow, *fast[2:]]
    outcome = simulate(Scenario(run=run, machines=fleet, delays_s=DELAYS_S, build=sized(SIZE)))
    assert violations(run, outcome) == []
    return outcome


def test_nothing_is_older_than_the_steps_between_two_means_of_all() -> None:
    outcome = with_one_slow(run_of(rounds=12), PEERS, 2.5)
    assert events(outcome, journal.WeightsLent)
    ages = [age for each in commits(log_of(outcome)) for age in each.staleness]
    assert 1 <= max(ages) <= TAU
    assert {each.version for each in commits(log_of(outcome)) if not each.lent} >= {TAU}, "there all are waited for"


def test_who_is_late_joins_the_mean_that_its_old_weights_are_in_as_one_more() -> None:
    """Two peers by hand: one lends its first weights to the first mean, and brings its work to the second."""
    run = run_of(rounds=3, pattern=Lattice(side=2, dimensions=1))
    run = replace(run, membership=replace(run.membership, start_with=2))
    outcome = with_one_slow(run, 2, 1.5)
    first, second, _ = commits(log_of(outcome))
    (quick,), (late,) = first.contributors, first.lent
    assert set(second.contributors) == {quick, late}

    def after(weights: Vector, lease: list[int]) -> Vector:
        return weights - delta_of(run.seeds.data, SIZE, lease)

    began = first_weights(run.seeds.data, SIZE)
    leases = first.announced.leases
    mean: Vector = (after(began, leases[quick]) + began) / np.float32(2)
    joined = (2 * mean + after(began, leases[late])) / (2 + 1)
    expected = (after(mean, second.announced.leases[quick]) + joined) / 2
    for host in outcome.hosts:
        found = anchor_from_bytes(host.disk.file("checkpoint/2.safetensors"), "2").weights.copy()
        found[MARKS] = expected[MARKS]
        assert found == pytest.approx(expected, abs=1e-6)


def test_the_weight_of_one_who_was_late_is_one_of_one_more() -> None:
    own = np.array([5.0, -1.0], np.float32)
    others = np.array([[1.0, 1.0], [2.0, 0.0], [3.0, 5.0]], np.float32)
    joined = one_more(own, others.mean(axis=0), 3)
    assert joined == pytest.approx((others.sum(axis=0) + own) / (3 + 1))
    assert joined != pytest.approx(np.mean([others.mean(axis=0), own], axis=0)), "not one of two"
