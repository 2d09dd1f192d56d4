"""What a peer's journal says about each record of the log: the ledger that an audit reads.

Every peer writes these lines when it learns a record, so that any two journals tell the whole story: which ranges
of the global order were handed out, which were counted, which went back, and who decided when.
"""

from __future__ import annotations

from atoll import journal
from atoll.net.identity import short
from atoll.swarm import lease
from atoll.swarm.lease import Lease
from atoll.swarm.log import (
    ClosedRound,
    EpochStarted,
    History,
    KnobsTurned,
    OpenRound,
    Record,
    RoundAnnounced,
    RoundCommitted,
    RoundVoided,
    RunFinished,
)


def events_of(
    before: History, after: History, record: Record, tokens_per_sample: int, round_s: float
) -> list[journal.Event]:
    """Return the journal's lines for a record that was learned: mostly one, or none."""
    match record:
        case RoundAnnounced():
            return [_announced(after.under_way[-1])]
        case RoundCommitted():
            assert before.open is not None
            assert after.last is not None
            return [_committed(before.open, after.last, tokens_per_sample, round_s)]
        case RoundVoided():
            return [_voided(each) for each in before.under_way[len(after.under_way) :]]
        case KnobsTurned() as turn:
            return [_turned(turn)]
        case EpochStarted(epoch=epoch, broker=broker):
            return [journal.EpochStarted(epoch=epoch, broker=short(broker))]
        case RunFinished():
            tokens = before.samples * tokens_per_sample
            return [journal.RunFinished(version=before.version, samples=before.samples, tokens=tokens)]
        case _:
            return []


def _voided(opened: OpenRound) -> journal.RoundVoided:
    returned = _pairs(lease.give_back((), [opened.ranges]))
    return journal.RoundVoided(channel=opened.key.channel, version=opened.key.version, returned=returned)


def _turned(turn: KnobsTurned) -> journal.KnobsTurned:
    knobs = turn.knobs
    return journal.KnobsTurned(
        channel=turn.channel,
        version=turn.version,
        steps=knobs.steps,
        rung=knobs.rung,
        delay=knobs.delay,
        lr=knobs.lr,
        samples=knobs.samples,
        why=turn.why,
        each={short(peer): rung for peer, rung in knobs.each},
    )


def _announced(opened: OpenRound) -> journal.RoundAnnounced:
    handed = _pairs(lease.give_back((), [opened.ranges]))
    return journal.RoundAnnounced(
        channel=opened.key.channel,
        version=opened.key.version,
        members=[short(p) for p in opened.members],
        samples=sum(count for _, count in handed),
        first=handed[0][0],
        handed=handed,
        ahead=_pairs(lease.give_back((), [opened.ahead])),
    )


def _committed(
    opened: OpenRound, closed: ClosedRound, tokens_per_sample: int, round_s: float
) -> journal.RoundCommitted:
    carried = lease.give_back((), [opened.lease_of(peer) for peer in closed.carried])
    unused = lease.give_back(closed.returned, [carried])
    counted = lease.without(lease.give_back((), [opened.ranges]), unused)
    samples = lease.size(counted)
    return journal.RoundCommitted(
        channel=closed.key.channel,
        version=closed.key.version,
        contributors=[short(p) for p in closed.contributors],
        samples=samples,
        tokens=samples * tokens_per_sample,
        result=closed.result,
        circles=list(closed.circles),
        round_s=round_s,
        counted=_pairs(counted),
        returned=_pairs(closed.returned),
        carried=_pairs(carried),
        staleness=list(closed.stale) if any(closed.stale) else [],
    )


def _pairs(ranges: Lease) -> list[tuple[int, int]]:
    return [(r.first, r.count) for r in ranges]
