"""Real peers for tests: `atoll` processes, their folders, and what can be seen of them from outside.

Nothing here reaches into a peer. It is started as a person would start it, ended by signals, and judged by its
exit code, its journal and its files.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from atoll import journal
from atoll.cli.local import save_run
from atoll.cli.machine import Machine, pinned
from atoll.data.prepare import prepare
from atoll.journal import Event, Line
from atoll.net.identity import Identity
from atoll.net.transport import LinkKind
from atoll.sim.retell import announcements
from atoll.sim.scenario import key_of
from atoll.spec.load import load_run
from atoll.spec.run import Run
from atoll.swarm.log import Entry, from_bytes
from tests.world.warm import Warm, atoll

T = TypeVar("T")
E = TypeVar("E", bound=Event)

WAIT_S_MAX = 150.0
LOOK_S = 0.1
ATOLL = ("-m", "atoll.cli.main")
HERE = ("--threads", "1", "--host", "127.0.0.1", "--device", "cpu")
"""Flags of a peer on a small machine that others share."""

RUN = """
name = "reef"

[model]
kind = "fresh"
size = {{ dim = 16, layers = 1, heads = 2, kv_heads = 1, ffn = 32 }}

[data]
context = 16
source = {{ kind = "shards", path = '{shards}' }}

[recipe]
base = "{recipe}"

[recipe.work]
batch = 2
schedule = {{ kind = "cosine", warmup_steps = 2 }}

[recipe.channel.outer]
when = {{ steps = {steps} }}
what = {{ codec = {{ kind = "{codec}" }} }}

[budget]
rounds = {rounds}

[membership]
start_with = {start_with}
contributors_min = {contributors_min}

[upkeep]
checkpoint_every = 1
"""
"""A run of a few seconds: the schedule, the optimizer and the codec are those of a real one."""


_WORDS = ("the", "reef", "lagoon", "tide", "gull", "lamp", "boat", "follows", "meets", "leaves", "and", "while")


def make_shards(folder: Path) -> Path:
    """Make a small data set of seeded text in a new folder, and return it."""
    rng = random.Random(7)
    stories = folder / "stories"
    stories.mkdir(parents=True)
    for number in range(60):
        (stories / f"{number:02d}.txt").write_text(" ".join(rng.choices(_WORDS, k=120)) + "\n", encoding="utf-8")
    prepare([stories], folder / "data", "bytes", held_out=0.05)
    return folder / "data"


def environment(home: Path) -> dict[str, str]:
    """Return what processes of tests are told: where the cache is, and to use one thread."""
    return {**os.environ, "ATOLL_HOME": str(home), "OMP_NUM_THREADS": "1"}


def wait_for(
    claim: Callable[[], T], what: str, within_s: float = WAIT_S_MAX, by: subprocess.Popen[bytes] | Warm | None = None
) -> T:
    """Return what `claim` says once it is true; fails when that takes too long, or when its maker `by` has ended."""
    deadline_s = time.monotonic() + within_s
    while not (said := claim()):
        assert by is None or by.poll() is None, f"{what}: its process ended with exit code {by.returncode}"
        assert time.monotonic() < deadline_s, f"{what}: not within {within_s:.0f} s"
        time.sleep(LOOK_S)
    return said


@dataclass
class Peer:
    """One peer's folder, and its process where we started it."""

    folder: Path
    process: subprocess.Popen[bytes] | Warm | None = None

    def lines(self) -> list[Line]:
        path = self.folder / "journal.jsonl"
        return list(journal.read(path)) if path.is_file() else []

    def saw(self, kind: type[E]) -> list[E]:
        """Return the events of one kind in its journal, oldest first."""
        return [line.event for line in self.lines() if isinstance(line.event, kind)]

    def version(self) -> int:
        """Return the newest round this peer has applied."""
        return max((event.version for event in self.saw(journal.RoundApplied)), default=0)

    def anchors(self) -> dict[int, str]:
        """Return the anchor's digest by version."""
        return {event.version: event.anchor for event in self.saw(journal.RoundApplied)}

    def name(self) -> str:
        return wait_for(self.lines, f"a journal in {self.folder}")[0].peer

    def ticket(self) -> str:
        return wait_for(lambda: self.saw(journal.TicketPrinted), f"a ticket of {self.folder}")[-1].ticket

    def log(self) -> list[Entry]:
        """Return the log as the peer has it on disk."""
        return from_bytes((self.folder / "log").read_bytes(), str(self.folder / "log"))[0]

    def rounds(self) -> dict[int, tuple[bytes, ...]]:
        """Return who was in each round, by the log."""
        return {announced.version: announced.members for announced in announcements(self.log())}

    def processes(self) -> list[psutil.Process]:
        """Return the living processes that were started in this folder."""
        return processes_below(self.folder)

    def kill(self) -> None:
        """End it as a power cut does; what was forked is known by no command line of its own."""
        if isinstance(self.process, Warm):
            self.process.kill()
        for process in self.processes():
            process.send_signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
        wait_for(lambda: not self.processes(), f"the end of {self.folder}")

    def leave(self) -> None:
        """Ask it to leave."""
        for process in self.processes():
            if "peer" in process.cmdline():
                process.terminate()

    def pause(self) -> None:
        """Stop its clock; together with all others it notices nothing."""
        for process in self.processes():
            process.suspend()

    def resume(self) -> None:
        for process in self.processes():
            process.resume()

    def ended(self, within_s: float = WAIT_S_MAX) -> int | None:
        """Wait until its process is gone and return the exit code, if it is ours to know."""
        if self.process is not None:
            return self.process.wait(within_s)
        wait_for(lambda: not self.processes(), f"the end of {self.folder}", within_s)
        return None


