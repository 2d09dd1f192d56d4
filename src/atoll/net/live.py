"""What the real transports share: connections that are watched, streams that are counted, callers that are let in.

A kind of link (QUIC by iroh, TLS over TCP) brings two things, an `Endpoint` that dials and listens and a `Line` to one
authenticated peer with raw byte streams on it. Everything that the contract promises beyond that is made here: whole
messages (`stream`), a limit on open streams, death noticed by what the line itself has shown (`pulse`), a deadline on
`connect`, and a door that lets only so many callers stand in it.

    LiveTransport(Endpoint) --< LiveConn(Line) --< MessageStream(RawSend, RawRecv)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Protocol

from atoll.net.identity import short
from atoll.net.pulse import Pulse
from atoll.net.stream import TAG_BYTES_MAX, Crew, LineBroken, MessageStream, RawRecv, RawSend, Slot
from atoll.net.transport import (
    NO_TAG,
    STREAMS_MAX,
    ConnectFailed,
    ConnLost,
    Counts,
    Malformed,
    PeerId,
    StreamReset,
    Traffic,
)

_ARRIVALS_MAX = 64
_TAG_S = 10.0


class Line(Protocol):
    """A link to one authenticated peer, as its kind of link offers it. Calls raise `LineBroken`."""

    @property
    def peer(self) -> PeerId: ...

    async def open(self) -> tuple[RawSend, RawRecv]:
        """Begin a stream."""

    async def accept(self) -> tuple[RawSend, RawRecv]:
        """Return the next stream that the other side began."""

    def heard(self) -> int:
        """Return a number that grows with every sign of the other side's life."""

    def knock(self, tick_s: float) -> None:
        """Give the other side a reason to make a sign, as is done once in so many seconds."""

    def round_trip_s(self) -> float | None:
        """Return the last measured round trip."""

    def gone(self) -> str | None:
        """Return why the line is over, if it is."""

    async def over(self) -> str:
        """Wait for the end of the line and return why."""

    def close(self, reason: str) -> None:
        """End the line, telling the other side why if that is still possible."""


class Caller(Protocol):
    """Somebody at the door who has not shown who it is."""

    async def greet(self) -> Line:
        """Complete the handshake."""

    async def refuse(self) -> None:
        """Send it away."""


class Endpoint(Protocol):
    """One peer's socket of some kind."""

    @property
    def id(self) -> PeerId: ...

    def addresses(self) -> list[str]: ...

    async def dial(self, peer: PeerId, addresses: list[str]) -> Line:
        """Return a line to `peer`, proven to be it; raises `ConnectFailed` or `LineBroken`."""

    async def call(self) -> Caller | None:
        """Return who comes next, or None once this is closed."""

    async def close(self) -> None:
        """Stop listening; lines are closed already."""


