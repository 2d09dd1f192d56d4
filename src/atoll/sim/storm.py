"""Fault search: one seed, a run of a few counting peers, a storm, then calm; and what it shows.

While the storm lasts, safety is watched; when it is over everything is healed and restarted, and the run must
come to peace: everybody alive and on the newest anchor, with new rounds committed since.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from atoll.sim.check import settled, violations
from atoll.sim.faults import Fault, Weather, storm
from atoll.sim.loop import SimulationFailed
from atoll.sim.scenario import Outcome, Scenario, World, simulate
from atoll.spec.fleet import Machine
from atoll.spec.run import Budget, Run

ENDLESS = Budget(rounds=10**9)
"""A search never runs out of work: what it looks for is in the middle."""
CALM_ROUNDS = 2
"""Rounds that must commit after the storm."""
CALM_S_MAX = 900.0
"""Within this time of virtual calm."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What one seed showed."""

    seed: int
    faults: tuple[Fault, ...]
    broken: list[str]
    """Promises that did not hold."""
    stormy_rounds: int
    """Rounds committed while faults were on."""
    rounds: int
    trace: str
    took_s: float


def weather(
    run: Run,
    machines: Sequence[Machine],
    delays_s: dict[tuple[str, str], float],
    seed: int,
    *,
    until_s: float = 60.0,
    faults: tuple[Fault, ...] | None = None,
    sky: Weather | None = None,
) -> Verdict:
    """Play one seed's storm and return the verdict; `faults` replays a stored list instead."""
    run = replace(run, budget=ENDLESS)
    drawn = storm(seed, len(machines), until_s, sky) if faults is None else faults
    at_calm: list[int] = []

    def enough(world: World) -> bool:
        if world.now_s() < until_s:
            return False
        if not at_calm:
            at_calm.append(world.committed)
        return _at_peace(world, at_calm[0] + CALM_ROUNDS) or world.now_s() > until_s + CALM_S_MAX

    scenario = Scenario(run=run, machines=machines, delays_s=delays_s, seed=seed, faults=drawn, enough=enough)
    try:
        outcome = simulate(scenario)
    except SimulationFailed as failed:
        return Verdict(seed=seed, faults=drawn, broken=[str(failed)], stormy_rounds=0, rounds=0, trace="", took_s=0.0)
    broken = violations(run, outcome) + settled(outcome)
    committed = _committed(outcome)
    if outcome.took_s > until_s + CALM_S_MAX:
        broken += [f"no {CALM_ROUNDS} rounds for everybody within {CALM_S_MAX:.0f} s of calm"]
    return Verdict(
        seed=seed,
        faults=drawn,
        broken=broken,
        stormy_rounds=at_calm[0] if at_calm else committed,
        rounds=committed,
        trace=outcome.trace,
        took_s=outcome.took_s,
    )


def _at_peace(world: World, version: int) -> bool:
    """Return whether everybody is alive and on one anchor: the newest, and not older than `version`."""
    held = {(host.version, host.anchor) for host in world.hosts}
    newest = all(host.alive and host.version == world.committed >= version for host in world.hosts)
    return newest and len(held) == 1


def _committed(outcome: Outcome) -> int:
    return max((host.version for host in outcome.hosts), default=0)
