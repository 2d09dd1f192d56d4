"""What the broker decides: one pure step from what it heard to what it does.

    announce -> contribute -> settle -> reduce -> hold -> commit
                    ^            |        |        |
                    +---- replan: an owner died, a contribution was recomputed or spoiled, nothing moved

The broker never touches a weight. It announces rounds, notices who has contributed, fixes the one set of
contributors, and commits when the result is on two disks. Whatever goes wrong before that is mended by a new
plan with a larger attempt: contributions are kept by their makers until commit, so owners can be replaced at
any time, in the end by the broker itself, which everybody can reach.

Time is a number that is passed in. `Write` asks for a record; it takes effect when it comes back as
`Logged`, so the same function serves whatever makes the log durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from blake3 import blake3
from msgspec import Struct
from msgspec.structs import replace

from atoll import journal
from atoll.spec.run import AllowList, Run, canonical
from atoll.swarm import lease
from atoll.swarm.log import (
    Entry,
    EpochStarted,
    History,
    Key,
    Member,
    Record,
    RosterChanged,
    RoundAnnounced,
    RoundCommitted,
    RunFinished,
    apply,
)
from atoll.swarm.messages import (
    Append,
    Contributed,
    Contribution,
    Farewell,
    FromBroker,
    FromMember,
    Holding,
    Leave,
    Plan,
    Reduced,
    Refused,
    Spoiled,
    Standing,
    Stuck,
    Welcome,
)

REUNION_S = 15.0
"""After a restart, how long known members may take to come back before the run goes on without them."""
STALL_S = 30.0
"""A settled round that nothing moves for this long is planned anew, around the broker."""
GONE_S_MAX = 600.0
"""A peer that is away for longer leaves the roster; it may join again."""
LAG_MAX = 2
"""A peer this many versions behind may be counted in: it catches up before it works."""
HOLDERS_MIN = 2
"""Members that must have a result on disk before it is committed (as many as there are, if fewer)."""


# what it hears


class Arrived(Struct, frozen=True):
    """A member opened its control stream."""

    member: Member
    next_index: int


class Said(Struct, frozen=True):
    """A member that is present said something."""

    peer: bytes
    message: FromMember


class Gone(Struct, frozen=True):
    """A member's control stream ended."""

    peer: bytes
    why: str


class Logged(Struct, frozen=True):
    """A record we asked for is durable."""

    entry: Entry


class Tick(Struct, frozen=True):
    """Time passed."""


Heard = Arrived | Said | Gone | Logged | Tick


# what it does


class Write(Struct, frozen=True):
    """Append a record to the log."""

    record: Record


class Tell(Struct, frozen=True):
    """Send a member a message."""

    peer: bytes
    message: FromBroker


class Catch(Struct, frozen=True):
    """Send a member the log from an index on, as it is now."""

    peer: bytes
    next_index: int


class Note(Struct, frozen=True):
    """Write a journal event."""

    event: journal.Event


Action = Write | Tell | Catch | Note


# what it knows


class Presence(Struct, frozen=True):
    """A member whose control stream is open."""

    member: Member
    standing: Standing | None = None


class Round(Struct, frozen=True, kw_only=True):
    """The open round as this broker sees it."""

    announced: RoundAnnounced
    began_s: float
    moved_s: float
    attempt: int
    owners: tuple[bytes, ...]
    settled: tuple[Contribution, ...] | None = None
    serials: dict[bytes, int] = {}
    """Contributions that all owners of this attempt hold."""
    took_s: dict[bytes, float] = {}
    """How long each contributor took, over all attempts."""
    spoiled: tuple[bytes, ...] = ()
    reduced: dict[bytes, tuple[bytes, ...]] = {}
    holding: dict[bytes, str] = {}

    @property
    def key(self) -> Key:
        return self.announced.key


class Broker(Struct, frozen=True, kw_only=True):
    """Everything the broker decides from."""

    me: bytes
    run: Run
    run_id: str
    started_s: float
    tokens_per_sample: int
    history: History = History()
    epoch: int = 0
    """Our own epoch; 0 until the log says that it began."""
    present: dict[bytes, Presence] = {}
    away_s: dict[bytes, float] = {}
    """Since when roster members are not present."""
    missed: tuple[bytes, ...] = ()
    """Members that missed the last round: they are counted in again once they stand at the newest version."""
    round: Round | None = None
    pending: bool = False
    """A record is on its way into the log: decide nothing until it is there."""
    announced: bool = False
    """A round was announced in our epoch."""
    told: tuple[bytes, ...] = ()
    """Who was told farewell."""

    @property
    def channel(self) -> str:
        return next(iter(self.run.recipe.channel))

    @property
    def steps(self) -> int:
        return self.run.recipe.channel[self.channel].when.steps


