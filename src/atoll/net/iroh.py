"""The transport over the internet: QUIC between peer keys, by iroh. The only file that knows iroh.

What the binding does not give is made here: whole messages on byte streams, one pending read that
survives a cancelled `recv`, a stream reset after a cancelled `send`, a deadline on `connect`, and death
noticed in seconds (QUIC alone takes 30). A sign of life is any packet that reached us on the
connection. Acknowledgements are sent by iroh's own threads, so a peer that computes with all its cores,
or holds its interpreter for a minute, still answers our pings; a killed one does not. How long silence is
borne follows what the connection has shown: `pulse`.

    IrohTransport --< IrohConn --< MessageStream
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
from collections import deque
from collections.abc import Coroutine
from typing import Any

import iroh
from iroh import iroh_ffi

from atoll.errors import LocalError
from atoll.net.garbage import start_sweeping
from atoll.net.identity import short
from atoll.net.pulse import SILENCE_S_MAX, Pulse
from atoll.net.stream import TAG_BYTES_MAX, Counts, Crew, MessageStream, Slot
from atoll.net.transport import (
    CONNECT_S_MAX,
    NO_TAG,
    STREAMS_MAX,
    ConnectFailed,
    ConnLost,
    Malformed,
    PeerId,
    StreamReset,
    Traffic,
)

_ALPN = b"atoll/1"
_STREAMS_ACCEPTED_MAX = 4 * STREAMS_MAX  # QUIC frees a stream later than we do, so its limit must not be the first
_UNREAD_BYTES_MAX = 128 * 2**20  # what a peer can make us hold: above STREAMS_MAX windows of 1.25 MB, all unread
_ARRIVALS_MAX = 64
_TAG_S = 10.0
_CLOSE_S = 1.0
_REASON_BYTES_MAX = 200
_CAUSE_MAX = 200


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


class IrohConn:
    """A QUIC connection, watched."""

    def __init__(self, raw: iroh.Connection, counts: Counts, silence_s_max: float) -> None:
        self.counts = counts
        self.pulse = Pulse(silence_s_max)
        self.crew = Crew()
        self.loop = asyncio.get_running_loop()
        self._raw = raw
        self._peer = PeerId(raw.remote_id().to_bytes())
        self._why: str | None = None
        self._ended = asyncio.Event()
        self._open = 0
        self._changed = asyncio.Event()
        self._arrived: deque[tuple[str, MessageStream]] = deque()
        raw.set_max_concurrent_bi_streams(_STREAMS_ACCEPTED_MAX)
        raw.set_receive_window(_UNREAD_BYTES_MAX)
        self._keepers = Crew()
        self._keepers.start(self._watch())
        self._keepers.start(self._drain())
        self._keepers.start(self._listen())
        self._life = asyncio.create_task(self._live())

    @property
    def peer(self) -> PeerId:
        return self._peer

    async def open(self, tag: str, traffic: Traffic) -> MessageStream:
        assert len(tag.encode()) <= TAG_BYTES_MAX, f"a tag has at most {TAG_BYTES_MAX} bytes: {tag!r}"
        while self._open >= STREAMS_MAX and self._why is None:
            await self._change()
        if (lost := self.lost()) is not None:
            raise lost
        self._open += 1
        slot = Slot(self._free)
        try:
            stream = _stream(self, await self._raw.open_bi(), slot)
        except (iroh.IrohError, asyncio.CancelledError) as error:
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
        rtt_ms = None if self._why is not None else self._raw.rtt()
        return None if rtt_ms is None else max(rtt_ms, 0.5) / 1000  # iroh counts whole milliseconds

    def lost(self) -> ConnLost | None:
        """Return the error of a connection that is gone."""
        why = self._why or self._raw.close_reason()
        return None if why is None else ConnLost(f"{short(self._peer)}: {_plain(why)}")

    def blame(self, error: BaseException) -> BaseException:
        """Return what a failed call means in the words of the contract."""
        if not isinstance(error, iroh.IrohError | StreamReset):
            return error
        # Stream errors share one kind and differ in text only; whether the connection is gone is certain.
        if (lost := self.lost()) is not None:
            return lost
        return error if isinstance(error, StreamReset) else StreamReset(f"{short(self._peer)}: {_say(error)}")

    def _close(self, why: str, reason: str) -> None:
        if self._why is None:
            self._why = why
            self._raw.close(0, reason.encode()[:_REASON_BYTES_MAX])

    async def quietly(self, step: Coroutine[Any, Any, object]) -> None:
        """Run `step`, which may fail because what it ends is gone already."""
        with contextlib.suppress(iroh.IrohError):
            await step

    async def _live(self) -> None:
        """Wait for the end, whoever brings it, and wake all who wait.

        Reads are left alone: iroh fails them by itself, once they have brought what came before the end.
        """
        why = await self._raw.closed()
        self._why = self._why or _plain(why)
        self._ended.set()
        self._wake()
        self._keepers.cancel()

    async def _watch(self) -> None:
        """Ping, and end the connection when nothing comes back."""
        while (why := self.pulse.dead(self._raw.stats().udp_rx_datagrams, self.round_trip_s())) is None:
            with contextlib.suppress(iroh.IrohError):
                self._raw.send_datagram(b"ping")
            await asyncio.sleep(self.pulse.tick_s)
        self._close(why, f"the other side heard nothing of this one: {why}")

    async def _drain(self) -> None:
        """Take pings out of the buffer: their arrival was counted below, and unread they would pile up."""
        with contextlib.suppress(iroh.IrohError):
            while True:
                await self._raw.read_datagram()

    async def _listen(self) -> None:
        with contextlib.suppress(iroh.IrohError):
            while True:
                raw = await self._raw.accept_bi()
                self.crew.start(self._welcome(_stream(self, raw, Slot(lambda: None))))

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


def _stream(conn: IrohConn, raw: iroh.BiStream, slot: Slot) -> MessageStream:
    return MessageStream(conn, raw.send(), raw.recv(), slot)


def _say(error: iroh.IrohError) -> str:
    """Return the root cause in one line, without where in its source; `str` of these errors is empty."""
    causes, _, _ = error.debug_message().partition("Stack backtrace")
    lines = [line.strip() for line in causes.splitlines() if line.strip()]
    cause = lines[-1].partition(" (/")[0][:_CAUSE_MAX] if lines else "no reason given"
    return f"{cause} ({error.kind().name.lower()})"


def _plain(why: str) -> str:
    return why.removesuffix(" (code 0)").removesuffix(": ")


class IrohTransport:
    """One peer's endpoint: its key, its socket and its connections."""

    def __init__(self, endpoint: iroh.Endpoint, *, silence_s_max: float, connect_s: float, relay: bool) -> None:
        self.counts = Counts()
        self._endpoint = endpoint
        self._id = PeerId(endpoint.id().to_bytes())
        self._silence_s_max = silence_s_max
        self._connect_s = connect_s
        self._relay = relay
        self._conns: set[IrohConn] = set()
        self._crew = Crew()
        self._arrived: deque[IrohConn] = deque()
        self._greeting = 0
        self._changed = asyncio.Event()
        self._closed = False
        self._sweeper = start_sweeping()
        self._crew.start(self._listen())

    @property
    def id(self) -> PeerId:
        return self._id

    def addresses(self) -> list[str]:
        known = list(self._endpoint.addr().direct_addresses())
        if known:
            abroad = [address for address in known if not _is_loopback(address)]
            return abroad or known
        return [f"127.0.0.1:{_port(socket)}" for socket in self._endpoint.bound_sockets()[:1]]

    async def connect(self, peer: PeerId, addresses: list[str]) -> IrohConn:
        if peer == self._id:
            raise ConnectFailed("a peer does not connect to itself")
        if self._closed:
            raise ConnectFailed("this transport is closed")
        try:
            async with asyncio.timeout(self._connect_s):
                where = await _resolve(addresses)
                if not where and not self._relay:
                    raise ConnectFailed(f"{short(peer)}: no usable address in {addresses}")
                target = iroh.EndpointAddr(iroh.EndpointId.from_bytes(peer), None, where)
                return self._adopt(await self._endpoint.connect(target, _ALPN))
        except TimeoutError:
            where_text = ", ".join(addresses) or "any address"
            raise ConnectFailed(f"{short(peer)}: no answer from {where_text} in {self._connect_s:g} s") from None
        except iroh.IrohError as error:
            raise ConnectFailed(f"{short(peer)}: {_say(error)}") from error

    def limit_silence(self, silence_s_max: float) -> None:
        self._silence_s_max = silence_s_max
        for conn in self._conns:
            conn.pulse.silence_s_max = silence_s_max

    async def accept(self) -> IrohConn:
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
        with contextlib.suppress(TimeoutError):  # peers that are gone need no goodbye
            async with asyncio.timeout(_CLOSE_S):
                await self._endpoint.close()
        self._sweeper.cancel()

    def _adopt(self, raw: iroh.Connection) -> IrohConn:
        conn = IrohConn(raw, self.counts, self._silence_s_max)
        self._conns.add(conn)
        self._crew.start(self._forget(conn))
        return conn

    async def _forget(self, conn: IrohConn) -> None:
        await conn.closed()
        self._conns.discard(conn)

    async def _listen(self) -> None:
        while (incoming := await self._endpoint.accept_next()) is not None:
            if len(self._arrived) + self._greeting >= _ARRIVALS_MAX:
                with contextlib.suppress(iroh.IrohError):
                    await incoming.refuse()
            else:
                self._greeting += 1
                self._crew.start(self._greet(incoming))

    async def _greet(self, incoming: iroh.Incoming) -> None:
        """Complete a handshake; one that fails is the caller's affair."""
        try:
            async with asyncio.timeout(self._connect_s):
                raw = await (await incoming.accept()).connect()
        except (iroh.IrohError, TimeoutError):
            return
        finally:
            self._greeting -= 1
        self._arrived.append(self._adopt(raw))
        self._changed.set()


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback


