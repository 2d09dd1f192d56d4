"""What does a link cost? One process sends to another over each kind of link, on loopback.

    python -m bench.links                 TLS and iroh, 256 MiB in messages of 128 KiB

Prints CPU seconds per gigabit of either end, and how fast it went. Nothing but the link is at work: one stream, one
message after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

from atoll.net import iroh, tls
from atoll.net.live import LiveTransport
from atoll.net.transport import LinkKind, PeerId, Traffic

MESSAGE_BYTES = 128 * 1024
HOST = "127.0.0.1"


async def _bind(kind: LinkKind) -> LiveTransport:
    secret = os.urandom(32)
    return tls.bind(secret, host=HOST) if kind is LinkKind.TLS else await iroh.bind(secret, host=HOST)


async def _cpu_s(work: Callable[[], Awaitable[object]]) -> float:
    """Return the CPU time that this process spends on some work."""
    before_s = time.process_time()
    await work()
    return time.process_time() - before_s


async def send(kind: LinkKind, peer: PeerId, address: str, messages: int) -> float:
    """Be the one who sends; return the CPU time of it."""
    transport = await _bind(kind)
    conn = await transport.connect(peer, [address])
    stream = await conn.open("bulk", Traffic.ROUND)
    message = os.urandom(MESSAGE_BYTES)

    async def work() -> None:
        for _ in range(messages):
            await stream.send(message)
        await stream.finish()

    spent_s = await _cpu_s(work)
    await transport.close()
    return spent_s


async def receive(kind: LinkKind, messages: int) -> dict[str, object]:
    """Be the one who receives, start the other, and return what both spent."""
    transport = await _bind(kind)
    about = [kind, transport.id.hex(), transport.addresses()[0], str(messages)]
    command = [sys.executable, "-m", "bench.links", "--send", *about]
    sender = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    conn = await transport.accept()
    _, stream = await conn.accept()
    began_s = time.monotonic()

    async def work() -> None:
        for _ in range(messages):
            await stream.recv()

    spent_s = await _cpu_s(work)
    took_s = time.monotonic() - began_s
    told, _ = await sender.communicate()
    await transport.close()
    gbit = messages * MESSAGE_BYTES * 8e-9
    return {
        "links": str(kind),
        "send_cpu_s_per_gbit": float(told) / gbit,
        "receive_cpu_s_per_gbit": spent_s / gbit,
        "gbit_s": gbit / took_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--send", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        kind, peer, address, messages = options.send
        print(asyncio.run(send(LinkKind(kind), PeerId(bytes.fromhex(peer)), address, int(messages))))
        return 0
    messages = options.mebibytes * 2**20 // MESSAGE_BYTES
    rows = [asyncio.run(receive(kind, messages)) for kind in (LinkKind.TLS, LinkKind.IROH)]
    if options.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        print(
            f"{row['links']:<5} {row['send_cpu_s_per_gbit']:.3f} CPU-s per Gbit to send, "
            f"{row['receive_cpu_s_per_gbit']:.3f} to receive, {row['gbit_s']:.2f} Gbit/s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
