"""How the broker brings an open round to its end.

    contribute -> settle -> reduce -> hold -> commit
        ^            |        |        |
        +---- replan: an owner died, a contribution was recomputed or spoiled, nothing moved

Whatever goes wrong before the commit is mended by a new plan with a larger attempt. Contributions are kept by
their makers until commit, so owners can be replaced at any time, in the end by the broker itself, which
everybody can reach. Whoever takes over gets only what was the dead owner's; everything else stays where it is.
Where sums are carried from member to member they go other ways instead, among who is left (`ways`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import UNSET
from msgspec.structs import replace

from atoll import journal
from atoll.net.identity import short
from atoll.spec.axes.pace import StandIn
from atoll.spec.axes.whom import Carried
from atoll.swarm.log import OpenRound, RoundVoided, commitment, result_root
from atoll.swarm.messages import Carrying, Contributed, Contribution, Holding, Plan, Reduced, Spoiled, Stuck
from atoll.swarm.policy.patience import (
    BUSY_S,
    STALL_S,
    patience,
    patience_s_min,
    quorum,
    remember,
    resend_s,
    return_s,
    stall,
)
from atoll.swarm.routes.circles import Made, circles_in, passed_on, results_of
from atoll.swarm.routes.layout import Layout, layout_of
from atoll.swarm.routes.owners import alone, doubt, gathers, share_out, without
from atoll.swarm.routes.shares import Shard, Shards
from atoll.swarm.routes.ways import around, carriers_of, changed
from atoll.swarm.state import Action, Broker, Note, Round, Tell, Wake, Write, driven, expected

HOLDERS_MIN = 2
"""Members that must have a result on disk before it is committed (as many as there are, if fewer)."""

COURTESY = 0.5
"""Of the time that the first holders waited for a result, so much more is given to the others before its commit."""


def open_round(broker: Broker, announced: OpenRound, now_s: float) -> tuple[Broker, list[Action]]:
    """Begin to plan an announced round: members own what their lines can carry, or what an earlier broker gave them."""
    notes: list[Action] = []
    if isinstance(broker.whom.route, Carried):
        everything = (Shard(broker.me, 0, broker.bulk.chunks),)
        round_ = around(broker, _round(broker, announced, everything, now_s, gather=False), now_s)
        notes = changed(broker, round_)
    else:
        shards = _kept(broker, announced)
        if shards is None:
            broker, shards, notes = share_out(broker, announced)
        round_ = _round(broker, announced, shards, now_s, gather=gathers(broker, shards))
    round_ = replace(round_, absent=_absent(broker, round_, now_s))
    broker = replace(broker, rounds=(*broker.rounds, round_), attempts=round_.attempt + 1)
    return broker, [*notes, *tell_plan(broker, round_, concerned(round_))]


def _round(broker: Broker, announced: OpenRound, shards: Shards, now_s: float, *, gather: bool) -> Round:
    return Round(
        announced=announced,
        began_s=now_s,
        since_s=now_s,
        moved_s=now_s,
        attempt=broker.attempts,
        first_attempt=broker.attempts,
        shards=shards,
        gather=gather,
        circles=circles_in(broker.whom, announced),
    )


def _kept(broker: Broker, announced: OpenRound) -> Shards | None:
    """Return the shards that an earlier broker gave out for this round, except that those of who is gone are spread."""
    plan = next((plan for plan in broker.plans if plan.key == announced.key), None)
    if plan is None:
        return None
    gone = [owner for owner in plan.owners if owner not in broker.present]
    round_ = _round(broker, announced, plan.shards, 0.0, gather=plan.gather)
    return without(broker, round_, gone) if gone else plan.shards


def replan(broker: Broker, round_: Round, shards: Shards, why: str, now_s: float) -> tuple[Broker, list[Action]]:
    """Start the exchange of an open round again with other owners or another set of contributors."""
    round_ = replace(
        round_,
        attempt=broker.attempts,
        shards=shards,
        gather=gathers(broker, shards),
        settled=None,
        serials={},
        carrying={},
        lent={},
        closing_s=None,
        reduced={},
        holding={},
        held_s=None,
        moved_s=now_s,
        patient_until_s=0.0,
    )
    round_ = replace(round_, absent=_absent(broker, round_, now_s))
    broker = replace(driven(broker, round_), attempts=broker.attempts + 1)
    event = journal.RoundReplanned(
        channel=round_.key.channel, version=round_.key.version, attempt=round_.attempt, why=why
    )
    return broker, [Note(event), *tell_plan(broker, round_, concerned(round_))]


def concerned(round_: Round) -> Iterable[bytes]:
    """Return everybody who has a part in the round: its members, and the broker where it owns shards for them."""
    return dict.fromkeys((*round_.announced.members, *round_.owners))


def tell_plan(broker: Broker, round_: Round, peers: Iterable[bytes]) -> list[Action]:
    """Tell those of some peers who are here what is planned."""
    plan = plan_of(broker, round_)
    return [Tell(peer, plan) for peer in peers if peer in broker.present]


def plan_of(broker: Broker, round_: Round) -> Plan:
    settled = None
    if round_.settled is not None:
        serials = {c.peer: c.serial for c in round_.settled}
        settled = tuple(serials.get(peer) for peer in round_.announced.members)
    return Plan(
        round_.key,
        broker.epoch,
        round_.attempt,
        round_.shards,
        settled,
        round_.absent,
        gather=round_.gather,
        ring=round_.ring,
        trees=round_.trees,
        closing=UNSET if round_.closing_s is None else True,
    )


def advance(
    broker: Broker,
    round_: Round,
    peer: bytes,
    message: Contributed | Carrying | Reduced | Holding | Spoiled | Stuck,
    now_s: float,
) -> tuple[Broker, list[Action]]:
    """Note a member's part in the present attempt."""
    match message:
        case Contributed(serial=serial, took_s=sent_s, lent=lent):
            if round_.settled is not None:  # too late, or made anew after a crash: what is settled is with the owners
                return broker, []
            if lent is True:
                return driven(broker, replace(round_, lent=round_.lent | {peer: serial}, moved_s=now_s)), []
            took_s = round_.took_s | {peer: round_.took_s.get(peer, now_s - round_.since_s)}
            heard_s = round_.heard_s | {peer: round_.heard_s.get(peer, now_s)}
            serials = round_.serials | {peer: serial}
            round_ = replace(round_, serials=serials, took_s=took_s, heard_s=heard_s, moved_s=now_s)
            if sent_s > 0:
                round_ = replace(round_, sent_s=round_.sent_s | {peer: min(sent_s, now_s - round_.began_s)})
        case Carrying(done=done):
            if done > round_.carrying.get(peer, 0):
                round_ = replace(round_, carrying=round_.carrying | {peer: done}, moved_s=now_s)
        case Reduced(digests=digests):
            given = _given(round_)
            count = sum(given[group] for group, _ in _layout(round_).roots(peer))
            if round_.gather or len(digests) != count:
                why = f"digests of {len(digests)} chunks, where it makes the result of {0 if round_.gather else count}"
                return broker, [Note(journal.MessageRefused(who=short(peer), why=why))]
            round_ = replace(round_, reduced=round_.reduced | {peer: digests}, moved_s=now_s)
        case Holding(result=result):
            round_ = replace(round_, holding=round_.holding | {peer: result}, moved_s=now_s)
        case Spoiled(peer=culprit, why=why):
            if culprit not in round_.announced.members or culprit in round_.spoiled or peer not in round_.owners:
                return broker, []
            round_ = replace(round_, spoiled=(*round_.spoiled, culprit))
            round_ = around(broker, round_, now_s) if round_.carried else round_
            return replan(broker, round_, round_.shards, f"contribution of {short(culprit)} refused: {why}", now_s)
        case Stuck(owner=owner, never=never):
            if owner in round_.owners and (round_.settled is None or round_.carried):
                return _shun(broker, round_, owner, peer, now_s, never=never)
    return driven(broker, round_), []


