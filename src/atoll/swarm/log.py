"""The log: the few things everybody must agree on, in one order; and the history it adds up to.

The council writes it, everybody reads it. A record is durable before anybody hears of it. `apply` is the
only way a record takes effect, so two peers with the same prefix have the same history. Records name
rounds by a key (channel, version, scope, unit): whether all exchange with all or in circles, and what.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import msgspec
from blake3 import blake3
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from atoll.errors import LocalError, PeerError, SpecError
from atoll.net.identity import verify
from atoll.net.transport import PeerId
from atoll.spec.axes.control import Knobs
from atoll.spec.load import decode_run
from atoll.spec.run import identity
from atoll.swarm import homes, lease
from atoll.swarm.bits import bits_of, places_of
from atoll.swarm.homes import Homes
from atoll.swarm.lease import Lease
from atoll.swarm.routes.shares import by_region, numbered
from atoll.swarm.routes.tree import Trees, is_tree

ALL, CIRCLES = "all", "circles"
"""Scopes: all members together, or each with those of its circle."""
AHEAD_MAX = 64
"""Rounds after the open one for which members may have leases, or that may be open with it."""
MODEL = "model"
"""The unit that is all of it."""
WHY_CHARS_MAX = 1000
"""Words that a record may have for people."""


class Key(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which exchange: everything on the wire and in the log is named by one."""

    channel: str
    version: int
    scope: str = ALL
    unit: str = MODEL


class Member(Struct, frozen=True, forbid_unknown_fields=True):
    """One peer of the roster and where it can be reached."""

    peer: bytes
    addresses: tuple[str, ...]
    name: str = ""


class CouncilChanged(Struct, frozen=True, tag="council", forbid_unknown_fields=True):
    """Who votes from here on: one more or one fewer than before. The first entry of a log names its organiser."""

    members: tuple[bytes, ...]


class CouncilReformed(Struct, frozen=True, tag="reformed", forbid_unknown_fields=True):
    """The organiser put a new council in place of one that lost its majority for good, and signed for it."""

    members: tuple[bytes, ...]
    generation: int
    """One more than that of the re-forming before."""
    signature: bytes


class EpochStarted(Struct, frozen=True, tag="epoch", forbid_unknown_fields=True):
    """A broker took office; what earlier ones planned but did not commit is void."""

    epoch: int
    broker: bytes


class RosterChanged(Struct, frozen=True, tag="roster", forbid_unknown_fields=True):
    """Who came, or changed its addresses, and who left."""

    version: int
    joined: tuple[Member, ...] = ()
    left: tuple[bytes, ...] = ()


class SettingsChanged(Struct, frozen=True, tag="settings", forbid_unknown_fields=True):
    """The organiser changed what may change in a run (budget, membership, upkeep), and signed for it."""

    run: bytes
    """Canonical form."""
    signature: bytes


class KnobsTurned(Struct, frozen=True, tag="knobs", forbid_unknown_fields=True):
    """From a round on the channel is another: for everybody, since it is here before the round is announced."""

    channel: str
    version: int
    """The first round of which it holds."""
    knobs: Knobs
    why: str
    """What was measured and what follows from it, in words."""


class RoundAnnounced(Struct, frozen=True, tag="announced", forbid_unknown_fields=True):
    """A round began: who takes part, on how many samples, from which anchor; on which follows from the log before."""

    key: Key
    who: bytes
    """A bit for each member of the roster in canonical order: sorted by peer id."""
    quotas: tuple[int, ...]
    """Samples for each who takes part, in that order; a single number holds for all."""
    base: str
    """Digest of the anchor that the round starts from; empty: each member has its own."""
    roster: int
    ahead: int = 0
    """For how many rounds more its members get as many samples, to go on with while it is exchanged."""
    carry: bool = False
    """Whether members whose contributions are not in keep their leases for the next round."""
    holds: bool = False
    """Whether all its members do: nothing is counted yet, and the next round is of the same work."""
    rates: tuple[int, ...] | UnsetType = UNSET
    """Bytes a second that the line of each who takes part sends, where it matters who is asked; 0: not known."""
    regions: tuple[int, ...] | UnsetType = UNSET
    """The region of each who takes part, numbered as they first come up; unset: there are none, or not known yet."""
    best: int | UnsetType = UNSET
    """Whose weights all move towards, by its place among those who take part; unset: nobody's."""
    bases: tuple[str, ...] | UnsetType = UNSET
    """Where regions hold states of their own, the digest of each; empty: whatever it is, who was there has it."""
    tells: tuple[int, ...] | UnsetType = UNSET
    """The regions that tell how far they have come; none: all do, and begin anew from what is above them."""


