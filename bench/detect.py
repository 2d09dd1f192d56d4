"""How soon is a dead peer noticed? Real peers, quiet links, and an end without a word.

    python -m bench.detect                   ten peers on loopback, each killed (SIGKILL) at a random moment
    sudo python -m bench.detect --how cut    ten peers in network namespaces, each link taken down silently

Prints for each how long it took from its end until its link was called lost, and the reason given. A link that is lost
before its end is a false alarm. Exits 1 if there was one, or if anybody was not noticed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lab import Host, Lab, everywhere

from atoll.net.iroh import bind
from atoll.net.live import LiveTransport
from atoll.net.transport import PeerId

READY_S_MAX = 120.0
NOTICED_S_MAX = 60.0
SPREAD_S = 10.0
"""Ends are spread over so many seconds after the links have come of age."""


# those who end


async def be_mortal(folder: Path, index: int, how: str, host: str) -> None:
    """Announce ourselves, be quiet, and end when we are told to."""
    transport = await bind(os.urandom(32), host=host)
    _leave_note(folder / f"peer-{index}", f"{transport.id.hex()} {host}:{_port(transport)}")
    await transport.accept()
    end_s = float(await _note(folder / f"end-{index}"))
    await asyncio.sleep(end_s - time.monotonic())
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    _cut()
    await _note(folder / "over")


def _cut() -> None:
    """Take our link down; nothing tells the other side."""
    subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)


def _port(transport: LiveTransport) -> str:
    return transport.addresses()[0].rpartition(":")[2]


def _leave_note(path: Path, text: str) -> None:
    """Write a file that is seen whole or not at all."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.rename(path)


async def _note(path: Path) -> str:
    while not path.exists():  # noqa: ASYNC110  (written by another process)
        await asyncio.sleep(0.1)
    return path.read_text()


# the one who watches


async def watch(folder: Path, peers: int, age_s: float, host: str) -> list[dict[str, object]]:
    """Connect to everybody, let the links come of age, and return how each end was noticed."""
    transport = await bind(os.urandom(32), host=host)
    async with asyncio.timeout(READY_S_MAX):
        notes = [(await _note(folder / f"peer-{index}")).split() for index in range(peers)]
        conns = [await transport.connect(PeerId(bytes.fromhex(peer)), [address]) for peer, address in notes]
    ends_s = [time.monotonic() + age_s + random.uniform(0, SPREAD_S) for _ in conns]
    for index, end_s in enumerate(ends_s):
        _leave_note(folder / f"end-{index}", str(end_s))

    async def notice(index: int) -> dict[str, object]:
        async with asyncio.timeout(age_s + SPREAD_S + NOTICED_S_MAX):
            why = await conns[index].closed()
        return {"peer": index, "took_s": round(time.monotonic() - ends_s[index], 3), "why": why}

    async with asyncio.TaskGroup() as noticing:
        tasks = [noticing.create_task(notice(index)) for index in range(peers)]
    _leave_note(folder / "over", "")
    await transport.close()
    return [task.result() for task in tasks]


# both worlds


def _on_loopback(folder: Path, peers: int, age_s: float) -> None:
    mortals = [_start(folder, index, peers, age_s) for index in range(peers)]
    try:
        _leave_note(folder / "seen", json.dumps(asyncio.run(watch(folder, peers, age_s, "127.0.0.1"))))
    finally:
        for mortal in mortals:
            mortal.kill()
            mortal.wait()


def _start(folder: Path, index: int, peers: int, age_s: float) -> subprocess.Popen[bytes]:
    env = {**os.environ, "ATOLL_HOST_INDEX": str(index + 1), "ATOLL_HOST_IP": "127.0.0.1"}
    return subprocess.Popen(_inside(folder, "kill", peers, age_s), env=env)


def _inside(folder: Path, how: str, peers: int, age_s: float) -> list[str]:
    words = ["--how", how, "--peers", str(peers), "--age", str(age_s), "--inside", str(folder)]
    return [sys.executable, "-m", "bench.detect", *words]


def _in_namespaces(folder: Path, peers: int, age_s: float) -> None:
    with Lab([Host()] * (peers + 1)) as lab:
        if everywhere(lab, _inside(folder, "cut", peers, age_s)):
            raise SystemExit("one of them failed")


def take_part(folder: Path, how: str, peers: int, age_s: float) -> None:
    """Be the one that the environment says."""
    index, host = int(os.environ["ATOLL_HOST_INDEX"]), os.environ["ATOLL_HOST_IP"]
    if index == 0:
        _leave_note(folder / "seen", json.dumps(asyncio.run(watch(folder, peers, age_s, host))))
    else:
        asyncio.run(be_mortal(folder, index - 1, how, host))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", choices=("kill", "cut"), default="kill")
    parser.add_argument("--peers", type=int, default=10)
    parser.add_argument("--age", type=float, default=45.0, help="seconds of quiet before the first end")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        take_part(options.inside, options.how, options.peers, options.age)
        return 0
    with TemporaryDirectory() as name:
        run = _on_loopback if options.how == "kill" else _in_namespaces
        run(Path(name), options.peers, options.age)
        seen = json.loads((Path(name) / "seen").read_text())
    took_s = [row["took_s"] for row in seen]
    outcome = {"how": options.how, "median_s": statistics.median(took_s), "max_s": max(took_s), "peers": seen}
    if options.json:
        print(json.dumps(outcome))
    else:
        for row in seen:
            print(f"peer {row['peer']}: {row['took_s']:.2f} s  {row['why']}")
        print(f"{options.how}: median {outcome['median_s']:.2f} s, longest {outcome['max_s']:.2f} s")
    return 1 if min(took_s) < 0 else 0


if __name__ == "__main__":
    sys.exit(main())
