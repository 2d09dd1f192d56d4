"""The real world for the transport suite: sockets on loopback; mortal peers are processes that die.

A mortal peer's transport lives in a child that obeys one pickled call per line of a pipe, so the suite
drives it like any other. Death is to be silent: over QUIC that is SIGKILL; a TCP connection's kernel would tell the
other side at once, so there the child makes its sockets deaf and is stopped. Run as a program, this file is that child.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import os
import pickle
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from atoll.net import iroh, tls
from atoll.net.live import LiveTransport
from atoll.net.transport import MESSAGE_BYTES_MAX, Conn, Counts, PeerId, Stream, Traffic, Transport

_LINE_BYTES_MAX = 4 * MESSAGE_BYTES_MAX
_SO_ATTACH_FILTER = 26
_UNACKED = struct.Struct("=24xI")  # where Linux' tcp_info has it


async def bind(kind: str, silence_s_max: float, connect_s: float) -> LiveTransport:
    """Return a transport of one kind on loopback."""
    secret = os.urandom(32)
    if kind == "tls":
        return tls.bind(secret, host="127.0.0.1", silence_s_max=silence_s_max, connect_s=connect_s)
    return await iroh.bind(secret, host="127.0.0.1", silence_s_max=silence_s_max, connect_s=connect_s)


class RealLab:
    """Transports on 127.0.0.1 with short deadlines."""

    silence_s_max = 1.0
    connect_s = 1.5

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._made: list[LiveTransport] = []
        self._children: list[_Child] = []

    async def transport(self, name: str) -> Transport:
        made = await bind(self._kind, self.silence_s_max, self.connect_s)
        self._made.append(made)
        return made

    async def mortal(self, name: str) -> Transport:
        child = _Child(self._kind)
        self._children.append(child)
        return await child.start(self.silence_s_max, self.connect_s)

    async def kill(self, transport: Transport) -> None:
        assert isinstance(transport, _FarTransport), "only a mortal peer can be killed"
        await transport.child.fall_silent()

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def close(self) -> None:
        await asyncio.gather(*(child.kill() for child in self._children))
        await asyncio.gather(*(transport.close() for transport in self._made))


class _Child:
    """The pipe to a mortal peer."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._process: asyncio.subprocess.Process | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._calls = 0

    async def start(self, silence_s_max: float, connect_s: float) -> _FarTransport:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, self._kind, str(silence_s_max), str(connect_s),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE_BYTES_MAX,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read())
        return _FarTransport(self, *await self.call(0, "about"))

    async def call(self, handle: int, method: str, *args: object) -> Any:
        """Have the child call `method` of the object it knows as `handle`."""
        assert self._process is not None and self._process.stdin is not None
        self._calls += 1
        answer = self._answers[self._calls] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(_line((self._calls, handle, method, args)))
        result = await answer
        if isinstance(result, BaseException):
            raise result
        return result

    async def fall_silent(self) -> None:
        """Have nothing more come from it."""
        assert self._process is not None
        if self._kind == "tls":
            asking = asyncio.create_task(self.call(0, "fall_silent"))
            while "T (stopped)" not in Path(f"/proc/{self._process.pid}/status").read_text():
                await asyncio.sleep(0.01)
            asking.cancel()
        else:
            await self.kill()

    async def kill(self) -> None:
        assert self._process is not None and self._reading is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await asyncio.wait([self._reading])
        for answer in self._answers.values():
            answer.cancel()

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        while line := await self._process.stdout.readline():
            call, result = pickle.loads(base64.b64decode(line))
            if not (answer := self._answers.pop(call)).done():
                answer.set_result(result)


def _line(what: object) -> bytes:
    return base64.b64encode(pickle.dumps(what)) + b"\n"