def take_office(me: bytes, run: Run, run_id: str, tokens_per_sample: int, history: History, now_s: float) -> Broker:
    """Return a broker that starts, or starts again, from the log."""
    return Broker(
        me=me,
        run=run,
        run_id=run_id,
        started_s=now_s,
        tokens_per_sample=tokens_per_sample,
        history=history,
        away_s=dict.fromkeys(sorted({*history.members, *(history.open.members if history.open else ())}), now_s),
    )


def step(broker: Broker, heard: Heard, now_s: float) -> tuple[Broker, list[Action]]:
    """Return the broker after `heard`, and what to do about it, in order."""
    broker, actions = _hear(broker, heard, now_s)
    if not broker.pending:
        broker, decided = _decide(broker, now_s)
        actions += decided
    return broker, actions


def _hear(broker: Broker, heard: Heard, now_s: float) -> tuple[Broker, list[Action]]:
    match heard:
        case Arrived():
            return _arrive(broker, heard, now_s)
        case Said(peer=peer, message=message):
            return _listen(broker, peer, message, now_s) if peer in broker.present else (broker, [])
        case Gone(peer=peer, why=why):
            return _part(broker, peer, why, now_s)
        case Logged(entry=entry):
            return _logged(broker, entry, now_s)
        case Tick():
            return broker, []


def _arrive(broker: Broker, heard: Arrived, now_s: float) -> tuple[Broker, list[Action]]:
    peer = heard.member.peer
    who = broker.run.membership.who
    if isinstance(who, AllowList) and peer.hex() not in who.peers and peer != broker.me:
        why = "this run is for listed peers only"
        hint = f"ask the organiser to add {peer.hex()} to membership.who.peers"
        return broker, [Tell(peer, Refused(why, hint)), Note(journal.JoinRefused(who=_short(peer), why=why))]
    back_too_soon = peer in broker.present
    present = broker.present | {peer: Presence(heard.member)}
    away_s = {p: t for p, t in broker.away_s.items() if p != peer}
    actions: list[Action] = [Tell(peer, Welcome(canonical(broker.run))), Catch(peer, heard.next_index)]
    if broker.round and not broker.history.finished:
        actions.append(Tell(peer, _plan(broker, broker.round)))
    broker = replace(broker, present=present, away_s=away_s)
    if broker.round and back_too_soon and peer in broker.round.owners:
        broker, again = _replan(broker, broker.round, broker.round.owners, f"owner {_short(peer)} restarted", now_s)
        actions += again
    return broker, actions


def _part(broker: Broker, peer: bytes, why: str, now_s: float) -> tuple[Broker, list[Action]]:
    if peer not in broker.present:
        return broker, []
    present = {p: x for p, x in broker.present.items() if p != peer}
    notes: list[Action] = [] if broker.history.finished else [Note(journal.PeerLost(who=_short(peer), why=why))]
    return replace(broker, present=present, away_s=broker.away_s | {peer: now_s}), notes


def _listen(broker: Broker, peer: bytes, message: FromMember, now_s: float) -> tuple[Broker, list[Action]]:
    """Take in what a present member said; what concerns another plan than ours is out of date and ignored."""
    match message:
        case Standing():
            presence = replace(broker.present[peer], standing=message)
            missed = tuple(p for p in broker.missed if p != peer or message.version < broker.history.version)
            return replace(broker, present=broker.present | {peer: presence}, missed=missed), []
        case Leave(why=why):
            left, actions = _part(broker, peer, why, now_s)
            return replace(left, away_s=left.away_s | {peer: now_s - GONE_S_MAX}), actions
        case Contributed() | Reduced() | Holding() | Spoiled() | Stuck():
            round_ = broker.round
            if round_ is None or message.key != round_.key or peer not in round_.announced.members:
                return broker, []
            if not isinstance(message, Spoiled) and (message.epoch, message.attempt) != (
                broker.epoch,
                round_.attempt,
            ):
                return broker, []
            return _advance(broker, round_, peer, message, now_s)
        case _:
            return broker, []


