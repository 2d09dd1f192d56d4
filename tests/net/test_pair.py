"""Two kinds of link behind one door: which is taken, and what happens where only one comes about."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from atoll.errors import LocalError
from atoll.net import iroh, pair, tls
from atoll.net.identity import Identity
from atoll.net.live import LiveConn, LiveTransport
from atoll.net.pair import PairedTransport
from atoll.net.transport import ConnectFailed, ConnLost, Traffic, Transport
from tests.net.loopback import run


@contextlib.asynccontextmanager
async def closing(*transports: Transport) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(20):
            yield
    finally:
        await asyncio.gather(*(transport.close() for transport in transports))


async def paired() -> PairedTransport:
    return await pair.bind_both(os.urandom(32), host="127.0.0.1")


async def two_doors() -> tuple[LiveTransport, LiveTransport]:
    secret = os.urandom(32)
    return tls.bind(secret, host="127.0.0.1"), await iroh.bind(secret, host="127.0.0.1")


def kind_of(conn: LiveConn) -> str:
    return type(conn.line).__module__.rpartition(".")[2]


async def hello(here: LiveConn, called: Transport) -> LiveConn:
    """Say a word over a new connection and return its other end."""
    there = await called.accept()
    stream = await here.open("hello", Traffic.CONTROL)
    await stream.send(b"hello")
    _, other = await there.accept()
    assert await other.recv() == b"hello"
    assert isinstance(there, LiveConn)
    return there


def test_peers_that_reach_each_other_directly_speak_tls() -> None:
    async def test() -> None:
        ann, bob = await paired(), await paired()
        async with closing(ann, bob):
            here = await ann.connect(bob.id, bob.addresses())
            there = await hello(here, bob)
            assert kind_of(here) == kind_of(there) == "tls"

    run(test)


def test_one_address_serves_both_kinds() -> None:
    async def test() -> None:
        bob, by_udp = await paired(), await iroh.bind(os.urandom(32), host="127.0.0.1")
        by_tcp = tls.bind(os.urandom(32), host="127.0.0.1")
        async with closing(bob, by_udp, by_tcp):
            for caller, kind in ((by_udp, "iroh"), (by_tcp, "tls")):
                there = await hello(await caller.connect(bob.id, bob.addresses()), bob)
                assert kind_of(there) == kind
            assert bob.counts.received_bytes[Traffic.CONTROL] == 2 * len(b"hello"), "of both"

    run(test)


def test_where_tcp_is_refused_iroh_takes_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "HEAD_START_S", math.inf)  # who waited for it would never come to an end

    async def test() -> None:
        ann, bob = PairedTransport(*await two_doors()), await iroh.bind(os.urandom(32), host="127.0.0.1")
        async with closing(ann, bob):
            here = await ann.connect(bob.id, bob.addresses())
            assert kind_of(here) == "iroh"
            await hello(here, bob)

    run(test)


@contextlib.contextmanager
def swallowing(port: int) -> Iterator[None]:
    """Take TCP connections at a port and never say a word."""
    with socket.create_server(("127.0.0.1", port)):
        yield


def test_where_tcp_is_swallowed_iroh_takes_over_after_the_head_start_and_the_next_time_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        ann, bob = await paired(), await iroh.bind(os.urandom(32), host="127.0.0.1")
        with swallowing(int(bob.addresses()[0].rpartition(":")[2])):
            async with closing(ann, bob):
                began_s = time.monotonic()
                first = await ann.connect(bob.id, bob.addresses())
                took_s = time.monotonic() - began_s
                assert kind_of(first) == "iroh" and took_s >= pair.HEAD_START_S
                monkeypatch.setattr(pair, "HEAD_START_S", math.inf)
                assert kind_of(await ann.connect(bob.id, bob.addresses())) == "iroh"

    run(test)


def test_nobody_is_reached_where_nobody_is() -> None:
    async def test() -> None:
        eve = Identity.from_seed(b"\5" * 32).peer
        direct = tls.bind(b"\6" * 32, host="127.0.0.1", connect_s=0.5)
        around = await iroh.bind(b"\6" * 32, host="127.0.0.1", connect_s=0.5)
        ann = PairedTransport(direct, around)
        async with closing(ann):
            with pytest.raises(ConnectFailed, match="no answer"):
                await ann.connect(eve, ["127.0.0.1:9"])
            with pytest.raises(ConnectFailed, match="itself"):
                await ann.connect(ann.id, ann.addresses())

    run(test)


def test_a_cancelled_attempt_leaves_nothing_behind() -> None:
    async def test() -> None:
        ann, bob = await paired(), await paired()
        async with closing(ann, bob):
            for turns in range(60):
                attempt = asyncio.create_task(ann.connect(bob.id, bob.addresses()))
                for _ in range(turns):
                    await asyncio.sleep(0)
                attempt.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await (await attempt).close()
            await asyncio.sleep(0.3)
            assert not ann._direct._conns and not ann._roundabout._conns

    run(test)


def test_of_two_links_that_come_about_at_once_one_stays() -> None:
    async def test() -> None:
        ann, bob = await paired(), await paired()
        async with closing(ann, bob):
            ann._deaf_until_s[bob.id] = math.inf  # both are dialled from the start
            for _ in range(10):
                conn = await ann.connect(bob.id, bob.addresses())
                await asyncio.sleep(0.2)
                assert ann._direct._conns | ann._roundabout._conns == {conn}
                await conn.close("next")

    run(test)


def test_who_waits_at_a_closed_door_is_told() -> None:
    async def test() -> None:
        ann = await paired()
        waiting = [asyncio.create_task(ann.accept()) for _ in range(2)]
        await asyncio.sleep(0)
        await ann.close()
        for task in waiting:
            with pytest.raises(ConnLost):
                await task

    run(test)


def test_a_port_that_is_taken_in_either_kind_is_a_local_error() -> None:
    async def test() -> None:
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            with socket.socket(socket.AF_INET, kind) as taken:
                taken.bind(("127.0.0.1", 0))
                if kind == socket.SOCK_STREAM:
                    taken.listen()
                with pytest.raises(LocalError, match="in use"):
                    await pair.bind_both(bytes(32), host="127.0.0.1", port=taken.getsockname()[1])

    run(test)
