"""Whole messages on a byte stream that may be cut, cancelled or forgotten at any point.

The two halves of a stream live and end apart. A read outlives the `recv` that began it, so a cancelled
`recv` loses nothing; a write dies with its `send`, and the stream with it, so half a message is never
taken for a whole one. A stream that nobody holds any more gives its place back by itself. All of this
is above the raw stream of the binding, which is seen here only through two small protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from atoll.net.frame import END_MARK, LENGTH_BYTES, Ended, Inbox, TooLong, header
from atoll.net.transport import MESSAGE_BYTES_MAX, ConnLost, Malformed, StreamClosed, StreamReset, Traffic

TAG_BYTES_MAX = 200
_CHUNK_BYTES = 256 * 1024
_LINGER_S = 10.0
_GIVEN_UP = 1

T = TypeVar("T")


class RawSend(Protocol):
    """What the binding offers to write with."""

    async def set_priority(self, p: int) -> None: ...
    async def write_all(self, buf: bytes) -> None: ...
    async def finish(self) -> None: ...
    async def stopped(self) -> int | None: ...
    async def reset(self, error_code: int) -> None: ...
    def abandon(self) -> None:
        """Nobody will write any more: let the stream end where it is."""


class RawRecv(Protocol):
    """What the binding offers to read with."""

    async def read(self, size_limit: int) -> bytes: ...
    def take(self, size_limit: int) -> bytes:
        """Return what is here already, if anything and if that can be known without waiting."""

    async def stop(self, error_code: int) -> None: ...
    def abandon(self) -> None:
        """Nobody will read any more."""


class Host(Protocol):
    """What a stream needs of its connection."""

    @property
    def crew(self) -> Crew: ...
    @property
    def counts(self) -> Counts: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def lost(self) -> ConnLost | None:
        """Return the error of a connection that is gone."""

    def blame(self, error: BaseException) -> BaseException:
        """Return what a failed call means in the words of the contract."""

    async def quietly(self, step: Coroutine[Any, Any, object]) -> None:
        """Run `step`, which may fail because what it ends is gone already."""


@dataclass
class Counts:
    """Payload bytes of whole messages since the start, by class of traffic."""

    sent_bytes: dict[Traffic, int] = field(default_factory=lambda: dict.fromkeys(Traffic, 0))
    received_bytes: dict[Traffic, int] = field(default_factory=lambda: dict.fromkeys(Traffic, 0))


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


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Look at a task's error, which nobody else may be left to do, so that asyncio does not complain."""
    if not task.cancelled():
        task.exception()


class _Outgoing:
    """The sending half of a stream."""

    def __init__(self, conn: Host, raw: RawSend, slot: Slot) -> None:
        self._conn = conn
        self._raw = raw
        self._slot = slot
        self._turn = asyncio.Lock()
        self._doing: asyncio.Task[Any] | None = None
        self._gone = False
        self.over = False

    async def begin(self, traffic: Traffic) -> None:
        """Rank this stream among the others of its connection."""
        await self._do(self._raw.set_priority(len(Traffic) - traffic))

    async def put(self, message: bytes) -> None:
        """Write one message in pieces, so that no copy holds the loop for long."""
        async with self._turn:
            cut = min(_CHUNK_BYTES, len(message))
            await self._do(self._raw.write_all(header(message) + message[:cut]))
            for at in range(cut, len(message), _CHUNK_BYTES):
                await self._do(self._raw.write_all(message[at : at + _CHUNK_BYTES]))

    async def finish(self) -> None:
        """Write the end mark and wait until the other side holds all of it: only then a close loses nothing."""
        async with self._turn:
            await self._do(self._raw.write_all(END_MARK))
            await self._do(self._raw.finish())
            if await self._do(self._raw.stopped()) is not None:
                raise StreamReset("the other side gave the stream up")
            self._end()

    def give_up(self) -> None:
        """Tell the other side that what it got is not whole."""
        if not self.over:
            self.let_go()
            self._conn.crew.start(self._conn.quietly(self._raw.reset(_GIVEN_UP)))

    def let_go(self) -> None:
        """Stop waiting; the stream ends without our mark."""
        self._gone = True
        if self._doing is not None:
            self._doing.cancel()  # it holds the stream's lock: a reset would queue behind it
        self._end()

    def abandon(self) -> None:
        """Forget the stream: nobody holds it any more."""
        if not self.over:
            self.let_go()
            self._raw.abandon()

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self._slot.half_over()

    async def _do(self, step: Coroutine[Any, Any, T]) -> T:
        """Run one step so that `give_up` can interrupt it; cancelled: the step is too."""
        if self._gone:
            step.close()
            raise StreamReset("the stream was given up here")
        task = self._doing = self._conn.crew.start(step)
        task.add_done_callback(_retrieve)
        try:
            await asyncio.wait([task])
        finally:
            self._doing = None
            task.cancel()
        if task.cancelled():
            raise self._conn.lost() or StreamReset("the stream was given up here")
        error = task.exception()
        if error is not None:
            raise self._conn.blame(error) from error
        result: T = task.result()
        return result


