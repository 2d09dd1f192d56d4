"""Streams of the simulated network. Each direction keeps its order:

    send ─> queue ─(credit)─> flow ─(last byte left)─> transit ─(delay)─> inbox ─> recv

Large messages are flows that share up- and downlinks (`flows`), small ones take latency plus size over capacity and
never queue behind bulk. One stream never gets more than its window per round trip.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from atoll.net.transport import MESSAGE_BYTES_MAX, Malformed, StreamClosed, StreamReset, Traffic
from atoll.net.wire import bulk_bytes
from atoll.sim.flows import Flow
from atoll.sim.loop import VirtualLoop

if TYPE_CHECKING:
    from atoll.sim.conns import SimConn

SMALL_BYTES = 4096
"""Messages below this bypass the fluid model."""


class Bell:
    """Wakes all who wait; they look for themselves whether it was for them."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Return at the next ring."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        try:
            await future
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def ring(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)


class Kind(Enum):
    OPEN = 0
    DATA = 1
    FINISH = 2


class Item:
    """One thing a stream carries in order."""

    __slots__ = ("accepted", "data", "due_s", "kind", "size_bytes")

    def __init__(self, kind: Kind, data: bytes = b"", size_bytes: float = 0.0) -> None:
        self.kind = kind
        self.data = data
        self.size_bytes = size_bytes
        self.accepted = False
        self.due_s = 0.0


