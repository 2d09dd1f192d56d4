"""Models with a mass of their own: whoever misses rounds, no step is lost and every one counts the same."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from atoll.peer.store import anchor_from_bytes
from atoll.sim.check import violations
from atoll.sim.compute import MARKS, delta_of, first_weights
from atoll.sim.faults import Fault, Partition
from atoll.sim.masses import masses_of
from atoll.sim.retell import commits
from atoll.sim.scenario import Outcome, Scenario, simulate
from atoll.spec.axes.merge import Mean
from atoll.spec.run import Run
from tests.peer.world import DELAYS_S, counting_run, log_of, machines, sized

PEERS, ROUNDS, SIZE = 5, 14, 256
DROPS: list[Fault] = [Partition(at_s=2.0, side=(2,), others=(3, 4), for_s=10.0, one_way=True)]
"""What one peer says to two others is lost for a while; what they say it hears."""


def run_of(*, mass: bool = True) -> Run:
    """Return a run that waits for a slow peer for less than that needs."""
    run = counting_run("sgp", rounds=ROUNDS, start_with=PEERS, patience_s_max=1.0)
    channel = run.recipe.channel["outer"]
    if not mass:
        channel = replace(channel, merge=replace(channel.merge, combine=Mean()))
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


def played(run: Run) -> Outcome:
    """Play it where one machine is fifteen times slower than the others."""
    fast = machines(PEERS)
    slow = replace(fast[1], device=replace(fast[1].device, flop_s=fast[1].device.flop_s / 15))
    fleet = [fast[0], slow, *fast[2:]]
    outcome = simulate(Scenario(run=run, machines=fleet, delays_s=DELAYS_S, faults=DROPS, build=sized(SIZE)))
    assert violations(run, outcome) == []
    return outcome


def masses_before_the_last(outcome: Outcome) -> list[float]:
    """Return what each peer weighs before the round of all, in canonical order."""
    masses = masses_of(run_of().recipe.channel["outer"].whom, log_of(outcome))[ROUNDS].before
    return [masses.get(bytes(host.peer), 1.0) for host in sorted(outcome.hosts, key=lambda host: host.peer)]


def _by_mass(run: Run) -> bool:
    return run.recipe.channel["outer"].merge.combine.weights == "mass"


def gap(run: Run, outcome: Outcome) -> float:
    """Return how far the sum of all models, by mass, is from the first ones and every step that counted."""
    hosts = sorted(outcome.hosts, key=lambda host: host.peer)
    path = f"checkpoint/{ROUNDS - 1}.safetensors"
    models = [anchor_from_bytes(host.disk.file(path), path).weights.astype(np.float64) for host in hosts]
    masses = masses_before_the_last(outcome) if _by_mass(run) else [1.0] * PEERS
    held = sum(mass * model for mass, model in zip(masses, models, strict=True))
    counted = [p for each in commits(log_of(outcome)) if each.version < ROUNDS for p in each.positions]
    began = PEERS * first_weights(run.seeds.data, SIZE).astype(np.float64)
    learnt = sum(delta_of(run.seeds.data, SIZE, [p]).astype(np.float64) for p in counted)
    off = held - (began - learnt)
    off[MARKS] = 0.0  # which tell lives apart
    return float(np.abs(off).max() / np.abs(learnt).max())


def test_with_drops_the_sum_by_mass_of_all_models_has_every_step_that_counted_once() -> None:
    run = run_of()
    outcome = played(run)
    missed = {p for each in commits(log_of(outcome)) for p in each.announced.members if p not in each.contributors}
    assert len(missed) >= 2, "not the slow one alone: who was not heard missed rounds too"
    assert len(set(masses_before_the_last(outcome))) > 1, "so masses differ"
    assert sum(masses_before_the_last(outcome)) == pytest.approx(PEERS, abs=1e-12)
    assert gap(run, outcome) < 1e-5


def test_the_mean_of_who_is_there_loses_some_of_it() -> None:
    run = run_of(mass=False)
    assert gap(run, played(run)) > 1e-2
