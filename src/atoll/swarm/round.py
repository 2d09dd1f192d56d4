"""How the broker brings an open round to its end.

    contribute -> settle -> reduce -> hold -> commit
        ^            |        |        |
        +---- replan: an owner died, a contribution was recomputed or spoiled, nothing moved

Whatever goes wrong before the commit is mended by a new plan with a larger attempt. Contributions are kept by
their makers until commit, so owners can be replaced at any time, in the end by the broker itself, which
everybody can reach.
"""

from __future__ import annotations

from statistics import median

from msgspec.structs import replace

from atoll import journal
from atoll.swarm.log import RoundAnnounced, RoundCommitted, RoundVoided, result_root
from atoll.swarm.messages import Contributed, Contribution, Holding, Plan, Reduced, Spoiled, Stuck
from atoll.swarm.state import Action, Broker, Note, Round, Tell, Write, expected, short

STALL_S = 30.0
"""A settled round that nothing moves for this long, or for as long as patience, is planned anew around the broker."""
STALLS_MAX = 6
"""Each new plan may take twice as long as the one before, so many times."""
HOLDERS_MIN = 2
"""Members that must have a result on disk before it is committed (as many as there are, if fewer)."""


def open_round(broker: Broker, announced: RoundAnnounced, now_s: float) -> tuple[Broker, list[Action]]:
    """Begin to plan an announced round: every member that can be reached owns a share."""
    owners = tuple(p for p in announced.members if p in broker.present) or announced.members
    number = broker.attempts
    round_ = Round(
        announced=announced, began_s=now_s, moved_s=now_s, attempt=number, first_attempt=number, owners=owners
    )
    broker = replace(broker, round=round_, attempts=number + 1)
    return broker, tell_plan(broker, round_)


def replan(
    broker: Broker, round_: Round, owners: tuple[bytes, ...], why: str, now_s: float
) -> tuple[Broker, list[Action]]:
    """Start the exchange of the open round again with other owners or another set of contributors."""
    round_ = replace(
        round_,
        attempt=broker.attempts,
        owners=owners,
        settled=None,
        serials={},
        reduced={},
        holding={},
        moved_s=now_s,
    )
    broker = replace(broker, round=round_, attempts=broker.attempts + 1)
    event = journal.RoundReplanned(
        channel=round_.key.channel, version=round_.key.version, attempt=round_.attempt, why=why
    )
    return broker, [Note(event), *tell_plan(broker, round_)]


def tell_plan(broker: Broker, round_: Round) -> list[Action]:
    """Tell everybody who has a part in the round: its members, and the broker where it owns shards for them."""
    concerned = (*round_.announced.members, *(p for p in round_.owners if p not in round_.announced.members))
    return [Tell(peer, plan_of(broker, round_)) for peer in concerned if peer in broker.present]


def plan_of(broker: Broker, round_: Round) -> Plan:
    return Plan(round_.key, broker.epoch, round_.attempt, round_.owners, round_.settled)


def advance(
    broker: Broker, round_: Round, peer: bytes, message: Contributed | Reduced | Holding | Spoiled | Stuck, now_s: float
) -> tuple[Broker, list[Action]]:
    """Note a member's part in the present attempt."""
    match message:
        case Contributed(serial=serial):
            took_s = round_.took_s | {peer: round_.took_s.get(peer, now_s - round_.began_s)}
            round_ = replace(round_, serials=round_.serials | {peer: serial}, took_s=took_s, moved_s=now_s)
            if round_.settled is not None and Contribution(peer, serial) not in round_.settled:
                return replan(broker, round_, round_.owners, f"{short(peer)} computed its contribution anew", now_s)
        case Reduced(digests=digests):
            round_ = replace(round_, reduced=round_.reduced | {peer: digests}, moved_s=now_s)
        case Holding(result=result):
            round_ = replace(round_, holding=round_.holding | {peer: result}, moved_s=now_s)
        case Spoiled(peer=culprit, why=why):
            if culprit not in round_.announced.members or culprit in round_.spoiled or peer not in round_.owners:
                return broker, []
            round_ = replace(round_, spoiled=(*round_.spoiled, culprit))
            return replan(broker, round_, round_.owners, f"contribution of {short(culprit)} refused: {why}", now_s)
        case Stuck(owner=owner):
            if owner in round_.owners and round_.settled is None:
                owners = tuple(p for p in round_.owners if p != owner) or (broker.me,)
                return replan(broker, round_, owners, f"{short(peer)} cannot reach {short(owner)}", now_s)
    return replace(broker, round=round_), []


