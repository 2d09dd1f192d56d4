"""How close to the wire is a round? 100 MB of fp32 from every peer to every peer, in a network lab.

    sudo python -m bench.allreduce                    every setting
    sudo python -m bench.allreduce --only 'tls-4-*'   those with such names

Real peers whose models stand still (`bench.still`) exchange on shaped links. A round's time is from its announcement to
the commit on every member, with encryption, leases, digests and fsync on; the bound is 2 (N - 1) / N x bytes / rate,
the least that any way of averaging has to send (where lines differ: their mean rate; and nobody's own contribution
leaves faster than its line). Given are the median of the rounds after the first two (rates are
measured in those, none is declared) and its ratio to the bound, the CPU time of all peers per gigabit that they send,
and the largest resident memory of a peer.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lab import Host, Lab
from bench.lab import Path as Between
from bench.runs import run_text
from bench.stage import leave, prepare, ticket_of

from atoll import journal
from atoll.errors import AtollError
from atoll.net.transport import LinkKind

MBIT = 1e6 / 8
SIZE_BYTES = 100_000_000
ROUNDS = 6
UNMEASURED = 2
START_S_MAX = 120.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run_of(peers: int) -> str:
    """Return the run file: rounds of one step each, without an end."""
    return run_text(
        "wire",
        {
            "recipe.work.batch": 1,
            "recipe.channel.outer.when.steps": 1,
            "membership.start_with": peers,
            "upkeep.evaluate_samples": 1,
        },
    )


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    links: LinkKind
    rates_mbit: tuple[float, ...]
    round_trip_s: float = 0.0
    size_bytes: int = SIZE_BYTES

    @property
    def peers(self) -> int:
        return len(self.rates_mbit)

    @property
    def name(self) -> str:
        rates = "+".join(f"{rate:g}" for rate in dict.fromkeys(self.rates_mbit))
        trip = f"-{1000 * self.round_trip_s:.0f}ms" if self.round_trip_s else ""
        return f"{self.links}-{self.peers}-{rates}{trip}"

    @property
    def sent_bytes(self) -> int:
        """What all peers send in a round: every contribution to its owners, every result to all others."""
        return 2 * (self.peers - 1) * self.size_bytes

    @property
    def bound_s(self) -> float:
        """The least any way of averaging takes: all lines carry all that must be sent, and each at least its own."""
        together_s = self.sent_bytes / (sum(self.rates_mbit) * MBIT)
        return max(together_s, self.size_bytes / (min(self.rates_mbit) * MBIT))


def even(links: LinkKind, peers: int, rate_mbit: float, round_trip_s: float = 0.0) -> Setting:
    """Return a setting with equal lines."""
    return Setting(links, (rate_mbit,) * peers, round_trip_s)


SETTINGS = [
    *(even(links, peers, 100) for links in (LinkKind.TLS, LinkKind.IROH) for peers in (4, 8)),
    even(LinkKind.TLS, 8, 500),
    *(even(links, 4, 100, round_trip_s=0.04) for links in (LinkKind.TLS, LinkKind.IROH)),
    *(Setting(links, (100, 100, 100, 25)) for links in (LinkKind.TLS, LinkKind.IROH)),
]


@dataclass
class Row:
    """What came of a setting."""

    name: str
    bound_s: float
    rounds_s: list[float]
    median_s: float
    ratio: float
    cpu_s_per_gbit: float
    resident_mb: float
    agreed: bool


def measured(setting: Setting, rounds: int, folder: Path) -> Row:
    """Play a setting and return its row."""
    prepare(folder, run_of(setting.peers))
    hosts = [Host(rate * MBIT, rate * MBIT) for rate in setting.rates_mbit]
    path = Between(latency_s=setting.round_trip_s / 2)
    with Lab(hosts, lambda i, j: path) as lab, _peers(lab, setting, folder) as processes:
        watch = Watch(folder, setting.peers)
        watch.until(UNMEASURED, processes)
        spent_s = _cpu_s(processes)
        watch.until(rounds, processes)
        spent_s = _cpu_s(processes) - spent_s
        resident_mb = max(_resident_bytes(process.pid) for process in processes) / 1e6
    times_s = [watch.took_s(version) for version in range(UNMEASURED + 1, rounds + 1)]
    median_s = statistics.median(times_s)
    return Row(
        name=setting.name,
        bound_s=setting.bound_s,
        rounds_s=times_s,
        median_s=median_s,
        ratio=median_s / setting.bound_s,
        cpu_s_per_gbit=spent_s / (8e-9 * setting.sent_bytes * (rounds - UNMEASURED)),
        resident_mb=resident_mb,
        agreed=watch.agreed(rounds),
    )


@contextmanager
def _peers(lab: Lab, setting: Setting, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep a peer on every host."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        words = ["--run", str(folder / "run.json")]
        for index in range(setting.peers):
            processes.append(_start(lab, setting, folder, index, words))
            if index == 0:
                words = ["--ticket", _ticket(folder, processes[0])]
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start(lab: Lab, setting: Setting, folder: Path, index: int, words: Sequence[str]) -> subprocess.Popen[bytes]:
    home = folder / "peers" / str(index)
    home.mkdir(parents=True)
    command = [sys.executable, "-m", "bench.still", "--home", str(home), "--elements", str(setting.size_bytes // 4)]
    here = ["--host", lab.address(index), "--links", str(setting.links)]
    env = {**os.environ, "HOME": str(folder), "ATOLL_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    with (home / "output.log").open("wb") as said:
        return lab.start(index, [*command, *here, *words], env=env, stdout=said, stderr=said)


def _ticket(folder: Path, organiser: subprocess.Popen[bytes]) -> str:
    deadline_s = time.monotonic() + START_S_MAX
    ticket = ticket_of(folder, lambda: organiser.poll() is None and time.monotonic() < deadline_s)
    if ticket is None:
        raise RuntimeError(f"no ticket came: {(folder / 'peers' / '0' / 'output.log').read_text()[-2000:]}")
    return ticket


class Watch:
    """What the journals of all peers say."""

    def __init__(self, folder: Path, peers: int) -> None:
        self._paths = [folder / "peers" / str(index) / "journal.jsonl" for index in range(peers)]
        self._lines: list[list[journal.Line]] = [[] for _ in self._paths]

    def until(self, version: int, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Wait until all have committed a round."""
        while True:
            self._lines = [list(journal.read(path)) if path.is_file() else [] for path in self._paths]
            if all(version in self._committed(lines) for lines in self._lines):
                return
            for index, process in enumerate(processes):
                if process.poll() is not None:
                    said = self._paths[index].with_name("output.log").read_text()
                    raise RuntimeError(f"peer {index} ended: {said[-2000:]}")
            time.sleep(0.3)

    def took_s(self, version: int) -> float:
        """Return the time from a round's announcement to its commit on the last member."""
        announced_s = min(
            line.at_s
            for lines in self._lines
            for line in lines
            if isinstance(line.event, journal.RoundAnnounced) and line.event.version == version
        )
        return max(self._committed(lines)[version] for lines in self._lines) - announced_s

    def agreed(self, version: int) -> bool:
        """Return whether all committed the same result."""
        results = {
            line.event.result
            for lines in self._lines
            for line in lines
            if isinstance(line.event, journal.RoundCommitted) and line.event.version == version
        }
        return len(results) == 1

    def _committed(self, lines: Sequence[journal.Line]) -> dict[int, float]:
        return {line.event.version: line.at_s for line in lines if isinstance(line.event, journal.RoundCommitted)}


def _cpu_s(processes: Sequence[subprocess.Popen[bytes]]) -> float:
    """Return the CPU time that processes have used."""
    return sum(
        sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13])) / TICKS_PER_S
        for process in processes
    )


def _resident_bytes(pid: int) -> int:
    """Return the most memory that a process has held."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="settings with such names: iroh-4-100, tls-*, ...")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--keep", type=Path, help="keep the peers' folders here")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, leave)
    rows: list[Row] = []
    try:
        for setting in SETTINGS:
            if fnmatch(setting.name, options.only):
                with TemporaryDirectory() as name:
                    folder = options.keep / setting.name if options.keep else Path(name)
                    rows.append(measured(setting, options.rounds, folder))
                print(_text(rows[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    except AtollError as error:
        print(f"error: {error.what}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    return 0 if all(row.agreed for row in rows) else 1


def _text(row: Row) -> str:
    times = " ".join(f"{each:.1f}" for each in row.rounds_s)
    return (
        f"{row.name:<16} {row.median_s:6.2f} s, {row.ratio:.3f} of the bound of {row.bound_s:.2f} s  ({times})  "
        f"{row.cpu_s_per_gbit:.2f} CPU-s per Gbit, {row.resident_mb:.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
