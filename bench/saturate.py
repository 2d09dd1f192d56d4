"""Is a busy machine taken for a dead one? Real peers train for a while on a machine with far too much to do.

    python -m bench.saturate                 four peers, two busy loops per core, 30 minutes
    python -m bench.saturate --minutes 2     a shorter look

Counts every link that any peer gave up and every round that had to be planned anew. Nothing dies here, so each of
them is a false alarm. Exits 1 if there was one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.runs import run_text
from bench.stage import leave

from atoll import journal
from atoll.journal import Line
from atoll.observe.tail import Tail

LOOPS_PER_CORE = 2
START_S_MAX = 300.0
SAY_EVERY_S = 60.0

RUN = run_text("saturated", {"recipe.work.batch": 4, "recipe.channel.outer.when.steps": 10})


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep this many processes spinning."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@contextmanager
def training(folder: Path, peers: int) -> Iterator[subprocess.Popen[bytes]]:
    """Keep this many real peers training, and ask them to leave at the end."""
    (folder / "run.toml").write_text(RUN)
    words = ["train", str(folder / "run.toml"), "--home", str(folder / "home"), "--peers", str(peers), "--threads", "1"]
    command = [sys.executable, "-m", "atoll.cli.main", *words, "--host", "127.0.0.1", "--device", "cpu", "--json"]
    with (folder / "said.log").open("wb") as said:
        watcher = subprocess.Popen(
            command,
            stdout=said,
            stderr=said,
            env={**os.environ, "ATOLL_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        )
    try:
        yield watcher
    finally:
        watcher.send_signal(signal.SIGINT)
        watcher.wait(120)


class Watch:
    """What the journals of all peers say, read as they grow."""

    def __init__(self, home: Path) -> None:
        self._tail = Tail(home)
        self.version = 0
        self.lost: list[dict[str, object]] = []
        self.replanned: list[dict[str, object]] = []
        self.round_s: list[float] = []

    def look(self) -> None:
        for line in self._tail.lines():
            self._add(line)

    def _add(self, line: Line) -> None:
        match line.event:
            case journal.PeerLost(who=who, why=why):
                self.lost.append({"at_s": line.at_s, "by": line.peer, "peer": who, "why": why})
            case journal.RoundReplanned(version=version, why=why):
                self.replanned.append({"at_s": line.at_s, "round": version, "why": why})
            case journal.RoundCommitted(version=version, round_s=round_s):
                self.version = version
                self.round_s.append(round_s)
            case _:
                pass


def saturate(minutes: float, peers: int) -> dict[str, object]:
    """Train under load for so long and return what the journals say."""
    loops = LOOPS_PER_CORE * (os.cpu_count() or 1)
    with TemporaryDirectory() as name, training(Path(name), peers) as watcher:
        watch = Watch(Path(name) / "home")
        _until_first_round(watch, watcher)
        first = watch.version
        with busy(loops):
            began_s = said_s = time.monotonic()
            while time.monotonic() - began_s < 60 * minutes:
                time.sleep(1)
                watch.look()
                assert watcher.poll() is None, f"the run ended by itself: {(Path(name) / 'said.log').read_text()}"
                if time.monotonic() - said_s > SAY_EVERY_S:
                    said_s = time.monotonic()
                    print(f"{(said_s - began_s) / 60:.0f} min: {_text(watch)}", file=sys.stderr, flush=True)
        load = os.getloadavg()[2]
    return {
        "minutes": minutes,
        "peers": peers,
        "busy_loops": loops,
        "cores": os.cpu_count(),
        "load_15min": load,
        "rounds": watch.version - first,
        "round_s_max": max(watch.round_s, default=0.0),
        "lost": watch.lost,
        "replanned": watch.replanned,
    }


def _until_first_round(watch: Watch, watcher: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_S_MAX
    while watch.version < 1:
        assert watcher.poll() is None and time.monotonic() < deadline_s, "the peers did not start"
        time.sleep(0.2)
        watch.look()


def _text(watch: Watch) -> str:
    return f"round {watch.version}, {len(watch.lost)} links given up, {len(watch.replanned)} rounds planned anew"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, leave)  # so that nothing is left spinning
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell switches it off for background jobs
    outcome = saturate(options.minutes, options.peers)
    if options.json:
        print(json.dumps(outcome))
    else:
        print("\n".join(f"{key:<12} {value}" for key, value in outcome.items()))
    return 1 if outcome["lost"] or outcome["replanned"] else 0


if __name__ == "__main__":
    sys.exit(main())
