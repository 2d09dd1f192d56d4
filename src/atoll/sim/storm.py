"""Fault search: one seed, a run of a few counting peers, a storm, then calm; and what it shows.

`case_of` is the mixed storm of `faults` on any run and fleet; the named families of `skies` each look for one kind of
trouble. Either way a seed is a `Case`, which can be shrunk, stored and replayed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from atoll.sim.case import CALM_ROUNDS, Between, Case, Verdict, calm_s_max, play
from atoll.sim.faults import Fault, Partition, Reform, Vandal, Weather, shrink, storm
from atoll.spec.fleet import Machine
from atoll.spec.run import Budget, Run

__all__ = ["CALM_ROUNDS", "ENDLESS", "Verdict", "calm_s_max", "case_of", "shrunk"]

ENDLESS = Budget(rounds=10**9)
"""A search never runs out of work: what it looks for is in the middle."""
PATIENCE_S = 60.0
"""A search waits no longer than this for a slow member, so that the bound on liveness means something."""
PLAYS_MAX = 60
"""Plays spent on shrinking one case; what is left then is small enough."""


def case_of(
    run: Run,
    machines: Sequence[Machine],
    delays_s: dict[tuple[str, str], float],
    seed: int,
    *,
    until_s: float = 60.0,
    faults: tuple[Fault, ...] | None = None,
    sky: Weather | None = None,
    losses: dict[tuple[str, str], float] | None = None,
) -> Case:
    """Return the case of one seed on a run and fleet of one's own; `faults` takes the place of the storm."""
    patience_s = min(run.upkeep.patience_s_max, PATIENCE_S)
    return Case(
        seed=seed,
        run=replace(run, budget=ENDLESS, upkeep=replace(run.upkeep, patience_s_max=patience_s)),
        machines=tuple(machines),
        delays_s=tuple(Between(a, b, value) for (a, b), value in delays_s.items()),
        losses=tuple(Between(a, b, value) for (a, b), value in (losses or {}).items() if value),
        faults=storm(seed, len(machines), until_s, sky) if faults is None else faults,
        until_s=until_s,
    )


def shrunk(case: Case) -> tuple[Case, Verdict]:
    """Return a case with as few faults, and as few peers, as still break something, and its verdict."""
    tried = {case.faults: play(case)}

    def fails(faults: tuple[Fault, ...]) -> bool:
        if faults not in tried:
            if len(tried) >= PLAYS_MAX:
                return False
            tried[faults] = play(replace(case, faults=faults))
        return bool(tried[faults].broken)

    faults = shrink(case.faults, fails)
    least, verdict = replace(case, faults=faults), tried[faults]
    for simplify in (_exact, _lossless, *(_smaller for _ in case.machines)):
        simpler = simplify(least)
        if simpler != least and (judged := play(simpler)).broken:
            least, verdict = simpler, judged
    return least, verdict


def _exact(case: Case) -> Case:
    return replace(case, hesitates=0.0)


def _lossless(case: Case) -> Case:
    return replace(case, losses=())


def _smaller(case: Case) -> Case:
    """Return the case without its last peer, where nothing speaks of it."""
    last = len(case.machines) - 1
    named = {place for fault in case.faults for place in _places(fault)}
    named |= {place for contacts in case.tickets.values() for place in contacts}
    if last < 2 or last in named:
        return case
    start_with = min(case.run.membership.start_with, last)
    return replace(
        case,
        machines=case.machines[:last],
        run=replace(case.run, membership=replace(case.run.membership, start_with=start_with)),
        entrances=tuple(entrance for entrance in case.entrances if entrance.peer < last),
        tickets={place: contacts for place, contacts in case.tickets.items() if place < last},
    )


def _places(fault: Fault) -> tuple[int, ...]:
    match fault:
        case Partition(side=side, others=others):
            return (*side, *others)
        case Vandal() | Reform():
            return ()
        case _:
            return (fault.peer,)
