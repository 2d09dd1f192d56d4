"""What a peer's journal says about each record of the log: the ledger that an audit reads.

Every peer writes these lines when it learns a record, so that any two journals tell the whole story: which ranges
of the global order were handed out, which were counted, which went back, and who decided when.
"""

from __future__ import annotations

from collections.abc import Iterable

from atoll import journal
from atoll.swarm import lease
from atoll.swarm.lease import Lease
from atoll.swarm.log import EpochStarted, History, Record, RoundAnnounced, RoundCommitted, RoundVoided, RunFinished
from atoll.swarm.state import short


def event_of(before: History, record: Record, tokens_per_sample: int, round_s: float) -> journal.Event | None:
    """Return the journal's line for a record that was learned, or None where it has none."""
    match record:
        case RoundAnnounced():
            return _announced(record)
        case RoundCommitted():
            return _committed(before, record, tokens_per_sample, round_s)
        case RoundVoided(key=key):
            assert before.open is not None
            returned = _ranges(before.open.leases)
            return journal.RoundVoided(channel=key.channel, version=key.version, returned=returned)
        case EpochStarted(epoch=epoch, broker=broker):
            return journal.EpochStarted(epoch=epoch, broker=short(broker))
        case RunFinished():
            tokens = before.samples * tokens_per_sample
            return journal.RunFinished(version=before.version, samples=before.samples, tokens=tokens)
        case _:
            return None


def _announced(record: RoundAnnounced) -> journal.RoundAnnounced:
    handed = _ranges(record.leases)
    return journal.RoundAnnounced(
        channel=record.key.channel,
        version=record.key.version,
        members=[short(p) for p in record.members],
        samples=sum(count for _, count in handed),
        first=handed[0][0],
        handed=handed,
    )


def _committed(
    before: History, record: RoundCommitted, tokens_per_sample: int, round_s: float
) -> journal.RoundCommitted:
    announced = before.open
    assert announced is not None
    used = set(record.contributors)
    pairs = list(zip(announced.members, announced.leases, strict=True))
    counted = _ranges(one for peer, one in pairs if peer in used)
    samples = sum(count for _, count in counted)
    return journal.RoundCommitted(
        channel=record.key.channel,
        version=record.key.version,
        contributors=[short(p) for p in record.contributors],
        samples=samples,
        tokens=samples * tokens_per_sample,
        result=record.result,
        round_s=round_s,
        counted=counted,
        returned=_ranges(one for peer, one in pairs if peer not in used),
    )


def _ranges(leases: Iterable[Lease]) -> list[tuple[int, int]]:
    return [(r.first, r.count) for r in lease.give_back((), leases)]
