"""How a run stands, folded from the journals of its peers.

No clock, no files, no terminal: lines in, numbers out, so that the live view, the report and the tests read the same
record the same way, and a simulated run looks like a real one. Lines of several peers may come in any interleaving;
what one peer wrote keeps its order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from atoll import journal
from atoll.journal import Line
from atoll.spec.run import Run
from atoll.units import say_bytes, say_time

EVENTS_KEPT = 200
"""The view shows the last few; a report needs no more than these."""


@dataclass
class PeerProgress:
    """One peer, as its own journal tells."""

    name: str
    state: str = "starting"
    device: str = ""
    version: int = 0
    """The anchor it holds."""
    working_on: int = 0
    """The round it works on or last worked on."""
    steps: int = 0
    steps_of: int = 0
    loss: float | None = None
    tokens_s: float = 0.0
    """Of the last slice of work."""
    tokens: int = 0
    """Trained on since the start, committed or not."""
    sent_bytes: int = 0
    received_bytes: int = 0
    round_sent_bytes: int = 0
    dropped: int = 0
    """Contributions of its own that missed their round."""
    heard_s: float = 0.0
    over: bool = False
    complete: bool = False
    """It stayed until the run was finished."""
    _before_bytes: tuple[int, int, int] = (0, 0, 0)
    """Traffic of earlier lives: counters begin at zero after a restart."""


@dataclass
class RoundProgress:
    """One round of a channel."""

    announced_s: float | None = None
    committed_s: float | None = None
    contributors: tuple[str, ...] = ()
    members: int = 0
    tokens: int = 0
    samples: int = 0
    staleness: tuple[int, ...] = ()
    """Of each contributor, how many rounds were committed since its lease was handed out."""
    loss_sum: float = 0.0
    loss_tokens: int = 0
    worked_s: dict[str, float] = field(default_factory=dict)
    """How long each peer worked for it."""

    @property
    def loss(self) -> float | None:
        """Mean training loss per token over everybody's work for this round."""
        return self.loss_sum / self.loss_tokens if self.loss_tokens else None


