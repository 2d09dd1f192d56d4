"""Which life of a peer each contribution is from, as far as journals tell.

Journals say who took its lease for a round, and how often it had been started by then. Where two lives of a peer did,
or one died before it could say that it began, nobody knows whose contribution counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from atoll import journal
from atoll.net.identity import short
from atoll.sim.retell import commits
from atoll.sim.scenario import Outcome
from atoll.swarm.log import Entry

Lives = Mapping[tuple[str, int], int]
"""Which life of a peer, by its short name, made its contribution to a round."""


def lives_of(outcome: Outcome) -> Lives:
    """Return which life made which contribution, as far as that is sure."""
    started: dict[str, int] = {}
    took: dict[tuple[str, int], set[int]] = {}
    for line in outcome.lines:
        match line.event:
            case journal.PeerStarted():
                started[line.peer] = started.get(line.peer, 0) + 1
            case journal.LeaseTaken(version=version):
                took.setdefault((line.peer, version), set()).add(started[line.peer])
            case _:
                pass
    sure = {short(host.peer) for host in outcome.hosts if started.get(short(host.peer)) == host.lives}
    return {who: min(lives) for who, lives in took.items() if len(lives) == 1 and who[0] in sure}


def sure_until(lives: Lives, entries: list[Entry]) -> float:
    """Return the last version before one with a contribution from a life that is not known."""
    unsure = (
        each.version
        for each in commits(entries)
        if any((short(peer), each.version) not in lives for peer in each.contributors)
    )
    return min((version - 1 for version in unsure), default=math.inf)