async def _resolve(addresses: list[str]) -> list[str]:
    """Return the addresses as numbers, looking names up; what cannot be read or found is left out."""
    found: list[str] = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError, ValueError):
            if not 0 < int(port) < 2**16:
                continue
            found += [_join(number, int(port)) for number in await _numbers(host.strip("[]"))]
    return list(dict.fromkeys(found))


async def _numbers(host: str) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        answers = await asyncio.get_running_loop().getaddrinfo(host, None)
        return [str(answer[4][0]) for answer in answers]


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def bind(
    secret: bytes,
    *,
    host: str = "0.0.0.0",
    port: int = 0,
    relay: bool = False,
    silence_s_max: float = SILENCE_S_MAX,
    connect_s: float = CONNECT_S_MAX,
) -> IrohTransport:
    """Return a transport that listens at `host` and `port` (0: any free one).

    Without `relay` nothing outside is asked: peers need an address of each other. With it, public relays
    and discovery find peers by their id alone and help through NAT. A link that is silent for `silence_s_max`
    is given up whatever was measured.
    """
    try:
        endpoint = await _bind(secret, host, port, relay, narrow=not ipaddress.ip_address(host).is_unspecified)
    except ValueError as error:
        raise LocalError(f"cannot listen at {host!r}: {error}", hint="give an IP address of this machine") from error
    return IrohTransport(endpoint, silence_s_max=silence_s_max, connect_s=connect_s, relay=relay)


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
        builder.bind_addr(_join(host, port))
        if narrow and ":" not in host:
            builder.bind_addr("[::1]:0")  # else iroh listens on every IPv6 interface besides
        return await builder.bind()
    except iroh.IrohError as error:
        if narrow and ":" not in host:
            with contextlib.suppress(LocalError):
                return await _bind(secret, host, port, relay, narrow=False)  # a machine without IPv6
        hint = "choose another --port" if port else "is the network up?"
        raise LocalError(f"cannot listen at {_join(host, port)}: {_say(error)}", hint=hint) from error