@dataclass
class Progress:
    """A whole run."""

    run: str = ""
    peers: dict[str, PeerProgress] = field(default_factory=dict)
    rounds: dict[int, RoundProgress] = field(default_factory=dict)
    held_out: dict[int, float] = field(default_factory=dict)
    """Held-out loss by version."""
    first_s: float | None = None
    last_s: float = 0.0
    finished: journal.RunFinished | None = None
    ticket: str = ""
    checkpoint: str = ""
    turns: dict[int, journal.KnobsTurned] = field(default_factory=dict)
    """How a policy turned the run's knobs, by the round from which on they stand so; everybody writes the same."""
    lost: list[tuple[str, str]] = field(default_factory=list)
    """Who was lost, and how it was noticed."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    events: list[tuple[float, str, str]] = field(default_factory=list)
    """When, which peer says so, in plain words."""

    @property
    def version(self) -> int:
        """The highest round that is committed; who reads only a member's journal knows it from what was applied."""
        committed = [version for version, each in self.rounds.items() if each.committed_s is not None]
        return max([*committed, *(peer.version for peer in self.peers.values())], default=0)

    @property
    def tokens(self) -> int:
        """Tokens in committed rounds; without the broker's journal, those that the peers at hand worked on."""
        committed = sum(each.tokens for each in self.rounds.values() if each.committed_s is not None)
        return committed or sum(peer.tokens for peer in self.peers.values())

    @property
    def tokens_s(self) -> float:
        """Tokens per second of all peers at work, as of their last slices."""
        return sum(peer.tokens_s for peer in self.peers.values() if not peer.over)

    @property
    def sent_bytes(self) -> int:
        return sum(peer.sent_bytes for peer in self.peers.values())

    @property
    def loss(self) -> float | None:
        """Training loss of the latest round that has one."""
        return next((each.loss for _, each in sorted(self.rounds.items(), reverse=True) if each.loss is not None), None)

    @property
    def losses(self) -> list[float]:
        """Training loss, round by round."""
        return [each.loss for _, each in sorted(self.rounds.items()) if each.loss is not None]

    @property
    def state(self) -> str:
        """One word or two for the run as a whole."""
        if self.finished:
            return "finished"
        if not self.peers:
            return "waiting for peers"
        if all(peer.over for peer in self.peers.values()):
            return "finished" if all(peer.complete for peer in self.peers.values()) else "stopped"
        return "training" if self.rounds else "gathering"

    @property
    def over(self) -> bool:
        """True when every peer seen has stopped."""
        return bool(self.peers) and all(peer.over for peer in self.peers.values())

    def add(self, line: Line) -> None:
        """Take one more line in."""
        peer = self.peers.setdefault(line.peer, PeerProgress(line.peer))
        peer.heard_s = max(peer.heard_s, line.at_s)
        self.first_s = line.at_s if self.first_s is None else min(self.first_s, line.at_s)
        self.last_s = max(self.last_s, line.at_s)
        self._take(peer, line)
        words = say(line)
        if words:
            self.events.append((line.at_s, line.peer, words))
            del self.events[:-EVENTS_KEPT]

    def _take(self, peer: PeerProgress, line: Line) -> None:
        match line.event:
            case journal.RoundAnnounced(version=version, members=members):
                entry = self._round(version)
                entry.announced_s = line.at_s if entry.announced_s is None else min(entry.announced_s, line.at_s)
                entry.members = len(members)
            case journal.RoundCommitted() as committed:
                entry = self._round(committed.version)
                if entry.committed_s is None:  # a new broker may say it again
                    entry.committed_s = line.at_s
                    entry.contributors = tuple(committed.contributors)
                    entry.tokens, entry.samples = committed.tokens, committed.samples
                    entry.staleness = tuple(committed.staleness)
            case journal.Evaluated(version=version, loss=loss):
                if loss is not None:
                    self.held_out[version] = loss
            case journal.PeerLost(who=who, why=why):
                self.lost.append((who, why))
            case journal.JoinRefused(who=who, why=why) | journal.MessageRefused(who=who, why=why):
                self.refused.append((who, why))
            case journal.RunFinished() as finished:
                self.finished = finished
            case journal.TicketPrinted(ticket=ticket):
                self.ticket = ticket
            case journal.KnobsTurned(version=version) as turn:
                self.turns[version] = turn
            case _:
                self._take_of_peer(peer, line)

    def _take_of_peer(self, peer: PeerProgress, line: Line) -> None:
        match line.event:
            case journal.PeerStarted() as started:
                self.run = self.run or started.run
                peer.device, peer.over, peer.state = started.device, False, "started"
                peer.version = started.resumed_version or 0
                peer._before_bytes = (peer.sent_bytes, peer.received_bytes, peer.round_sent_bytes)
            case journal.WorkProgressed() as work:
                peer.working_on, peer.steps, peer.steps_of = work.version, work.steps, work.steps_of
                peer.loss, peer.tokens = work.loss, peer.tokens + work.tokens
                peer.tokens_s = work.tokens / work.took_s if work.took_s > 0 else 0.0
                peer.state = "working"
                entry = self._round(work.version)
                entry.worked_s[peer.name] = entry.worked_s.get(peer.name, 0.0) + work.took_s
                if work.loss is not None:
                    entry.loss_sum += work.loss * work.tokens
                    entry.loss_tokens += work.tokens
            case journal.ContributionSent():
                peer.state = "exchanging"
            case journal.RoundApplied(version=version, fetched=fetched):
                peer.version, peer.state = version, "fetched" if fetched else "applied"
            case journal.RoundPassedOver(version=version):
                peer.version, peer.state = version, "went on"
            case journal.ContributionDropped():
                peer.dropped += 1
            case journal.StateFetched(version=version) | journal.StateHealed(version=version):
                peer.version, peer.state = version, "caught up"
            case journal.TrafficCounted() as traffic:
                sent, received, round_sent = peer._before_bytes
                peer.sent_bytes = sent + traffic.sent_bytes
                peer.received_bytes = received + traffic.received_bytes
                peer.round_sent_bytes = round_sent + traffic.round_sent_bytes
            case journal.CheckpointSaved(path=path):
                self.checkpoint = path
            case journal.PeerStopped(finished=finished):
                peer.over, peer.complete, peer.state = True, finished, "stopped"
            case _:
                pass

    def _round(self, version: int) -> RoundProgress:
        return self.rounds.setdefault(version, RoundProgress())