def _shun(
    broker: Broker, round_: Round, owner: bytes, by: bytes, now_s: float, *, never: bool
) -> tuple[Broker, list[Action]]:
    """Give the shards of an owner that a member cannot reach to others; of a link that never worked keep a note."""
    broker, notes = doubt(broker, owner, by, round_.key.version, never=never)
    if round_.carried:
        round_ = around(broker, replace(round_, parted=(*round_.parted, (by, owner))), now_s)
        shards = round_.shards
    else:
        round_ = replace(round_, shunned=(*round_.shunned, owner))
        shards = without(broker, round_, [owner])
    why = f"{short(by)} cannot reach {short(owner)}"
    broker, again = replan(broker, round_, shards, why, now_s)
    return broker, [*notes, *again]


def drive_all(broker: Broker, now_s: float, *, commits: bool = True) -> tuple[Broker, list[Action]]:
    """Move the open rounds on, in their order, until one has something for the log."""
    actions: list[Action] = []
    pending = broker.pending
    for key in [each.key for each in broker.rounds]:
        round_ = next(each for each in broker.rounds if each.key == key)  # the one before it may have changed it
        broker, more = drive(broker, round_, now_s, commits=commits and round_ is broker.round)
        actions += more
        if broker.pending > pending:
            break
    return broker, actions