class RoundCommitted(Struct, frozen=True, tag="committed", forbid_unknown_fields=True):
    """A round ended: whose contributions are in, and the digest of the result everybody applies."""

    key: Key
    who: bytes
    """A bit for each member of the round."""
    result: str
    """The root over its chunks' digests, or over the roots of its circles."""
    circles: tuple[str, ...] = ()
    """The root of each circle's result, where the round was in circles; empty: nobody gave anything to it."""
    ring: tuple[int, ...] = ()
    """Where sums went round: the places of its contributors among the members of the round, in that order."""
    masses: tuple[float, ...] | UnsetType = UNSET
    """The mass of each member of the round after it, where they weigh by that; unset: 1."""
    trees: Trees = ()
    """Where sums went up trees: those, over the members of the round."""
    lent: bytes | UnsetType = UNSET
    """A bit for each member whose weights from before are in, since its work was not done; unset: for nobody."""


class RoundVoided(Struct, frozen=True, tag="voided", forbid_unknown_fields=True):
    """A round was given up because too few of its members are left: all its leases go back."""

    key: Key


class RunFinished(Struct, frozen=True, tag="finished", forbid_unknown_fields=True):
    """The budget is spent."""


Record = (
    CouncilChanged
    | CouncilReformed
    | EpochStarted
    | RosterChanged
    | SettingsChanged
    | KnobsTurned
    | RoundAnnounced
    | RoundCommitted
    | RoundVoided
    | RunFinished
)


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """A record at its place in the log, and the term of the leader that put it there."""

    index: int
    record: Record
    term: int = 0


class Kept(Struct, frozen=True):
    """What a member of the last round takes with it into the next, if it is in that: else it goes back."""

    lease: Lease
    """What it works on already."""
    ahead: Lease = ()
    """What is set apart for it after that, as much again for each round."""
    since: int = 0
    """The round for which its lease was first handed out; 0: the next is."""