class _FarTransport:
    def __init__(self, child: _Child, id: PeerId, addresses: list[str]) -> None:
        self.child = child
        self._id = id
        self._addresses = addresses

    @property
    def id(self) -> PeerId:
        return self._id

    def addresses(self) -> list[str]:
        return self._addresses

    async def connect(self, peer: PeerId, addresses: list[str]) -> Conn:
        return _FarConn(self.child, *await self.child.call(0, "connect", peer, addresses))

    async def accept(self) -> Conn:
        return _FarConn(self.child, *await self.child.call(0, "accept"))

    @property
    def counts(self) -> Counts:
        raise NotImplementedError("no check asks a mortal peer")

    def limit_silence(self, silence_s_max: float) -> None:
        raise NotImplementedError("no check limits a mortal peer")

    async def close(self) -> None:
        await self.child.call(0, "close")


class _FarConn:
    def __init__(self, child: _Child, handle: int, peer: PeerId) -> None:
        self._child = child
        self._handle = handle
        self._peer = peer

    @property
    def peer(self) -> PeerId:
        return self._peer

    async def open(self, tag: str, traffic: Traffic) -> Stream:
        return _FarStream(self._child, await self._child.call(self._handle, "open", tag, traffic))

    async def accept(self) -> tuple[str, Stream]:
        tag, handle = await self._child.call(self._handle, "accept")
        return tag, _FarStream(self._child, handle)

    async def closed(self) -> str:
        return str(await self._child.call(self._handle, "closed"))

    async def close(self, reason: str = "") -> None:
        await self._child.call(self._handle, "close", reason)

    def round_trip_s(self) -> float | None:
        raise NotImplementedError("no check asks a mortal peer")

    def distance_s(self) -> float | None:
        raise NotImplementedError("no check asks a mortal peer")


class _FarStream:
    def __init__(self, child: _Child, handle: int) -> None:
        self._child = child
        self._handle = handle

    async def send(self, message: bytes) -> None:
        await self._child.call(self._handle, "send", message)

    async def recv(self, limit: int = MESSAGE_BYTES_MAX) -> bytes:
        return bytes(await self._child.call(self._handle, "recv", limit))

    async def finish(self) -> None:
        await self._child.call(self._handle, "finish")

    def reset(self) -> None:
        raise NotImplementedError("no check resets a mortal peer's stream")


class _Servant:
    """The child's side: objects by number, calls run side by side."""

    def __init__(self, transport: LiveTransport) -> None:
        self._objects: list[Any] = [transport]

    async def run(self, lines: asyncio.StreamReader) -> None:
        async with asyncio.TaskGroup() as calls:
            while line := await lines.readline():
                calls.create_task(self._serve(*pickle.loads(base64.b64decode(line))))

    async def _serve(self, call: int, handle: int, method: str, args: tuple[object, ...]) -> None:
        try:
            result = await self._call(self._objects[handle], method, args)
        except Exception as error:  # goes to the one who asked
            result = error
        sys.stdout.buffer.write(_line((call, result)))
        sys.stdout.buffer.flush()

    async def _call(self, target: Any, method: str, args: tuple[object, ...]) -> object:
        if method == "about":
            return target.id, target.addresses()
        if method == "fall_silent":
            _fall_silent([conn.line._pipe for conn in target._conns])
        result = await getattr(target, method)(*args)
        match result:
            case (str(tag), stream):
                return tag, self._number(stream)
            case None | str() | bytes():
                return result
        return (self._number(result), result.peer) if hasattr(result, "peer") else self._number(result)

    def _number(self, thing: object) -> int:
        self._objects.append(thing)
        return len(self._objects) - 1


def _fall_silent(pipes: list[socket.socket]) -> None:
    """Be as good as unplugged: first nothing may be under way that the kernel would send again by itself."""
    while any(map(_unacked, pipes)):
        time.sleep(0.001)
    for pipe in pipes:
        _deafen(pipe)
    os.kill(os.getpid(), signal.SIGSTOP)


def _unacked(pipe: socket.socket) -> int:
    return int(_UNACKED.unpack(pipe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED.size))[0])


def _deafen(pipe: socket.socket) -> None:
    """Have the kernel drop all that comes for a socket and acknowledge nothing: a filter that keeps 0 bytes."""
    keep_nothing = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))
    pipe.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(keep_nothing)))


async def _serve(kind: str, silence_s_max: float, connect_s: float) -> None:
    lines = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await _Servant(await bind(kind, silence_s_max, connect_s)).run(lines)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