def _advance(
    broker: Broker, round_: Round, peer: bytes, message: Contributed | Reduced | Holding | Spoiled | Stuck, now_s: float
) -> tuple[Broker, list[Action]]:
    """Note a member's part in the present attempt."""
    match message:
        case Contributed(serial=serial):
            took_s = round_.took_s | {peer: round_.took_s.get(peer, now_s - round_.began_s)}
            round_ = replace(round_, serials=round_.serials | {peer: serial}, took_s=took_s, moved_s=now_s)
            if round_.settled is not None and Contribution(peer, serial) not in round_.settled:
                return _replan(broker, round_, round_.owners, f"{_short(peer)} computed its contribution anew", now_s)
        case Reduced(digests=digests):
            round_ = replace(round_, reduced=round_.reduced | {peer: digests}, moved_s=now_s)
        case Holding(result=result):
            round_ = replace(round_, holding=round_.holding | {peer: result}, moved_s=now_s)
        case Spoiled(peer=culprit, why=why):
            if culprit not in round_.announced.members or culprit in round_.spoiled or peer not in round_.owners:
                return broker, []
            round_ = replace(round_, spoiled=(*round_.spoiled, culprit))
            return _replan(broker, round_, round_.owners, f"contribution of {_short(culprit)} refused: {why}", now_s)
        case Stuck(owner=owner):
            if owner in round_.owners and round_.settled is None:
                owners = tuple(p for p in round_.owners if p != owner) or (broker.me,)
                return _replan(broker, round_, owners, f"{_short(peer)} cannot reach {_short(owner)}", now_s)
    return replace(broker, round=round_), []


def _logged(broker: Broker, entry: Entry, now_s: float) -> tuple[Broker, list[Action]]:
    """Let a record that is now durable take effect, and pass it on to everybody present."""
    before = broker.history
    broker = replace(broker, history=apply(before, entry), pending=False)
    actions: list[Action] = [Tell(peer, Append((entry,))) for peer in sorted(broker.present)]
    match entry.record:
        case EpochStarted(epoch=epoch):
            broker = replace(broker, epoch=epoch)
            if broker.history.open is not None:
                broker, plan = _open(broker, broker.history.open, now_s)
                actions += plan
        case RosterChanged():
            actions += _roster_notes(before, broker.history)
        case RoundAnnounced() as announced:
            actions.append(Note(_announced_event(announced)))
            broker, plan = _open(replace(broker, announced=True), announced, now_s)
            actions += plan
        case RoundCommitted() as committed:
            actions.append(Note(_committed_event(broker, before, committed, now_s)))
            assert before.open is not None
            missed = tuple(p for p in before.open.members if p not in committed.contributors)
            broker = replace(broker, round=None, missed=missed)
        case RunFinished():
            samples = broker.history.samples
            tokens = samples * broker.tokens_per_sample
            actions.append(Note(journal.RunFinished(version=broker.history.version, samples=samples, tokens=tokens)))
        case _:
            pass
    return broker, actions


def _open(broker: Broker, announced: RoundAnnounced, now_s: float) -> tuple[Broker, list[Action]]:
    """Begin to plan an announced round: every member that can be reached owns a share."""
    owners = tuple(p for p in announced.members if p in broker.present) or announced.members
    round_ = Round(announced=announced, began_s=now_s, moved_s=now_s, attempt=0, owners=owners)
    broker = replace(broker, round=round_)
    return broker, _tell_plan(broker, round_)


def _replan(
    broker: Broker, round_: Round, owners: tuple[bytes, ...], why: str, now_s: float
) -> tuple[Broker, list[Action]]:
    """Start the exchange of the open round again with other owners or another set of contributors."""
    round_ = replace(
        round_,
        attempt=round_.attempt + 1,
        owners=owners,
        settled=None,
        serials={},
        reduced={},
        holding={},
        moved_s=now_s,
    )
    broker = replace(broker, round=round_)
    event = journal.RoundReplanned(
        channel=round_.key.channel, version=round_.key.version, attempt=round_.attempt, why=why
    )
    return broker, [Note(event), *_tell_plan(broker, round_)]


def _tell_plan(broker: Broker, round_: Round) -> list[Action]:
    return [Tell(peer, _plan(broker, round_)) for peer in round_.announced.members if peer in broker.present]


def _plan(broker: Broker, round_: Round) -> Plan:
    return Plan(round_.key, broker.epoch, round_.attempt, round_.owners, round_.settled)


# decisions


def _decide(broker: Broker, now_s: float) -> tuple[Broker, list[Action]]:
    """Return what follows from what is known, at most one record at a time."""
    history = broker.history
    if not broker.epoch:
        return _write(broker, EpochStarted(history.epoch + 1, broker.me))
    if history.finished:
        return _say_farewell(broker)
    roster = _wanted_roster(broker, now_s)
    if roster is not None:
        return _write(broker, roster)
    if broker.round is None:
        return _next_round(broker, now_s)
    return _drive(broker, broker.round, now_s)


