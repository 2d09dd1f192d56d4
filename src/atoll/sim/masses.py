"""What every peer weighs where models have a mass of their own, worked out a second time from the log alone.

This says it as push-sum has it, as a matrix: of what member j has, each who takes from it gets the same part, and where
j did not contribute all of it stays with j. Columns add up to 1: no mass is made or lost in a round of circles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import UNSET

from atoll.sim.retell import Committed, commits
from atoll.spec.axes.whom import Whom
from atoll.swarm.log import Entry, RosterChanged, RoundAnnounced, RoundCommitted
from atoll.swarm.routes.circles import circles_in

Masses = dict[bytes, float]
"""Who is not in it weighs 1."""


class Weighed(NamedTuple):
    """What everybody weighs when a round begins, and its members after it."""

    before: Masses
    after: Masses


def masses_of(whom: Whom, entries: list[Entry]) -> dict[int, Weighed]:
    """Return what everybody weighs in every round that was committed; who is not in the run has no mass."""
    rounds = {each.version: each for each in commits(entries)}
    roster: set[bytes] = set()
    masses: Masses = {}
    began: Masses = {}
    found: dict[int, Weighed] = {}
    for entry in entries:
        match entry.record:
            case RosterChanged(joined=joined, left=left):
                roster = (roster - set(left)) | {member.peer for member in joined}
            case RoundAnnounced():
                began = masses
            case RoundCommitted(key=key):
                found[key.version] = Weighed(began, _after(whom, rounds[key.version], began))
                masses = masses | found[key.version].after
            case _:
                pass
        masses = {peer: mass for peer, mass in masses.items() if peer in roster}
    return found


def wrongly_named(whom: Whom, entries: list[Entry]) -> Iterator[str]:
    """Check that commits name the masses that follow from the log before them."""
    known = masses_of(whom, entries)
    for entry in entries:
        if isinstance(record := entry.record, RoundCommitted):
            after = known[record.key.version].after.values()
            right = tuple(after) if any(mass != 1.0 for mass in after) else UNSET
            if record.masses != right:
                yield f"version {record.key.version}: the log names masses {record.masses}, which should be {right}"


def _after(whom: Whom, committed: Committed, masses: Masses) -> Masses:
    """Return what each member of a round weighs after it; a round of all puts everybody in the same place."""
    announced = committed.announced
    circles = circles_in(whom, announced)
    if not circles:
        return dict.fromkeys(announced.members, 1.0)
    takers: dict[bytes, list[bytes]] = {}
    for circle in circles:
        for peer in circle.givers:
            takers.setdefault(peer, []).extend(circle.takers)
    kept = {peer: masses.get(peer, 1.0) for peer in announced.members if peer not in committed.contributors}
    moved = dict.fromkeys(announced.members, 0.0)
    for peer in committed.contributors:
        for taker in takers[peer]:
            moved[taker] += masses.get(peer, 1.0) / len(takers[peer])
    return {peer: kept.get(peer, 0.0) + moved[peer] for peer in announced.members}
