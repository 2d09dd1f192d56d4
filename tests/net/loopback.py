"""Real transports on loopback, and peers in other processes, for tests of either kind of link."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from atoll.net import iroh, tls
from atoll.net.live import LiveConn, LiveTransport
from atoll.net.transport import PeerId

PATIENCE_S = 20.0


async def bind(kind: str, secret: bytes, **options: Any) -> LiveTransport:
    """Return a transport of one kind."""
    return await iroh.bind(secret, **options) if kind == "iroh" else tls.bind(secret, **options)


@contextlib.asynccontextmanager
async def peers(kind: str, count: int, **options: Any) -> AsyncIterator[list[LiveTransport]]:
    made = [await bind(kind, os.urandom(32), host="127.0.0.1", **options) for _ in range(count)]
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield made
    finally:
        await asyncio.gather(*(transport.close() for transport in made))


@contextlib.asynccontextmanager
async def joined(kind: str, **options: Any) -> AsyncIterator[tuple[LiveConn, LiveConn]]:
    async with peers(kind, 2, **options) as (ann, bob):
        here = await ann.connect(bob.id, bob.addresses())
        yield here, await bob.accept()


@contextlib.asynccontextmanager
async def far_peer(kind: str, port: int = 0, block_s: float = 0) -> AsyncIterator[Far]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).with_name("far_peer.py")), kind, str(port), str(block_s),
        stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        peer, *addresses = (await process.stdout.readline()).decode().split()
        yield Far(process, PeerId(bytes.fromhex(peer)), addresses)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Far:
    """A peer in another process."""

    def __init__(self, process: asyncio.subprocess.Process, peer: PeerId, addresses: list[str]) -> None:
        self.process = process
        self.peer = peer
        self.addresses = addresses


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run the body of a test in a fresh loop."""

    async def body() -> None:
        await test()

    asyncio.run(body())
