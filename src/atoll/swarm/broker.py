"""What the broker decides: one pure step from what it heard to what it does.

The broker never touches a weight. It lets peers in, announces rounds to those who stand ready, brings each open
round to its end (`round`), and says farewell when the budget is spent. Everything it knows is in the log, or comes
back by itself when members say hello again; so a new broker goes on where the last one was. Whoever leads the
council is the broker; it also looks after the council itself: its size, and who takes a lost member's seat.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from msgspec import UNSET
from msgspec.structs import replace

from atoll import journal
from atoll.net.identity import short
from atoll.spec.axes.control import Nobody
from atoll.spec.axes.whom import GROUP_MAX, Carried, Circles, Regions
from atoll.spec.load import decode_run
from atoll.spec.run import Run, canonical, identity
from atoll.spec.turns import ends_whole
from atoll.swarm.log import (
    ALL,
    CIRCLES,
    MODEL,
    CouncilChanged,
    Entry,
    EpochStarted,
    History,
    Key,
    KnobsTurned,
    Record,
    RosterChanged,
    RoundAnnounced,
    RoundCommitted,
    RoundVoided,
    RunFinished,
    SettingsChanged,
    announcement,
    apply,
    objection,
)
from atoll.swarm.messages import (
    Append,
    Carrying,
    Contributed,
    Farewell,
    FromMember,
    Holding,
    Leave,
    Plan,
    Reduced,
    Refused,
    Settings,
    Spoiled,
    Standing,
    Stuck,
    Welcome,
)
from atoll.swarm.policy.best import teacher
from atoll.swarm.policy.control import observe, turn
from atoll.swarm.policy.quotas import quotas_of
from atoll.swarm.policy.regions import moved, place
from atoll.swarm.policy.telling import Arranged, arranged
from atoll.swarm.round import advance, drive_all, open_round, plan_of, replan
from atoll.swarm.routes.circles import of_all as due_of_all
from atoll.swarm.routes.circles import weighs_lines
from atoll.swarm.routes.shares import WHOLE, Bulk
from atoll.swarm.state import (
    REUNION_S,
    Action,
    Arrived,
    Broker,
    Calm,
    Catch,
    Gone,
    Heard,
    Logged,
    Note,
    Pace,
    Presence,
    Said,
    Tell,
    Tick,
    Wake,
    Write,
    admits,
    expected,
)

GONE_S_MAX = 600.0
"""A peer that is away for longer leaves the roster; it may join again."""
SEAT_S = 20.0
"""A council member that is away for longer loses its seat to a peer that is there; shorter may be a restart."""
RESUME_S = 1.0
"""So long a new broker waits for the members of the open round, all of whom it hails, before it plans."""
CROWD = 64
"""Members beyond which changes of the roster are told together, between rounds."""
LAG_MAX = 3
"""A peer this many versions behind may be counted in: it catches up before it works. One more than it may stand with
for the first time, since a round may have gone by."""


def take_office(
    me: bytes,
    term: int,
    run: Run,
    tokens_per_sample: int,
    history: History,
    now_s: float,
    *,
    cold: bool = True,
    bulks: Mapping[str, tuple[Bulk, ...]] | None = None,
    whole: Bulk = WHOLE,
    rungs: tuple[Bulk, ...] = (),
    plans: tuple[Plan, ...] = (),
) -> tuple[Broker, list[Action]]:
    """Return a broker that starts in a new term from what is committed of the log, and its first act.

    Records of earlier terms may still be on their way; they are final once its own first record is.
    """
    known = sorted({*history.members, *(peer for each in history.under_way for peer in each.members)})
    away_s = dict.fromkeys(known, now_s)
    if history.broker != me and history.broker in away_s:
        away_s[history.broker] = now_s - REUNION_S  # it was given up, or we would not be here: not waited for
    broker = Broker(
        me=me,
        term=term,
        run=run,
        started_s=now_s,
        cold=cold,
        tokens_per_sample=tokens_per_sample,
        bulks=bulks or {},
        whole=whole,
        rungs=rungs,
        plans=plans,
        history=history,
        away_s=away_s,
    )
    return _write(broker, EpochStarted(term, me))


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
    if not admits(broker.run, peer, broker.history.organiser or broker.me):
        why = "this run is for listed peers only"
        hint = f"ask the organiser to add {peer.hex()} to membership.who.peers"
        return broker, [Tell(peer, Refused(why, hint)), Note(journal.JoinRefused(who=short(peer), why=why))]
    if peer not in (known := broker.present | broker.history.members) and _full(broker, len(known)):
        why = f"this run is full: {_why_full(broker)}, and there are {GROUP_MAX} in it"
        hint = 'more of them take a recipe with whom.route = { kind = "butterfly" }'
        return broker, [Tell(peer, Refused(why, hint)), Note(journal.JoinRefused(who=short(peer), why=why))]
    back_too_soon = peer in broker.present
    present = broker.present | {peer: Presence(heard.member)}
    away_s = {p: t for p, t in broker.away_s.items() if p != peer}
    actions: list[Action] = [Tell(peer, Welcome(canonical(broker.run))), Catch(peer, heard.next_index)]
    if not broker.history.finished:
        actions += [Tell(peer, plan_of(broker, each)) for each in broker.rounds]
    broker = replace(broker, present=present, away_s=away_s)
    for each in broker.rounds:
        if back_too_soon and peer in each.owners:
            broker, again = replan(broker, each, each.shards, f"owner {short(peer)} restarted", now_s)
            actions += again
    return broker, actions


def _full(broker: Broker, peers: int) -> bool:
    """Return whether the run's route has no place for one more."""
    linked = isinstance(broker.whom.route, Carried | Regions) or broker.setting.mesh is not None
    return linked and peers >= GROUP_MAX