def drive(broker: Broker, round_: Round, now_s: float, *, commits: bool) -> tuple[Broker, list[Action]]:
    """Move an open round on: commit it, settle it, or mend it; what is ready before its turn stands still."""
    missing = [p for p in round_.announced.members if p not in broker.present]
    waited = [p for p in missing if expected(broker, p, now_s)]
    if round_.settled is not None:
        roots = _roots(broker, round_)
        if roots is not None and _all_held(broker, round_, roots):
            if not commits:  # how long it waits for its turn is no part of how long it took
                return driven(broker, replace(round_, held_s=now_s)) if round_.held_s is None else broker, []
            return _commit(broker, round_, round_.settled, roots, now_s)
    # Who is leaving itself gives nothing up: the round goes on when everybody is back.
    leaving = broker.me not in broker.present
    if not leaving and not _enough_possible(broker, round_, now_s):
        return replace(broker, pending=broker.pending + 1), [Write(RoundVoided(round_.key))]
    dead = [p for p in round_.owners if p not in broker.present and p not in waited]
    if round_.carried:
        came = [p for p in carriers_of(broker, round_, now_s) if p not in round_.owners and round_.settled is None]
        if dead or came:
            round_ = around(broker, round_, now_s)
            why = f"{short(dead[0])} is gone" if dead else f"{short(came[0])} is back"
            return replan(broker, round_, round_.shards, f"sums go another way: {why}", now_s)
    elif dead:
        return replan(broker, round_, without(broker, round_, dead), f"owner {short(dead[0])} is gone", now_s)
    if round_.settled is None:
        return _settle(broker, round_, waited, now_s)
    if now_s < round_.patient_until_s:
        return broker, []
    limit_s, why = stall(broker, round_)
    if now_s - round_.moved_s > limit_s:
        if (
            round_.carried and round_.attempt == round_.first_attempt
        ):  # what it has made stays, and it has twice the time
            round_ = around(broker, round_, now_s)
        else:
            round_ = replace(round_, ring=False, trees=(), shards=alone(broker, round_))
        return replan(broker, round_, round_.shards, f"nothing moved for {limit_s:.0f} s: {why}", now_s)
    return driven(broker, replace(round_, patient_until_s=round_.moved_s + limit_s)), []


