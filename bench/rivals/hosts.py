"""What the processes on one host of a lab cost: their CPU time and the memory they hold together.

A rival may be several processes on a host (hivemind is four), so everything here counts all that live in the host's
network namespace, as a machine of its own would.
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


def _kilobytes(text: str, name: str) -> int:
    """Return one line of a file of `name: number kB`, in bytes."""
    return next((1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:")), 0)
