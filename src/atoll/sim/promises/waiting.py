"""Live, while a round goes on: nobody waits for who is slow beyond patience, or for who lacks the state to begin."""

from __future__ import annotations

from collections.abc import Iterator

from atoll import journal
from atoll.net.identity import short
from atoll.sim.scenario import Outcome
from atoll.spec.run import Run

SLACK_S = 10.0
"""A round may last so much longer than its patience: machines sleep, and words travel."""
LAG_MAX = 3
"""Whoever is announced in a round is at most so many versions behind the one that it starts from."""


def patient(run: Run, outcome: Outcome) -> Iterator[str]:
    """Check that no broker that has contributed itself waits for slower members beyond the run's patience.

    A round that is planned anew, or gets another broker, has reasons of its own to take longer.
    """
    if run.membership.contributors_min > 1:
        return
    true = {short(host.peer) for host in outcome.hosts if not host.skew_s}
    since_s: dict[tuple[int, str], float] = {}
    settled_s: dict[int, float] = {}
    for line in outcome.lines:
        match line.event:
            case journal.ContributionSent(version=version) if line.peer in true:
                since_s.setdefault((version, line.peer), line.at_s)
            case journal.RoundReplanned() | journal.EpochStarted() | journal.RoundVoided() | journal.PeerStarted():
                since_s.clear()
            case journal.RoundSettled(version=version):
                settled_s[version] = line.at_s
                before_s = settled_s.get(version - 1, 0.0)  # until then others may have worked for that one
                waited_s = line.at_s - max(since_s.get((version, line.peer), line.at_s), before_s)
                if waited_s > run.upkeep.patience_s_max + SLACK_S:
                    yield f"version {version} was settled {waited_s:.0f} s after its broker contributed"
            case _:
                pass


def ready(outcome: Outcome) -> Iterator[str]:
    """Check that a round is announced only with members that hold what it starts from, or nearly so.

    Who works on from the round before starts from what it started from then.
    """
    holds = {short(host.peer): 0 for host in outcome.hosts}
    members_of: dict[int, list[str]] = {}
    works_on: dict[int, set[str]] = {}
    announced = committed = 0
    for line in outcome.lines:
        match line.event:
            case (
                journal.RoundApplied(version=version)
                | journal.RoundPassedOver(version=version)
                | journal.StateFetched(version=version)
            ):
                holds[line.peer] = max(version, holds[line.peer])
            case journal.RoundAnnounced(version=version, members=members) if version > announced:
                announced = version
                members_of[version] = members
                for who in members:
                    if who not in works_on.get(version - 1, ()) and holds.get(who, version) < committed - LAG_MAX:
                        yield f"version {version} was announced with {who}, which was only at {holds[who]}"
            case journal.RoundCommitted(version=version, contributors=contributors, carried=carried):
                committed = max(committed, version)
                if carried:
                    works_on[version] = set(members_of.get(version, ())).difference(contributors)
            case _:
                pass