def fold(lines: Iterable[Line]) -> Progress:
    """Return how a run stands after `lines`."""
    progress = Progress()
    for line in lines:
        progress.add(line)
    return progress


def part_done(progress: Progress, run: Run | None) -> float | None:
    """Return how much of the budget is committed, 0 to 1; None when the budget is not known."""
    if progress.finished:
        return 1.0
    if run is None:
        return None
    if run.budget.rounds:
        return min(1.0, progress.version / run.budget.rounds)
    return min(1.0, progress.tokens / run.budget.tokens)


def round_s(progress: Progress, *, of_last: int = 5) -> float | None:
    """Return how long a round takes: the mean over the last few commits; None before the second."""
    commits = sorted(each.committed_s for each in progress.rounds.values() if each.committed_s is not None)[
        -of_last - 1 :
    ]
    return (commits[-1] - commits[0]) / (len(commits) - 1) if len(commits) > 1 else None


def left_s(progress: Progress, run: Run | None, now_s: float) -> float | None:
    """Return how long the rest will take at the pace of the last rounds; None while that cannot be said."""
    pace_s, done = round_s(progress), part_done(progress, run)
    if pace_s is None or not done or done >= 1.0:
        return None
    rounds_left = progress.version * (1.0 - done) / done
    newest_s = max((each.committed_s or 0.0) for each in progress.rounds.values())
    return max(0.0, rounds_left * pace_s - max(0.0, now_s - newest_s))


def say(line: Line) -> str | None:
    """Return an event in plain words, or None when it is not news to a person."""
    match line.event:
        case journal.PeerStarted(resumed_version=version) if version:
            return f"came back from its disk at round {version}"
        case journal.PeerStarted(organiser=True):
            return "opened the run"
        case journal.PeerStopped(why=why):
            return f"stopped: {why}"
        case journal.PeerJoined(who=who):
            return f"{who} joined"
        case journal.PeerLeft(who=who, why=why):
            return f"{who} left" + (f": {why}" if why else "")
        case journal.PeerLost(who=who, why=why):
            return f"lost {who}: {why}"
        case journal.BrokerMissing(asked=asked, hint=hint):
            return f"nobody leads the run, of {asked} asked: {hint}"
        case journal.JoinRefused(who=who, why=why):
            return f"refused {who}: {why}"
        case journal.MessageRefused(who=who, why=why):
            return f"refused a message of {who}: {why}"
        case journal.RoundReplanned(version=version, why=why):
            return f"round {version} was planned again: {why}"
        case journal.RoundCommitted(version=version, contributors=contributors, round_s=took_s):
            took = f" in {say_time(took_s)}" if took_s else ""
            return f"round {version} committed with {len(contributors)} contributions{took}"
        case journal.KnobsTurned(version=version, steps=steps, samples=samples):
            batch = f", {samples} samples in a batch" if samples else ""
            return f"from round {version} on {steps} steps between exchanges{batch}"
        case journal.ContributionDropped(version=version):
            return f"missed round {version}; its samples went back"
        case _:
            return _say_state(line)


def _say_state(line: Line) -> str | None:
    match line.event:
        case journal.StateFetched(version=version, size_bytes=size, took_s=took_s):
            return f"fetched the state of round {version} ({say_bytes(size)} in {say_time(took_s)})"
        case journal.RoundVoided(version=version):
            return f"round {version} was given up: too few of its members are left"
        case journal.CatchUpFailed(version=version, why=why):
            return f"could not get round {version} from anybody: {why}"
        case journal.StateHealed(version=version):
            return f"differed at round {version} and downloaded the right state"
        case journal.PrivateStateReset(why=why):
            return f"started its inner optimizer anew: {why}"
        case journal.Evaluated(version=version, loss=loss):
            said = "not a number" if loss is None else f"{loss:.3f}"
            return f"held-out loss {said} at round {version}"
        case journal.RunFinished(version=version):
            return f"the run is complete after {version} rounds"
        case _:
            return None