def _write(broker: Broker, record: Record) -> tuple[Broker, list[Action]]:
    return replace(broker, pending=True), [Write(record)]


def _wanted_roster(broker: Broker, now_s: float) -> RosterChanged | None:
    """Return a change of the roster: who stands ready is in, who left or was away too long is out."""
    members = broker.history.members
    wanted = {
        peer: member
        for peer, member in members.items()
        if peer in broker.present or now_s - broker.away_s.get(peer, now_s) < GONE_S_MAX
    }
    ready = {peer: x.member for peer, x in broker.present.items() if x.standing is not None}
    wanted |= ready
    if wanted == members:
        return None
    return RosterChanged(broker.history.roster + 1, tuple(wanted[peer] for peer in sorted(wanted)))


def _next_round(broker: Broker, now_s: float) -> tuple[Broker, list[Action]]:
    """Announce the next round when enough members stand ready, or finish the run."""
    history = broker.history
    if _budget_spent(broker):
        return _write(broker, RunFinished())
    ready = _ready(broker)
    base = _base(broker)
    if base is None or len(ready) < _wanted_peers(broker, now_s) or _reunion(broker, now_s):
        return broker, []
    quota = self_quota(broker.run)
    leases, _, _ = lease.hand_out([quota] * len(ready), history.returned, history.fresh)
    key = Key(broker.channel, history.version + 1)
    return _write(broker, RoundAnnounced(key, ready, leases, base, history.roster))


def self_quota(run: Run) -> int:
    """Return how many samples one peer works through in a round."""
    channel = next(iter(run.recipe.channel.values()))
    return channel.when.steps * run.recipe.work.batch


def _ready(broker: Broker) -> tuple[bytes, ...]:
    """Return who may be counted in, in canonical order."""
    version = broker.history.version
    return tuple(
        peer
        for peer, presence in sorted(broker.present.items())
        if peer in broker.history.members
        and presence.standing is not None
        and presence.standing.version >= version - LAG_MAX
        and peer not in broker.missed
    )


def _base(broker: Broker) -> str | None:
    """Return the digest of the newest anchor that most members report, or None while nobody stands there.

    Where opinions are even our own counts: one peer that is wrong must not make everybody download its state.
    """
    version = broker.history.version
    held = {p: x.standing.anchor for p, x in broker.present.items() if x.standing and x.standing.version == version}
    digests = sorted(held.values())
    return max(digests, key=lambda digest: (digests.count(digest), digest == held.get(broker.me)), default=None)


def _wanted_peers(broker: Broker, now_s: float) -> int:
    """Return how many must stand ready: at the start, and for a while after a restart, the spec's number."""
    membership = broker.run.membership
    again = not broker.announced and now_s - broker.started_s < REUNION_S
    return max(membership.contributors_min, membership.start_with if again or not broker.history.version else 1)


def _reunion(broker: Broker, now_s: float) -> bool:
    """Return whether members known from before a restart are on their way, or have yet to say where they stand."""
    if now_s - broker.started_s >= REUNION_S:
        return False
    here = broker.present
    return any(here[p].standing is None if p in here else _expected(broker, p, now_s) for p in broker.history.members)


def _expected(broker: Broker, peer: bytes, now_s: float) -> bool:
    """Return whether a member that is not here has been so since we started, and not for long."""
    return broker.away_s.get(peer) == broker.started_s and now_s - broker.started_s < REUNION_S


def _budget_spent(broker: Broker) -> bool:
    budget = broker.run.budget
    if budget.rounds:
        return broker.history.version >= budget.rounds
    return broker.history.samples * broker.tokens_per_sample >= budget.tokens


def _drive(broker: Broker, round_: Round, now_s: float) -> tuple[Broker, list[Action]]:
    """Move the open round on: commit it, settle it, or mend it."""
    live = [p for p in round_.announced.members if p in broker.present]
    waited = [p for p in round_.announced.members if p not in broker.present and _expected(broker, p, now_s)]
    if round_.settled is not None:
        root = _root(round_)
        if root is not None and _held(round_, root, len(live)):
            contributors = tuple(c.peer for c in round_.settled)
            return _write(broker, RoundCommitted(round_.key, contributors, root))
    dead = [p for p in round_.owners if p not in broker.present and p not in waited]
    if dead:
        owners = tuple(live) or (broker.me,)
        return _replan(broker, round_, owners, f"owner {_short(dead[0])} is gone", now_s)
    if round_.settled is None:
        return _settle(broker, round_, live, waited, now_s)
    if now_s - round_.moved_s > STALL_S:
        return _replan(broker, round_, (broker.me,), f"nothing moved for {STALL_S:.0f} s", now_s)
    return broker, []