class OpenRound(Struct, frozen=True):
    """A round that was announced and is neither committed nor given up."""

    key: Key
    members: tuple[bytes, ...]
    """In canonical order."""
    quotas: tuple[int, ...]
    """Samples for each."""
    ranges: Lease
    """What they work on together: each takes its quota of it, in order."""
    base: str
    roster: int
    ahead: Lease = ()
    """What they go on with while the round is exchanged, shared out likewise, round by round; may be none."""
    carry: bool = False
    """Whether those whose contributions are not in keep what they have."""
    since: dict[bytes, int] = {}
    """For which round each was first handed its lease who had it before this one."""
    worked: tuple[int, ...] = ()
    """Samples of each, with this lease, since what the round is about was last committed."""
    masses: dict[bytes, float] = {}
    """Of those whose mass is not 1."""
    holds: bool = False
    """Whether everybody keeps what it has."""
    rates: tuple[int, ...] = ()
    """What the line of each sends, where that matters."""
    regions: tuple[int, ...] = ()
    """The region of each, where there are some."""
    best: bytes = b""
    """Whose weights all move towards; empty: nobody's."""
    bases: tuple[str, ...] = ()
    """What each region starts from, where they hold states of their own; empty words: not named."""
    tells: tuple[int, ...] | None = None
    """The regions that tell; none of them: all do, and begin anew; None: it is no round of telling."""
    homes: tuple[int, ...] = ()
    """The home that each region is, where they hold states of their own."""
    start: int = 0
    """The version it starts from: the newest when it was announced."""

    @property
    def groups(self) -> tuple[tuple[bytes, ...], ...]:
        """Return the members of each region; all together where there are none."""
        return by_region(self.members, self.regions)

    def region_of(self, peer: bytes) -> int:
        """Return the region that a member is in."""
        return self.regions[self.members.index(peer)] if self.regions else 0

    def base_of(self, peer: bytes) -> str:
        """Return the digest of what a member starts from; empty: of its own, or not named."""
        return self.bases[self.region_of(peer)] if self.bases else self.base

    def base_at(self, home: int | None) -> str:
        """Return what a home starts from, where regions hold states of their own; empty: not named."""
        return self.bases[self.homes.index(home)] if home in self.homes else ""

    def telling(self) -> list[tuple[bytes, ...]]:
        """Return the members of each region that has something to tell."""
        among = range(len(self.bases)) if not self.tells else self.tells
        return [] if self.tells is None else [self.groups[n] for n in among if self.bases[n] != homes.BEGINS]

    @property
    def apart(self) -> bool:
        """Return whether something of it goes on into the next round: then it must be known what before that begins."""
        return bool(self.ahead) or self.carry or self.holds

    def lease_of(self, peer: bytes) -> Lease:
        """Return what a member works on."""
        return self._part(self.ranges, peer)

    def ahead_of(self, peer: bytes) -> tuple[Lease, ...]:
        """Return what a member goes on with, a lease for each round."""
        place = self.members.index(peer)
        return self._ahead(self._rounds_ahead(), sum(self.quotas[:place]), self.quotas[place])

    def kept(self, contributors: Container[bytes]) -> dict[bytes, Kept]:
        """Return what each member takes on with it once these contributions are committed."""
        found: dict[bytes, Kept] = {}
        if self.holds:
            since = {peer: self.begun(peer) if self.carry else 0 for peer in self.members}
            return {peer: Kept(self.lease_of(peer), since=since[peer]) for peer in self.members}
        if not self.ahead and not self.carry:
            return found
        starts = zip(self.members, self.quotas, accumulate(self.quotas, initial=0), strict=False)
        rounds = self._rounds_ahead()
        for peer, quota, skip in starts:
            ahead = self._ahead(rounds, skip, quota)
            if self.carry and peer not in contributors:
                found[peer] = Kept(lease.part(self.ranges, skip, quota), _joined(ahead), self.begun(peer))
            elif ahead:
                found[peer] = Kept(ahead[0], _joined(ahead[1:]))
        return found

    def _rounds_ahead(self) -> range:
        """Return where in what is set apart that of each round begins."""
        return range(0, lease.size(self.ahead), sum(self.quotas))

    def _ahead(self, rounds: range, skip: int, quota: int) -> tuple[Lease, ...]:
        """Return what is set apart for who has so many samples of each round, and comes after so many."""
        return tuple(lease.part(self.ahead, first + skip, quota) for first in rounds)

    def begun(self, peer: bytes) -> int:
        """Return the round for which a member was first handed its lease."""
        return self.since.get(peer, self.key.version)

    def _part(self, ranges: Lease, peer: bytes) -> Lease:
        place = self.members.index(peer)
        return lease.part(ranges, sum(self.quotas[:place]), self.quotas[place])

    def unused(self, contributors: Container[bytes]) -> Lease:
        """Return the leases of all others, sorted and joined."""
        starts = zip(self.members, self.quotas, accumulate(self.quotas, initial=0), strict=False)
        others = (lease.part(self.ranges, skip, quota) for peer, quota, skip in starts if peer not in contributors)
        return lease.give_back((), others)


def _joined(leases: Iterable[Lease]) -> Lease:
    """Return leases one after the other."""
    return tuple(part for each in leases for part in each)


class Tally(Struct, frozen=True):
    """How many samples of each peer are in committed contributions: now, and when each unit was last committed."""

    samples: dict[bytes, int] = {}
    before: dict[str, dict[bytes, int]] = {}

    def since(self, unit: str, peer: bytes) -> int:
        """Return how many of a peer's were committed after a unit last was."""
        return self.samples.get(peer, 0) - self.before.get(unit, {}).get(peer, 0)

    def after(self, unit: str, counted: Mapping[bytes, int]) -> Tally:
        """Return it with one more round, about a unit."""
        samples = self.samples | {peer: self.samples.get(peer, 0) + more for peer, more in counted.items()}
        return Tally(samples, self.before | {unit: samples})


