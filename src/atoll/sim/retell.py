"""A log's rounds told in full: who was in each, on which samples, and whose work counted.

The log itself is short: bits over the roster, quotas, and nothing about samples, since these follow from all that
was handed out and came back before. The checks need them spelled out, so here they are worked out a second time,
position by position, without the code that peers do it with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import UnsetType

from atoll.spec.axes.control import Knobs
from atoll.swarm.log import Entry, Key, KnobsTurned, RosterChanged, RoundAnnounced, RoundCommitted, RoundVoided


class Announced(NamedTuple):
    """A round that began."""

    version: int
    members: tuple[bytes, ...]
    leases: dict[bytes, list[int]]
    """The positions that each member is to work on."""
    base: str
    """Digest of the anchor that it starts from."""
    ahead: dict[bytes, list[int]]
    """The positions that each member goes on with while the round is exchanged, as many again for each round."""
    carry: bool
    """Whether who has not contributed keeps both."""
    holds: bool
    """Whether everybody keeps its own, and nothing is counted yet."""
    since: dict[bytes, int]
    """The round for which each member was first handed its lease."""
    key: Key
    rates: tuple[int, ...] = ()
    """What the line of each member sends, where that decides who is asked for what."""
    regions: tuple[int, ...] = ()
    """The region of each member, where they are in some."""
    best: bytes = b""
    """Whose weights all move towards; empty: nobody's."""
    bases: tuple[str, ...] = ()
    """What each region starts from, where they hold states of their own."""
    tells: tuple[int, ...] | None = None
    """The regions that tell; none of them: all do, and begin anew; None: it is no such round."""

    @property
    def groups(self) -> list[list[bytes]]:
        """Return the members region by region; where there are none, all together."""
        groups: dict[int, list[bytes]] = {}
        for peer, region in zip(self.members, self.regions or (0,) * len(self.members), strict=True):
            groups.setdefault(region, []).append(peer)
        return [groups[number] for number in sorted(groups)]


class Committed(NamedTuple):
    """A round that ended well."""

    announced: Announced
    contributors: tuple[bytes, ...]
    result: str
    ring: tuple[bytes, ...] = ()
    """Its contributors as sums went round among them; nobody: they did not."""
    trees: tuple[tuple[int, dict[bytes, bytes]], ...] = ()
    """The trees that sums went up, if they did: for how many chunks, and who is above whom, the root above itself."""
    lent: tuple[bytes, ...] = ()
    """Whose weights from before are in it."""

    @property
    def version(self) -> int:
        return self.announced.version

    @property
    def positions(self) -> list[int]:
        """Return the samples in it."""
        return [] if self.announced.holds else _all(self.announced, self.contributors)

    @property
    def carried(self) -> list[int]:
        """Return the samples that stay with members whose contributions are not in it, or not counted yet."""
        if self.announced.holds:
            return _all(self.announced, self.announced.members)
        missing = [peer for peer in self.announced.members if peer not in self.contributors]
        return _all(self.announced, missing) if self.announced.carry else []

    @property
    def staleness(self) -> list[int]:
        """Return of each contributor how many rounds were committed since its lease was handed out."""
        return [self.version - self.announced.since[peer] for peer in self.contributors]


def announcements(entries: Sequence[Entry]) -> list[Announced]:
    """Return all rounds that a log began, also those that were given up."""
    return _retold(entries)[0]


def settings(entries: Sequence[Entry]) -> dict[int, Knobs]:
    """Return how a log turned the knobs, by the first round of which it holds."""
    return {entry.record.version: entry.record.knobs for entry in entries if isinstance(entry.record, KnobsTurned)}


def commits(entries: Sequence[Entry]) -> list[Committed]:
    """Return the rounds that a log committed."""
    return _retold(entries)[1]


