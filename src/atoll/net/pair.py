"""Both kinds of link behind one door: TLS where two peers reach each other directly, QUIC by iroh everywhere else.

A peer listens at one port in TCP and in UDP, so an address serves both and a ticket names no kind. Who dials measures:
TLS, which costs far less work per byte, gets a head start, and whichever link stands first is taken. Where TCP is
refused iroh begins at once; where it is swallowed without a word (NAT, firewalls), after the head start, and for a
while without one for that peer.
"""

from __future__ import annotations

import asyncio

from atoll.errors import LocalError
from atoll.net import iroh, tls
from atoll.net.live import LiveConn, LiveTransport
from atoll.net.stream import Crew
from atoll.net.transport import CONNECT_S_MAX, ConnectFailed, ConnLost, Counts, LinkKind, PeerId, Transport

HEAD_START_S = 1.0
"""TCP and TLS together take three round trips; a second is enough for any path that is worth it."""
DEAF_S = 600.0
"""For so long nobody waits for a peer's TCP that once said nothing."""
_ATTEMPTS = 8  # a port that is free in TCP may be taken in UDP


class PairedTransport:
    """One peer's two doors."""

    def __init__(self, direct: LiveTransport, roundabout: LiveTransport) -> None:
        assert direct.id == roundabout.id, "both doors are of one peer"
        self._direct = direct
        self._roundabout = roundabout
        self._deaf_until_s: dict[PeerId, float] = {}
        self._crew = Crew()
        self._arrived: asyncio.Queue[LiveConn | None] = asyncio.Queue(1)  # the others wait behind their own door
        for door in (direct, roundabout):
            self._crew.start(self._listen(door))

    @property
    def id(self) -> PeerId:
        return self._roundabout.id

    @property
    def counts(self) -> Counts:
        return self._direct.counts + self._roundabout.counts

    def addresses(self) -> list[str]:
        return self._roundabout.addresses()

    async def connect(self, peer: PeerId, addresses: list[str]) -> LiveConn:
        tasks = [asyncio.create_task(self._direct.connect(peer, addresses))]
        won: asyncio.Task[LiveConn] | None = None
        try:
            await asyncio.wait(tasks, timeout=0.0 if self._is_deaf(peer) else HEAD_START_S)
            if (won := _first_made(tasks)) is None:
                tasks.append(asyncio.create_task(self._roundabout.connect(peer, addresses)))
            while won is None and (pending := [task for task in tasks if not task.done()]):
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                won = _first_made(tasks)
            if won is not None and not tasks[0].done():
                self._deaf_until_s[peer] = asyncio.get_running_loop().time() + DEAF_S
            return (won or tasks[-1]).result()
        finally:
            for task in tasks:
                if task is not won:
                    self._crew.start(_give_up(task))

    def _is_deaf(self, peer: PeerId) -> bool:
        return asyncio.get_running_loop().time() < self._deaf_until_s.get(peer, 0.0)

    def limit_silence(self, silence_s_max: float) -> None:
        self._direct.limit_silence(silence_s_max)
        self._roundabout.limit_silence(silence_s_max)

    async def accept(self) -> LiveConn:
        conn = await self._arrived.get()
        if conn is None:
            self._arrived.put_nowait(None)  # for whoever else asks
            raise ConnLost("this transport is closed")
        return conn

    async def close(self) -> None:
        await self._crew.stop()
        await asyncio.gather(self._direct.close(), self._roundabout.close())
        if self._arrived.full():
            self._arrived.get_nowait()
        self._arrived.put_nowait(None)

    async def _listen(self, door: LiveTransport) -> None:
        while True:
            await self._arrived.put(await door.accept())


def _first_made(tasks: list[asyncio.Task[LiveConn]]) -> asyncio.Task[LiveConn] | None:
    """Return the first attempt that has brought a connection."""
    return next((t for t in tasks if t.done() and not t.cancelled() and t.exception() is None), None)


async def _give_up(task: asyncio.Task[LiveConn]) -> None:
    """End an attempt, and the connection if it has just come about."""
    task.cancel()
    try:
        await (await task).close("another link to this peer was quicker")
    except (asyncio.CancelledError, ConnectFailed):
        pass


async def bind(
    secret: bytes, *, links: LinkKind, host: str = "0.0.0.0", port: int = 0, relay: bool = False
) -> Transport:
    """Return a transport that listens at `host` and `port` (0: any free one) for one kind of link or for both."""
    match links:
        case LinkKind.IROH:
            return await iroh.bind(secret, host=host, port=port, relay=relay)
        case LinkKind.TLS:
            return tls.bind(secret, host=host, port=port)
        case LinkKind.AUTO:
            return await bind_both(secret, host=host, port=port, relay=relay)


async def bind_both(secret: bytes, *, host: str, port: int = 0, relay: bool = False) -> PairedTransport:
    """Return a transport that listens at one port for both kinds of link."""
    for attempt in range(_ATTEMPTS):
        listener = tls.listen(host, port)
        try:
            port_made = listener.getsockname()[1]
            limit_s = CONNECT_S_MAX - HEAD_START_S  # both together keep the promise of `connect`
            roundabout = await iroh.bind(secret, host=host, port=port_made, relay=relay, connect_s=limit_s)
        except LocalError:
            listener.close()
            if port or attempt == _ATTEMPTS - 1:
                raise
        else:
            return PairedTransport(tls.adopt(secret, listener), roundabout)
    raise AssertionError("the last attempt returns or raises")
