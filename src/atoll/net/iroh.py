"""Links over the internet: QUIC between peer keys, by iroh. The only file that knows iroh.

What the binding does not give is made in `live` and `stream`: whole messages on byte streams, one pending read that
survives a cancelled `recv`, a stream reset after a cancelled `send`, a deadline on `connect`, and death
noticed in seconds (QUIC alone takes 30). A sign of life is any packet that reached us on the
connection. Acknowledgements are sent by iroh's own threads, so a peer that computes with all its cores,
or holds its interpreter for a minute, still answers our pings; a killed one does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import iroh
from iroh import iroh_ffi

from atoll.errors import LocalError
from atoll.net.address import is_everywhere, is_loopback, join, resolve, split
from atoll.net.frame import Pieces
from atoll.net.garbage import start_sweeping
from atoll.net.identity import short
from atoll.net.live import LiveTransport
from atoll.net.pulse import SILENCE_S_MAX
from atoll.net.stream import Crew, LineBroken, RawRecv, RawSend
from atoll.net.transport import CONNECT_S_MAX, STREAMS_MAX, ConnectFailed, PeerId

_ALPN = b"atoll/1"
_STREAMS_ACCEPTED_MAX = 4 * STREAMS_MAX  # QUIC frees a stream later than we do, so its limit must not be the first
_UNREAD_BYTES_MAX = 128 * 2**20  # what a peer can make us hold: above STREAMS_MAX windows of 1.25 MB, all unread
_CLOSE_S = 1.0
_REASON_BYTES_MAX = 200
_CAUSE_MAX = 200
_READ_BYTES_MAX = 320 * 1024
_WRITE_BYTES_MAX = 320 * 1024  # the binding copies all that it is offered, also what it does not take
PAUSE_S_MIN, PAUSE_S_MAX = 0.001, 0.02
_LONGER, _SHORTER = 1.5, 0.9
_GIVEN_UP = 1

T = TypeVar("T")


def quicken(builder: Any) -> bool:
    """Let the binding hand over bytes in one copy instead of one by one; False if it is not the one we know.

    The generated `write` loops over every byte in Python: 0.03 Gbit/s. With one `memmove` it is 1.7.
    """

    def write(self: Any, value: bytes) -> None:
        with self._reserve(len(value)):
            data = bytes(value)
            ctypes.memmove(ctypes.addressof(self.rbuf.data.contents) + self.rbuf.len, data, len(data))

    slow = getattr(builder, "write", None)
    if slow is None:
        return False
    builder.write = write
    try:
        if _written(builder) == bytes(range(100)):
            return True
    except (AttributeError, TypeError, ValueError):
        pass  # another shape of binding: its own way is slow but right
    builder.write = slow
    return False


def _written(builder: Any) -> bytes:
    """Return what a buffer holds after a hundred bytes were written in three pieces."""
    made = builder()
    for piece in (bytes(range(10)), b"", bytes(range(10, 100))):
        made.write(piece)
    buffer = made.finalize()
    try:
        return bytes(buffer.data[0 : buffer.len])
    finally:
        buffer.free()


quicken(getattr(iroh_ffi, "_UniffiRustBufferBuilder", None))


class _Line:
    """A QUIC connection as a `Line`: the binding's errors and names are left behind here."""

    def __init__(self, raw: iroh.Connection) -> None:
        self._raw = raw
        self._peer = PeerId(raw.remote_id().to_bytes())
        raw.set_max_concurrent_bi_streams(_STREAMS_ACCEPTED_MAX)
        raw.set_receive_window(_UNREAD_BYTES_MAX)
        self._crew = Crew()
        self._draining = asyncio.create_task(self._drain())

    @property
    def peer(self) -> PeerId:
        return self._peer

    async def open(self) -> tuple[RawSend, RawRecv]:
        return self._halves(await _made(self._raw.open_bi))

    async def accept(self) -> tuple[RawSend, RawRecv]:
        return self._halves(await _made(self._raw.accept_bi))

    def heard(self) -> int:
        return int(self._raw.stats().udp_rx_datagrams)

    def knock(self, tick_s: float) -> None:
        with contextlib.suppress(iroh.IrohError):
            self._raw.send_datagram(b"ping")

    def round_trip_s(self) -> float | None:
        rtt_ms = self._raw.rtt()
        return None if rtt_ms is None else max(rtt_ms, 0.5) / 1000  # iroh counts whole milliseconds

    def gone(self) -> str | None:
        why = self._raw.close_reason()
        return None if why is None else _plain(why)

    async def over(self) -> str:
        why = await self._raw.closed()
        self._draining.cancel()
        return _plain(why)

    def close(self, reason: str) -> None:
        self._raw.close(0, reason.encode()[:_REASON_BYTES_MAX])

    def _halves(self, raw: iroh.BiStream) -> tuple[RawSend, RawRecv]:
        return _Send(raw.send(), self._crew), _Recv(raw.recv(), self._crew)

    async def _drain(self) -> None:
        """Take pings out of the buffer: their arrival was counted below, and unread they would pile up."""
        with contextlib.suppress(iroh.IrohError):
            while True:
                await self._raw.read_datagram()