def _why_full(broker: Broker) -> str:
    if broker.setting.mesh is not None:
        return "its peers exchange over a link for each pair"
    return f"its sums go {'by who is near to whom' if isinstance(broker.whom.route, Regions) else 'from peer to peer'}"


def _part(broker: Broker, peer: bytes, why: str, now_s: float) -> tuple[Broker, list[Action]]:
    if peer not in broker.present:
        return broker, []
    present = {p: x for p, x in broker.present.items() if p != peer}
    notes: list[Action] = [] if broker.history.finished else [Note(journal.PeerLost(who=short(peer), why=why))]
    return replace(broker, present=present, away_s=broker.away_s | {peer: now_s}), notes


def _listen(broker: Broker, peer: bytes, message: FromMember, now_s: float) -> tuple[Broker, list[Action]]:
    """Take in what a present member said; what concerns another plan than ours is out of date and ignored."""
    match message:
        case Standing():
            if message.version > broker.history.version:
                return broker, []  # nobody can hold what is not committed
            presence = replace(broker.present[peer], standing=message)
            missed = {p: v for p, v in broker.missed.items() if p != peer or message.version < v}
            return replace(broker, present=broker.present | {peer: presence}, missed=missed), []
        case Settings(run=run, signature=signature):
            return _take_settings(broker, peer, run, signature)
        case Leave(why=why):
            left, actions = _part(broker, peer, why, now_s)
            return replace(left, away_s=left.away_s | {peer: now_s - GONE_S_MAX}), actions
        case Contributed() | Carrying() | Reduced() | Holding() | Spoiled() | Stuck():
            round_ = next((each for each in broker.rounds if each.key == message.key), None)
            if round_ is None:
                return broker, []
            if peer not in round_.announced.members and peer not in round_.owners:
                return broker, []
            if not isinstance(message, Spoiled) and (message.epoch, message.attempt) != (
                broker.epoch,
                round_.attempt,
            ):
                return broker, []
            return advance(broker, round_, peer, message, now_s)
        case _:
            return broker, []


def _take_settings(broker: Broker, peer: bytes, run: bytes, signature: bytes) -> tuple[Broker, list[Action]]:
    """Keep what the organiser wants changed until we know from the log who that is; anybody may pass it on."""
    return replace(broker, settings=(peer, SettingsChanged(run, signature))), []


def _change_settings(broker: Broker, peer: bytes, changed: SettingsChanged) -> tuple[Broker, list[Action]]:
    """Let the organiser change what may change."""
    broker = replace(broker, settings=None)
    if changed.run == broker.history.settings:
        return broker, []
    problem = objection(changed, broker.history.organiser, identity(broker.run))
    if problem:
        return broker, [Note(journal.MessageRefused(who=short(peer), why=f"settings: {problem}"))]
    return _write(broker, changed)


