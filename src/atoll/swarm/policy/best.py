"""Whose weights all learn from, where a recipe has one teach the others now and then: who says the least recent loss.

What a member says of its loss nobody can check, so little is believed. What is no number above nothing is refused, and
the journal says whose it was. Who is far better than most is more likely wrong than right, since all learn from each
other at every step: it is passed over, which the journal says too. A lie within these bounds makes a poor teacher,
towards whom everybody moves once: as far as peers are trusted to compute honestly they are trusted here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import UnsetType

from atoll import journal
from atoll.net.identity import short
from atoll.swarm.log import Key
from atoll.swarm.state import Action, Broker, Note

BETTER_MAX = 2.0
"""So many times less than the median a loss may be, to be believed."""


def teacher(broker: Broker, key: Key, members: Sequence[bytes]) -> tuple[bytes, list[Action]]:
    """Return who of some members is to teach the others in a round, and what there is to say about that.

    Empty: nobody says anything of its loss.
    """
    said = {peer: loss for peer in members if (loss := _said(broker, peer)) is not None}
    possible = {peer: loss for peer, loss in said.items() if 0.0 < loss < math.inf}
    notes: list[Action] = [
        Note(journal.MessageRefused(who=short(peer), why=f"a loss of {loss}"))
        for peer, loss in said.items()
        if peer not in possible
    ]
    best = least_believed(possible)
    if best:
        losses = {short(peer): loss for peer, loss in possible.items()}
        told = journal.TeacherChosen(channel=key.channel, version=key.version, who=short(best), losses=losses)
        notes.append(Note(told))
    return best, notes


def least_believed(losses: Mapping[bytes, float]) -> bytes:
    """Return who has the least loss of those that can be believed; empty: there is none."""
    least = median(losses.values()) / BETTER_MAX if losses else 0.0
    believed = {peer: loss for peer, loss in losses.items() if loss >= least}
    return min(sorted(believed), key=lambda peer: believed[peer], default=b"")


def _said(broker: Broker, peer: bytes) -> float | None:
    presence = broker.present.get(peer)
    loss = presence.standing.loss if presence is not None and presence.standing is not None else None
    return None if isinstance(loss, UnsetType) else loss