class LiveConn:
    """A line, watched."""

    def __init__(self, line: Line, counts: Counts, silence_s_max: float) -> None:
        self.counts = counts
        self.pulse = Pulse(silence_s_max)
        self.crew = Crew()
        self.loop = asyncio.get_running_loop()
        self.line = line
        self._why: str | None = None
        self._nearest_s: float | None = None
        self._ended = asyncio.Event()
        self._open = 0
        self._changed = asyncio.Event()
        self._arrived: deque[tuple[str, MessageStream]] = deque()
        self._keepers = Crew()
        self._keepers.start(self._watch())
        self._keepers.start(self._listen())
        self._life = asyncio.create_task(self._live())

    @property
    def peer(self) -> PeerId:
        return self.line.peer

    async def open(self, tag: str, traffic: Traffic) -> MessageStream:
        assert len(tag.encode()) <= TAG_BYTES_MAX, f"a tag has at most {TAG_BYTES_MAX} bytes: {tag!r}"
        while self._open >= STREAMS_MAX and self._why is None:
            await self._change()
        if (lost := self.lost()) is not None:
            raise lost
        self._open += 1
        slot = Slot(self._free)
        try:
            stream = MessageStream(self, *await self.line.open(), slot)
        except (LineBroken, asyncio.CancelledError) as error:
            self._free()
            raise self.blame(error) from None
        try:
            await stream.greet(tag, traffic)
        except asyncio.CancelledError:
            stream.reset()
            raise
        return stream

    async def accept(self) -> tuple[str, MessageStream]:
        while not self._arrived:
            if (lost := self.lost()) is not None:
                raise lost
            await self._change()
        return self._arrived.popleft()

    async def closed(self) -> str:
        await self._ended.wait()
        return self._why or ""

    async def close(self, reason: str = "") -> None:
        self._close(f"closed here: {reason}", reason)
        await asyncio.wait([self._life])
        await self._keepers.stop()
        await self.crew.stop()

    def round_trip_s(self) -> float | None:
        return None if self._why is not None else self.line.round_trip_s()

    def distance_s(self) -> float | None:
        known = [trip_s for trip_s in (self._nearest_s, self.round_trip_s()) if trip_s is not None]
        self._nearest_s = min(known, default=None)
        return self._nearest_s

    def lost(self) -> ConnLost | None:
        """Return the error of a connection that is gone."""
        why = self._why or self.line.gone()
        return None if why is None else ConnLost(f"{short(self.peer)}: {why}")

    def blame(self, error: BaseException) -> BaseException:
        """Return what a failed call means in the words of the contract."""
        if not isinstance(error, LineBroken | StreamReset):
            return error
        # What a stream's error says is not reliable everywhere; whether the line is gone is certain.
        if (lost := self.lost()) is not None:
            return lost
        return error if isinstance(error, StreamReset) else StreamReset(f"{short(self.peer)}: {error}")

    def _close(self, why: str, reason: str) -> None:
        if self._why is None:
            self._why = why
            self.line.close(reason)

    async def _live(self) -> None:
        """Wait for the end, whoever brings it, and wake all who wait.

        Reads are left alone: the line fails them by itself, once they have brought what came before the end.
        """
        why = await self.line.over()
        self._why = self._why or why
        self._ended.set()
        self._wake()
        self._keepers.cancel()

    async def _watch(self) -> None:
        """Knock, and end the connection when nothing comes back."""
        while (why := self.pulse.dead(self.line.heard(), self.round_trip_s())) is None:
            self.distance_s()  # while nothing is sent it is shorter than when somebody asks
            self.line.knock(self.pulse.tick_s)
            await asyncio.sleep(self.pulse.tick_s)
        self._close(why, f"the other side heard nothing of this one: {why}")

    async def _listen(self) -> None:
        with contextlib.suppress(LineBroken):
            while True:
                raw = await self.line.accept()
                self.crew.start(self._welcome(MessageStream(self, *raw, Slot(lambda: None))))

    async def _welcome(self, stream: MessageStream) -> None:
        try:
            async with asyncio.timeout(_TAG_S):
                tag = await stream.welcome()
        except Malformed:
            stream.reset()
            tag = NO_TAG  # handed on: up there it is known whom to blame
        except (StreamReset, ConnLost, TimeoutError):
            stream.reset()
            return
        self._arrived.append((tag, stream))
        self._wake()

    def _free(self) -> None:
        self._open -= 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class LiveTransport:
    """One peer's door: an endpoint and its connections."""

    def __init__(self, endpoint: Endpoint, *, silence_s_max: float, connect_s: float) -> None:
        self.counts = Counts()
        self.endpoint = endpoint
        self._silence_s_max = silence_s_max
        self._connect_s = connect_s
        self._conns: set[LiveConn] = set()
        self._crew = Crew()
        self._arrived: deque[LiveConn] = deque()
        self._greeting: dict[asyncio.Task[None], None] = {}
        self._changed = asyncio.Event()
        self._closed = False
        self._crew.start(self._listen())

    @property
    def id(self) -> PeerId:
        return self.endpoint.id

    def addresses(self) -> list[str]:
        return self.endpoint.addresses()

    async def connect(self, peer: PeerId, addresses: list[str]) -> LiveConn:
        if peer == self.id:
            raise ConnectFailed("a peer does not connect to itself")
        if self._closed:
            raise ConnectFailed("this transport is closed")
        try:
            async with asyncio.timeout(self._connect_s):
                return self._adopt(await self.endpoint.dial(peer, addresses))
        except TimeoutError:
            where = ", ".join(addresses) or "any address"
            raise ConnectFailed(f"{short(peer)}: no answer from {where} in {self._connect_s:g} s") from None
        except LineBroken as error:
            raise ConnectFailed(f"{short(peer)}: {error}") from error

    def limit_silence(self, silence_s_max: float) -> None:
        self._silence_s_max = silence_s_max
        for conn in self._conns:
            conn.pulse.silence_s_max = silence_s_max

    async def accept(self) -> LiveConn:
        while not self._arrived:
            if self._closed:
                raise ConnLost("this transport is closed")
            self._changed.clear()
            await self._changed.wait()
        return self._arrived.popleft()

    async def close(self) -> None:
        self._closed = True
        self._changed.set()
        await self._crew.stop()
        for conn in list(self._conns):
            await conn.close("the peer left")
        await self.endpoint.close()

    def _adopt(self, line: Line) -> LiveConn:
        if self._closed:
            line.close("the peer left")
            raise ConnectFailed("this transport is closed")
        conn = LiveConn(line, self.counts, self._silence_s_max)
        self._conns.add(conn)
        self._crew.start(self._forget(conn))
        return conn

    async def _forget(self, conn: LiveConn) -> None:
        await conn.closed()
        self._conns.discard(conn)

    async def _listen(self) -> None:
        while (caller := await self.endpoint.call()) is not None:
            if len(self._arrived) >= _ARRIVALS_MAX:
                with contextlib.suppress(LineBroken):
                    await caller.refuse()
                continue
            if len(self._greeting) >= _ARRIVALS_MAX:
                next(iter(self._greeting)).cancel()  # who has stood there longest without a proof makes room
            greeting = self._crew.start(self._greet(caller))
            self._greeting[greeting] = None
            greeting.add_done_callback(self._greeting.pop)

    async def _greet(self, caller: Caller) -> None:
        """Complete a handshake; one that fails is the caller's affair."""
        try:
            async with asyncio.timeout(self._connect_s):
                line = await caller.greet()
        except (LineBroken, TimeoutError):
            return
        self._arrived.append(self._adopt(line))
        self._changed.set()
