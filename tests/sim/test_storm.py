"""Two hundred storms: crashes and restarts, pauses, partitions, slow and lossy machines, from a seed each.

While a storm lasts no promise may break; after it everybody must come to peace on the newest anchor. To replay a
seed, and to see the fewest of its faults that still break something:

    python -m tests.sim.test_storm SEED
"""

from __future__ import annotations

import sys

import pytest
from msgspec.structs import replace

from atoll.sim.faults import Crash, Fault, Partition, Pause, shrink, storm, to_json
from atoll.sim.scenario import on_fleet
from atoll.sim.storm import CALM_ROUNDS, Verdict, weather
from atoll.spec.fleet import Always, Machine, load_fleet
from atoll.spec.load import demo_run
from atoll.spec.run import Run

SEEDS = 200
CHUNK = 20
PEERS = 5
STORM_S = 60.0
STORMY_ROUNDS = 3
"""Rounds that commit while faults are on, in at least STORMY_SHARE of the seeds."""
STORMY_SHARE = 0.8


def homes() -> tuple[Run, list[Machine], dict[tuple[str, str], float]]:
    """Return a DiLoCo run and five homes in three regions, so slow that a round takes a few seconds."""
    changes = [f"membership.start_with={PEERS}", "budget.rounds=100000", "upkeep.checkpoint_every=1"]
    run = demo_run(overrides=[*changes, "recipe.channel.outer.when.steps=8"])
    machines, delays_s = on_fleet(load_fleet("homes"))
    slow = [replace(m, availability=Always(), device=replace(m.device, flop_s=2e11)) for m in machines[:PEERS]]
    return run, slow, delays_s


def storm_of(seed: int, faults: tuple[Fault, ...] | None = None) -> Verdict:
    run, machines, delays_s = homes()
    return weather(run, machines, delays_s, seed, until_s=STORM_S, faults=faults)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_storm_breaks_a_promise_and_after_it_everybody_is_on_the_newest_anchor(first: int) -> None:
    verdicts = [storm_of(seed) for seed in range(first, first + CHUNK)]
    told = [f"python -m tests.sim.test_storm {v.seed}   # {'; '.join(v.broken[:3])}" for v in verdicts if v.broken]
    assert not told, "replay with\n" + "\n".join(told)
    assert all(verdict.rounds >= verdict.stormy_rounds + CALM_ROUNDS for verdict in verdicts)
    stormy = [verdict.seed for verdict in verdicts if verdict.stormy_rounds >= STORMY_ROUNDS]
    assert len(stormy) >= STORMY_SHARE * CHUNK, f"too little happened in the storms of {first}..{first + CHUNK}"


def test_the_storms_have_all_the_faults_they_should() -> None:
    faults = [fault for seed in range(SEEDS) for fault in storm(seed, PEERS, STORM_S)]
    crashed = [fault for fault in faults if isinstance(fault, Crash)]
    assert len(crashed) > SEEDS
    assert all(fault.restart_after_s is not None for fault in crashed)
    assert {fault.peer for fault in crashed} == set(range(PEERS))
    assert sum(isinstance(fault, Pause) for fault in faults) > SEEDS / 2
    assert sum(isinstance(fault, Partition) and fault.one_way for fault in faults) > SEEDS / 10
    assert len({type(fault) for fault in faults}) >= 8


def test_a_storm_is_the_same_each_time_and_differs_from_seed_to_seed() -> None:
    one, again, other = storm_of(3), storm_of(3), storm_of(4)
    assert one == again
    assert one.trace != other.trace
    assert storm_of(3, faults=one.faults).trace == one.trace, "a stored fault list replays the seed"


def test_without_its_organiser_the_run_stands_still_and_that_is_said() -> None:
    verdict = storm_of(0, faults=(Crash(at_s=20.0, peer=0, restart_after_s=None),))
    assert any("of calm" in what for what in verdict.broken)
    assert verdict.rounds == verdict.stormy_rounds


def main(seed: int) -> None:
    """Replay a seed, and look for the fewest faults that still break something."""
    verdict = storm_of(seed)
    print(f"seed {seed}: {verdict.stormy_rounds} rounds in the storm, {verdict.rounds} in all, trace {verdict.trace}")
    print("\n".join(verdict.broken) or "no broken promise")
    if verdict.broken:
        least = shrink(verdict.faults, lambda faults: bool(storm_of(seed, faults).broken))
        print("the fewest faults that still break something:")
        print(to_json(least).decode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
