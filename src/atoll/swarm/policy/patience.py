"""How long a round waits, and why: from what was measured, never from a guess alone.

Known are the time members took in this round and in the ones before, the bytes they have to move and the rates of
their lines, and how long results took to get home. Each wait comes with its reason in words. A machine may be busy
with something else for a while, so no wait is shorter than the seconds named here; and the spec's ceiling is above
all of them, for the first plan: a plan that was given up is followed by one with twice the time, so that however
wrong the measures are, some plan has enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median

from msgspec.structs import replace

from atoll.spec.axes.pace import Barrier, Quorum, Seconds, Slack
from atoll.spec.axes.whom import Circles
from atoll.swarm.routes.owners import rate_of
from atoll.swarm.routes.tree import OUT
from atoll.swarm.state import Broker, Pace, Round

STALL_S = 30.0
"""A settled round may always stand still for this long."""
STALLS_MAX = 6
"""Each new plan may take twice as long as the one before, so many times."""
BUSY_S = 10.0
"""What a busy machine may lose at any time."""
LINKS_S = 30.0
"""What a member may need that was not in the last round: it has links to make, or to find that it cannot."""
FEW_S = 60.0
"""What all machines together may lose: while fewer than half have contributed."""
MEDIANS = 4
"""How many times what is usual a member may take."""
ROUNDS = 3
"""Rounds whose times are remembered."""


def patience(broker: Broker, round_: Round) -> tuple[float, str]:
    """Return how long the round may wait for its slowest member, from its beginning, and why."""
    limit_s = broker.run.upkeep.patience_s_max
    took = sorted(round_.took_s.values())
    ceiling_s = limit_s + min(took, default=0.0)
    half = 2 * len(took) >= len(round_.announced.members)
    if isinstance(broker.setting.barrier, Quorum):
        # Some may have been at work long before the round began: what others took says nothing of them.
        return ceiling_s, f"the spec's {limit_s:.0f} s after the first contribution"
    if not half and not broker.pace.work_s:
        return ceiling_s, f"fewer than half have contributed {limit_s:.0f} s after the first"
    usual_s = (median(took) if half else max(broker.pace.work_s)) + broker.pace.lead_s
    missing = [p for p in round_.announced.members if p not in round_.serials]
    wire_s, wire = _wire(broker, round_, missing)
    spare_s = FEW_S if not half else BUSY_S if set(broker.pace.seen).issuperset(missing) else LINKS_S
    derived_s = MEDIANS * usual_s + 2 * wire_s + spare_s
    whose = "the median" if half else "the last rounds' median"
    why = f"{MEDIANS} times {whose} of {usual_s:.1f} s{f', twice {wire}' if wire else ''} and {spare_s:.0f} s"
    if derived_s > ceiling_s:
        return ceiling_s, f"the spec's {limit_s:.0f} s after the first contribution"
    return derived_s, why


def quorum(broker: Broker, round_: Round, missing: Iterable[bytes]) -> tuple[float, str] | None:
    """Return when the round ends though some are missing, and why; None: not before more have contributed."""
    barrier = broker.setting.barrier
    if any(_too_far_behind(barrier, round_, peer) for peer in missing):
        return None
    if isinstance(broker.whom, Circles) and not round_.circles:
        return None  # a round of all brings all together
    came_s = _came_s(barrier, round_)
    grace = _grace(broker, barrier) if isinstance(barrier, Quorum) else None
    if came_s is None or grace is None:
        return None
    grace_s, why = grace
    return came_s + grace_s, f"{len(round_.serials)} contributed{why}"


def _too_far_behind(barrier: Barrier, round_: Round, peer: bytes) -> bool:
    """Return whether this is the last round that the others may be ahead of a member, as far as it has not ended.

    Once patience ran out for it nobody waits for it again until it has contributed: not in every round.
    """
    if not isinstance(barrier, Quorum) or barrier.lag_max is None:
        return False
    return round_.key.version - round_.announced.begun(peer) == barrier.lag_max


def _came_s(barrier: Barrier, round_: Round) -> float | None:
    """Return when enough had contributed for a round to end with; None: they have not."""
    if not isinstance(barrier, Quorum):
        return None
    in_ = {peer: s for peer, s in round_.heard_s.items() if peer in round_.serials and peer not in round_.spoiled}
    if round_.circles and not round_.announced.bases:
        return _came_to_each_s(barrier.contributors, round_, in_)
    return sorted(in_.values())[barrier.contributors - 1] if len(in_) >= barrier.contributors else None


def _came_to_each_s(enough: int, round_: Round, in_: Mapping[bytes, float]) -> float | None:
    """Return when so many of every circle had contributed, as far as they are there; None: they have not.

    Work that outlasted an earlier round ends none by itself: somebody must be done with what it was handed for this.
    """
    came = sorted(s for peer, s in in_.items() if peer not in round_.announced.since)[:1]
    for circle in round_.circles:
        there = sorted(in_[peer] for peer in circle.givers if peer in in_)
        wanted = min(enough, sum(peer not in round_.absent for peer in circle.givers))
        if not came or len(there) < wanted:
            return None
        came += there[:wanted]
    return max(came, default=None)


def _grace(broker: Broker, barrier: Quorum) -> tuple[float, str] | None:
    """Return how long a round waits for more than enough, and why; None: for all, while nobody knows the pace."""
    match barrier.grace:
        case Seconds(s=s):
            return s, f", enough {s:g} s ago" if s else ""
        case Slack(part=part):
            came = broker.pace.quorums_s
            if len(came) < 2:
                return None
            every_s = (came[-1] - came[0]) / (len(came) - 1)
            home_s = max(broker.pace.return_s, default=0.0)
            slack_s = max(0.0, every_s - home_s)
            said = f"a round is due every {every_s:.1f} s and ends in {home_s:.1f}"
            return part * slack_s, f", enough {part * slack_s:.1f} s ago: {said}"


def patience_s_min(broker: Broker, round_: Round) -> float:
    """Return what `patience` comes to at least, without a look at every member: mostly that is enough to know."""
    first_s = next(iter(round_.took_s.values()), None)  # they are in the order in which they came
    known_s = [s for s in (first_s, max(broker.pace.work_s, default=None)) if s is not None]
    ceiling_s = broker.run.upkeep.patience_s_max + (first_s or 0.0)
    return min(ceiling_s, MEDIANS * (min(known_s) + broker.pace.lead_s) + BUSY_S) if known_s else ceiling_s


def stall(broker: Broker, round_: Round) -> tuple[float, str]:
    """Return how long a settled round may stand still, and why."""
    wire_s, wire = _wire(broker, round_, round_.announced.members)
    home_s = max(broker.pace.return_s, default=0.0)
    if wire_s or home_s:
        longest = wire if wire_s >= home_s else f"the {home_s:.1f} s that results took in the last rounds"
        derived_s, why = MEDIANS * max(wire_s, home_s) + BUSY_S, f"{MEDIANS} times {longest} and {BUSY_S:.0f} s"
    else:  # not known apart from the work: what is patient with contributors is patient here
        derived_s, why = patience(broker, round_)
    derived_s = min(derived_s, max(broker.run.upkeep.patience_s_max, STALL_S))
    if derived_s < STALL_S:
        derived_s, why = STALL_S, f"{STALL_S:.0f} s that a round may always stand still"
    doublings = min(round_.attempt - round_.first_attempt, STALLS_MAX)
    return derived_s * 2.0**doublings, why + (f", doubled {doublings} times" if doublings else "")


def resend_s(broker: Broker, round_: Round) -> float:
    """Return how long a member may take that only has to send again what it had sent to an earlier plan's owners."""
    wire_s, _ = _wire(broker, round_, round_.announced.members)
    return max(STALL_S, min(MEDIANS * wire_s, broker.run.upkeep.patience_s_max))


