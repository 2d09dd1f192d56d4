"""Peers of this machine as real processes, and a person looking on.

`atoll train` and `atoll join` start peers in sessions of their own and then only watch their journals.
Killing the watcher leaves the peers at work; Ctrl-C asks them to leave and says how to go on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from atoll import journal
from atoll.cli.machine import writing
from atoll.errors import AtollError, LocalError, SpecError
from atoll.spec.run import Run

TICKET_S_MAX = 300.0
"""How long a peer may take to build its model before it must have said where it is."""
LEAVE_S_MAX = 15.0
LINGER_S = 30.0
"""How long other peers of this machine may go on when its first one, the organiser or the only one, has ended."""
LOOK_S = 0.1
SPACE_BYTES_MIN = 2**16


@dataclass
class Crew:
    """The peer processes that this command started."""

    home: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    lingering_s: float | None = None
    """Since when the others go on without the first."""

    def start(self, seat: int, words: Sequence[str]) -> Path:
        """Start one peer in `home/peers/SEAT` and return its folder."""
        folder = self.home / "peers" / str(seat)
        command = [sys.executable, "-m", "atoll.cli.main", "peer", "--home", str(folder), *words]
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "output.log").open("ab") as output:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
        self.processes.append(process)
        return folder

    def running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.processes if process.poll() is None]

    def over(self) -> bool:
        """Return whether all have ended; without the first the others would wait for ever, so they are made to."""
        first = self.processes[0].poll()
        if first is None or not self.running():
            return first is not None
        self.lingering_s = self.lingering_s or time.monotonic()
        if first != 0 or time.monotonic() - self.lingering_s > LINGER_S:
            self.leave()
        return not self.running()

    def check(self) -> None:
        """Raise what the first failed peer said on its way out."""
        for process in self.processes:
            if process.poll() not in (None, 0):
                raise _last_words(Path(process.args[5]), process.returncode)  # type: ignore[index,arg-type]

    def leave(self) -> None:
        """Ask every peer to leave and wait for it; one that does not answer is ended."""
        for process in self.running():
            process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + LEAVE_S_MAX
        while self.running() and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
        for process in self.running():
            process.kill()
            process.wait()


class _Ended(AtollError):
    """A peer process ended with an error of its own."""


def _last_words(folder: Path, code: int) -> AtollError:
    """Return a dead peer's own error message, with where to read more."""
    said = (folder / "output.log").read_text(errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
    hints = [line.removeprefix("hint: ") for line in said if line.startswith("hint: ")]
    if not errors and shutil.disk_usage(folder).free < SPACE_BYTES_MIN:  # not even for its last words was there space
        return LocalError(f"{folder}: the disk is full", hint="free some space and start again: all saved is intact")
    error = _Ended(
        errors[-1] if errors else f"peer {folder.name} ended unexpectedly (exit code {code})",
        hint=hints[-1] if errors and hints else f"see {folder / 'output.log'}",
    )
    error.exit_code = code if 0 < code < 128 else 1
    return error


def await_ticket(crew: Crew, folder: Path, since_s: float) -> str:
    """Return the ticket a peer prints once it is up."""
    deadline_s = time.monotonic() + TICKET_S_MAX
    path = folder / "journal.jsonl"
    while time.monotonic() < deadline_s:
        crew.check()
        for line in reversed(list(journal.read(path))) if path.is_file() else ():
            if isinstance(line.event, journal.TicketPrinted) and line.at_s >= since_s:
                return line.event.ticket
        time.sleep(LOOK_S)
    raise LocalError(f"{folder}: the peer said nothing for {TICKET_S_MAX:.0f} s", hint=f"see {folder / 'output.log'}")


def watch(crew: Crew, run: Run | None, resume: str, *, as_json: bool) -> dict[str, Any]:
    """Show the run until our peers have ended and return its summary; Ctrl-C asks them to leave."""
    from rich.console import Console

    from atoll.observe.progress import fold
    from atoll.observe.report import report
    from atoll.observe.tail import Tail
    from atoll.observe.view import follow

    try:
        if as_json:
            while not crew.over():
                time.sleep(LOOK_S)
            progress = fold(Tail(crew.home).lines())
        else:
            progress = follow(crew.home, run=run, done=crew.over, console=Console(stderr=True))
    except KeyboardInterrupt:
        print("\nleaving: everything committed so far is saved", file=sys.stderr)
        crew.leave()
        print(f"resume with: {resume}", file=sys.stderr)
        raise
    crew.check()
    return report(progress, run)


def flags(**options: object) -> list[str]:
    """Return options as command-line words, leaving out what was not set."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value not in (None, False, "", 0):
            words += [flag, str(value)]
    return words


def share_of_cores(peers: int, threads: int) -> int:
    """Return threads per peer: what was asked for, or an equal share of this machine's cores."""
    return threads or max(1, (os.cpu_count() or 1) // peers)


def save_run(home: Path, run: Run) -> Path:
    """Write the run in canonical form where peers and views find it, and return the file; another run stays."""
    from atoll.spec.load import decode_run
    from atoll.spec.run import canonical, identity

    path, draft = home / "run.json", home / "run.json.new"
    kept = decode_run(path.read_bytes(), source=str(path)) if path.is_file() else run
    if identity(kept) != identity(run):
        raise SpecError(
            f"{home} holds run {identity(kept)}, the run file describes {identity(run)}",
            hint="give the new run a folder of its own (--home), or undo the change to the run file",
        )
    with writing(home):
        home.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(canonical(run))
        draft.replace(path)
    return path


def with_peers(run: Run, peers: int) -> Run:
    """Return the run with its first round waiting for at least this many peers."""
    start_with = max(run.membership.start_with, peers)
    return msgspec.structs.replace(run, membership=msgspec.structs.replace(run.membership, start_with=start_with))


def check_enough(run: Run, peers: int) -> None:
    """Refuse a run whose first round waits for more peers than there are: where all are imagined, nobody else comes."""
    for key in ("start_with", "contributors_min"):
        wanted = getattr(run.membership, key)
        if wanted > peers:
            there = "is 1 peer" if peers == 1 else f"are {peers} peers"
            raise SpecError(
                f"membership.{key} is {wanted}, and there {there}",
                hint=f"--set membership.{key}={peers}, or more machines by --peers or --fleet",
            )