class ClosedRound(Struct, frozen=True):
    """A round that was committed."""

    key: Key
    contributors: tuple[bytes, ...]
    result: str
    returned: Lease = ()
    """What its other members had leased, sorted and joined, where it went back."""
    circles: tuple[str, ...] = ()
    """The root of each circle's result, where it was in circles."""
    carried: tuple[bytes, ...] = ()
    """Who of its other members keeps its lease; everybody, where the next round is of the same work."""
    stale: tuple[int, ...] = ()
    """Of each contributor, how many rounds were committed since its lease was handed out."""
    pushes: int = 0
    """Contributions in all rounds before it."""
    lent: tuple[bytes, ...] = ()
    """Whose weights from before are in it, while their work goes on."""
    own: float = 0.0
    """Where we are not in it and add it to what we have: the part that stays our own."""
    part: Literal["", "hears", "tells", "begins"] = ""
    """Where regions told in it how far they have come: whether ours did, or all, to begin anew."""

    def for_home(self, announced: OpenRound, home: int | None, before: Homes) -> ClosedRound:
        """Return what there is in it for who is at home somewhere, or nowhere, in regions that hold states."""
        number = announced.homes.index(home) if home in announced.homes else None
        ours = () if number is None else announced.groups[number]
        in_ = tuple(peer for peer in self.contributors if peer in ours)
        if self.part:
            return replace(self, pushes=before.told, part="tells" if self.part == "hears" and in_ else self.part)
        result = "" if number is None else self.circles[number]
        return replace(self, result=result, contributors=in_, pushes=before.pushes.get(home or 0, 0))


class History(Struct, frozen=True, kw_only=True):
    """What the log adds up to."""

    next_index: int = 0
    organiser: bytes = b""
    council: tuple[bytes, ...] = ()
    reforms: int = 0
    epoch: int = 0
    broker: bytes = b""
    settings: bytes = b""
    """The run as the organiser last changed it; empty: as it began."""
    roster: int = 0
    members: dict[bytes, Member] = {}
    version: int = 0
    under_way: tuple[OpenRound, ...] = ()
    """The open rounds, in the order in which they are to be committed."""
    last: ClosedRound | None = None
    fresh: int = 0
    """Next position of the global order that nobody has leased."""
    returned: Lease = ()
    """What came back and waits to be handed out again."""
    kept: dict[bytes, Kept] = {}
    """What is set apart for members of the last round."""
    tally: Tally = Tally()
    pushes: int = 0
    """Committed contributions."""
    masses: dict[bytes, float] = {}
    """Of those whose mass is not 1."""
    regions: dict[bytes, int] = {}
    """Of the members of the last round that named some, the region of each."""
    homes: Homes = Homes()
    """Where everybody is at home, where regions hold states of their own."""
    quota: int = 0
    """Samples of who had most in the last round that was announced."""
    announced: int = 0
    """The newest round that was ever announced, given up or not."""
    turned: tuple[KnobsTurned, ...] = ()
    """How knobs were turned, in order of rounds."""
    samples: int = 0
    """Samples in committed contributions."""
    finished: bool = False

    @property
    def open(self) -> OpenRound | None:
        """Return the round that is committed next: none can be before it."""
        return self.under_way[0] if self.under_way else None

    @property
    def newest(self) -> int:
        """Return the newest version that is committed or under way."""
        return self.version + len(self.under_way)

    @property
    def given_samples(self) -> int:
        """Return how many samples all rounds have so far, those under way among them."""
        return self.samples + sum(sum(each.quotas) for each in self.under_way)


class BadLog(PeerError):
    """A record does not follow from the log before it."""


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise BadLog(f"the log does not add up: {what}", hint="the broker that sent it is broken; tell its owner")


def apply(history: History, entry: Entry) -> History:
    """Return the history after one more entry; raises `BadLog` for one that cannot follow."""
    _must(entry.index == history.next_index, "an entry is missing")
    history = replace(history, next_index=entry.index + 1)
    match entry.record:
        case CouncilChanged(members=members):
            return _change_council(history, members)
        case CouncilReformed(members=members, generation=generation):
            _must(generation == history.reforms + 1 and len(members) > 0, "a council is re-formed out of turn")
            return replace(history, council=members, reforms=generation)
        case EpochStarted(epoch=epoch, broker=broker):
            _must(epoch > history.epoch, "an epoch begins that is not newer than the last")
            return replace(history, epoch=epoch, broker=broker)
        case RosterChanged() as change:
            return _change_roster(history, change)
        case SettingsChanged(run=run):
            return replace(history, settings=run)
        case KnobsTurned() as turn:
            return _turn(history, turn)
        case RoundAnnounced() as announced:
            return _announce(history, announced)
        case RoundCommitted() as committed:
            return _commit(history, committed)
        case RoundVoided(key=key):
            return _void(history, key)
        case RunFinished():
            back = [part for kept in history.kept.values() for part in (kept.lease, kept.ahead)]
            return replace(history, finished=True, kept={}, returned=lease.give_back(history.returned, back))


