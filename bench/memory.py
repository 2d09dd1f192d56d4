"""Does the exchange take the memory that its formula says? Real peers with unequal shares, each measured from inside.

    python -m bench.memory                         four peers, 60m parameters, fp32: about two minutes
    python -m bench.memory --size 15m --codec fp16

Each peer is a process of its own that lives as `atoll peer` does and, beside that, notes the kernel's own count of its
resident memory: the level when it begins to train, with the last round behind it and no gradients yet, and the highest
point (`VmHWM`, reset by `clear_refs`) from when its contribution is ready until the round is committed. The difference
is held against `swarm.shares.peak_bytes` for the share that the broker's journal names. Limits on memory make the
shares unequal: one peer has room for none.

glibc keeps freed memory of some sizes for itself, so that a level would hide what was freed before it. Here it is told
to give everything from 64 kB on back at once (`MALLOC_MMAP_THRESHOLD_`), and the rest before the level is taken
(`malloc_trim`): what is counted is what is held. Garbage is held too: nobody is told to collect it.
Exits 1 when a peer is off by more than a tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import dataclasses
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import msgspec
from bench.runs import run_text

from atoll import journal
from atoll.journal import Journal
from atoll.net.ticket import parse_ticket
from atoll.peer.desk import Own
from atoll.peer.life import Start, live
from atoll.peer.member import Member
from atoll.spec.axes.codec import Fp16, Fp32
from atoll.spec.load import decode_run
from atoll.swarm.log import Key
from atoll.swarm.routes.shares import peak_bytes
from atoll.sync.codec import wire_bytes
from atoll.sync.grid import grid_of

T = TypeVar("T")

OFF_MAX = 0.1
ROUNDS = 3
"""The first is not looked at: everybody still builds up what it then keeps."""
LIMITS = (0.0, 2.6, 2.3, 2.0)
"""What each peer's exchange may take, in contributions; 0: no limit. The last has room for nobody else's."""
START_S_MAX = 300.0
ROUND_S_MAX = 300.0
MMAP_THRESHOLD_BYTES = 65536


def run_of(size: str, codec: str) -> str:
    """Return the run file: rounds of one step each, without an end."""
    return run_text(
        "memory",
        {
            "model.size": size,
            "data.context": 16,
            "recipe.work.batch": 1,
            "recipe.work.inner.kind": "sgd",
            "recipe.work.inner.lr": 0.01,
            "recipe.channel.outer.when.steps": 1,
            "recipe.channel.outer.what.codec.kind": codec,
            "upkeep.checkpoint_every": 1000,
            "membership.start_with": len(LIMITS),
        },
    )


class Measured(msgspec.Struct, frozen=True):
    """What one peer held in one round, above its level before."""

    version: int
    level_bytes: int
    making_bytes: int
    """At the highest point while the contribution was made."""
    exchange_bytes: int
    """And from then until the commit."""
    applying_bytes: int
    """And from then until the next anchor was ours."""


# one peer


def _memory_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"the kernel does not count {field}")


def _give_back() -> None:
    """Have glibc give the kernel what it keeps of freed memory, unless it was to be left as it is."""
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


class Gauge:
    """One peer's memory, looked at when something happens to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._level = self._making = self._exchange = 0
        self._watching: asyncio.Task[None] | None = None

    def note(self, event: journal.Event) -> None:
        """Take what the journal is told for the bounds of a round's parts."""
        match event:
            case journal.PeerStarted():
                (member,) = [each for each in gc.get_objects() if type(each) is Member]
                self._watching = asyncio.ensure_future(self._watch(member))
            case journal.LeaseTaken():
                _give_back()
                self._level = _memory_bytes("VmRSS")
            case journal.WorkProgressed(steps=steps, steps_of=steps_of) if steps == steps_of:
                _reset_peak()
            case journal.RoundCommitted():
                self._exchange = self._above()
            case journal.RoundApplied(version=version):
                measured = Measured(version, self._level, self._making, self._exchange, self._above())
                with self._path.open("ab") as file:
                    file.write(msgspec.json.encode(measured) + b"\n")
            case _:
                pass

    def _above(self) -> int:
        """Return the highest point since it was last looked at, above the level, and begin anew."""
        peak = _memory_bytes("VmHWM")
        _reset_peak()
        return peak - self._level

    async def _watch(self, member: Member) -> None:
        """Begin anew to look for the highest point whenever a contribution is ready."""
        seen: list[Key] = []

        def made() -> Own | None:
            owns = (desk.own for desk in member.desks.values())
            return next((own for own in owns if own is not None and own.key not in seen), None)

        while True:
            own = await member.changes.until(made)
            assert own is not None
            seen.append(own.key)
            del own
            self._making = self._above()


async def _live(folder: Path, seat: int, ticket: str, limit_bytes: int) -> None:
    from atoll.cli.machine import Machine, WallClock, real_box

    home = folder / "peers" / str(seat)
    box = await real_box(home, Machine(device="cpu", threads=1, host="127.0.0.1"))
    gauge = Gauge(folder / f"memory-{seat}")
    file = (home / "journal.jsonl").open("ab", buffering=0)

    def sink(line: bytes) -> None:
        file.write(line)
        gauge.note(journal.parse(line).event)

    box = dataclasses.replace(box, journal=Journal(box.journal.peer, WallClock(), sink))
    if ticket:
        known = parse_ticket(ticket)
        start = Start(run_id=known.run, contacts={c.peer: c.addresses for c in known.peers})
    else:
        start = Start(run=decode_run((folder / "run.json").read_bytes()))
    start.memory_bytes = limit_bytes
    try:
        await live(box, start)
    finally:
        file.close()
        await box.compute.close()