class SimStream:
    """One end of a stream: what it sends is queued here, what it receives lies here until read."""

    twin: SimStream

    def __init__(self, conn: SimConn, number: int, tag: str, traffic: Traffic, *, opener: bool) -> None:
        self.conn = conn
        self.number = number
        self.tag = tag
        self.traffic = traffic
        self.opener = opener
        self._loop = conn.network.loop
        self._broken: str | None = None
        self._said = False
        self._finishing = False
        self._acked = False
        self._queue: deque[Item] = deque()
        self._flow: Flow | None = None
        self._transit: deque[Item] = deque()
        self._transit_bytes = 0.0
        self._last_due_s = 0.0
        self._sender_bell = Bell(self._loop)
        self._inbox: deque[Item] = deque()
        self._inbox_bytes = 0.0
        self.ended = False
        """The other side's end arrived: what lies here can be read whatever becomes of the connection."""
        self._reader_bell = Bell(self._loop)

    async def send(self, message: bytes) -> None:
        """Hand over one message; returns when its last byte has left, within what the receiver will take."""
        self._loop.check_open()
        self._raise_if_broken()
        assert not self._finishing, "send after finish"
        assert len(message) <= MESSAGE_BYTES_MAX, f"a message of {len(message)} bytes is too long to send"
        points = self.conn.door.host.points
        what = points.sends(self.tag, message, self.opener and not self._said) if points is not None else ""
        if points is not None:
            await points.reach("before", what)
            message = points.said(what, message)
        self._said = True
        item = Item(Kind.DATA, bytes(message), self._weight_bytes(message))
        self.put(item)
        while not item.accepted:
            await self._wait_to_send()
        self.conn.count(self.traffic, round(item.size_bytes))
        if points is not None:
            await points.reach("after", what, self._outlive)

    def _weight_bytes(self, message: bytes) -> float:
        """Return what a message weighs on its way: values stand for as many as the larger model has, heads do not."""
        scale = self.conn.network.scale
        match self.traffic:
            case Traffic.ROUND if scale != 1.0:
                return len(message) + (scale - 1.0) * bulk_bytes(message)
            case Traffic.STATE:
                return len(message) * scale
            case _:
                return len(message)

    def _outlive(self) -> None:
        """Let what is on the wire arrive although this process is about to die."""
        self.conn.lingers = True
        items, self._transit = self._transit, deque()
        for item in items:
            if item.due_s < math.inf:
                self._loop.call_in_world_at(item.due_s, self._arrive_late, item)

    def _arrive_late(self, item: Item) -> None:
        if self.conn.lands():
            self.twin.arrive(item)

    async def _wait_to_send(self) -> None:
        """Wait for the next change; cancelled: the stream is reset, as half a message may be out."""
        self._raise_if_broken()
        try:
            await self._sender_bell.wait()
        except asyncio.CancelledError:
            self.reset()
            raise

    async def recv(self, limit: int = MESSAGE_BYTES_MAX) -> bytes:
        """Return the next message; cancel-safe, because nothing is awaited between taking and returning it."""
        while True:
            if not self.ended:
                self._raise_if_broken()
            if self._inbox:
                return self._take(limit)
            if self.ended:
                raise StreamClosed(f"{self.tag}: the other side finished")
            await self._reader_bell.wait()

    def _take(self, limit: int) -> bytes:
        if (length := len(self._inbox[0].data)) > limit:
            self.reset()
            raise Malformed(f"a message of {length} bytes is over the limit of {limit}")
        item = self._inbox.popleft()
        self._inbox_bytes -= item.size_bytes
        self.conn.door.counts.received_bytes[self.traffic] += round(item.size_bytes)
        self.twin.pump()
        return item.data

    async def finish(self) -> None:
        self._loop.check_open()
        self._raise_if_broken()
        assert not self._finishing, "a stream is finished once"
        self._finishing = True
        self.put(Item(Kind.FINISH))
        while not self._acked:
            await self._wait_to_send()

    def reset(self) -> None:
        if self._broken is None and self.number in self.conn.streams:
            self.ended = False  # so that nothing more is read here; what the other side holds to its end stays
            self._break("given up by this side")
            twin = self.twin
            self.conn.carry(lambda: twin._break("given up by the other side"))

    def _raise_if_broken(self) -> None:
        self.conn.raise_if_gone()
        if self._broken is not None:
            raise StreamReset(f"{self.tag}: {self._broken}")

    def _break(self, why: str) -> None:
        if self._broken is None and not (self._acked and self.ended):
            self._broken = why
            self.drop()
            if not self.ended:
                self._inbox.clear()
            self.conn.release(self)
            self._ring()

    def drop(self) -> None:
        """Forget what was to be sent or is on its way."""
        self._stop_flow()
        self._queue.clear()
        self._transit.clear()

    def halt(self) -> None:
        """Send nothing more, because the connection is gone; what left already may still arrive."""
        self._stop_flow()
        self._queue.clear()
        self._ring()

    def _ring(self) -> None:
        self._sender_bell.ring()
        self._reader_bell.ring()

    def _stop_flow(self) -> None:
        if self._flow is not None:
            self.conn.network.fluid.stop(self._flow)
            self._flow = None

    # sending

    def put(self, item: Item) -> None:
        """Queue an item behind the others."""
        self._queue.append(item)
        self.pump()

    def pump(self) -> None:
        """Launch what may go: one transfer at a time, while the receiver is not too far behind."""
        while self._queue and self._flow is None and self._credit():
            item = self._queue.popleft()
            if item.size_bytes >= SMALL_BYTES:
                self._flow = self.conn.flow(item, self.traffic, lambda item=item: self._left(item))  # type: ignore[misc]
            else:
                self._launch(item, self.conn.small_s(item.size_bytes))

    def _credit(self) -> bool:
        """Say whether the receiver's window has room; a message on the way does not count against a long one."""
        window_bytes = self.conn.network.window_bytes
        behind = self.twin._inbox_bytes >= window_bytes
        return not behind and (self._transit_bytes < window_bytes or len(self._transit) <= 1)

    def _left(self, item: Item) -> None:
        self._flow = None
        self._launch(item, 0.0)
        self.pump()

    def _launch(self, item: Item, took_s: float) -> None:
        """Put an item on the wire: it arrives after the delay and never before its predecessor."""
        item.due_s = max(self._loop.time() + self.conn.delay_s + took_s, self._last_due_s + took_s)
        self._last_due_s = item.due_s
        item.accepted = True
        self._transit.append(item)
        self._transit_bytes += item.size_bytes
        self._loop.call_in_world_at(item.due_s, self._arrive)
        self._sender_bell.ring()

    def _arrive(self) -> None:
        """Hand over what is due; on a cut path it waits for the path to heal."""
        while self._transit and self._transit[0].due_s <= self._loop.time():
            if not self.conn.reaches():
                self._transit[0].due_s = math.inf
                return
            item = self._transit.popleft()
            self._transit_bytes -= item.size_bytes
            self.twin.arrive(item)
            self.pump()

    def path_changed(self) -> None:
        """Hold or go on with the transfer, and send again what was lost on the way."""
        if self._flow is not None:
            self.conn.network.fluid.limit(self._flow, self._flow.limit_bytes_s if self.conn.flows() else 0.0)
        if self._transit and self._transit[0].due_s == math.inf and self.conn.reaches():
            self._transit[0].due_s = self._loop.time() + self.conn.delay_s
            self._last_due_s = max(self._last_due_s, self._transit[0].due_s)
            self._loop.call_in_world_at(self._transit[0].due_s, self._arrive)

    # receiving

    def arrive(self, item: Item) -> None:
        """Take an item from the wire."""
        if self._broken is not None or self.conn.why is not None:
            return
        match item.kind:
            case Kind.OPEN:
                self.conn.arrive(self)
            case Kind.DATA:
                self._inbox.append(item)
                self._inbox_bytes += item.size_bytes
            case Kind.FINISH:
                self.ended = True
                twin = self.twin
                self.conn.carry(twin._acknowledge)
                self._close_if_over()
        self._reader_bell.ring()

    def _acknowledge(self) -> None:
        self._acked = True
        self._close_if_over()
        self._sender_bell.ring()

    def _close_if_over(self) -> None:
        if self._acked and self.ended:
            self.conn.release(self)