def _commit(
    broker: Broker, round_: Round, settled: tuple[Contribution, ...], roots: tuple[str, ...], now_s: float
) -> tuple[Broker, list[Action]]:
    """Commit a result that enough hold: at once if all do, else a little later, as owners return nothing after it.

    Whoever then lacks something has to fetch it: right for a few that are slow, a waste for many that are nearly done.
    So while more than half lack it, the busiest owner has the time that its line needs for all it returns.
    """
    held_s = now_s if round_.held_s is None else round_.held_s
    due_s = held_s + COURTESY * (held_s - round_.settled_s)
    lacking = sum(c.peer in broker.present and c.peer not in round_.holding for c in settled)
    if 2 * lacking > len(settled):
        due_s = max(due_s, round_.settled_s + return_s(broker, round_))
    if lacking and now_s < due_s:
        wake: list[Action] = [Wake(due_s)] if round_.held_s is None or broker.setting.room > 1 else []
        return driven(broker, replace(round_, held_s=held_s)), wake
    broker = remember(broker, round_, held_s)
    contributors = [c.peer for c in settled if c.peer in round_.serials]
    if round_.circles:
        whole = result_root(root.encode() for root in roots)
        masses, lent = _masses(broker, round_, settled), [c.peer for c in settled if c.peer not in round_.serials]
        commit = Write(commitment(round_.announced, contributors, whole, roots, masses=masses, lent=lent))
        return replace(broker, pending=broker.pending + 1), [commit]
    ring = round_.owners if round_.ring else ()
    broker = replace(broker, trees=(round_.announced.members, round_.trees))
    commit = Write(commitment(round_.announced, contributors, roots[0], ring=ring, trees=round_.trees))
    return replace(broker, pending=broker.pending + 1), [*_differing(round_, roots[0]), commit]


def _masses(broker: Broker, round_: Round, settled: tuple[Contribution, ...]) -> tuple[float, ...]:
    """Return what each member weighs after a round in circles, where that matters."""
    if broker.setting.merge.combine.weights != "mass":
        return ()
    announced = round_.announced
    return passed_on(round_.circles, announced.members, announced.masses, frozenset(c.peer for c in settled))


def _absent(broker: Broker, round_: Round, now_s: float) -> tuple[bytes, ...]:
    """Return whose contributions nobody need hope for: owners reduce without them until it is settled otherwise."""
    asked = frozenset(_asked(broker, round_))
    return tuple(
        peer
        for peer in round_.announced.members
        if peer in round_.spoiled
        or peer not in asked
        or not (peer in broker.present or peer in round_.serials or expected(broker, peer, now_s))
    )


def _enough_possible(broker: Broker, round_: Round, now_s: float) -> bool:
    """Return whether enough may still contribute: not refused, and here, or away so short that they may be back."""
    possible = (
        peer
        for peer in _asked(broker, round_)
        if peer not in round_.spoiled
        and (peer in broker.present or peer in round_.serials or now_s - broker.away_s.get(peer, now_s) < STALL_S)
    )
    wanted = _wanted(broker, round_)
    return len(list(islice(possible, wanted))) == wanted


def _asked(broker: Broker, round_: Round) -> tuple[bytes, ...]:
    """Return who is to contribute: everybody, or where regions tell all of those who have not said that they cannot."""
    announced = round_.announced
    if announced.tells is None:
        return announced.members
    return tuple(peer for group in announced.telling() for peer in group if not _astray(broker, round_, peer))


def _astray(broker: Broker, round_: Round, peer: bytes) -> bool:
    """Return whether a member says that it does not have what its region holds."""
    standing = broker.present[peer].standing if peer in broker.present else None
    return standing is not None and standing.version >= round_.key.version - 1 and not standing.anchor


def _wanted(broker: Broker, round_: Round) -> int:
    """Return with how many contributions at least a round is settled."""
    telling = round_.announced.tells is not None
    return 1 if telling else broker.run.membership.contributors_min


def _spoken_for(round_: Round) -> set[bytes]:
    """Return who need not contribute any more, since another member of its region has told what there is to tell."""
    heard = {p for p in round_.serials if p not in round_.spoiled} if round_.announced.tells is not None else set()
    return {peer for group in round_.announced.telling() if not heard.isdisjoint(group) for peer in group}


def _tellers(round_: Round, among: Sequence[bytes]) -> list[bytes]:
    """Return one member of each region of those who have told: all of a region say the same."""
    first = (next((p for p in group if p in among), None) for group in round_.announced.telling())
    return sorted(peer for peer in first if peer is not None)


def _layout(round_: Round) -> Layout:
    members, regions = round_.announced.members, round_.announced.regions
    return layout_of(round_.shards, members, round_.gather, round_.circles, round_.ring, round_.trees, regions)