def _change_council(history: History, members: tuple[bytes, ...]) -> History:
    _must(0 < len(members) == len(set(members)), "a council has nobody, or somebody twice")
    if not history.council:
        return replace(history, council=members, organiser=members[0])
    _must(len(set(members) ^ set(history.council)) == 1, "a council changes by more than one member")
    return replace(history, council=members)


def _change_roster(history: History, change: RosterChanged) -> History:
    _must(change.version == history.roster + 1, "a roster is missing")
    _must(all(peer in history.members for peer in change.left), "somebody left who was not there")
    members = history.members | {m.peer: m for m in change.joined}
    for peer in set(change.left).difference(m.peer for m in change.joined):
        del members[peer]
    masses = {peer: mass for peer, mass in history.masses.items() if peer in members}
    where = history.homes.without(members) if change.left else history.homes
    return replace(history, roster=change.version, members=members, masses=masses, homes=where)


def _turn(history: History, turn: KnobsTurned) -> History:
    """Turn knobs between two rounds; what was once announced, though in vain, stays as it was announced."""
    _must(not history.under_way, "knobs are turned while a round is open")
    _must(turn.version == history.version + 1, "knobs are turned out of turn")
    _must(turn.version > history.announced, "knobs are turned for a round that was announced before")
    _must(len(turn.why) <= WHY_CHARS_MAX, "knobs are turned with too many words")
    _must(not history.turned or turn.version > history.turned[-1].version, "knobs are turned twice for a round")
    return replace(history, turned=(*history.turned, turn))


def knobs_of(history: History, version: int) -> Knobs | None:
    """Return how the knobs stand in a round; None: as the recipe has it."""
    return next((turn.knobs for turn in reversed(history.turned) if turn.version <= version), None)


def announcement(
    history: History,
    key: Key,
    quotas: Mapping[bytes, int],
    base: str,
    *,
    ahead: int = 0,
    carry: bool = False,
    holds: bool = False,
    rates: Mapping[bytes, int] | None = None,
    regions: Mapping[bytes, int] | None = None,
    best: bytes = b"",
) -> RoundAnnounced:
    """Return the record by which a round of some of the roster's members begins, with so many samples for each."""
    each = tuple(quotas[peer] for peer in sorted(quotas))
    same = each[:1] if len({*each}) == 1 else each
    lines = UNSET if rates is None else tuple(rates.get(peer, 0) for peer in sorted(quotas))
    where = UNSET if regions is None else tuple(regions[peer] for peer in sorted(quotas))
    who = _marked(quotas, sorted(history.members))
    teaches = sorted(quotas).index(best) if best else UNSET
    return RoundAnnounced(key, who, same, base, history.roster, ahead, carry, holds, lines, where, teaches)


def commitment(
    open_: OpenRound,
    contributors: Iterable[bytes],
    result: str,
    circles: tuple[str, ...] = (),
    ring: Iterable[bytes] = (),
    masses: tuple[float, ...] = (),
    trees: Trees = (),
    lent: Collection[bytes] = (),
) -> RoundCommitted:
    """Return the record by which an open round ends well."""
    order = tuple(open_.members.index(peer) for peer in ring)
    who = _marked(frozenset(contributors), open_.members)
    uneven = masses if any(mass != 1.0 for mass in masses) else UNSET
    some = _marked(lent, open_.members) if lent else UNSET
    return RoundCommitted(open_.key, who, result, circles, order, uneven, trees, some)


