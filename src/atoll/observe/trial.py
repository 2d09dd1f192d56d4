"""One recipe's trial, folded from its journal: where the loss stood after which tokens, time and bytes.

A trial is a run that is looked at beside others, so everything is counted from the same moment: the first round's
announcement. Bytes are those of the peer that moved most by then, sent and received, control and state included. What
share of the time peers computed is the sum of their slices of work over the sum of their presence. Nothing here knows
in which world the journal was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import Struct

from atoll import journal
from atoll.journal import Line
from atoll.observe.granularity import of_run
from atoll.observe.progress import PeerProgress, Progress


class Point(Struct, frozen=True, kw_only=True):
    """The model after one round, on the held-out samples of a look: the same at every look, so that points compare."""

    version: int
    tokens: int
    at_s: float
    worst_bytes: int
    loss: float


class Trial(Struct, frozen=True, kw_only=True):
    """What one recipe came to."""

    label: str
    peers: int
    points: tuple[Point, ...]
    held_out: float | None
    """Held-out loss at the end, on all held-out text; None: not a number."""
    tokens: int
    rounds: int
    contributors: float
    """In a round, on average."""
    steps: int
    """Local steps of the member that took most."""
    took_s: float
    computing: float
    """Share of the peers' time in which they computed."""
    granularity: float | None
    """How long rounds worked, as a multiple of everything else in them; None: not told."""
    sent_bytes: int
    """Of the peer that moved most."""
    received_bytes: int
    missed: int
    """Contributions that came too late and were done again."""
    finished: bool
    why: str = ""
    """It was not finished."""
    apart: tuple[tuple[int, float], ...] = ()
    """How far from the mean that they took peers' weights were, as a part of its length, after so many tokens.

    Only of rounds in which whole models were averaged."""
    rounds_split: int = 0
    """Rounds after which peers had different anchors, by their digests: none where one is common."""
    staleness_max: int = 0
    """The most rounds that were committed between the beginning of work and its own."""

    @property
    def worst_bytes(self) -> int:
        return self.sent_bytes + self.received_bytes


@dataclass
class _Presence:
    """When one peer was there, and how long it computed."""

    since_s: float | None = None
    here_s: float = 0.0
    computed_s: float = 0.0
    steps: dict[int, int] = field(default_factory=dict)
    moved: dict[int, int] = field(default_factory=dict)
    """Bytes by the newest version at the time."""


def fold_trial(label: str, lines: Iterable[Line]) -> Trial:
    """Return what the journal lines of one run, in the order of their writing, come to."""
    progress, peers = Progress(), dict[str, _Presence]()
    looks: dict[int, journal.Evaluated] = {}
    apart: dict[int, list[float]] = {}
    anchors: dict[int, dict[str, str]] = {}
    newest, stopped = 0, ""
    for line in lines:
        progress.add(line)
        presence = peers.setdefault(line.peer, _Presence())
        if isinstance(line.event, journal.PeerStopped):
            stopped = line.event.why
        match line.event:
            case journal.Evaluated(version=version) as look:
                looks.setdefault(version, look)
            case journal.RoundCommitted(version=version):
                newest = max(newest, version)
            case journal.RoundApplied(version=version, anchor=anchor, apart=distance):
                anchors.setdefault(version, {})[line.peer] = anchor
                if distance:
                    apart.setdefault(version, []).append(distance)
            case journal.TrafficCounted():
                presence.moved[newest] = _moved(progress.peers[line.peer])
            case _:
                _take(presence, line)
    began_s = min((r.announced_s for r in progress.rounds.values() if r.announced_s is not None), default=0.0)
    ended_s = max((r.committed_s for r in progress.rounds.values() if r.committed_s is not None), default=began_s)
    busiest = max(progress.peers.values(), key=_moved, default=None)
    return Trial(
        label=label,
        peers=len(peers),
        points=tuple(
            _point(progress, peers, began_s, version, look.loss)
            for version, look in sorted(looks.items())
            if look.loss is not None
        ),
        held_out=progress.held_out.get(progress.version),
        tokens=progress.tokens,
        rounds=progress.version,
        contributors=_contributors(progress),
        steps=max((sum(peer.steps.values()) for peer in peers.values()), default=0),
        took_s=ended_s - began_s,
        computing=_computing(peers.values(), began_s, ended_s),
        granularity=of_run(progress),
        sent_bytes=busiest.sent_bytes if busiest else 0,
        received_bytes=busiest.received_bytes if busiest else 0,
        missed=sum(peer.dropped for peer in progress.peers.values()),
        finished=progress.finished is not None,
        why="" if progress.finished is not None else stopped,
        apart=tuple((_tokens(progress, version), sum(each) / len(each)) for version, each in sorted(apart.items())),
        rounds_split=sum(len({*each.values()}) > 1 for each in anchors.values()),
        staleness_max=max((age for each in progress.rounds.values() for age in each.staleness), default=0),
    )


def _tokens(progress: Progress, version: int) -> int:
    """Return the tokens in all rounds up to a version."""
    return sum(each.tokens for number, each in progress.rounds.items() if number <= version and each.committed_s)


def _contributors(progress: Progress) -> float:
    counts = [len(each.contributors) for each in progress.rounds.values() if each.committed_s is not None]
    return sum(counts) / len(counts) if counts else 0.0


def _moved(peer: PeerProgress) -> int:
    """Return what a peer sent and received so far."""
    return peer.sent_bytes + peer.received_bytes


def _take(presence: _Presence, line: Line) -> None:
    match line.event:
        case journal.PeerStarted():
            _close(presence, line.at_s)
            presence.since_s = line.at_s
        case journal.PeerStopped():
            _close(presence, line.at_s)
        case journal.WorkProgressed() as work:
            presence.computed_s += work.took_s
            presence.steps[work.version] = work.steps
        case _:
            pass


def _close(presence: _Presence, at_s: float) -> None:
    """End a life that was open: it stopped, or its next one began after a crash."""
    if presence.since_s is not None:
        presence.here_s += at_s - presence.since_s
        presence.since_s = None


def _point(progress: Progress, peers: dict[str, _Presence], began_s: float, version: int, loss: float) -> Point:
    """Return where the run stood when it had made `version`."""
    rounds = {number: each for number, each in progress.rounds.items() if number <= version}
    committed_s = max((each.committed_s or began_s for each in rounds.values()), default=began_s)
    moved = [max((b for at, b in peer.moved.items() if at <= version), default=0) for peer in peers.values()]
    return Point(
        version=version,
        tokens=sum(each.tokens for each in rounds.values() if each.committed_s is not None),
        at_s=committed_s - began_s,
        worst_bytes=max(moved, default=0),
        loss=loss,
    )


def _computing(peers: Iterable[_Presence], began_s: float, ended_s: float) -> float:
    """Return the share of their presence in which peers computed; none is there before or after the rounds."""
    here_s = computed_s = 0.0
    for peer in peers:
        open_s = ended_s - peer.since_s if peer.since_s is not None else 0.0
        here_s += min(peer.here_s + open_s, ended_s - began_s)
        computed_s += peer.computed_s
    return min(1.0, computed_s / here_s) if here_s > 0 else 0.0


def gain_kept(loss: float | None, solo: float | None, together: float | None) -> float | None:
    """Return how much of what DDP gains over one peer alone a recipe keeps; None where DDP gains nothing."""
    if loss is None or solo is None or together is None or solo <= together:
        return None
    return (solo - loss) / (solo - together)
