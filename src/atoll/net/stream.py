"""Whole messages on a byte stream that may be cut, cancelled or forgotten at any point.

The two halves of a stream live and end apart. What came is kept until a message is whole, so a cancelled `recv` loses
nothing; a stream whose `send` was cancelled is given up, so half a message is never taken for a whole one. A stream
that nobody holds any more gives its place back by itself. All of this is above the raw stream of a kind of link, which
is seen here only through two small protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from atoll.net.frame import END_MARK, Ended, Inbox, TooLong, header
from atoll.net.transport import MESSAGE_BYTES_MAX, Counts, Malformed, StreamClosed, StreamReset, Traffic

TAG_BYTES_MAX = 200
_LINGER_S = 10.0

T = TypeVar("T")


class LineBroken(Exception):
    """A raw call failed: the stream or the whole line is gone."""


class RawSend(Protocol):
    """What a kind of link offers to write with; calls raise `LineBroken`, also those under way when it is given up."""

    async def set_priority(self, p: int) -> None: ...
    async def write(self, *pieces: bytes) -> None:
        """Hand these bytes over, all of them; cancelled: some of them, so the stream is good for `reset` only."""

    async def finish(self) -> None:
        """End the stream and wait until the other side holds all of it."""

    def reset(self) -> None:
        """Tell the other side that what it got is not whole."""

    def abandon(self) -> None:
        """Nobody will write any more: let the stream end where it is."""


class RawRecv(Protocol):
    """What a kind of link offers to read with."""

    async def wait(self, count: int) -> None:
        """Wait until `count` bytes are here, or as many as are let in before some are taken, or the end.

        Raises `LineBroken`, once what came before has been taken. Cancelled: nothing is lost.
        """

    def take(self, limit: int) -> bytes | None:
        """Return what is here, up to a limit; None: nothing more comes."""

    def stop(self) -> None:
        """Nobody will read any more: tell the other side."""


class Host(Protocol):
    """What a stream needs of its connection."""

    @property
    def crew(self) -> Crew: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def blame(self, error: BaseException) -> BaseException:
        """Return what a failed call means in the words of the contract."""


class Crew:
    """Background tasks that end with their owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def done(self, limit_s: float) -> None:
        """Let the tasks come to their own end, for so long at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)

    async def stop(self) -> None:
        """Cancel every task and wait until all are gone."""
        self.cancel()
        if others := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(others)


class Slot:
    """One of the streams a side may keep open: free again when both halves are over."""

    def __init__(self, free: Callable[[], None]) -> None:
        self._halves = 2
        self._free = free

    def half_over(self) -> None:
        self._halves -= 1
        if self._halves == 0:
            self._free()


class _Outgoing:
    """The sending half of a stream."""

    def __init__(self, conn: Host, raw: RawSend, slot: Slot) -> None:
        self._conn = conn
        self._raw = raw
        self._slot = slot
        self._turn = asyncio.Lock()
        self.over = False

    async def begin(self, traffic: Traffic) -> None:
        """Rank this stream among the others of its connection."""
        await self._do(self._raw.set_priority(len(Traffic) - traffic))

    async def put(self, message: bytes) -> None:
        """Write one message."""
        async with self._turn:
            await self._do(self._raw.write(header(message), message))

    async def finish(self) -> None:
        """Write the end mark and wait until the other side holds all of it: only then a close loses nothing."""
        async with self._turn:
            await self._do(self._raw.write(END_MARK))
            await self._do(self._raw.finish())
            self._end()

    def give_up(self) -> None:
        """Tell the other side that what it got is not whole."""
        if not self.over:
            self._end()
            self._raw.reset()

    def abandon(self) -> None:
        """Forget the stream: nobody holds it any more."""
        if not self.over:
            self._end()
            self._raw.abandon()

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self._slot.half_over()

    async def _do(self, step: Coroutine[Any, Any, None]) -> None:
        try:
            await step
        except LineBroken as error:
            raise self._conn.blame(error) from error


class _Incoming:
    """The receiving half of a stream."""

    def __init__(self, conn: Host, raw: RawRecv, slot: Slot) -> None:
        self._conn = conn
        self._raw = raw
        self._slot = slot
        self._inbox = Inbox()
        self._broken: BaseException | None = None
        self._gone = False
        self._watched = False
        self.over = False

    async def take(self, limit: int) -> bytes:
        """Return the next message; cancelled: nothing is lost, what came stays for the next caller."""
        while (message := self._pop(limit)) is None:
            if self._broken is not None:
                raise self._conn.blame(self._broken) from self._broken
            await self._more()
        self._keep()  # the end mark may be here already
        return message

    def look_for_end(self) -> None:
        """Have the end noticed although nobody asks for another message."""
        if not self.over and not self._watched:
            self._watched = True
            self._conn.crew.start(self._watch())

    def give_up(self) -> None:
        """Tell the other side to stop sending."""
        if not self.over:
            self._gone = True
            self._break(StreamReset("the stream was given up here"))
            self._raw.stop()

    def forget(self) -> None:
        """Stop caring, politely."""
        if not self.over:
            self._end()
            self._conn.crew.start(self._linger())

    async def _watch(self) -> None:
        while not self.over and not self._inbox.begun:
            await self._more()
        self._watched = False

    async def _linger(self) -> None:
        """Let the other side come to its own end: dropped unread, its last words would fail on its side."""
        with contextlib.suppress(TimeoutError, Malformed, LineBroken):
            async with asyncio.timeout(_LINGER_S):
                while self._broken is None and not self._inbox.ended:
                    self._pop(MESSAGE_BYTES_MAX)
                    await self._more()
                await self._raw.wait(1)  # for the end itself: told to stop before it, the other side would be let down
        self._gone = True
        self._raw.stop()

    def _pop(self, limit: int) -> bytes | None:
        if self._gone:
            return None
        try:
            return self._inbox.pop(limit)
        except Ended:
            raise StreamClosed("the other side finished the stream") from None
        except TooLong as error:
            raise Malformed(str(error)) from None

    async def _more(self) -> None:
        """Wait for more of the next message; several may wait, and whoever is woken first keeps it."""
        try:
            await self._raw.wait(self._inbox.lacks)
        except LineBroken as error:
            self._break(error)
        else:
            self._keep()

    def _keep(self) -> None:
        """Put what came into the inbox."""
        if self._gone or not self._inbox.lacks:
            return
        piece = self._raw.take(self._inbox.lacks)
        if piece is None:
            self._break(StreamReset("the stream was cut before its end"))
        elif piece:
            self._inbox.feed(piece)
            if self._inbox.ended:
                self._end()

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        self._end()

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self._slot.half_over()


class MessageStream:
    """Whole messages both ways over one QUIC stream."""

    def __init__(self, conn: Host, send: RawSend, recv: RawRecv, slot: Slot) -> None:
        self._conn = conn
        self._out = _Outgoing(conn, send, slot)
        self._in = _Incoming(conn, recv, slot)
        self._traffic = Traffic.CONTROL
        self._finished = False
        # Not `__del__`: by the time that runs, a collected cycle has freed the raw halves too, and a read would crash.
        weakref.finalize(self, _forgotten, conn.loop, self._out, self._in).atexit = False

    async def greet(self, tag: str, traffic: Traffic) -> None:
        """Be the opener: say at once what the stream is for, as the other side sees nothing before."""
        self._traffic = traffic
        await self._out.begin(traffic)
        await self._out.put(bytes((traffic,)) + tag.encode())

    async def welcome(self) -> str:
        """Be the acceptor: return the tag; raises `Malformed` if what comes is none."""
        try:
            first = await self._in.take(1 + TAG_BYTES_MAX)
            self._traffic = Traffic(first[0])
            tag = first[1:].decode()
        except (StreamClosed, IndexError, ValueError):
            raise Malformed("the stream does not begin with a tag") from None
        await self._out.begin(self._traffic)
        return tag

    async def send(self, message: bytes) -> None:
        assert len(message) <= MESSAGE_BYTES_MAX, f"a message of {len(message)} bytes is too long to send"
        assert not self._finished, "nothing is sent after finish"
        try:
            await self._out.put(message)
        except asyncio.CancelledError:
            self.reset()  # half a message may be out
            raise
        self._conn.counts.sent_bytes[self._traffic] += len(message)

    async def recv(self, limit: int = MESSAGE_BYTES_MAX) -> bytes:
        try:
            message = await self._in.take(min(limit, MESSAGE_BYTES_MAX))
        except (StreamReset, Malformed):
            self.reset()
            raise
        self._conn.counts.received_bytes[self._traffic] += len(message)
        if self._finished:
            self._in.look_for_end()
        return message

    async def finish(self) -> None:
        assert not self._finished, "a stream is finished once"
        self._finished = True
        try:
            await self._out.finish()
        except asyncio.CancelledError:
            self.reset()
            raise
        self._in.look_for_end()

    def reset(self) -> None:
        self._out.give_up()
        self._in.give_up()


def _forgotten(loop: asyncio.AbstractEventLoop, out: _Outgoing, into: _Incoming) -> None:
    """Have a stream that nobody holds any more give its slot back; called from any thread, so the loop is asked."""
    if not (out.over and into.over):
        with contextlib.suppress(RuntimeError):  # the loop is closed: so is everything else
            loop.call_soon_threadsafe(_let_go, out, into)


def _let_go(out: _Outgoing, into: _Incoming) -> None:
    out.abandon()
    into.forget()
