"""This peer's links to the others: dialled when needed, shared by everything that talks to that peer.

A link is whichever connection to a peer is alive, ours or theirs. Streams carry a tag that says which
handler they are for, and the tag decides the traffic class. Talking to ourselves goes through the same
door (the broker's own member is a member like any other) over a pair of queues.

What another peer sends is checked by the handler, and before that by the transport (a message that is too long,
a stream without a tag); when it is wrong, the journal says who sent it and the stream is reset, whichever side
opened it. Nothing a stranger sends ends the peer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from operator import methodcaller
from typing import Any, TypeVar, cast

from atoll import journal as events
from atoll.errors import PeerError, PeerLost
from atoll.journal import Journal
from atoll.net.identity import short
from atoll.net.transport import (
    MESSAGE_BYTES_MAX,
    NO_TAG,
    Conn,
    ConnectFailed,
    ConnLost,
    Malformed,
    PeerId,
    Stream,
    StreamClosed,
    Traffic,
    Transport,
)
from atoll.net.wire import Wire, encode
from atoll.peer.rates import Line, Link

M = TypeVar("M")
T = TypeVar("T")
Handler = Callable[[PeerId, Stream], Awaitable[None]]

TRAFFIC = {
    "ask": Traffic.CONTROL,
    "control": Traffic.CONTROL,
    "council": Traffic.CONTROL,
    "part": Traffic.ROUND,
    "result": Traffic.ROUND,
    "fetch": Traffic.STATE,
}
FAILED_S = 60.0
"""For so long a vain attempt to reach a peer is taken for an answer."""
QUEUE_MAX = 64
"""Messages waiting on a stream to ourselves."""


class Links:
    """Every connection of one peer, and who serves what."""

    def __init__(self, transport: Transport, journal: Journal, line_bytes_s: int = 0) -> None:
        self.transport = transport
        self.line = Line(line_bytes_s)
        self._rates: dict[PeerId, Link] = {}
        self.met: dict[PeerId, None] = {}
        """Peers that a link to has worked in this life."""
        self.contacts: dict[PeerId, tuple[str, ...]] = {}
        self._journal = journal
        self._handlers: dict[str, Handler] = {}
        self._doors = asyncio.Event()
        self._conns: dict[PeerId, list[Conn]] = {}
        self._dialling: dict[PeerId, asyncio.Lock] = {}
        self._knocks: dict[PeerId, asyncio.Event] = {}
        self._failed_s: dict[PeerId, float] = {}
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def me(self) -> PeerId:
        return self.transport.id

    def serve(self, handlers: dict[str, Handler]) -> None:
        """Let these handlers answer streams by their tag; streams that came earlier were waiting for this."""
        self._handlers = handlers
        self._doors.set()

    async def run(self) -> None:
        """Accept connections until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            while True:
                self._keep(await self.transport.accept())

    @asynccontextmanager
    async def talk(self, peer: PeerId, tag: str) -> AsyncIterator[Stream]:
        """Open a stream to `peer`, dialling it if need be, and give it up at the end; raises `PeerLost`.

        Bytes that are no message are written down here, whoever deals with the error.
        """
        stream = await self._open(peer, tag)
        try:
            yield stream
        except Malformed as error:
            self.refuse(peer, f"{tag}: {error}")
            raise
        finally:
            stream.reset()

    async def _open(self, peer: PeerId, tag: str) -> Stream:
        if peer == self.me:
            return self._to_self(tag)
        conn = await self._conn(peer)
        try:
            return await conn.open(tag, TRAFFIC[tag])
        except ConnLost:
            self._forget(conn)
            raise

    async def _conn(self, peer: PeerId) -> Conn:
        async with self._dialling.setdefault(peer, asyncio.Lock()):
            if self._conns.get(peer):
                return self._conns[peer][0]
            try:
                conn = await self.transport.connect(peer, list(self.contacts.get(peer, ())))
            except ConnectFailed:
                self._failed_s[peer] = asyncio.get_running_loop().time()
                raise
            self._keep(conn)
            return conn

    def linked(self, peer: PeerId) -> bool:
        """Return whether a connection to this peer is open, as far as we know."""
        return bool(self._conns.get(peer))

    def unreachable(self, peer: PeerId) -> bool:
        """Return whether we tried to reach a peer in vain a short while ago, and it has not come to us since."""
        now_s = asyncio.get_running_loop().time()
        return not self.linked(peer) and now_s - self._failed_s.get(peer, -math.inf) < FAILED_S

    def begin(self, peer: PeerId, size_bytes: int, now_s: float) -> None:
        """Note that so many bytes of a round are on their way to a peer."""
        self.line.up.begin(now_s)
        self._rates.setdefault(peer, Link()).begin(size_bytes, now_s)

    def moved(self, peer: PeerId, size_bytes: int, now_s: float) -> None:
        """Note that a peer has got so many of them."""
        self.line.up.moved(size_bytes, now_s)
        self._rates.setdefault(peer, Link()).moved(size_bytes, now_s)

    def turn(self, *, owned: float) -> None:
        """Begin to measure another round; in the one before we owned so many times an equal share."""
        self.line.turn(owned=owned)
        for peer, link in self._rates.items():
            link.turn(self.round_trip_s(peer) or 0.0)

    def rate_bytes_s(self, peer: PeerId) -> int:
        """Return what the link to a peer carried in the last rounds; 0: not known."""
        link = self._rates.get(peer)
        return link.rate_bytes_s() if link is not None else 0

    def carries_bytes_s(self, peer: PeerId) -> float:
        """Return what the link to a peer carries of bytes alone, where rounds send it what fits; 0: not known."""
        link = self._rates.get(peer)
        return link.slope.rate_bytes_s() if link is not None else 0.0

    def round_trip_s(self, peer: PeerId) -> float | None:
        """Return the last measured round trip to a peer that we are linked to."""
        conns = self._conns.get(peer)
        return conns[0].round_trip_s() if conns else None

    def distance_s(self, peer: PeerId) -> float | None:
        """Return how far away a peer is that we are linked to: the shortest round trip so far."""
        conns = self._conns.get(peer)
        return conns[0].distance_s() if conns else None

    async def visited(self, peer: PeerId, limit_s: float) -> bool:
        """Return whether a peer that we could not reach has come to us instead, now or within a while."""
        try:
            async with asyncio.timeout(limit_s):
                await self._knocks.setdefault(peer, asyncio.Event()).wait()
        except TimeoutError:
            return False
        return self.linked(peer)

    def _keep(self, conn: Conn) -> None:
        assert self._tasks is not None, "links run before they are used"
        self._conns.setdefault(conn.peer, []).append(conn)
        self.met[conn.peer] = None
        self._knocks.setdefault(conn.peer, asyncio.Event()).set()
        self._tasks.create_task(self._listen(conn))

    def _forget(self, conn: Conn) -> None:
        conns = self._conns.get(conn.peer, [])
        if conn in conns:
            conns.remove(conn)
        if not conns:
            self._knocks.pop(conn.peer, None)

    async def _listen(self, conn: Conn) -> None:
        assert self._tasks is not None
        try:
            while True:
                tag, stream = await conn.accept()
                self._tasks.create_task(self._answer(conn.peer, tag, stream))
        except PeerLost:
            self._forget(conn)

    def refuse(self, peer: PeerId, why: str) -> None:
        """Say in the journal what a peer did wrong."""
        self._journal.write(events.MessageRefused(who=short(peer), why=why))

    async def _answer(self, peer: PeerId, tag: str, stream: Stream) -> None:
        """Run a handler; whatever the other side did wrong stays on this stream."""
        await self._doors.wait()
        handler = self._handlers.get(tag)
        if handler is None:
            known = tag != NO_TAG
            self.refuse(peer, f"no such protocol: {tag[:40]!r}" if known else "a stream that does not begin with a tag")
            stream.reset()
            return
        try:
            await handler(peer, stream)
            await stream.finish()
        except PeerLost:
            stream.reset()
        except PeerError as error:
            self._journal.write(events.MessageRefused(who=short(peer), why=f"{tag}: {error}"))
            stream.reset()

    def _to_self(self, tag: str) -> Stream:
        assert self._tasks is not None
        there, back = asyncio.Queue[bytes | None](QUEUE_MAX), asyncio.Queue[bytes | None](QUEUE_MAX)
        self._tasks.create_task(self._answer(self.me, tag, _Local(there, back)))
        return _Local(back, there)


