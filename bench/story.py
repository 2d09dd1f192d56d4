"""What the journals of several peers say together, read while they are written."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from atoll import journal
from atoll.journal import Line
from atoll.observe.tail import Tail

CALM_ROUNDS = 10
"""Rounds whose median is the undisturbed one."""


class Story:
    """What all journals together say, read as they grow."""

    def __init__(self, folder: Path, peers: int) -> None:
        self.peers = peers
        self._tail = Tail(folder)
        self._seats: dict[str, int] = {}
        self.recent: deque[Line] = deque(maxlen=4000)
        self.announced: dict[int, tuple[float, tuple[str, ...]]] = {}
        self.committed: dict[int, dict[str, tuple[float, str, tuple[str, ...]]]] = {}
        self.applied: dict[int, dict[str, tuple[float, str]]] = {}
        self.worked_s: dict[int, dict[str, float]] = {}
        """When each one's work for a version was done, the first time."""
        self.voided: set[int] = set()
        self.replanned: dict[int, list[str]] = {}
        self.lost: list[tuple[float, str, str]] = []
        """When, by whom, who."""
        self.epochs: list[tuple[float, int, str]] = []
        self.shares: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self.losses: dict[str, float | None] = {}
        self.finished: set[str] = set()

    def look(self) -> None:
        for line in self._tail.lines():
            self.recent.append(line)
            self._add(line)

    def _add(self, line: Line) -> None:
        at_s, peer = line.at_s, line.peer
        match line.event:
            case journal.RoundAnnounced(version=version, members=members):
                self.announced.setdefault(version, (at_s, tuple(members)))
            case journal.WorkProgressed(version=version, steps=steps, steps_of=whole) if steps == whole:
                self.worked_s.setdefault(version, {}).setdefault(peer, at_s)
            case journal.RoundCommitted(version=version, result=result, contributors=contributors):
                self.committed.setdefault(version, {}).setdefault(peer, (at_s, result, tuple(contributors)))
            case journal.RoundApplied(version=version, anchor=anchor):
                self.applied.setdefault(version, {}).setdefault(peer, (at_s, anchor))
            case journal.RoundVoided(version=version):
                self.voided.add(version)
            case journal.RoundReplanned(version=version, why=why):
                self.replanned.setdefault(version, []).append(why)
            case journal.PeerLost(who=who) | journal.BrokerLost(who=who):
                self.lost.append((at_s, peer, who))
            case journal.EpochStarted(epoch=epoch, broker=broker):
                if not self.epochs or epoch > self.epochs[-1][1]:
                    self.epochs.append((at_s, epoch, broker))
                    self.shares = {}
            case journal.SharesChanged(shares=shares):
                self.shares = shares
            case journal.PeerStarted():
                self.started[peer] = at_s
            case journal.Evaluated(loss=loss):
                self.losses[peer] = loss
            case journal.PeerStopped(finished=True):
                self.finished.add(peer)
            case _:
                pass

    def seats(self) -> dict[str, int]:
        """Return which peer sits where."""
        for path in self._tail.files():
            if int(path.parent.name) not in self._seats.values():
                with path.open("rb") as lines:
                    self._seats[journal.parse(lines.readline()).peer] = int(path.parent.name)
        return self._seats

    @property
    def version(self) -> int:
        return max(self.committed, default=0)

    @property
    def leader(self) -> str:
        return self.epochs[-1][2]

    def share(self, peer: str) -> float:
        """Return which part of the grid a peer owns: unless something else was said, all own the same."""
        return self.shares.get(peer, 0.0) if self.shares else 1.0 / self.peers

    def committed_s(self, version: int, by: Sequence[str] = ()) -> float | None:
        """Return when the first (of some) learned that a version is committed."""
        told = self.committed.get(version, {})
        return min((at_s for peer, (at_s, *_) in told.items() if not by or peer in by), default=None)

    def calm(self) -> list[int]:
        """Return the last undisturbed rounds: all were in, and nothing was planned anew."""
        whole = [v for v, told in self.committed.items() if all(len(c) == self.peers for _, _, c in told.values())]
        return [v for v in sorted(whole) if v > 1 and v not in self.replanned and v not in self.voided][-CALM_ROUNDS:]

    def undisturbed_s(self) -> float:
        """Return how long an undisturbed round takes."""
        return statistics.median(self._round_s(version) for version in self.calm())

    def exchange_s(self) -> float:
        """Return how long an undisturbed round takes from the end of the last one's work to its commit."""
        return statistics.median((self.committed_s(v) or 0.0) - max(self.worked_s[v].values()) for v in self.calm())

    def spread_s(self) -> float:
        """Return by how much the longest undisturbed round is longer than the median."""
        return max(self._round_s(version) for version in self.calm()) - self.undisturbed_s()

    def _round_s(self, version: int) -> float:
        return (self.committed_s(version) or 0.0) - self.announced[version][0]

    def forks(self) -> list[str]:
        """Return the versions of which two peers tell different things, ever."""
        found = []
        for version, told in sorted(self.committed.items()):
            if len({what[1:] for what in told.values()}) > 1:
                found.append(f"round {version} was committed in two ways: {told}")
        for version, held in sorted(self.applied.items()):
            if len({anchor for _, anchor in held.values()}) > 1:
                found.append(f"round {version}: different anchors: {held}")
        return found

    def tell(self, since_s: float, version: int = 0) -> list[str]:
        """Return the lines since a time (that belong to a version, or to none) as a person reads them."""
        seats = self.seats()
        quiet = (journal.TrafficCounted, journal.CheckpointSaved, journal.LeaseTaken, journal.TicketPrinted)
        told = []
        for line in sorted(self.recent, key=lambda line: line.at_s):
            event = line.event
            dull = isinstance(event, journal.WorkProgressed) and event.steps < event.steps_of
            other = version and getattr(event, "version", version) != version
            if line.at_s >= since_s and not dull and not other and not isinstance(event, quiet):
                text = repr(event)
                for peer, seat in seats.items():
                    text = text.replace(repr(peer), f"#{seat}").replace(peer, f"#{seat}")
                told.append(f"{line.at_s - since_s:7.2f} #{seats.get(line.peer, '?')} {text[:260]}")
        return told