def processes_below(folder: Path) -> list[psutil.Process]:
    """Return the living processes whose command line names a folder or something in it."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if process.status() != psutil.STATUS_ZOMBIE and any(_names(word, folder) for word in words):
                found.append(process)
        except psutil.Error:
            continue  # it ended while we looked
    return found


def _names(word: str, folder: Path) -> bool:
    return word == str(folder) or word.startswith(f"{folder}/")


def counted(broker: Peer, name: str, after: int) -> list[journal.RoundCommitted]:
    """Return the committed rounds after one that count a peer in."""
    return [e for e in broker.saw(journal.RoundCommitted) if e.version > after and name in e.contributors]


def counted_without(broker: Peer, name: str, after: int) -> list[journal.RoundCommitted]:
    """Return the committed rounds after one that do not count a peer in."""
    return [e for e in broker.saw(journal.RoundCommitted) if e.version > after and name not in e.contributors]


def seats(home: Path, count: int) -> list[Peer]:
    """Return the peers that `atoll train` or `atoll join` starts in a run's folder."""
    return [Peer(home / "peers" / str(seat)) for seat in range(count)]


@dataclass(frozen=True)
class Calm:
    """A finished run of two peers that nothing disturbed."""

    run: Path
    rounds: int
    seed: int
    """Of the world: the keys are those of the simulated peers of this seed."""
    home: Path
    done: subprocess.CompletedProcess[str]

    @property
    def peers(self) -> list[Peer]:
        return seats(self.home, 2)

    @property
    def keys(self) -> list[Identity]:
        return [key_of(self.seed, place) for place in range(2)]


@dataclass
class Shore:
    """One test's own place: a folder, an environment, and everything started in it."""

    folder: Path
    shards: Path
    env: Mapping[str, str]
    launcher: tuple[str, ...] = ATOLL
    """What makes Python the `atoll` command."""
    links: LinkKind = LinkKind.IROH
    """On one machine everybody is reached directly, so by itself a peer would take TLS always."""
    warm: bool = False
    """Whether processes are forked from one that has imported everything."""
    started: list[subprocess.Popen[bytes] | Warm] = field(default_factory=list)

    def run_file(
        self,
        *,
        rounds: int,
        start_with: int = 2,
        contributors_min: int = 1,
        recipe: str = "diloco",
        codec: str = "fp32",
        steps: int = 2,
        name: str = "run.toml",
    ) -> Path:
        path = self.folder / name
        text = RUN.format(
            shards=self.shards,
            recipe=recipe,
            codec=codec,
            steps=steps,
            rounds=rounds,
            start_with=start_with,
            contributors_min=contributors_min,
        )
        path.write_text(text)
        return path

    def start(self, *words: str, output: str = "") -> subprocess.Popen[bytes] | Warm:
        """Start `atoll WORDS` in a session of its own; what it says goes to the file `output`."""
        if self.warm:
            self.started.append(Warm(words, self.env, self.folder / (output or os.devnull)))
            return self.started[-1]
        command = [sys.executable, *self.launcher, *words]
        with (self.folder / (output or os.devnull)).open("ab") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env, start_new_session=True
            )
        self.started.append(process)
        return process

    def atoll(self, *words: str, timeout_s: float = WAIT_S_MAX) -> subprocess.CompletedProcess[str]:
        """Run `atoll WORDS` to its end."""
        if self.launcher == ATOLL:
            return atoll(*words, env=self.env, timeout_s=timeout_s)
        command = [sys.executable, *self.launcher, *words]
        return subprocess.run(command, capture_output=True, text=True, env=self.env, timeout=timeout_s, check=False)

    def train(self, run: Path, home: Path, peers: int) -> tuple[str, ...]:
        """Return the words of `atoll train` for a small machine."""
        return ("train", str(run), "--home", str(home), "--peers", str(peers), *HERE, "--links", self.links, "--json")

    def organise(self, run: Path | Run, folder: Path) -> Peer:
        """Start the organiser of a run, without anybody looking on."""
        name, what = (run.stem, load_run(run)) if isinstance(run, Path) else (run.name, run)
        return self._peer(folder, "--run", str(save_run(self.folder / name, pinned(what, Machine()))))

    def join(self, ticket: str, folder: Path) -> Peer:
        return self._peer(folder, "--ticket", ticket)

    def _peer(self, folder: Path, *words: str) -> Peer:
        folder.mkdir(parents=True, exist_ok=True)
        words = ("peer", "--home", str(folder), *words, *HERE, "--links", self.links)
        return Peer(folder, self.start(*words, output=str(folder / "output.log")))

    def give(self, folder: Path, key: Identity) -> Peer:
        """Return the folder of a peer that will have this key."""
        folder.mkdir(parents=True)
        (folder / "identity.key").write_bytes(key.secret)
        (folder / "identity.key").chmod(0o600)
        return Peer(folder)

    def end(self) -> None:
        """Kill whatever was started here, whoever started it."""
        for process in processes_below(self.folder):
            process.kill()
        for child in self.started:
            if child.poll() is None:
                child.kill()
            child.wait()


def one_history(peers: Iterator[Peer] | list[Peer]) -> dict[int, str]:
    """Return the anchor of each version after checking that all peers that hold it hold the same."""
    known: dict[int, str] = {}
    for peer in peers:
        for version, anchor in peer.anchors().items():
            assert known.setdefault(version, anchor) == anchor, f"{peer.folder.name} differs at version {version}"
    return known
