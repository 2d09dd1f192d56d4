"""Five seats for real peers that may die, on loopback or on machines of their own, and what can be done to them.

A seat is a small process that keeps its peer alive: it starts it again, in the same home, a second after it died, or
later where it is told to wait. All seats and whoever directs them share a folder:

    run.json  peers/N/   what `atoll` itself keeps      pid-N  ends-N   the peer's process, and how it ended each time
    director             whose end is everybody's       away-N          stay away until this is gone
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from bench.lab import Host, Lab

from atoll import journal
from atoll.net.transport import DEFAULT_LINKS

PEERS = 5
BACK_S = 1.0
SILENT_S = 20.0
"""How long a link stays silent."""
MBIT = 1e6 / 8
"""Bytes."""
LINKS = "ATOLL_HOST_LINKS"
"""In which variable seats find over what kind of link their peers are to talk."""
RATES_MBIT = (30, 30, 30, 30, 8)
"""Lines in namespaces: one is too slow to own anything."""


# one seat


def keep_alive(folder: Path) -> int:
    """Be a seat: start its peer, and start it again whenever it dies, until the run is over or the director is gone."""
    index, host = int(os.environ["ATOLL_HOST_INDEX"]), os.environ["ATOLL_HOST_IP"]
    signal.signal(signal.SIGTERM, leave)
    home, director = folder / "peers" / str(index), int((folder / "director").read_text())
    home.mkdir(parents=True, exist_ok=True)
    process: subprocess.Popen[bytes] | None = None
    try:
        words = ["--run", str(folder / "run.json")] if index == 0 else ["--ticket", _ticket(folder, director)]
        while True:
            process = _start(folder, home, [*words, "--host", host, "--links", os.environ.get(LINKS, DEFAULT_LINKS)])
            _leave_note(folder / f"pid-{index}", str(process.pid))
            while process.poll() is None and alive(director):
                time.sleep(0.05)
            with (folder / f"ends-{index}").open("a") as ends:
                ends.write(f"{process.returncode}\n")
            if process.returncode == 0 or not alive(director):
                return 0
            time.sleep(BACK_S)
            while (folder / f"away-{index}").exists() and alive(director):
                time.sleep(0.05)
    except KeyboardInterrupt:
        return 0
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()


def _start(folder: Path, home: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "atoll.cli.main", "peer", "--home", str(home), *words]
    env = {**os.environ, "HOME": str(folder), "ATOLL_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    with (home / "output.log").open("ab") as said:
        return subprocess.Popen(
            [*command, "--threads", "1", "--device", "cpu"], stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env
        )


def ticket_of(folder: Path, hoping: Callable[[], bool]) -> str | None:
    """Return the organiser's ticket once it is printed, or None when there is no hope left."""
    path = folder / "peers" / "0" / "journal.jsonl"
    while hoping():
        for line in journal.read(path) if path.is_file() else ():
            if isinstance(line.event, journal.TicketPrinted):
                return line.event.ticket
        time.sleep(0.1)
    return None


def _ticket(folder: Path, director: int) -> str:
    ticket = ticket_of(folder, lambda: alive(director))
    if ticket is None:
        raise KeyboardInterrupt
    return ticket


def alive(pid: int) -> bool:
    """Return whether a process is there."""
    return Path(f"/proc/{pid}").exists()


def _leave_note(path: Path, text: str) -> None:
    """Write a file that is seen whole or not at all."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.rename(path)


def leave(number: int, frame: FrameType | None) -> None:
    """End as Ctrl-C does, with everything that is cleaned up then."""
    raise KeyboardInterrupt


# all of them


@dataclass
class Stage:
    """Five seats and what can be done to the peers on them."""

    folder: Path
    lab: Lab | None = None
    """The network of their own that they are on, if they are."""
    killed: dict[int, int] = field(default_factory=dict)
    """How often each was killed by us."""
    silenced: dict[int, float] = field(default_factory=dict)
    """Since when seats are silent."""

    def pid(self, seat: int) -> int:
        return int((self.folder / f"pid-{seat}").read_text())

    def kill(self, seat: int, *, stay: bool) -> float:
        """End a peer without a word and return when; one that is to `stay` away waits for `let_back`."""
        if stay:
            (self.folder / f"away-{seat}").touch()
        self.killed[seat] = self.killed.get(seat, 0) + 1
        os.kill(self.pid(seat), signal.SIGKILL)
        return time.time()

    def silence(self, seat: int) -> float:
        """Let nothing come from a peer any more and return since when."""
        if self.lab is not None:
            self.lab.unplug(seat)
        else:
            os.kill(self.pid(seat), signal.SIGSTOP)
        self.silenced[seat] = time.time()
        return self.silenced[seat]

    def let_back(self) -> None:
        """Let everybody come back who is away; a silent link when its time is over."""
        for path in self.folder.glob("away-*"):
            path.unlink()
        for seat, since_s in list(self.silenced.items()):
            time.sleep(max(0.0, since_s + SILENT_S - time.time()))
            if self.lab is not None:
                self.lab.plug_in(seat)
            else:
                os.kill(self.pid(seat), signal.SIGCONT)
            del self.silenced[seat]

    def fallen(self) -> list[str]:
        """Return who ended without having been killed."""
        found = []
        for seat in range(PEERS):
            path = self.folder / f"ends-{seat}"
            codes = path.read_text().split() if path.is_file() else []
            strange = [code for code in codes if code not in ("0", str(-signal.SIGKILL))]
            if strange or codes.count(str(-signal.SIGKILL)) > self.killed.get(seat, 0):
                said = (self.folder / "peers" / str(seat) / "output.log").read_text(errors="replace").strip()
                found.append(f"peer {seat} ended by itself ({', '.join(strange)}): {said[-1500:]}")
        return found


@contextmanager
def staged(folder: Path, where: str, text: str) -> Iterator[Stage]:
    """Keep five peers on a run, and leave nothing running behind."""
    prepare(folder, text)
    _leave_note(folder / "director", str(os.getpid()))
    inside = [sys.executable, "-m", "bench.stage", str(folder)]
    with ExitStack() as stack:
        if where == "loopback":
            lab = None
            env = [{**os.environ, "ATOLL_HOST_INDEX": str(seat), "ATOLL_HOST_IP": "127.0.0.1"} for seat in range(PEERS)]
            seats = [subprocess.Popen(inside, env=each, start_new_session=True) for each in env]
        else:
            lab = stack.enter_context(Lab([Host(rate * MBIT, rate * MBIT) for rate in RATES_MBIT]))
            seats = [lab.start(seat, inside, start_new_session=True) for seat in range(PEERS)]
        try:
            yield Stage(folder, lab)
        finally:
            for seat in seats:
                seat.terminate()
            for seat in seats:
                seat.wait()


def prepare(folder: Path, text: str) -> None:
    """Write the run where seats find it, its data prepared."""
    from atoll.cli.local import save_run
    from atoll.cli.machine import Machine, pinned
    from atoll.spec.load import load_run

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text(text)
    os.environ["ATOLL_HOME"] = str(folder / "cache")
    save_run(folder, pinned(load_run(folder / "run.toml"), Machine(device="cpu")))


if __name__ == "__main__":
    sys.exit(keep_alive(Path(sys.argv[1])))