def _root(round_: Round) -> str | None:
    """Return the digest root of the result once every owner has reported."""
    if any(owner not in round_.reduced for owner in round_.owners):
        return None
    return result_root(digest for owner in round_.owners for digest in round_.reduced[owner])


def result_root(digests: Iterator[bytes] | tuple[bytes, ...]) -> str:
    """Return the root over a result's chunk digests, in the order of the grid."""
    return blake3(b"".join(digests)).hexdigest()


def _held(round_: Round, root: str, live: int) -> bool:
    holders = [peer for peer, result in round_.holding.items() if result == root]
    return len(holders) >= min(HOLDERS_MIN, max(live, 1))


def _settle(
    broker: Broker, round_: Round, live: list[bytes], waited: list[bytes], now_s: float
) -> tuple[Broker, list[Action]]:
    """Fix the contributors: everybody who can still come has, or patience ran out.

    Who contributed to an earlier attempt is waited for a little longer: it only has to send again.
    """
    in_ = [p for p in round_.announced.members if p in round_.serials and p not in round_.spoiled]
    open_ = [p for p in [*live, *waited] if p not in round_.serials and p not in round_.spoiled]
    patience_s, why = patience(broker, round_)
    stalled = now_s - round_.moved_s > STALL_S
    late = now_s - round_.began_s >= patience_s and (stalled or not any(p in round_.took_s for p in open_))
    enough = len(in_) >= broker.run.membership.contributors_min
    if not enough or (open_ and not late):
        return broker, []
    settled = tuple(Contribution(p, round_.serials[p]) for p in in_)
    round_ = replace(round_, settled=settled, moved_s=now_s)
    broker = replace(broker, round=round_)
    note = journal.RoundSettled(
        channel=round_.key.channel,
        version=round_.key.version,
        attempt=round_.attempt,
        contributors=[_short(p) for p in in_],
        why="everybody present contributed" if not open_ else why,
    )
    return broker, [Note(note), *_tell_plan(broker, round_)]


def patience(broker: Broker, round_: Round) -> tuple[float, str]:
    """Return how long the round may wait for its slowest member, and why.

    Until half have contributed nothing is known and the ceiling of the spec holds; then four times the
    median of what they took, and ten seconds for the wire.
    """
    ceiling_s = broker.run.upkeep.patience_s_max
    took = sorted(round_.took_s.values())
    if 2 * len(took) < len(round_.announced.members):
        return ceiling_s, f"fewer than half have contributed: the ceiling of {ceiling_s:.0f} s holds"
    derived_s = 4 * median(took) + 10
    why = f"four times the median of {median(took):.1f} s and 10 s"
    return min(ceiling_s, derived_s), why


def _say_farewell(broker: Broker) -> tuple[Broker, list[Action]]:
    """Let members go once everybody present has the final anchor."""
    version = broker.history.version
    standings = [x.standing for p, x in broker.present.items() if p in broker.history.members]
    if any(standing is None or standing.version < version for standing in standings):
        return broker, []
    fresh = tuple(p for p in sorted(broker.present) if p not in broker.told)
    return replace(broker, told=broker.told + fresh), [Tell(p, Farewell()) for p in fresh]


# words for the journal


def _short(peer: bytes) -> str:
    return peer.hex()[:8]


def _roster_notes(before: History, after: History) -> list[Action]:
    joined = [p for p in sorted(after.members) if p not in before.members]
    left = [p for p in sorted(before.members) if p not in after.members]
    notes: list[Action] = [Note(journal.PeerJoined(who=_short(p), roster=after.roster)) for p in joined]
    return notes + [Note(journal.PeerLeft(who=_short(p), roster=after.roster)) for p in left]


def _announced_event(announced: RoundAnnounced) -> journal.RoundAnnounced:
    ranges = [r for one in announced.leases for r in one]
    return journal.RoundAnnounced(
        channel=announced.key.channel,
        version=announced.key.version,
        members=[_short(p) for p in announced.members],
        samples=lease.size(ranges),
        first=min(r.first for r in ranges),
    )


def _committed_event(
    broker: Broker, before: History, committed: RoundCommitted, now_s: float
) -> journal.RoundCommitted:
    samples = broker.history.samples - before.samples
    return journal.RoundCommitted(
        channel=committed.key.channel,
        version=committed.key.version,
        contributors=[_short(p) for p in committed.contributors],
        samples=samples,
        tokens=samples * broker.tokens_per_sample,
        result=committed.result,
        round_s=now_s - broker.round.began_s if broker.round else 0.0,
    )