def _logged(broker: Broker, entry: Entry, now_s: float) -> tuple[Broker, list[Action]]:
    """Let a record that is now durable take effect, and pass it on to everybody present."""
    before = broker.history
    broker = replace(broker, history=apply(before, entry))
    actions: list[Action] = [Tell(peer, Append((entry,))) for peer in sorted(broker.present)]
    if entry.term != broker.term:
        return _inherit(broker, entry.record), actions
    broker = replace(broker, pending=broker.pending - 1)
    match entry.record:
        case EpochStarted(epoch=epoch):
            broker = replace(broker, epoch=epoch)
            if broker.history.open is not None:
                actions.append(Wake(broker.started_s + RESUME_S))
        case RosterChanged():
            actions += _roster_notes(before, broker.history)
        case CouncilChanged():
            actions += _council_notes(before, broker.history)
        case SettingsChanged(run=settings):
            broker = replace(broker, run=decode_run(settings))
        case KnobsTurned():
            broker = _turned(broker)
        case RoundAnnounced():
            broker, plan = open_round(replace(broker, announced=True), broker.history.under_way[-1], now_s)
            actions += plan
        case RoundCommitted(key=key):
            assert before.open is not None
            assert broker.history.last is not None
            closed = broker.history.last
            absent = set(before.open.members).difference(closed.contributors, closed.carried)
            missed = broker.missed | dict.fromkeys(sorted(absent), key.version)
            measures = not isinstance(broker.run.recipe.control, Nobody) and broker.announced
            over = broker.round if measures else None
            if broker.round is not None:
                took = {(key.channel, key.unit): (key.version, now_s - broker.round.began_s)}
                broker = replace(broker, took=broker.took | took)
            broker = replace(broker, rounds=broker.rounds[1:], missed=missed, closed=over, closed_s=now_s)
            broker = _unawaited(broker, closed.contributors)
        case RoundVoided():
            left = broker.rounds[: len(broker.history.under_way)]
            broker = _unawaited(replace(broker, rounds=left), tuple(broker.present))
        case _:
            pass
    return broker, actions


def _turned(broker: Broker) -> Broker:
    """Forget what rounds took before knobs were turned: the next ones are others."""
    return replace(broker, quotas={}, pace=Pace(), measured=(), closed=None)


def _unawaited(broker: Broker, peers: tuple[bytes, ...]) -> Broker:
    """Note that some members have nothing ready any more: it is in a round, or was given up with one."""
    present = dict(broker.present)
    for peer in peers:
        standing = present[peer].standing if peer in present else None
        if standing is not None and standing.waits:
            present[peer] = replace(present[peer], standing=replace(standing, waits=False))
    return replace(broker, present=present) if present != broker.present else broker


def _inherit(broker: Broker, record: Record) -> Broker:
    """Take over what an earlier broker wrote and we find committed: whoever it names is waited for like the others."""
    if isinstance(record, KnobsTurned):
        broker = replace(_turned(broker), before=None)
    known = (m for m in broker.history.members if m not in broker.present and m not in broker.away_s)
    broker = replace(broker, away_s=broker.away_s | dict.fromkeys(known, broker.started_s))
    return replace(broker, run=decode_run(broker.history.settings)) if broker.history.settings else broker


# decisions


def _decide(broker: Broker, now_s: float) -> tuple[Broker, list[Action]]:
    """Return what follows from what is known: a record, or a commit after the announcement that it waited for."""
    history = broker.history
    if not broker.epoch:
        return broker, []
    if history.finished:
        return _say_farewell(broker)
    if broker.settings is not None:
        return _change_settings(broker, *broker.settings)
    if not _is_calm(broker, now_s):
        wanted = _wanted_council(broker, now_s) or _wanted_roster(broker, now_s)
        if wanted is not None:
            return _write(broker, wanted)
        broker = replace(broker, calm=_calm(broker, now_s))
    if len(broker.rounds) < len(history.under_way):
        return _resume(broker, now_s)
    if len(history.under_way) >= broker.setting.room:
        return drive_all(broker, now_s)
    broker, announces, full = _next_round(broker, now_s)
    broker, drives = drive_all(broker, now_s, commits=full)
    return broker, [*announces, *drives]