def _announce(history: History, announced: RoundAnnounced) -> History:
    _must(announced.key.version == history.newest + 1, "a round is announced out of turn")
    _must(len(history.under_way) <= AHEAD_MAX, "an impossible number of rounds are open")
    _must(announced.roster == history.roster, "a round is announced with another roster")
    _must(not (announced.holds and announced.ahead), "work is set apart after work that is not counted yet")
    members = _named(announced.who, sorted(history.members))
    quotas = announced.quotas * len(members) if len(announced.quotas) == 1 else announced.quotas
    _must(len(quotas) == len(members) and min(quotas) > 0, "members and quotas do not match")
    _must(0 <= announced.ahead <= AHEAD_MAX, "a round hands out samples for an impossible number of others")
    rates = () if isinstance(announced.rates, UnsetType) else announced.rates
    _must(not rates or (len(rates) == len(members) and min(rates) >= 0), "members and rates do not match")
    regions = () if isinstance(announced.regions, UnsetType) else announced.regions
    _must(not regions or len(regions) == len(members), "members and regions do not match")
    _must(regions == numbered(regions), "regions are not numbered as they come up")
    best = announced.best
    _must(isinstance(best, UnsetType) or 0 <= best < len(members), "all are to learn from who is not there")
    kept = {
        peer: history.kept[peer]
        for peer, quota in zip(members, quotas, strict=True)
        if peer in history.kept and lease.size(history.kept[peer].lease) == quota
    }
    gone = (part for peer, each in history.kept.items() if peer not in kept for part in (each.lease, each.ahead))
    left = _Left(lease.give_back(history.returned, gone), history.fresh)
    ranges = left.hand_out(members, quotas, {peer: each.lease for peer, each in kept.items()})
    ahead = left.hand_out_ahead(members, quotas, {peer: each.ahead for peer, each in kept.items()}, announced.ahead)
    key = announced.key
    open_ = OpenRound(
        key,
        members,
        quotas,
        ranges,
        announced.base,
        announced.roster,
        ahead,
        announced.carry,
        {peer: each.since for peer, each in kept.items() if each.since},
        tuple(quota + history.tally.since(key.unit, peer) for peer, quota in zip(members, quotas, strict=True)),
        history.masses,
        announced.holds,
        rates,
        regions,
        b"" if isinstance(best, UnsetType) else members[best],
        () if isinstance(announced.bases, UnsetType) else announced.bases,
        None if isinstance(announced.tells, UnsetType) else announced.tells,
        start=history.version,
    )
    apart = any(each.apart for each in (*history.under_way, open_))
    _must(not (history.under_way and apart), "a round is open beside one of which something goes on")
    history, open_ = _come_home(history, open_)
    where = dict(zip(members, regions, strict=True)) if regions else history.regions
    history = replace(history, announced=key.version, regions=where)
    under_way = (*history.under_way, open_)
    return replace(history, under_way=under_way, returned=left.returned, fresh=left.fresh, kept={}, quota=max(quotas))


def _come_home(history: History, open_: OpenRound) -> tuple[History, OpenRound]:
    """Return the history with everybody of a round at home in its region, where regions hold states of their own."""
    if not open_.bases:
        _must(open_.tells is None, "regions tell of states that they do not have")
        return history, open_
    groups, told = open_.groups, open_.tells or ()
    _must(len(open_.bases) == len(groups), "regions and their states do not match")
    _must(all(0 <= region < len(groups) for region in told), "a region tells that is not there")
    _must(list(told) == sorted({*told}), "a region tells twice")
    _must(all(len(history.homes.among(group)) <= 1 for group in groups), "members of two homes are in one region")
    entered = homes.entered(history.homes, open_.key.version, groups, open_.bases)
    return replace(history, homes=entered), replace(open_, homes=tuple(entered.of[group[0]] for group in groups))