async def _made(call: Callable[..., Awaitable[T]], *what: object) -> T:
    """Return what a call of the binding returns, with its errors in the words of a line.

    The call is made in here: as a task that is cancelled before it begins, it leaves nothing that nobody awaited.
    """
    try:
        return await call(*what)
    except iroh.IrohError as error:
        raise LineBroken(_say(error)) from error


async def _quietly(call: Callable[..., Awaitable[object]], *what: object) -> None:
    """Do something that may fail because what it ends is gone already."""
    with contextlib.suppress(LineBroken):
        await _made(call, *what)


class _Send:
    """The sending half of a QUIC stream. A call of the binding holds the stream's lock, so it is a task of its own:
    whoever gives the stream up cancels it first, or the reset would queue behind it."""

    def __init__(self, raw: iroh.SendStream, crew: Crew) -> None:
        self._raw = raw
        self._crew = crew
        self._doing: asyncio.Task[Any] | None = None
        self._gone = False
        self._pause = Pause()

    async def set_priority(self, p: int) -> None:
        await self._do(self._raw.set_priority, p)

    async def write(self, *pieces: bytes) -> None:
        data, done = b"".join(pieces), 0
        while done < len(data):
            some = data[done : done + _WRITE_BYTES_MAX]
            took = await self._do(self._raw.write, some)
            done += took
            self._pause.learn(enough=took == len(some))
            if took < len(some):
                await self._pause.take()

    async def finish(self) -> None:
        await self._do(self._raw.finish)
        if await self._do(self._raw.stopped) is not None:
            raise LineBroken("the other side gave the stream up")

    def reset(self) -> None:
        self.abandon()
        self._crew.start(_quietly(self._raw.reset, _GIVEN_UP))

    def abandon(self) -> None:
        """Wait no longer; the binding ends a stream that nobody holds."""
        self._gone = True
        if self._doing is not None:
            self._doing.cancel()

    async def _do(self, call: Callable[..., Awaitable[T]], *what: object) -> T:
        if self._gone:
            raise LineBroken("the stream was given up here")
        task: asyncio.Task[T] = self._crew.start(_made(call, *what))
        self._doing = task
        try:
            await asyncio.wait([task])
        finally:
            self._doing = None
            task.cancel()
        if task.cancelled():
            raise LineBroken("the stream was given up here")
        return task.result()


class _Recv:
    """The receiving half of a QUIC stream: at most one read is under way, and it outlives whoever waits for it."""

    def __init__(self, raw: iroh.RecvStream, crew: Crew) -> None:
        self._raw = raw
        self._crew = crew
        self._reading: asyncio.Task[bytes] | None = None
        self._came = Pieces()
        self._ended = False
        self._broken: LineBroken | None = None
        self._pause = Pause()

    async def wait(self, count: int) -> None:
        count = min(count, _READ_BYTES_MAX)
        while len(self._came) < count and not self._ended:
            if self._broken is not None:
                if self._came:
                    return
                raise self._broken
            if self._reading is None and self._came:
                await self._pause.take()
            if self._reading is None:
                self._reading = self._crew.start(_made(self._raw.read, _READ_BYTES_MAX))
                self._reading.add_done_callback(self._took)
            await asyncio.wait([self._reading])
            self._pause.learn(enough=len(self._came) >= count)

    def take(self, limit: int) -> bytes | None:
        return None if self._ended and not self._came else self._came.take(limit)

    def stop(self) -> None:
        self._broken = self._broken or LineBroken("the stream was given up here")
        self._came.clear()
        if self._reading is not None:
            self._reading.cancel()  # it holds the stream's lock
        self._crew.start(_quietly(self._raw.stop, _GIVEN_UP))

    def _took(self, read: asyncio.Task[bytes]) -> None:
        """Keep what a read brought; runs before those who wait for it."""
        self._reading = None
        if read.cancelled():
            self._broken = self._broken or LineBroken("the read was given up")
        elif (error := read.exception()) is not None:
            self._broken = self._broken or (error if isinstance(error, LineBroken) else LineBroken(str(error)))
        elif piece := read.result():
            self._came.add(piece)
        else:
            self._ended = True