class _Local:
    """One end of a stream to ourselves."""

    def __init__(self, inbox: asyncio.Queue[bytes | None], outbox: asyncio.Queue[bytes | None]) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._ended = False

    async def send(self, message: bytes) -> None:
        await self._outbox.put(message)

    async def recv(self, limit: int = MESSAGE_BYTES_MAX) -> bytes:
        message = None if self._ended else await self._inbox.get()
        if message is None:
            self._ended = True
            raise StreamClosed("our own end is finished")
        return message

    async def finish(self) -> None:
        await self._outbox.put(None)

    def reset(self) -> None:
        for queue in (self._inbox, self._outbox):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)


async def say(stream: Stream, message: object) -> None:
    """Send one wire message."""
    await stream.send(encode(message))  # type: ignore[arg-type]


async def hear(stream: Stream, wire: Wire[M]) -> M:
    """Return the next wire message; raises `PeerError` for bytes that are none."""
    return wire.decode(await stream.recv())


async def both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, Any]) -> T:
    """Run the two sides of a conversation and return what the first returns; what either raises ends both."""
    return cast("T", (await together(one, other))[0])


async def together(*sides: Coroutine[Any, Any, T]) -> list[T]:
    """Return what each of some coroutines returns; what any of them raises ends all."""
    if len(sides) == 1:
        return [await sides[0]]
    tasks = [asyncio.ensure_future(side) for side in sides]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return list(map(_outcome, filter(_done, tasks)))
    finally:
        await cancelled(*tasks)
        _look_at(tasks)
        tasks.clear()  # what one of them raised has this frame in it: they would keep each other, and all in it


_done, _outcome = methodcaller("done"), methodcaller("result")
"""Without a loop in `together`, whose variable would keep the task that raised after the list is cleared."""


def _look_at(tasks: Iterable[asyncio.Future[T]]) -> None:
    """Have it known that nobody asks for what else these raised: the first of it ended them all."""
    for task in tasks:
        if not task.cancelled():
            task.exception()


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs of some tasks, and return when it has ended."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


async def within(limit_s: float | None, turn: Awaitable[T]) -> T:
    """Return what the other side's turn in a conversation brings; raises `PeerLost` when it takes too long."""
    try:
        async with asyncio.timeout(limit_s):
            return await turn
    except TimeoutError:
        raise PeerLost(f"nothing moved for {limit_s:.0f} s") from None