@dataclass
class _Left:
    """What can be handed out: ranges that came back, then fresh ones."""

    returned: Lease
    fresh: int

    def hand_out(self, members: Sequence[bytes], quotas: Sequence[int], kept: Mapping[bytes, Lease]) -> Lease:
        """Return the members' leases one after the other: what some have kept, and for the others as much as they get.

        Those get what came back first.
        """
        wanted = list(zip(members, quotas, strict=True))
        lacking = sum(quota for peer, quota in wanted if peer not in kept)
        taken, self.returned, self.fresh = lease.take(lacking, self.returned, self.fresh)
        if not kept:
            return taken
        ranges: list[lease.Range] = []
        skip = 0
        for peer, quota in wanted:
            if peer in kept:
                ranges += kept[peer]
            else:
                ranges += lease.part(taken, skip, quota)
                skip += quota
        return tuple(ranges)

    def hand_out_ahead(
        self, members: Sequence[bytes], quotas: Sequence[int], kept: Mapping[bytes, Lease], rounds: int
    ) -> Lease:
        """Return likewise what is set apart for so many rounds more, round by round.

        What some have kept for later ones goes back: towards the end of a run nobody goes on as far.
        """
        wanted = [(peer, quota) for peer, quota in zip(members, quotas, strict=True) if peer in kept]
        over = (lease.part(kept[peer], rounds * quota, lease.size(kept[peer])) for peer, quota in wanted)
        self.returned = lease.give_back(self.returned, over)
        ahead: Lease = ()
        for at in range(rounds):
            has = {peer: lease.part(kept[peer], at * quota, quota) for peer, quota in wanted}
            ahead += self.hand_out(members, quotas, {peer: part for peer, part in has.items() if part})
        return ahead


def _commit(history: History, committed: RoundCommitted) -> History:
    open_, *others = _from(history, committed.key)
    _must(open_ is history.open, "a round is committed before another that was announced before it")
    contributors = _named(committed.who, open_.members)
    _must(bool(committed.circles) == (committed.key.scope == CIRCLES), "circles are named of a round that has none")
    in_ = frozenset(contributors)
    version = committed.key.version
    passed_on = tuple(peer for place, peer in enumerate(open_.members) if place in committed.ring)
    whole = len(committed.ring) == len(passed_on) and passed_on == contributors
    _must(not committed.ring or whole, "sums went round among others than its contributors")
    inside = [peer in in_ for peer in open_.members]
    _must(all(is_tree(tree, inside) for tree in committed.trees), "sums went up what is no tree of its contributors")
    counts = frozenset[bytes]() if open_.holds else in_
    stays = open_.carry or open_.holds
    lent = () if isinstance(committed.lent, UnsetType) else _named(committed.lent, open_.members)
    _must(in_.isdisjoint(lent) and (open_.carry or not lent), "weights are lent by who is done, or need not be")
    closed = ClosedRound(
        committed.key,
        contributors,
        committed.result,
        returned=() if stays else open_.unused(in_),
        circles=committed.circles,
        carried=tuple(peer for peer in open_.members if peer not in counts) if stays else (),
        stale=tuple(version - open_.begun(peer) for peer in contributors),
        pushes=history.pushes,
        lent=lent,
        part="" if open_.tells is None else "hears" if open_.tells else "begins",
    )
    came = [open_.homes[open_.region_of(peer)] for peer in contributors] if open_.bases else []
    where = homes.pushed(history.homes, came)
    if closed.part:
        where = homes.told(history.homes, came, anew=closed.part == "begins")
    counted = {peer: quota for peer, quota in zip(open_.members, open_.quotas, strict=True) if peer in counts}
    return replace(
        history,
        version=version,
        under_way=tuple(others),
        kept=open_.kept(in_),
        last=closed,
        returned=lease.give_back(history.returned, [closed.returned]),
        tally=history.tally.after(committed.key.unit, counted),
        samples=history.samples + sum(counted.values()),
        pushes=history.pushes + len(counts),
        masses=_masses(history, open_, committed.masses),
        homes=where,
    )


def _masses(history: History, open_: OpenRound, after: tuple[float, ...] | UnsetType) -> dict[bytes, float]:
    """Return whose mass is not 1 after a round, in which only its members' change."""
    found = {peer: mass for peer, mass in history.masses.items() if peer not in open_.members}
    if not isinstance(after, UnsetType):
        _must(len(after) == len(open_.members), "members and masses do not match")
        _must(all(0 < mass < math.inf for mass in after), "an impossible mass")
        found |= {peer: mass for peer, mass in zip(open_.members, after, strict=True) if mass != 1.0}
    return {peer: mass for peer, mass in found.items() if peer in history.members}


def _void(history: History, key: Key) -> History:
    """Give a round up, and all after it: nobody could commit those."""
    over = _from(history, key)
    gone = (part for each in over for part in (each.ranges, each.ahead))
    under_way = history.under_way[: len(history.under_way) - len(over)]
    return replace(history, under_way=under_way, returned=lease.give_back(history.returned, gone))