# all of them


def measure(size: str, codec: str, rounds: int, *, keep_freed: bool) -> list[dict[str, object]]:
    """Let the peers play some rounds and return what each held in each, beside what it should have."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        contribution_bytes = _prepare(folder, size, codec)
        env = {**os.environ, "HOME": name, "ATOLL_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        if not keep_freed:
            env["MALLOC_MMAP_THRESHOLD_"] = str(MMAP_THRESHOLD_BYTES)
        started: list[subprocess.Popen[bytes]] = []
        try:
            ticket = ""
            for seat, limit in enumerate(LIMITS):
                words = [str(folder), str(seat), ticket, str(int(limit * contribution_bytes))]
                started.append(subprocess.Popen([sys.executable, "-m", "bench.memory", "--seat", *words], env=env))
                ticket = ticket or _await(lambda: _ticket(folder), started, START_S_MAX)
            _await(lambda: _rounds(folder) >= rounds, started, START_S_MAX + rounds * ROUND_S_MAX)
        finally:
            for process in started:
                process.kill()
                process.wait()
        return _table(folder, contribution_bytes, rounds)


def _prepare(folder: Path, size: str, codec: str) -> int:
    """Write the run where the peers find it, its data prepared, and return the bytes of a contribution."""
    from bench.stage import prepare

    from atoll.cli.machine import cache
    from atoll.data.samples import open_data
    from atoll.model.folder import layout_of
    from atoll.model.shape import elements

    prepare(folder, run_of(size, codec))
    run = decode_run((folder / "run.json").read_bytes())
    _, layout = layout_of(run, open_data(run.data, run.seeds.data, cache()).vocab_size)
    for seat in range(len(LIMITS)):
        (folder / "peers" / str(seat)).mkdir(parents=True)
    return wire_bytes(Fp16() if codec == "fp16" else Fp32(), grid_of(elements(layout)).size)


def _lines(folder: Path, seat: int) -> list[journal.Line]:
    path = folder / "peers" / str(seat) / "journal.jsonl"
    return list(journal.read(path)) if path.is_file() else []


def _ticket(folder: Path) -> str:
    return next((x.event.ticket for x in _lines(folder, 0) if isinstance(x.event, journal.TicketPrinted)), "")


def _await(claim: Callable[[], T], started: list[subprocess.Popen[bytes]], limit_s: float) -> T:
    """Wait until `claim` is true; everybody who ended must have ended well."""
    deadline_s = time.monotonic() + limit_s
    while not (said := claim()):
        assert time.monotonic() < deadline_s, "the peers did not get on"
        assert not any(process.poll() for process in started), "a peer failed"
        time.sleep(0.1)
    return said


def _table(folder: Path, contribution_bytes: int, rounds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for seat in range(len(LIMITS)):
        who = _lines(folder, seat)[0].peer
        for line in (folder / f"memory-{seat}").read_bytes().splitlines():
            measured = msgspec.json.decode(line, type=Measured)
            if not 1 < measured.version <= rounds:
                continue
            share = _share(folder, who, measured.version)
            formula = peak_bytes(contribution_bytes, share, len(LIMITS))
            limit_bytes = LIMITS[seat] * contribution_bytes
            assert not limit_bytes or formula < 1.01 * limit_bytes, f"peer {seat} owns more than it has memory for"
            rows.append(
                {
                    "peer": seat,
                    "round": measured.version,
                    "share": share,
                    "formula_mb": round(formula / 1e6, 1),
                    "measured_mb": round(measured.exchange_bytes / 1e6, 1),
                    "ratio": round(measured.exchange_bytes / formula, 3),
                    "making_mb": round(measured.making_bytes / 1e6, 1),
                    "applying_mb": round(measured.applying_bytes / 1e6, 1),
                    "level_mb": round(measured.level_bytes / 1e6, 1),
                }
            )
    return rows


def _rounds(folder: Path) -> int:
    """Return how many rounds every peer has measured."""
    paths = [folder / f"memory-{seat}" for seat in range(len(LIMITS))]
    return min(len(path.read_bytes().splitlines()) if path.is_file() else 0 for path in paths)


def _share(folder: Path, who: str, version: int) -> float:
    """Return a peer's share in a round: what the broker's journal last said before it."""
    share = 1 / len(LIMITS)
    for line in _lines(folder, 0):
        if isinstance(line.event, journal.SharesChanged) and line.event.version <= version:
            share = line.event.shares[who]
    return share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="60m")
    parser.add_argument("--codec", choices=("fp32", "fp16"), default="fp32")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--keep-freed", action="store_true", help="leave the allocator as it is")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--seat", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell switches it off for background jobs
    if options.seat:
        folder, seat, ticket, limit = options.seat
        asyncio.run(_live(Path(folder), int(seat), ticket, int(limit)))
        return 0
    if not Path("/proc/self/clear_refs").exists():
        print("only a Linux kernel counts what is needed here")
        return 0
    rows = measure(options.size, options.codec, options.rounds, keep_freed=options.keep_freed)
    if options.json:
        print(json.dumps(rows))
    else:
        print("  ".join(f"{key:>11}" for key in rows[0]))
        print("\n".join("  ".join(f"{value!s:>11}" for value in row.values()) for row in rows))
    return 1 if any(abs(float(str(row["ratio"])) - 1) > OFF_MAX for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