def _retold(entries: Sequence[Entry]) -> tuple[list[Announced], list[Committed]]:
    announced: list[Announced] = []
    open_: list[Announced] = []
    committed: list[Committed] = []
    roster: set[bytes] = set()
    pool = _Pool()
    kept: dict[bytes, _Kept] = {}
    for entry in entries:
        match entry.record:
            case RosterChanged(joined=joined, left=left):
                roster = (roster - set(left)) | {member.peer for member in joined}
            case (
                RoundAnnounced(key=key, who=who, quotas=quotas, base=base, ahead=ahead, carry=carry, holds=holds) as new
            ):
                members = _marked(who, sorted(roster))
                each = dict(zip(members, list(quotas) * len(members) if len(quotas) == 1 else quotas, strict=True))
                lost = [peer for peer, had in kept.items() if each.get(peer) != len(had.lease)]
                pool.put_back(p for peer in lost for p in kept.pop(peer).all)
                leases = {peer: kept[peer].lease if peer in kept else pool.take(quota) for peer, quota in each.items()}
                more = {peer: kept[peer].ahead[: ahead * each[peer]] if peer in kept else [] for peer in members}
                pool.put_back(p for peer, had in kept.items() for p in had.ahead[ahead * each[peer] :])
                for count in range(1, ahead + 1):
                    lacking = [peer for peer in members if len(more[peer]) < count * each[peer]]
                    more |= {peer: [*more[peer], *pool.take(each[peer])] for peer in lacking}
                since = {peer: kept[peer].since if peer in kept else key.version for peer in members}
                kept = {}
                lines = () if isinstance(new.rates, UnsetType) else new.rates
                where = () if isinstance(new.regions, UnsetType) else new.regions
                best = b"" if isinstance(new.best, UnsetType) else members[new.best]
                handed = (leases, base, more, carry, holds, since)
                bases = () if isinstance(new.bases, UnsetType) else new.bases
                tells = None if isinstance(new.tells, UnsetType) else new.tells
                announced.append(Announced(key.version, members, *handed, key, lines, where, best, bases, tells))
                open_.append(announced[-1])
            case RoundCommitted(who=who, result=result, ring=places, trees=trees, lent=lent):
                last = open_.pop(0)
                ring = tuple(last.members[place] for place in places)
                above = tuple((tree.chunks, _above(last.members, tree.up)) for tree in trees)
                lenders = () if isinstance(lent, UnsetType) else _marked(lent, last.members)
                committed.append(Committed(last, _marked(who, last.members), result, ring, above, lenders))
                kept = _kept(last, committed[-1].contributors)
                missing = [peer for peer in last.members if peer not in committed[-1].contributors]
                stays = last.carry or last.holds
                pool.put_back(p for peer in missing if not stays for p in last.leases[peer])
            case RoundVoided(key=key):
                while open_ and open_[-1].version >= key.version:
                    over = open_.pop()
                    pool.put_back(_all(over, over.members))
                    pool.put_back(p for lease in over.ahead.values() for p in lease)
            case _:
                pass
    return announced, committed


def _above(members: Sequence[bytes], up: Sequence[int]) -> dict[bytes, bytes]:
    return {peer: members[place] for peer, place in zip(members, up, strict=True) if place >= 0}


class _Kept(NamedTuple):
    """What a member takes on into the next round."""

    lease: list[int]
    ahead: list[int]
    since: int

    @property
    def all(self) -> list[int]:
        return [*self.lease, *self.ahead]


def _kept(last: Announced, contributors: Sequence[bytes]) -> dict[bytes, _Kept]:
    """Return what each member of a round that was committed takes on with it."""
    if last.holds:
        since = {peer: last.since[peer] if last.carry else last.version + 1 for peer in last.members}
        return {peer: _Kept(lease, [], since[peer]) for peer, lease in last.leases.items()}
    found = {}
    for peer, positions in last.ahead.items():
        if positions:
            quota = len(last.leases[peer])
            found[peer] = _Kept(positions[:quota], positions[quota:], last.version + 1)
    if last.carry:
        missing = (peer for peer in last.members if peer not in contributors)
        found |= {peer: _Kept(last.leases[peer], last.ahead.get(peer, []), last.since[peer]) for peer in missing}
    return found


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