def _from(history: History, key: Key) -> tuple[OpenRound, ...]:
    """Return an open round, and those after it."""
    for place, each in enumerate(history.under_way):
        if each.key == key:
            return history.under_way[place:]
    raise BadLog(f"the log does not add up: round {key.version} is not open")


def _marked(some: Container[bytes], of: Sequence[bytes]) -> bytes:
    return bits_of((place for place, peer in enumerate(of) if peer in some), len(of))


def _named(bits: bytes, of: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return those whom a record names: at least one, and nobody beyond the last."""
    places = places_of(bits, len(of))
    _must(bits == bits_of(places, len(of)), f"{len(bits)} bytes of bits for {len(of)} peers")
    _must(len(places) > 0, "a record names nobody")
    return tuple(of[place] for place in places)


def to_sign(record: SettingsChanged | CouncilReformed, run_id: str) -> bytes:
    """Return what the organiser signs: the record without its signature, for this run only."""
    return run_id.encode() + b"\0" + _encode(replace(record, signature=b""))


def objection(record: SettingsChanged | CouncilReformed, organiser: bytes, run_id: str) -> str:
    """Return why a record that only the organiser may write is not to be believed; empty: it is."""
    if not organiser or not verify(PeerId(organiser), to_sign(record, run_id), record.signature):
        return "the organiser did not sign it"
    if isinstance(record, SettingsChanged):
        try:
            if identity(decode_run(record.run)) != run_id:
                return "it describes another run"
        except SpecError as error:
            return f"it describes no run: {error}"
    return ""


def result_root(digests: Iterable[bytes]) -> str:
    """Return the root over a result's chunk digests, in the order of the grid."""
    return blake3(b"".join(digests)).hexdigest()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode
_CHECK_BYTES = 8
_HEAD_BYTES = 4 + _CHECK_BYTES
_BEGINNING = _encode(Entry(0, RunFinished()))[:7]
"""How the body of every entry begins: a record of two fields, of which the first is its index."""


def to_bytes(entry: Entry) -> bytes:
    """Return an entry as it stands in a log file: length, checksum, body."""
    body = _encode(entry)
    return len(body).to_bytes(4, "little") + blake3(body).digest(length=_CHECK_BYTES) + body


def from_bytes(data: bytes, where: str) -> tuple[list[Entry], int]:
    """Return the entries of a log file and how many bytes of it are sound.

    An entry overrides what stood at its place and after it: that was never committed. A torn tail (a crash in the
    middle of an append) is left out; damage before the tail is an error.
    """
    entries: list[Entry] = []
    at = 0
    while (end := _end_of(data, at)) is not None:
        try:
            entry = _decode(data[at + _HEAD_BYTES : end])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            what = f"{where}: no entry of a log at byte {at}: {str(error)[:200]}"
            raise LocalError(what, hint="was it written by another version?") from error
        if entry.index > len(entries):
            break
        del entries[entry.index :]
        entries.append(entry)
        at = end
    if at < len(data) and _sound_later(data, at):
        raise LocalError(
            f"{where}: the log is damaged at byte {at}",
            hint="move this peer's folder away and join again: the other peers hold the log and the state",
        )
    return entries, at


def _end_of(data: bytes, at: int) -> int | None:
    """Return where the entry at `at` ends, or None when there is no whole and sound one."""
    end = at + _HEAD_BYTES + int.from_bytes(data[at : at + 4], "little")
    check, body = data[at + 4 : at + _HEAD_BYTES], data[at + _HEAD_BYTES : end]
    return end if end <= len(data) and blake3(body).digest(length=_CHECK_BYTES) == check else None


def _sound_later(data: bytes, at: int) -> bool:
    """Return whether a sound entry follows the unsound bytes: damage then, not a torn append.

    The length of the unsound entry may be what is damaged, so entries are looked for by how they begin.
    """
    found = data.find(_BEGINNING, at + _HEAD_BYTES + 1)
    while found >= 0:
        if _end_of(data, found - _HEAD_BYTES) is not None:
            return True
        found = data.find(_BEGINNING, found + 1)
    return False
