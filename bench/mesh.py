"""How much of a line do links fill? All hosts of a network lab send to all others at once, over bare links.

    sudo python -m bench.mesh                          TLS and iroh, four hosts at 25, 50 and 100 Mbit/s
    sudo python -m bench.mesh --hosts 2                two hosts

Nothing but links is at work: between every two hosts one connection, on it one stream each way, messages of 256 KiB,
as in a round. Given is the line's time per byte of message: 1 would be a line that carries nothing else and never
waits. Above that are headers and acknowledgements, and what congestion control leaves idle or shares out unevenly, so
that some are done before others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lab import Host, Lab
from bench.show import parser_of, show

from atoll.net import iroh, tls
from atoll.net.live import LiveTransport
from atoll.net.transport import Conn, LinkKind, PeerId, Stream, Traffic

MESSAGE_BYTES = 256 * 1024
MBIT = 1e6 / 8
"""Bytes."""
HOSTS = 4
RATES_MBIT = (25.0, 50.0, 100.0)
LASTS_S = 5.0
"""What is sent takes about so long."""


# one host


async def be_host(kind: LinkKind, folder: Path, messages: int) -> None:
    """Send so many messages to each of the others, take theirs, and print when that began and ended."""
    index, count = int(os.environ["ATOLL_HOST_INDEX"]), int(os.environ["ATOLL_HOST_COUNT"])
    transport = await _bind(kind, os.environ["ATOLL_HOST_IP"])
    _note(folder / f"at-{index}", f"{transport.id.hex()} {transport.addresses()[0]}")
    await _until(lambda: len(list(folder.glob("at-?"))) == count)
    conns = [await _connect(transport, folder / f"at-{other}") for other in range(index + 1, count)]
    conns += [await transport.accept() for _ in range(index)]
    outs = [await conn.open("bulk", Traffic.ROUND) for conn in conns]
    ins = [(await conn.accept())[1] for conn in conns]
    _note(folder / f"ready-{index}", "")
    await _until(lambda: len(list(folder.glob("ready-?"))) == count)
    began_s = time.time()
    await asyncio.gather(*(_send(out, messages) for out in outs), *(_take(each, messages) for each in ins))
    print(json.dumps([began_s, time.time()]), flush=True)
    await _until(lambda: (folder / "over").exists())
    await transport.close()


async def _bind(kind: LinkKind, host: str) -> LiveTransport:
    secret = os.urandom(32)
    return tls.bind(secret, host=host) if kind is LinkKind.TLS else await iroh.bind(secret, host=host)


async def _connect(transport: LiveTransport, at: Path) -> Conn:
    peer, address = at.read_text().split()
    return await transport.connect(PeerId(bytes.fromhex(peer)), [address])


async def _send(out: Stream, messages: int) -> None:
    message = os.urandom(MESSAGE_BYTES)
    for _ in range(messages):
        await out.send(message)


async def _take(stream: Stream, messages: int) -> None:
    for _ in range(messages):
        await stream.recv()


async def _until(claim: Callable[[], bool]) -> None:
    while not claim():  # noqa: ASYNC110 - other processes make it true
        await asyncio.sleep(0.02)


def _note(path: Path, text: str) -> None:
    """Write a file that is seen whole or not at all."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.rename(path)


# all of them


def filled(kind: LinkKind, rate_mbit: float, hosts: int = HOSTS) -> float:
    """Return a line's time per byte of message."""
    messages = max(1, round(LASTS_S * rate_mbit * MBIT / (hosts - 1) / MESSAGE_BYTES))
    with TemporaryDirectory() as name, Lab([Host(rate_mbit * MBIT, rate_mbit * MBIT)] * hosts) as lab:
        command = [sys.executable, "-m", "bench.mesh", "--host", kind, name, str(messages)]
        running = [lab.start(index, command, stdout=subprocess.PIPE, text=True) for index in range(hosts)]
        times_s: list[list[float]] = [json.loads(each.stdout.readline()) for each in running if each.stdout is not None]
        (Path(name) / "over").touch()
        for each in running:
            each.communicate()
    took_s = max(ended_s for _, ended_s in times_s) - max(began_s for began_s, _ in times_s)
    return took_s * rate_mbit * MBIT / ((hosts - 1) * messages * MESSAGE_BYTES)


@dataclass(frozen=True)
class Row:
    """What came of one rate."""

    links: LinkKind
    hosts: int
    rate_mbit: float
    per_byte: float
    """Of a line's time."""


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--hosts", type=int, default=HOSTS, help=f"how many, {HOSTS} if not told")
    parser.add_argument("--host", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        kind, folder, messages = options.host
        asyncio.run(be_host(LinkKind(kind), Path(folder), int(messages)))
        return 0
    asked = [(kind, rate_mbit) for kind in (LinkKind.TLS, LinkKind.IROH) for rate_mbit in RATES_MBIT]
    rows = (Row(kind, options.hosts, rate_mbit, filled(kind, rate_mbit, options.hosts)) for kind, rate_mbit in asked)
    show(rows, _text, as_json=options.json)
    return 0


def _text(row: Row) -> str:
    return f"{row.links:<5} {row.rate_mbit:4g} Mbit/s: {row.per_byte:.3f} of a line per byte"


if __name__ == "__main__":
    sys.exit(main())