def return_s(broker: Broker, round_: Round) -> float:
    """Return how long the busiest owner needs for what it owns, by its own measure; 0: none is known."""
    return min(_wire(broker, round_, round_.owners)[0], broker.run.upkeep.patience_s_max)


def _wire(broker: Broker, round_: Round, peers: Iterable[bytes]) -> tuple[float, str]:
    """Return the longest time that one of some members needs on the wire, by its own measure; 0: none is known."""
    moved = _moved_up_and_down(round_) if round_.trees else _moved_by_owners(broker, round_)
    bulk, took_s, moves_bytes, rate = broker.bulk, 0.0, 0.0, 0.0
    for peer in peers:
        if (own_rate := rate_of(broker, peer)) > 0:
            own_bytes = max(moved.get(peer, 0.0), bulk.chunks) * bulk.chunk_bytes
            if own_bytes / own_rate > took_s:
                took_s, moves_bytes, rate = own_bytes / own_rate, own_bytes, own_rate
    return took_s, f"the {took_s:.1f} s for {moves_bytes / 1e6:.1f} MB at {rate / 1e6:.1f} MB/s" if took_s else ""


def _moved_by_owners(broker: Broker, round_: Round) -> dict[bytes, float]:
    """Return how many chunks each owner sends, or receives: its own, and what it owns of others."""
    more, owned, own = max(_gathered_by_one(round_) - 2, 0), Counter[bytes](), broker.bulk.chunks
    for shard in round_.shards:
        owned[shard.owner] += shard.count
    return {peer: own + more * chunks for peer, chunks in owned.items()}


def _moved_up_and_down(round_: Round) -> dict[bytes, float]:
    """Return how many chunks each member of trees sends, or receives: over each of its links as many as go up there."""
    members, moved = round_.announced.members, dict.fromkeys(round_.announced.members, 0.0)
    for tree in round_.trees:
        for place, above in enumerate(tree.up):
            if above not in (place, OUT):
                moved[members[place]] += tree.chunks
                moved[members[above]] += tree.chunks
    return moved


def _gathered_by_one(round_: Round) -> float:
    """Return how many contributions pass through an owner of everything."""
    if round_.circles:
        return max(len(circle.givers) for circle in round_.circles)
    groups = 1 if round_.gather else 1 + max(shard.group for shard in round_.shards)
    largest = max(Counter(round_.announced.regions).values(), default=len(round_.announced.members) / groups)
    return largest + 2 * (groups - 1) / groups


def remember(broker: Broker, round_: Round, held_s: float) -> Broker:
    """Return the broker with the times of a round that is about to be committed."""
    came_s = _came_s(broker.setting.barrier, round_)
    pace = Pace(
        work_s=(*broker.pace.work_s, median(round_.took_s.values()))[-ROUNDS:] if round_.took_s else broker.pace.work_s,
        return_s=(*broker.pace.return_s, held_s - round_.settled_s)[-ROUNDS:],
        seen=tuple(c.peer for c in round_.settled or ()),
        quorums_s=(*broker.pace.quorums_s, came_s)[-ROUNDS:] if came_s is not None else (),
        lead_s=held_s - round_.began_s if round_.announced.ahead else 0.0,
    )
    return replace(broker, pace=pace)