def _roots(broker: Broker, round_: Round) -> tuple[str, ...] | None:
    """Return the digest root of the result, or of each that circles make, once everybody who makes some has reported.

    One that nobody gave anything to, or not to all of its parts, has none: an empty word.
    """
    if round_.gather:
        gathered = _gathered(broker, round_)
        return None if gathered is None else (gathered,)
    layout, given = _layout(round_), _given(round_)
    digests: list[dict[int, bytes]] = [{} for _ in given]
    for owner in round_.owners:
        made = [(group, index) for group, index in layout.roots(owner) if given[group]]
        if made and len(round_.reduced.get(owner, ())) != len(made):
            return None
        for (group, index), digest in zip(made, round_.reduced.get(owner, ()), strict=False):
            digests[group][index] = digest
    if not round_.circles:
        return (_root(digests[:1], layout.chunks),)
    return tuple(_circles_root(round_, digests, layout.chunks, made) for made in results_of(round_.circles))


def _circles_root(round_: Round, digests: Sequence[dict[int, bytes]], chunks: int, made: Made) -> str:
    """Return the root of what some circles make together: of all chunks that they are about."""
    count = sum(len(round_.circles[number].chunks(chunks)) for number in made.circles)
    return _root([digests[number] for number in made.circles], count)


def _root(parts: Iterable[dict[int, bytes]], chunks: int) -> str:
    """Return the root over all chunks of a result, whoever made them; an empty word where some are missing."""
    whole = {index: digest for part in parts for index, digest in part.items()}
    return result_root(whole[index] for index in sorted(whole)) if len(whole) == chunks else ""


def _given(round_: Round) -> list[bool]:
    """Return of each circle, or of the one result, whether there is anything in it."""
    contributors = {c.peer for c in round_.settled or ()}
    return [not contributors.isdisjoint(circle.givers) for circle in round_.circles] or [True]


def _gathered(broker: Broker, round_: Round) -> str | None:
    """Return what most have made of it, once everybody has who is here and got all contributions."""
    live = broker.present.keys() & set(round_.announced.members)
    if any(owner not in round_.holding for owner in round_.owners if owner in live):
        return None
    counts = Counter(round_.holding[owner] for owner in round_.owners if owner in round_.holding)
    return max(sorted(counts), key=lambda root: counts[root], default=None)


def _differing(round_: Round, root: str) -> list[Action]:
    """Return a word about everybody who made another result of the same contributions: it will fetch this one."""
    odd = [p for p in round_.owners if round_.gather and round_.holding.get(p, root) != root]
    why = "it made another result of the same contributions than most did, and fetches theirs"
    return [Note(journal.MessageRefused(who=short(p), why=why)) for p in odd]


def _all_held(broker: Broker, round_: Round, roots: tuple[str, ...]) -> bool:
    """Return whether enough of those who are to apply it hold the result, or each circle's."""
    takers = [made.takers for made in results_of(round_.circles)] or [round_.announced.members]
    return all(_held(broker, round_, root, those) for root, those in zip(roots, takers, strict=True) if root)


def _held(broker: Broker, round_: Round, root: str, takers: tuple[bytes, ...]) -> bool:
    live = sum(peer in broker.present for peer in takers)
    holders = sum(result == root for result in round_.holding.values())
    nobody = 0 if round_.circles else 1  # what a circle made is of use to its own takers alone
    return holders >= min(HOLDERS_MIN, max(live, nobody))


