"""Links between peers that reach each other directly: TLS 1.3 over TCP, less work per byte than QUIC (`bench.links`).

Both sides prove who they are within the handshake. A peer's key signs a throw-away TLS key; the other side trusts
exactly one signer, the peer it means. Who dials knows whom it means; who is called learns the caller's claim from the
server name of the first message and demands proof of just that. So Python's own `ssl` does the proving, and the key of
a peer is never handed to it. Certificates do not expire, for no clock is trusted here; the throw-away keys live as long
as their process, in memory where the system has files without a disk (Linux), else in a private temporary file.

Streams are made by `mux`. Two questions are asked of a silent link. Whether the line is dead is judged by the other
machine's acknowledgements, which its kernel sends while the process is busy (where the system does not count them: by
what the process sends); whether the process hangs on a healthy line is judged by its own answers, with more patience.
A process that was killed is told to us by its kernel at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from tempfile import NamedTemporaryFile
from typing import IO, Any, TypeVar, cast

from atoll.errors import LocalError
from atoll.net.address import is_everywhere, join, resolve, split
from atoll.net.identity import Identity, anchor, credentials, server_name, short, who_is_named
from atoll.net.live import LiveTransport
from atoll.net.mux import Garbled, Kind, Mux, MuxRecv, MuxSend, frame
from atoll.net.pulse import SILENCE_S_MAX
from atoll.net.stream import Crew, LineBroken
from atoll.net.transport import CONNECT_S_MAX, ConnectFailed, PeerId

_ALPN = "atoll/1"
_RECORD_BYTES = 16 * 1024
_READ_BYTES = 4 * _RECORD_BYTES
_TURN_BYTES = 512 * 1024  # what is sent in one turn of the loop: others want theirs too
_TURN_S = 0.005  # what receiving takes of a turn; not bytes are counted, for what they make one do differs
_UNSENT_BYTES_MAX = 128 * 1024  # what waits in the kernel cannot be overtaken any more
_REASON_BYTES_MAX = 200
_GOODBYE_S = 1.0
_BACKLOG = 64
_KNOWN_MAX = 256
_BREATH_S = 0.1
HANGS_S = 10.0
"""A process that says nothing for so long, while its machine answers, is given up."""

_ROUND_TRIP_US = struct.Struct("=68xI")  # where Linux' tcp_info has it
_SEGMENTS_IN = struct.Struct("=140xI")

T = TypeVar("T")


class _Line:
    """A TLS connection as a `Line`."""

    def __init__(self, pipe: ssl.SSLSocket, peer: PeerId, goodbyes: Crew, *, dialled: bool) -> None:
        self._pipe = pipe
        self._goodbyes = goodbyes
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._mux = Mux(dialled=dialled, loop=self._loop, wake=self._wake, round_trip_s=self.round_trip_s)
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._unsent = memoryview(b"")
        self._came_bytes = 0
        self._came_bytes_then = -1
        self._silent_s = 0.0
        self._why: str | None = None
        self._over = asyncio.Event()
        self._writing = False
        self._kernel_is_full = False
        self._reading_on = False
        pipe.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            pipe.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES_MAX)
        self._loop.add_reader(pipe, self._read)
        self._loop.call_soon(self._read)  # what came with the handshake announces itself no more

    @property
    def peer(self) -> PeerId:
        return self._peer

    async def open(self) -> tuple[MuxSend, MuxRecv]:
        return await self._mux.open()

    async def accept(self) -> tuple[MuxSend, MuxRecv]:
        return await self._mux.accept()

    def heard(self) -> int:
        counted = _segments_in(self._pipe) if self._why is None else None
        return self._came_bytes if counted is None else counted

    def knock(self, tick_s: float) -> None:
        """Ask the process, and with it the machine; give up one that answers nothing while its machine does."""
        if self._why is not None:
            return
        self._silent_s = self._silent_s + tick_s if self._came_bytes == self._came_bytes_then else 0.0
        self._came_bytes_then = self._came_bytes
        if self._silent_s >= HANGS_S:
            self._end(f"its machine answers, its process has been silent for {HANGS_S:.0f} s")
        else:
            self._mux.say(frame(0, Kind.KNOCK))

    def round_trip_s(self) -> float | None:
        return _round_trip_s(self._pipe) if self._why is None else None

    def gone(self) -> str | None:
        return self._why

    async def over(self) -> str:
        await self._over.wait()
        return self._why or ""

    def close(self, reason: str) -> None:
        if self._why is None:
            bye = frame(0, Kind.BYE, reason.encode()[:_REASON_BYTES_MAX])
            self._end(f"closed here: {reason}", b"".join((self._unsent, *self._mux.words(), bye)))

    # sending

    def _wake(self) -> None:
        if not self._writing and self._why is None:
            self._writing = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        """Send until the kernel takes no more, nothing is left, or it is others' turn."""
        if self._why is not None:
            return
        try:
            left = self._send_some(_TURN_BYTES)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            if not self._kernel_is_full:
                self._kernel_is_full = True
                self._loop.add_writer(self._pipe, self._write)
        except OSError as error:
            self._end(_say(error))
        else:
            if self._kernel_is_full:
                self._kernel_is_full = False
                self._loop.remove_writer(self._pipe)
            self._writing = left
            if left:
                self._loop.call_soon(self._write)

    def _send_some(self, limit: int) -> bool:
        """Send up to `limit` bytes and return whether there are more."""
        while limit > 0:
            if not self._unsent:
                if (made := self._mux.next()) is None:
                    return False
                self._unsent = memoryview(made)
            sent = self._pipe.send(self._unsent)
            self._unsent = self._unsent[sent:]
            limit -= sent
        return True

    # receiving

    def _read(self) -> None:
        """Take what came, unless that is under way."""
        if not self._reading_on:
            self._read_on()

    def _read_on(self) -> None:
        """Take what came, until there is nothing or it is others' turn."""
        self._reading_on = False
        if self._why is not None:
            return
        try:
            self._reading_on = self._receive_some(self._loop.time() + _TURN_S)
        except Garbled as error:
            self._end(f"it broke the rules of the line: {error}")
        except OSError as error:
            self._end(_say(error))
        if self._reading_on:
            self._loop.call_soon(self._read_on)  # what is decrypted already wakes nobody

    def _receive_some(self, until_s: float) -> bool:
        """Take what came for a while and return whether there may be more."""
        while self._loop.time() < until_s:
            filled, dry = self._fill()
            self._came_bytes += filled
            self._mux.feed(self._buffer[:filled])
            if self._mux.bye is not None or not (filled or dry):
                self._end(self._farewell())
            if dry or self._why is not None:
                return False
        return True

    def _fill(self) -> tuple[int, bool]:
        """Take record after record: TLS hands out one at a time. Return how much came, and whether that is all."""
        filled = 0
        try:
            while filled <= _READ_BYTES - _RECORD_BYTES and (came := self._pipe.recv_into(self._buffer[filled:])):
                filled += came
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return filled, True
        except OSError:
            if not filled:
                raise
        return filled, False

    def _farewell(self) -> str:
        said = self._mux.bye
        return "its process ended" if said is None else said or "closed by the other side"

    def _end(self, why: str, last_words: bytes | None = None) -> None:
        """Let everybody know that the line is over; with last words: once the other side has them."""
        if self._why is not None:
            return
        self._why = why
        self._loop.remove_reader(self._pipe)
        self._loop.remove_writer(self._pipe)
        if last_words is None:
            self._pipe.close()
        else:
            self._goodbyes.start(_take_leave(self._pipe, last_words))
        self._mux.fail(why)
        self._over.set()


