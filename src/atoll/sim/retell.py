"""A log's rounds told in full: who was in each, on which samples, and whose work counted.

The log itself is short: bits over the roster, quotas, and nothing about samples, since these follow from all that
was handed out and came back before. The checks need them spelled out, so here they are worked out a second time,
position by position, without the code that peers do it with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from atoll.swarm.log import Entry, Key, RosterChanged, RoundAnnounced, RoundCommitted, RoundVoided


class Announced(NamedTuple):
    """A round that began."""

    version: int
    members: tuple[bytes, ...]
    leases: dict[bytes, list[int]]
    """The positions that each member is to work on."""
    base: str
    """Digest of the anchor that it starts from."""
    ahead: dict[bytes, list[int]]
    """The positions that each member goes on with while the round is exchanged."""
    key: Key


class Committed(NamedTuple):
    """A round that ended well."""

    announced: Announced
    contributors: tuple[bytes, ...]
    result: str
    ring: tuple[bytes, ...] = ()
    """Its contributors as sums went round among them; nobody: they did not."""

    @property
    def version(self) -> int:
        return self.announced.version

    @property
    def positions(self) -> list[int]:
        """Return the samples in it."""
        return _all(self.announced, self.contributors)


def announcements(entries: Sequence[Entry]) -> list[Announced]:
    """Return all rounds that a log began, also those that were given up."""
    return _retold(entries)[0]


def commits(entries: Sequence[Entry]) -> list[Committed]:
    """Return the rounds that a log committed."""
    return _retold(entries)[1]


def _retold(entries: Sequence[Entry]) -> tuple[list[Announced], list[Committed]]:
    announced: list[Announced] = []
    committed: list[Committed] = []
    roster: set[bytes] = set()
    pool = _Pool()
    begun: dict[bytes, list[int]] = {}
    for entry in entries:
        match entry.record:
            case RosterChanged(joined=joined, left=left):
                roster = (roster - set(left)) | {member.peer for member in joined}
            case RoundAnnounced(key=key, who=who, quotas=quotas, base=base, ahead=ahead):
                members = _marked(who, sorted(roster))
                each = dict(zip(members, list(quotas) * len(members) if len(quotas) == 1 else quotas, strict=True))
                kept = {peer: lease for peer, lease in begun.items() if each.get(peer) == len(lease)}
                pool.put_back(p for peer, lease in begun.items() if peer not in kept for p in lease)
                leases = {peer: kept[peer] if peer in kept else pool.take(quota) for peer, quota in each.items()}
                more = {peer: pool.take(quota) for peer, quota in each.items()} if ahead else {}
                begun = {}
                announced.append(Announced(key.version, members, leases, base, more, key))
            case RoundCommitted(who=who, result=result, ring=places):
                last = announced[-1]
                ring = tuple(last.members[place] for place in places)
                committed.append(Committed(last, _marked(who, last.members), result, ring))
                contributors = committed[-1].contributors
                pool.put_back(p for peer, lease in last.leases.items() if peer not in contributors for p in lease)
                begun = last.ahead
            case RoundVoided():
                pool.put_back(_all(announced[-1], announced[-1].members))
                pool.put_back(p for lease in announced[-1].ahead.values() for p in lease)
            case _:
                pass
    return announced, committed


class _Pool:
    """Positions to hand out: what came back, lowest first, then fresh ones."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._fresh = 0

    def put_back(self, positions: Iterable[int]) -> None:
        self._waiting = sorted([*self._waiting, *positions])

    def take(self, count: int) -> list[int]:
        lacking = max(0, count - len(self._waiting))
        taken = [*self._waiting[:count], *range(self._fresh, self._fresh + lacking)]
        del self._waiting[:count]
        self._fresh += lacking
        return taken


def _all(announced: Announced, peers: Iterable[bytes]) -> list[int]:
    """Return the positions of some members' leases together."""
    return [position for peer in peers for position in announced.leases[peer]]


def _marked(bits: bytes, peers: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the peers whose bit is set."""
    return tuple(peer for place, peer in enumerate(peers) if bits[place // 8] >> place % 8 & 1)