class Pause:
    """How long to wait before something is tried again that could not be done whole.

    A call of the binding that has to wait wakes the interpreter for every packet, only to be told to wait on. So who
    got a part waits a little: longer each time that was too short for all of the rest, shorter when it was enough.
    """

    def __init__(self) -> None:
        self.length_s = PAUSE_S_MIN
        self._paused = False

    async def take(self) -> None:
        """Wait."""
        self._paused = True
        await asyncio.sleep(self.length_s)

    def learn(self, *, enough: bool) -> None:
        """Hear whether what was tried could be done whole."""
        if self._paused:
            longer_s = self.length_s * (_SHORTER if enough else _LONGER)
            self.length_s = min(max(longer_s, PAUSE_S_MIN), PAUSE_S_MAX)
            self._paused = False


def _plain(why: str) -> str:
    """Return why a connection ended without what QUIC adds to it."""
    return why.removesuffix(" (code 0)").removesuffix(": ")


def _say(error: iroh.IrohError) -> str:
    """Return the root cause in one line, without where in its source; `str` of these errors is empty."""
    causes, _, _ = error.debug_message().partition("Stack backtrace")
    lines = [line.strip() for line in causes.splitlines() if line.strip()]
    cause = lines[-1].partition(" (/")[0][:_CAUSE_MAX] if lines else "no reason given"
    return f"{cause} ({error.kind().name.lower()})"


class _Caller:
    """Somebody who began a QUIC handshake."""

    def __init__(self, raw: iroh.Incoming) -> None:
        self._raw = raw

    async def greet(self) -> _Line:
        return _Line(await _made((await _made(self._raw.accept)).connect))

    async def refuse(self) -> None:
        await _made(self._raw.refuse)


class IrohEndpoint:
    """A key and its UDP sockets."""

    def __init__(self, raw: iroh.Endpoint, *, relay: bool) -> None:
        self.raw = raw
        self._id = PeerId(raw.id().to_bytes())
        self._relay = relay
        self._sweeper = start_sweeping()

    @property
    def id(self) -> PeerId:
        return self._id

    def addresses(self) -> list[str]:
        known = list(self.raw.addr().direct_addresses())
        if known:
            abroad = [address for address in known if not is_loopback(address)]
            return abroad or known
        return [f"127.0.0.1:{split(socket)[1]}" for socket in self.raw.bound_sockets()[:1]]

    async def dial(self, peer: PeerId, addresses: list[str]) -> _Line:
        where = await resolve(addresses)
        if not where and not self._relay:
            raise ConnectFailed(f"{short(peer)}: no usable address in {addresses}")
        try:
            target = iroh.EndpointAddr(iroh.EndpointId.from_bytes(peer), None, where)
        except iroh.IrohError as error:
            raise LineBroken(_say(error)) from error  # no key at all
        return _Line(await _made(self.raw.connect, target, _ALPN))

    async def call(self) -> _Caller | None:
        raw = await self.raw.accept_next()
        return None if raw is None else _Caller(raw)

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):  # peers that are gone need no goodbye
            async with asyncio.timeout(_CLOSE_S):
                await self.raw.close()
        self._sweeper.cancel()


async def bind(
    secret: bytes,
    *,
    host: str = "0.0.0.0",
    port: int = 0,
    relay: bool = False,
    silence_s_max: float = SILENCE_S_MAX,
    connect_s: float = CONNECT_S_MAX,
) -> LiveTransport:
    """Return a transport that listens at `host` and `port` (0: any free one).

    Without `relay` nothing outside is asked: peers need an address of each other. With it, public relays
    and discovery find peers by their id alone and help through NAT. A link that is silent for `silence_s_max`
    is given up whatever was measured.
    """
    try:
        endpoint = await _bind(secret, host, port, relay, narrow=not is_everywhere(host))
    except ValueError as error:
        raise LocalError(f"cannot listen at {host!r}: {error}", hint="give an IP address of this machine") from error
    return LiveTransport(IrohEndpoint(endpoint, relay=relay), silence_s_max=silence_s_max, connect_s=connect_s)


async def _bind(secret: bytes, host: str, port: int, relay: bool, *, narrow: bool) -> iroh.Endpoint:
    builder = iroh.EndpointBuilder()  # type: ignore[no-untyped-call]
    if relay:
        builder.apply_n0()
    else:
        builder.apply_minimal()
        builder.relay_mode(iroh.RelayMode.disabled())
    builder.secret_key(secret)
    builder.alpns([_ALPN])
    try:
        builder.bind_addr(join(host, port))
        if narrow and ":" not in host:
            builder.bind_addr("[::1]:0")  # else iroh listens on every IPv6 interface besides
        return await builder.bind()
    except iroh.IrohError as error:
        if narrow and ":" not in host:
            with contextlib.suppress(LocalError):
                return await _bind(secret, host, port, relay, narrow=False)  # a machine without IPv6
        hint = "choose another --port" if port else "is the network up?"
        raise LocalError(f"cannot listen at {join(host, port)}: {_say(error)}", hint=hint) from error
