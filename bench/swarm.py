"""Real peers whose models stand still (`bench.still`), one on each host of a network lab, and what can be read of them.

Every benchmark of the wire plays on this: start peers when their time comes, wait for what their journals say, kill
one, and add up what all of them took of the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from bench import usage
from bench.lab import Lab
from bench.stage import prepare, ticket_of

from atoll import journal
from atoll.net.transport import LinkKind

MBIT = 1e6 / 8
"""Bytes."""
START_S_MAX = 120.0
LOOK_S = 0.1

E = TypeVar("E")


@dataclass
class Swarm:
    """Peers on a lab's hosts."""

    lab: Lab
    folder: Path
    run: str
    """The run file's text."""
    elements: int
    links: LinkKind = LinkKind.TLS
    quick_steps: int = 0
    step_s: float = 0.0
    """What a local step takes after the first few."""
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _spent_s: float = 0.0
    """CPU time of those that are gone."""

    def __enter__(self) -> Self:
        prepare(self.folder, self.run)
        return self

    def __exit__(self, *_: object) -> None:
        for index in list(self.processes):
            self.kill(index)

    def start(self, index: int) -> None:
        """Start a peer: the first is the organiser, the others have its ticket."""
        home = self.folder / "peers" / str(index)
        home.mkdir(parents=True, exist_ok=True)
        words = ["--home", str(home), "--host", self.lab.address(index), "--links", str(self.links)]
        words += ["--ticket", self._ticket()] if self.processes else ["--run", str(self.folder / "run.json")]
        env = {**os.environ, "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        with (home / "output.log").open("ab") as said:
            command = [sys.executable, "-m", *self.program(), *words]
            self.processes[index] = self.lab.start(index, command, env=env, stdout=said, stderr=said)

    def program(self) -> list[str]:
        """Return which module a peer is, and what it is told about its compute."""
        pace = ["--quick-steps", str(self.quick_steps), "--step-s", str(self.step_s)]
        return ["bench.still", "--elements", str(self.elements), *pace]

    def kill(self, index: int) -> float:
        """End a peer without a word and return when."""
        process = self.processes.pop(index)
        if process.poll() is None:
            self._spent_s += usage.cpu_s([process.pid])
        process.kill()
        died_s = time.time()
        process.wait()
        return died_s

    def name(self, index: int) -> str:
        """Return by what name the journals call a peer."""
        return next(iter(journal.read(self.folder / "peers" / str(index) / "journal.jsonl"))).peer

    def events(self, index: int, kind: type[E]) -> Iterator[tuple[float, E]]:
        """Return what a peer has written of one kind so far, and when."""
        path = self.folder / "peers" / str(index) / "journal.jsonl"
        for line in journal.read(path) if path.is_file() else ():
            if isinstance(line.event, kind):
                yield line.at_s, line.event

    def until(self, claim: Callable[[], bool], limit_s: float | None = None) -> bool:
        """Wait until something is so and return whether it is; a peer that ends by itself is an error."""
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        while not claim():
            for index, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"peer {index} ended: {self._said(index)}")
            if deadline_s is not None and time.monotonic() > deadline_s:
                return False
            time.sleep(LOOK_S)
        return True

    # rounds

    def committed(self, index: int) -> dict[int, tuple[float, journal.RoundCommitted]]:
        """Return a peer's committed rounds by version, and when each was."""
        return {event.version: (at_s, event) for at_s, event in self.events(index, journal.RoundCommitted)}

    def until_committed(self, version: int, limit_s: float | None = None) -> bool:
        """Wait until all have committed a round and return whether they have."""
        return self.until(lambda: all(version in self.committed(index) for index in self.processes), limit_s)

    def committed_s(self, version: int) -> float:
        """Return when the last of them committed a round."""
        return max(self.committed(index)[version][0] for index in self.processes)

    def kill_in(self, version: int, victim: int, after_s: float) -> float:
        """End a peer so long after a round was announced, and return when."""
        self.until(lambda: self.announced(version) is not None)
        began_s = self.announced(version)
        assert began_s is not None, "that was waited for"
        time.sleep(max(0.0, began_s + after_s - time.time()))
        return self.kill(victim)

    def announced(self, version: int) -> float | None:
        """Return when a round was first announced to somebody, if it was."""
        found = (self.events(index, journal.RoundAnnounced) for index in self.processes)
        return min((at_s for events in found for at_s, event in events if event.version == version), default=None)

    def took_s(self, version: int) -> float:
        """Return the time from a round's announcement to its commit on the last member."""
        began_s = self.announced(version)
        assert began_s is not None, "what is committed was announced"
        return self.committed_s(version) - began_s

    def agreed(self, version: int) -> bool:
        """Return whether all committed the same result."""
        return len({self.committed(index)[version][1].result for index in self.processes}) == 1

    # what they take

    def cpu_s(self) -> float:
        """Return the CPU time that all peers have used."""
        return self._spent_s + usage.cpu_s(process.pid for process in self.processes.values())

    def resident_mb(self) -> float:
        """Return the most memory that a peer has held."""
        return max(usage.peak_bytes(process.pid) for process in self.processes.values()) / 1e6

    def received_bytes(self, index: int) -> int:
        """Return what has reached a peer's card, headers and all."""
        return usage.card_bytes(self.processes[index].pid)[0]

    def _ticket(self) -> str:
        deadline_s = time.monotonic() + START_S_MAX
        organiser = self.processes[0]
        ticket = ticket_of(self.folder, lambda: organiser.poll() is None and time.monotonic() < deadline_s)
        if ticket is None:
            raise RuntimeError(f"no ticket came: {self._said(0)}")
        return ticket

    def _said(self, index: int) -> str:
        return (self.folder / "peers" / str(index) / "output.log").read_text(errors="replace")[-2000:]