def _settle(broker: Broker, round_: Round, waited: list[bytes], now_s: float) -> tuple[Broker, list[Action]]:
    """Fix the contributors: everybody who can still come has, or patience ran out.

    Who contributed to an earlier attempt is waited for a little longer: it only has to send again. Where sums are
    carried it is settled on exactly those who carry them.
    """
    among = [p for p in _asked(broker, round_) if not round_.carried or p in round_.owners]
    spoken_for = _spoken_for(round_)
    lacking = [p for p in among if p not in round_.serials and p not in round_.spoiled and p not in spoken_for]
    open_ = [p for p in lacking if p in broker.present or p in waited]
    why = _overdue(broker, round_, open_, now_s) if open_ else "everybody present contributed"
    wake: list[Action] = []
    if not why and (due := quorum(broker, round_, open_)) is not None:
        due_s, told = due
        if any(_waits(broker, p) for p in open_):  # who was late for the last round has nothing else to do
            due_s = max(due_s, round_.moved_s + resend_s(broker, round_))
        why = told if now_s >= due_s else ""
        wake = [] if why else [Wake(due_s)]
    if why and open_ and _lends(broker, round_):
        asked = [p for p in open_ if p in broker.present and p not in round_.lent]
        if round_.closing_s is None:
            return _close(broker, round_, now_s)
        if asked and now_s < round_.closing_s + resend_s(broker, round_):
            return broker, []
    in_ = [p for p in among if p in round_.serials and p not in round_.spoiled] if why else []
    in_ = in_ if round_.announced.tells is None else _tellers(round_, in_)
    if not why or len(in_) < _wanted(broker, round_):
        absent = _absent(broker, round_, now_s)
        if absent == round_.absent:
            return broker, wake
        round_ = replace(round_, absent=absent)
        broker = driven(broker, round_)
        return broker, [*wake, *tell_plan(broker, round_, round_.owners)]
    if round_.carried and len(in_) < len(round_.owners):
        out = [p for p in round_.owners if p not in in_]
        round_ = around(broker, replace(round_, late=(*round_.late, *out)), now_s)
        return replan(
            broker, round_, round_.shards, f"sums go their way without {', '.join(map(short, out))}: {why}", now_s
        )
    have = round_.lent | {p: round_.serials[p] for p in in_}
    settled = tuple(Contribution(p, have[p]) for p in among if p in have and p not in round_.spoiled)
    round_ = replace(round_, settled=settled, settled_s=now_s, moved_s=now_s)
    broker = _next_in_turn(driven(broker, round_), round_, now_s)
    note = journal.RoundSettled(
        channel=round_.key.channel,
        version=round_.key.version,
        attempt=round_.attempt,
        contributors=[short(p) for p in in_],
        why=why,
    )
    return broker, [Note(note), *tell_plan(broker, round_, concerned(round_))]


def _next_in_turn(broker: Broker, settled: Round, now_s: float) -> Broker:
    """Let the round after one that is settled be waited for from now on: until now its members worked on that."""
    version = settled.key.version + 1
    after = next((each for each in broker.rounds if each.key.version == version), None)
    if after is None:
        return broker
    took_s = {peer: max(0.0, s - (now_s - after.since_s)) for peer, s in after.took_s.items()}
    return driven(broker, replace(after, since_s=now_s, took_s=took_s))


def _lends(broker: Broker, round_: Round) -> bool:
    """Return whether who is not done lends what it has; in a round of all everybody is waited for."""
    return isinstance(broker.setting.late, StandIn) and bool(round_.circles)


def _close(broker: Broker, round_: Round, now_s: float) -> tuple[Broker, list[Action]]:
    """Ask everybody who is not done to lend what it has."""
    round_ = replace(round_, closing_s=now_s)
    broker = driven(broker, round_)
    wake = Wake(now_s + resend_s(broker, round_))
    return broker, [wake, *tell_plan(broker, round_, (p for p in round_.announced.members if p not in round_.serials))]


def _waits(broker: Broker, peer: bytes) -> bool:
    """Return whether a member does nothing before its contribution, which is ready, is in a round."""
    presence = broker.present.get(peer)
    return presence is not None and presence.standing is not None and presence.standing.waits


def _overdue(broker: Broker, round_: Round, missing: list[bytes], now_s: float) -> str:
    """Return why those who have not contributed need not be waited for any longer; empty: they are."""
    waited_s = now_s - round_.since_s
    if round_.carried and round_.settled_s and all(p in round_.took_s for p in missing):
        said = f"who had contributed before says so again within {BUSY_S:.0f} s"
        return said if now_s - round_.moved_s > BUSY_S else ""
    if waited_s < patience_s_min(broker, round_):
        return ""
    patience_s, why = patience(broker, round_)
    if waited_s < patience_s:
        return ""
    again = any(p in round_.took_s for p in missing)
    return "" if again and now_s - round_.moved_s <= resend_s(broker, round_) else why