def _write(broker: Broker, record: Record) -> tuple[Broker, list[Action]]:
    return replace(broker, pending=broker.pending + 1), [Write(record)]


def _is_calm(broker: Broker, now_s: float) -> bool:
    """Return whether nobody came, went or stood up, and nothing was logged, since we looked at roster and council."""
    calm = broker.calm
    if calm is None or calm.present is not broker.present or calm.away_s is not broker.away_s:
        return False
    return calm.history is broker.history and now_s < calm.until_s


def _calm(broker: Broker, now_s: float) -> Calm:
    """Return that roster and council are as they should be until somebody has been away for too long."""
    since_s = {broker.started_s, *broker.away_s.values()}
    limits_s = (at_s + wait_s for at_s in since_s for wait_s in (SEAT_S, GONE_S_MAX))
    until_s = min((limit_s for limit_s in limits_s if limit_s > now_s), default=math.inf)
    return Calm(broker.present, broker.away_s, broker.history, until_s)


def _wanted_council(broker: Broker, now_s: float) -> CouncilChanged | None:
    """Return a change of the council by one member: towards its right size, then in place of who is gone.

    Whoever others cannot reach has no seat: a council that cannot talk without its leader is no better than one.
    """
    council = broker.history.council
    hidden = {p for p, x in broker.present.items() if x.unreached}
    members = broker.history.members
    size = seats(len(members) - len(members.keys() & {*hidden, *_gone(broker, now_s)}))
    lost = [p for p in council if p != broker.me and (p in hidden or _seat_free(broker, p, now_s))]
    if len(council) == size and not lost:
        return None
    here = [p for p, x in broker.present.items() if x.standing is not None and p in members and p not in hidden]
    spare = [p for p in here if p not in council]
    if spare and (len(council) < size or (lost and len(council) == size)):
        return CouncilChanged((*council, spare[0]))
    surplus = len(council) > size
    leaves = lost[:1] or [p for p in reversed(council) if p != broker.me and surplus][:1]
    if surplus and leaves:
        return CouncilChanged(tuple(p for p in council if p != leaves[0]))
    return None


def seats(peers: int) -> int:
    """Return how many of a run's peers vote: always an odd number, and one alone while there are fewer than three."""
    return 1 if peers < 3 else 3 if peers < 7 else 5 if peers < 20 else 7


def _seat_free(broker: Broker, peer: bytes, now_s: float) -> bool:
    """Return whether a council member has been away for so long that another takes its seat."""
    return peer not in broker.present and now_s - broker.away_s.get(peer, broker.started_s) >= SEAT_S


def _gone(broker: Broker, now_s: float) -> set[bytes]:
    """Return who has been away for so long that the roster need not wait for it."""
    return {p for p, since_s in broker.away_s.items() if now_s - since_s >= GONE_S_MAX and p not in broker.present}


def _wanted_roster(broker: Broker, now_s: float) -> RosterChanged | None:
    """Return a change of the roster: who stands ready is in, who left or was away too long is out.

    In a crowd somebody comes or goes all the time, and everybody would hear of each: there it waits for the end of the
    open round, unless one of its members has moved.
    """
    members = broker.history.members
    left = sorted(members.keys() & _gone(broker, now_s))
    ready = (x.member for x in broker.present.values() if x.standing is not None)
    joined = sorted((m for m in ready if members.get(m.peer) != m), key=lambda m: m.peer)
    if broker.rounds and len(members) > CROWD:
        inside = {peer for each in broker.rounds for peer in each.announced.members}
        left, joined = [], [m for m in joined if m.peer in inside]
    if not left and not joined:
        return None
    return RosterChanged(broker.history.roster + 1, tuple(joined), tuple(left))


def _resume(broker: Broker, now_s: float) -> tuple[Broker, list[Action]]:
    """Plan what an earlier broker left open, once the members are back with what they know, or it is late."""
    left = broker.history.under_way
    coming = {p for each in left for p in each.members if _coming(broker, p, now_s)}
    back = all(p in broker.present and broker.present[p].standing for p in coming)
    if not back and now_s < broker.started_s + RESUME_S:
        return broker, []
    actions: list[Action] = []
    for each in left:
        broker, more = open_round(broker, each, now_s)
        actions += more
    return broker, actions