class _Incoming:
    """The receiving half of a stream: at most one read is under way, and whoever waits next takes it over."""

    def __init__(self, conn: Host, raw: RawRecv, slot: Slot) -> None:
        self._conn = conn
        self._raw = raw
        self._slot = slot
        self._inbox = Inbox()
        self._reading: asyncio.Task[bytes] | None = None
        self._broken: BaseException | None = None
        self._gone = False
        self.over = False

    async def take(self, limit: int) -> bytes:
        """Return the next message; cancelled: nothing is lost, the read goes on for the next caller."""
        while (message := self._pop(limit)) is None:
            if self._broken is not None:
                raise self._conn.blame(self._broken) from self._broken
            if self._reading is None and (chunk := self._raw.take(_CHUNK_BYTES)):
                self._inbox.feed(chunk)
            else:
                await asyncio.wait([self._read()])
        self._notice_end()
        return message

    def look_for_end(self) -> None:
        """Read on if no message is begun, so that the end is noticed although nobody asks for another one."""
        if not self.over and self._broken is None and len(self._inbox) < LENGTH_BYTES:
            self._read()

    def give_up(self) -> None:
        """Tell the other side to stop sending."""
        if not self.over:
            self.let_go()
            self._conn.crew.start(self._conn.quietly(self._raw.stop(_GIVEN_UP)))

    def let_go(self) -> None:
        """Stop reading at once."""
        self._gone = True
        self._broken = self._broken or StreamReset("the stream was given up here")
        if self._reading is not None:
            self._reading.cancel()  # it holds the stream's lock: a stop would queue behind it
        self._end()

    def forget(self) -> None:
        """Stop caring, politely."""
        if not self.over:
            self._end()
            self._conn.crew.start(self._linger())

    async def _linger(self) -> None:
        """Let the other side come to its own end: dropped unread, its last words would fail on its side."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while self._broken is None:
                    self._inbox.clear()
                    await asyncio.wait([self._read()])
        self.let_go()
        self._raw.abandon()

    def _pop(self, limit: int) -> bytes | None:
        if self._gone:
            return None
        try:
            return self._inbox.pop(limit)
        except Ended:
            raise StreamClosed("the other side finished the stream") from None
        except TooLong as error:
            raise Malformed(str(error)) from None

    def _read(self) -> asyncio.Task[bytes]:
        if self._reading is None:
            self._reading = self._conn.crew.start(self._raw.read(_CHUNK_BYTES))
            self._reading.add_done_callback(self._took)
        return self._reading

    def _took(self, read: asyncio.Task[bytes]) -> None:
        """Keep what a read brought; runs once per read, before those who wait for it."""
        self._reading = None
        if read.cancelled():
            self._broken = self._broken or StreamReset("the stream was given up here")
        elif (error := read.exception()) is not None:
            self._broken = error
        elif chunk := read.result():
            self._inbox.feed(chunk)
        else:
            self._broken = StreamReset("the stream was cut before its end")
        self._notice_end()

    def _notice_end(self) -> None:
        if self._broken is not None or self._inbox.ended:
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
