"""What processes take of this machine, as Linux counts it: CPU time, memory, traffic, and how busy it is as a whole.

A rival may be several processes on a host of a lab (hivemind is four): those of a host are all that live in its network
namespace.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
OWN = Path("/proc/self/ns/net")


def processes(space: Path) -> list[int]:
    """Return the processes in a network namespace, which is named by `/proc/PID/ns/net` or `/run/netns/NAME`."""
    wanted = space.stat().st_ino
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _space_of(pid) == wanted]


def _space_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # it ended meanwhile
        return None


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU time that processes have used."""
    return sum(map(_ticks, pids)) / TICKS_PER_S


def _ticks(pid: int) -> int:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(words[11]) + int(words[12])


def cores() -> set[int]:
    """Return the cores that we may use, and so whatever we start: a part of a large machine, under `taskset`."""
    return os.sched_getaffinity(0)


def busy_s() -> float:
    """Return the CPU time that our cores have been busy: all but idle and waiting for the disk."""
    lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
    ours = [words[1:9] for words in lines if words[0] in {f"cpu{core}" for core in cores()}]
    return sum(int(spent) for words in ours for place, spent in enumerate(words) if place not in (3, 4)) / TICKS_PER_S


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has held."""
    return _kilobytes(Path(f"/proc/{pid}/status").read_text(), "VmHWM")


def held_bytes(pids: Iterable[int]) -> int:
    """Return the memory that processes hold together: what they share, by fork or as files, counts once."""
    shares = [_share(pid) for pid in pids]
    return sum(own for own, _ in shares) + max((files for _, files in shares), default=0)


def _share(pid: int) -> tuple[int, int]:
    """Return a process's part of anonymous and shared memory, and what it has of files."""
    try:
        rolled = Path(f"/proc/{pid}/smaps_rollup").read_text()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    return _kilobytes(rolled, "Pss_Anon") + _kilobytes(rolled, "Pss_Shmem"), _kilobytes(status, "RssFile")


def card_bytes(pid: int) -> tuple[int, int]:
    """Return what has reached and what has left the cards of a process's host, headers and all; loopback apart."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    counts = [line.split(":")[1].split() for line in lines if not line.strip().startswith("lo:")]
    return sum(int(each[0]) for each in counts), sum(int(each[8]) for each in counts)


def _kilobytes(text: str, name: str) -> int:
    """Return one line of a file of `name: number kB`, in bytes."""
    return next((1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:")), 0)