def _coming(broker: Broker, peer: bytes, now_s: float) -> bool:
    return peer in broker.present or expected(broker, peer, now_s)


def _next_round(broker: Broker, now_s: float) -> tuple[Broker, list[Action], bool]:
    """Announce the next round when enough members stand ready, or finish the run; and whether others may be committed.

    They may not while a round is about to be announced: how late its results are must not depend on who was faster.
    """
    history = broker.history
    if _budget_spent(broker) and not _parted(history):
        if history.under_way:
            return broker, [], True
        return *_write(broker, RunFinished()), True  # else one round more, of all: it makes the run's model
    ready = _ready(broker)
    if len(ready) < _wanted_peers(broker, now_s) or _reunion(broker, now_s):
        return broker, [], True
    base = _base(broker, ready)
    if base is None:
        return broker, [], False
    broker = observe(broker, now_s)
    turned, turning = turn(broker)
    if turning is not None:  # between rounds: those that are open end first
        return (broker, [], True) if history.under_way else (*_write(turned, turning), True)
    broker, announces = _announce(broker, ready, base, now_s)
    return broker, announces, len(history.under_way) + 1 == broker.setting.room


def _announce(broker: Broker, ready: tuple[bytes, ...], base: str, now_s: float) -> tuple[Broker, list[Action]]:
    """Announce the next round, of those who stand ready."""
    history = broker.history
    version = history.newest + 1
    key = Key(broker.turn.name, version, unit=broker.turn.unit)
    broker, quotas, notes = quotas_of(broker, key, ready)
    counted = 0 if broker.setting.holds(version, of_all=True) else sum(quotas.values())
    last = _budget_spent(broker, rounds=1, samples=counted)
    regions = place(broker, sorted(quotas))
    of_regions = _of_regions(broker, base, sorted(quotas), regions, last=last, now_s=now_s)
    if of_regions is None:
        return broker, []
    regions = of_regions.regions
    if broker.setting.regional is not None:
        base, of_all = "", of_regions.tells is not UNSET
    else:
        of_all = last or not isinstance(broker.whom, Circles) or _of_all(broker.whom, version, regions)
    if not of_all:
        key = replace(key, scope=CIRCLES)
    if last and ends_whole(broker.run.recipe):
        key = replace(key, unit=MODEL)
    ahead, carry = _ahead(broker, sum(quotas.values())), broker.setting.carries
    holds = broker.setting.holds(version, of_all=key.scope == ALL)
    rates = {peer: _sends(broker, peer) for peer in quotas} if weighs_lines(broker.whom) else None
    best, told = teacher(broker, key, ready) if holds and key.scope == CIRCLES else (b"", [])
    announced = announcement(
        history, key, quotas, base, ahead=ahead, carry=carry, holds=holds, rates=rates, regions=regions, best=best
    )
    announced = replace(announced, bases=of_regions.bases, tells=of_regions.tells)
    notes += moved(broker, key, regions)
    broker, actions = _write(broker, announced)
    return broker, [*notes, *told, *actions]


def _of_regions(
    broker: Broker, base: str, peers: list[bytes], regions: dict[bytes, int] | None, *, last: bool, now_s: float
) -> Arranged | None:
    """Return what the next announcement says of regions, and of states that they hold; None: it has to wait."""
    home = broker.setting.regional
    if home is None:
        return Arranged(regions)
    wanted = dict.fromkeys(peers, 0) if regions is None else regions
    return arranged(broker, home, base, wanted, met=regions is not None, last=last, now_s=now_s)


def _parted(history: History) -> bool:
    """Return whether members have models of their own, or their regions have: after any round that was not of all."""
    return bool(history.homes.of) or (history.last is not None and bool(history.last.circles))


def _of_all(whom: Circles, version: int, regions: dict[bytes, int] | None) -> bool:
    """Return whether a round that is not the last is one of all: it is due, or who is near to whom is not known yet."""
    return due_of_all(whom, version) or (isinstance(whom.pattern, Regions) and regions is None)


def _ahead(broker: Broker, samples: int) -> int:
    """Return for how many rounds after the next one, of so many samples, members get leases too."""
    rounds = range(1, broker.setting.ahead + 1)
    return sum(not _budget_spent(broker, rounds=each, samples=each * samples) for each in rounds)