def drive(broker: Broker, round_: Round, now_s: float) -> tuple[Broker, list[Action]]:
    """Move the open round on: commit it, settle it, or mend it."""
    live = [p for p in round_.announced.members if p in broker.present]
    waited = [p for p in round_.announced.members if p not in broker.present and expected(broker, p, now_s)]
    if round_.settled is not None:
        root = _root(round_)
        if root is not None and _held(round_, root, len(live)):
            contributors = tuple(c.peer for c in round_.settled)
            return replace(broker, pending=True), [Write(RoundCommitted(round_.key, contributors, root))]
    # Who is leaving itself gives nothing up: the round goes on when everybody is back.
    leaving = broker.me not in broker.present
    if not leaving and len(_possible(broker, round_, now_s)) < broker.run.membership.contributors_min:
        return replace(broker, pending=True), [Write(RoundVoided(round_.key))]
    dead = [p for p in round_.owners if p not in broker.present and p not in waited]
    if dead:
        owners = tuple(live) or (broker.me,)
        return replan(broker, round_, owners, f"owner {short(dead[0])} is gone", now_s)
    if round_.settled is None:
        return _settle(broker, round_, live, waited, now_s)
    limit_s = stall_s(broker, round_)
    if now_s - round_.moved_s > limit_s:
        return replan(broker, round_, (broker.me,), f"nothing moved for {limit_s:.0f} s", now_s)
    return broker, []


def _possible(broker: Broker, round_: Round, now_s: float) -> list[bytes]:
    """Return who may still contribute: not refused, and here, or away for so short that it may well be back."""
    return [
        peer
        for peer in round_.announced.members
        if peer not in round_.spoiled
        and (peer in broker.present or peer in round_.serials or now_s - broker.away_s.get(peer, now_s) < STALL_S)
    ]


def stall_s(broker: Broker, round_: Round) -> float:
    """Return how long a settled round may stand still.

    Results take as long to return as contributions took to send, and that is not known apart from the work; so
    what is patient with contributors is patient here. A plan that was given up is followed by one with more time:
    however slow the links, some plan has enough.
    """
    patience_s, _ = patience(broker, round_)
    return max(STALL_S, patience_s) * 2.0 ** min(round_.attempt - round_.first_attempt, STALLS_MAX)


def _root(round_: Round) -> str | None:
    """Return the digest root of the result once every owner has reported."""
    if any(owner not in round_.reduced for owner in round_.owners):
        return None
    return result_root(digest for owner in round_.owners for digest in round_.reduced[owner])


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
        contributors=[short(p) for p in in_],
        why="everybody present contributed" if not open_ else why,
    )
    return broker, [Note(note), *tell_plan(broker, round_)]


def patience(broker: Broker, round_: Round) -> tuple[float, str]:
    """Return how long the round may wait for its slowest member, and why.

    Until half have contributed little is known, and the spec's ceiling holds, counted from the first contribution;
    then four times the median of what they took, and ten seconds for the wire.
    """
    limit_s = broker.run.upkeep.patience_s_max
    took = sorted(round_.took_s.values())
    ceiling_s = limit_s + min(took, default=0.0)
    if 2 * len(took) < len(round_.announced.members):
        return ceiling_s, f"fewer than half have contributed {limit_s:.0f} s after the first"
    derived_s = 4 * median(took) + 10
    why = f"four times the median of {median(took):.1f} s and 10 s"
    return min(ceiling_s, derived_s), why