async def _take_leave(pipe: ssl.SSLSocket, last_words: bytes) -> None:
    """Send the last words and wait until the other side hangs up: closed at once, unread bytes would kill them."""
    left = memoryview(last_words)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_GOODBYE_S):
            while left:
                left = left[await _willing(pipe, partial(pipe.send, left)) :]
            socket.socket.shutdown(pipe, socket.SHUT_WR)
            while await _willing(pipe, partial(pipe.recv, _READ_BYTES)):
                pass
    pipe.close()


async def _willing(pipe: ssl.SSLSocket, step: Callable[[], T]) -> T:
    """Return what a step returns, repeating it while the pipe is not ready for it."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            await _turn(partial(loop.add_reader, pipe), partial(loop.remove_reader, pipe))
        except ssl.SSLWantWriteError:
            await _turn(partial(loop.add_writer, pipe), partial(loop.remove_writer, pipe))


async def _turn(add: Callable[[Callable[[], None]], None], remove: Callable[[], object]) -> None:
    """Wait until the loop calls."""
    called = asyncio.Event()
    add(called.set)
    try:
        await called.wait()
    finally:
        remove()


def _segments_in(pipe: socket.socket) -> int | None:
    """Return how many packets of this connection have reached us, bare acknowledgements too, if the system says."""
    if not sys.platform.startswith("linux"):
        return None
    info = pipe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SEGMENTS_IN.size)
    return int(_SEGMENTS_IN.unpack(info)[0]) if len(info) == _SEGMENTS_IN.size else None


def _round_trip_s(pipe: socket.socket) -> float | None:
    """Return the smoothed round trip that the kernel has measured, if the system says."""
    if not sys.platform.startswith("linux"):
        return None
    (rtt_us,) = _ROUND_TRIP_US.unpack(pipe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP_US.size))
    return float(max(rtt_us, 1) / 1e6)


def _say(error: OSError) -> str:
    """Return in a few words what broke the line."""
    if isinstance(error, ConnectionResetError | BrokenPipeError | ssl.SSLEOFError):
        return "its process ended"
    return error.strerror or str(error)


class _Caller:
    """Somebody who connected and has not shown who it is."""

    def __init__(self, endpoint: TlsEndpoint, plain: socket.socket) -> None:
        self._endpoint = endpoint
        self._plain = plain

    async def greet(self) -> _Line:
        return await self._endpoint.welcome(self._plain)

    async def refuse(self) -> None:
        self._plain.close()


class TlsEndpoint:
    """A key and a listening TCP socket."""

    def __init__(self, me: Identity, listener: socket.socket) -> None:
        self._me = me
        self._listener = listener
        host, port = listener.getsockname()[:2]
        self._address = join(_own_host() if is_everywhere(host) else host, port)
        self._goodbyes = Crew()
        self._credentials = _kept(credentials(me))
        path = _path(self._credentials)
        self._for_called = lru_cache(_KNOWN_MAX)(partial(_context, ssl.PROTOCOL_TLS_CLIENT, path))
        self._for_caller = lru_cache(_KNOWN_MAX)(partial(_context, ssl.PROTOCOL_TLS_SERVER, path))
        self._for_anybody = _context(ssl.PROTOCOL_TLS_SERVER, path)
        self._for_anybody.sni_callback = self._demand_proof

    @property
    def id(self) -> PeerId:
        return self._me.peer

    def addresses(self) -> list[str]:
        return [self._address]

    async def dial(self, peer: PeerId, addresses: list[str]) -> _Line:
        where = await resolve(addresses)
        if not where:
            raise ConnectFailed(f"{short(peer)}: no usable address in {addresses}")
        return await _first([self._dial(peer, address) for address in where])

    async def welcome(self, plain: socket.socket) -> _Line:
        """Let a caller prove what it claims."""
        pipe = await _shaken(self._for_anybody, plain, server_side=True)
        try:
            peer = who_is_named(_signer(pipe.getpeercert()))
        except ValueError as error:
            pipe.close()
            raise LineBroken("its certificate names nobody") from error
        return self._line(pipe, peer, dialled=False)

    async def call(self) -> _Caller | None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                plain, _ = await loop.sock_accept(self._listener)
                return _Caller(self, plain)
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL):
                    return None
                await asyncio.sleep(_BREATH_S)  # no more files for now, or the caller is gone already

    async def close(self) -> None:
        self._listener.close()
        self._credentials.close()
        await self._goodbyes.done(_GOODBYE_S)

    async def _dial(self, peer: PeerId, address: str) -> _Line:
        rules = self._for_called(peer)
        host, port = split(address)
        plain = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        plain.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(plain, (host, port))
        except OSError as error:
            plain.close()
            raise LineBroken(f"{address}: {_say(error)}") from error
        except asyncio.CancelledError:
            plain.close()
            raise
        pipe = await _shaken(rules, plain, server_hostname=server_name(self.id))
        return self._line(pipe, peer, dialled=True)

    def _line(self, pipe: ssl.SSLSocket, peer: PeerId, *, dialled: bool) -> _Line:
        return _Line(pipe, peer, self._goodbyes, dialled=dialled)

    def _demand_proof(self, pipe: ssl.SSLObject, claim: str | None, _: ssl.SSLContext) -> int | None:
        """Have TLS trust nobody but the peer that the caller says it is."""
        try:
            pipe.context = self._for_caller(who_is_named(claim or ""))
        except ValueError:
            return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        except OSError:
            return int(ssl.ALERT_DESCRIPTION_INTERNAL_ERROR)
        return None


def _context(side: int, file: str, trusted: PeerId | None = None) -> ssl.SSLContext:
    """Return the rules of a handshake: show these credentials, demand some that one peer has signed."""
    made = ssl.SSLContext(side)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # names are nothing here, keys are all
    made.verify_mode = ssl.CERT_REQUIRED
    made.set_alpn_protocols([_ALPN])
    if side == ssl.PROTOCOL_TLS_SERVER:
        made.num_tickets = 0  # nobody resumes
    made.load_cert_chain(file)
    if trusted is not None:
        made.load_verify_locations(cadata=anchor(trusted))
    return made


def _kept(pem: bytes) -> IO[bytes]:
    """Return an open file with these bytes, in memory where that can be: `ssl` takes keys from files only."""
    file: IO[bytes]
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("atoll"), "wb")
    else:
        file = cast("IO[bytes]", NamedTemporaryFile(suffix=".pem"))  # noqa: SIM115  (closed with its endpoint)
    file.write(pem)
    file.flush()
    return file


def _path(file: IO[bytes]) -> str:
    return f"/proc/self/fd/{file.fileno()}" if hasattr(os, "memfd_create") else file.name


async def _shaken(rules: ssl.SSLContext, plain: socket.socket, **options: Any) -> ssl.SSLSocket:
    """Complete the handshake on a connection; what fails is closed."""
    pipe = plain
    try:
        plain.getpeername()  # who has hung up already makes `wrap_socket` fail without closing
        pipe = shaking = rules.wrap_socket(plain, do_handshake_on_connect=False, **options)
        await _willing(shaking, shaking.do_handshake)
        if shaking.selected_alpn_protocol() != _ALPN:
            raise LineBroken("it speaks another protocol")
    except OSError as error:
        pipe.close()
        raise LineBroken(_say(error)) from error
    except (LineBroken, asyncio.CancelledError):
        pipe.close()
        raise
    return shaking


async def _first(dials: list[Coroutine[Any, Any, _Line]]) -> _Line:
    """Return the line that comes about first and give the others up; raises what went wrong with all of them."""
    tasks = [asyncio.create_task(dial) for dial in dials]
    pending, won = set(tasks), None
    try:
        while pending and won is None:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            won = next((task for task in done if task.exception() is None), None)
    finally:
        for task in tasks:
            if task is not won:
                task.add_done_callback(_hang_up)  # also one that has just come about
                task.cancel()
    if won is None:
        raise LineBroken("; ".join(dict.fromkeys(str(task.exception()) for task in tasks)))
    return won.result()


def _hang_up(dial: asyncio.Task[_Line]) -> None:
    if not dial.cancelled() and dial.exception() is None:
        dial.result().close("another address was quicker")


def _signer(certificate: Any) -> str:
    """Return by what name the signer of a certificate goes."""
    return str(next(value for ((key, value),) in certificate["issuer"] if key == "commonName"))


def _own_host() -> str:
    """Return the address by which this machine goes out; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"  # no network at all
        return str(probe.getsockname()[0])


def bind(
    secret: bytes,
    *,
    host: str = "0.0.0.0",
    port: int = 0,
    silence_s_max: float = SILENCE_S_MAX,
    connect_s: float = CONNECT_S_MAX,
) -> LiveTransport:
    """Return a transport that listens at `host` and `port` (0: any free one); to be called in a running loop."""
    return adopt(secret, listen(host, port), silence_s_max=silence_s_max, connect_s=connect_s)


def adopt(
    secret: bytes,
    listener: socket.socket,
    *,
    silence_s_max: float = SILENCE_S_MAX,
    connect_s: float = CONNECT_S_MAX,
) -> LiveTransport:
    """Return a transport whose socket listens already."""
    endpoint = TlsEndpoint(Identity.from_seed(secret), listener)
    return LiveTransport(endpoint, silence_s_max=silence_s_max, connect_s=connect_s)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises `LocalError`."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, ValueError) as error:
        hint = "choose another --port" if port else "give an IP address of this machine"
        raise LocalError(f"cannot listen at {join(host, port)}: {error}", hint=hint) from error
    listener.setblocking(False)
    return listener