def _sends(broker: Broker, peer: bytes) -> int:
    """Return what a member's line sends in a second, as far as it has measured it; 0: not known."""
    standing = broker.present[peer].standing if peer in broker.present else None
    return standing.up_bytes_s if standing is not None else 0


def _ready(broker: Broker) -> tuple[bytes, ...]:
    """Return who may be counted in, in canonical order; who works on from an earlier round may be far behind."""
    version = broker.history.version
    return tuple(
        peer
        for peer, presence in sorted(broker.present.items())
        if peer in broker.history.members
        and presence.standing is not None
        and (presence.standing.version >= version - LAG_MAX or _carries(broker, peer))
        and peer not in broker.missed
    )


def _carries(broker: Broker, peer: bytes) -> bool:
    """Return whether a member works on from an earlier round."""
    last = broker.history.last
    return last is not None and peer in last.carried and peer in broker.history.kept


def _base(broker: Broker, ready: tuple[bytes, ...]) -> str | None:
    """Return the digest of the newest anchor that most report, our own in a tie; None while too few stand there.

    Empty where each has an anchor of its own, after a round of circles.

    Too few: neither our own member nor more than half of those who would start from it. Who works on from an earlier
    round does not, and looks at the newest only between two steps, which may be long.
    """
    standing = {p: x.standing for p, x in broker.present.items() if x.standing is not None}
    digests = {p: s.anchor for p, s in sorted(standing.items()) if s.version == broker.history.version}
    starting = [p for p in ready if not _carries(broker, p)] or ready
    if broker.me not in digests and 2 * sum(p in digests for p in starting) <= len(starting):
        return None
    if _parted(broker.history):
        return ""  # everybody has its own
    digests = {p: digest for p, digest in digests.items() if digest}  # but of who is not where its region is
    if not digests:
        return None
    counts = Counter(digests.values())
    most = [digest for digest, count in counts.items() if count == max(counts.values())]
    return digests[broker.me] if digests.get(broker.me) in most else min(most)


def _wanted_peers(broker: Broker, now_s: float) -> int:
    """Return how many must stand ready: at the start, and for a while after a restart of all, the spec's number."""
    membership = broker.run.membership
    again = broker.cold and not broker.announced and now_s - broker.started_s < REUNION_S
    return max(membership.contributors_min, membership.start_with if again or not broker.history.version else 1)


def _reunion(broker: Broker, now_s: float) -> bool:
    """Return whether members known from before a restart are on their way, or have yet to say where they stand."""
    if now_s - broker.started_s >= REUNION_S:
        return False
    here = broker.present
    return any(here[p].standing is None if p in here else expected(broker, p, now_s) for p in broker.history.members)


def _budget_spent(broker: Broker, *, rounds: int = 0, samples: int = 0) -> bool:
    """Return whether nothing is left of the budget, after all that is under way and so many more rounds and samples."""
    budget, history = broker.run.budget, broker.history
    if budget.rounds:
        return history.newest + rounds >= budget.rounds
    return (history.given_samples + samples) * broker.tokens_per_sample >= budget.tokens


def _say_farewell(broker: Broker) -> tuple[Broker, list[Action]]:
    """Let members go once everybody present has the final anchor."""
    version = broker.history.version
    standings = [x.standing for p, x in broker.present.items() if p in broker.history.members]
    if any(standing is None or standing.version < version for standing in standings):
        return broker, []
    fresh = tuple(p for p in sorted(broker.present) if p not in broker.told)
    return replace(broker, told=broker.told + fresh), [Tell(p, Farewell()) for p in fresh]


# words for the journal


def _roster_notes(before: History, after: History) -> list[Action]:
    joined = [p for p in sorted(after.members) if p not in before.members]
    left = [p for p in sorted(before.members) if p not in after.members]
    notes: list[Action] = [Note(journal.PeerJoined(who=short(p), roster=after.roster)) for p in joined]
    return notes + [Note(journal.PeerLeft(who=short(p), roster=after.roster)) for p in left]


def _council_notes(before: History, after: History) -> list[Action]:
    new = [short(p) for p in after.council if p not in before.council]
    old = [short(p) for p in before.council if p not in after.council]
    why = f"{new[0]} has a seat now" if new else f"{old[0]} has lost its seat"
    return [Note(journal.CouncilChanged(members=[short(p) for p in after.council], why=why))]
