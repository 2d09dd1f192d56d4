"""What every real transport keeps beyond the contract: life and death, places, counts, binding and finding."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import socket
import time
from collections.abc import Awaitable
from typing import Any

import pytest

from atoll.errors import LocalError, PeerLost
from atoll.net.identity import Identity
from atoll.net.live import LiveConn
from atoll.net.transport import NO_TAG, STREAMS_MAX, ConnLost, StreamClosed, StreamReset, Traffic
from tests.few import few_of
from tests.net.loopback import PATIENCE_S, bind, far_peer, joined, peers, run


@pytest.fixture(params=["iroh", "tls"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_connection_stays_while_our_own_loop_is_blocked(kind: str) -> None:
    async def test() -> None:
        async with far_peer(kind) as far, peers(kind, 1, silence_s_max=0.5) as (here,):
            conn = await here.connect(far.peer, far.addresses)
            stream = await conn.open("echo", Traffic.CONTROL)
            for _ in range(2):
                time.sleep(1.0)  # a stall of ours, not of theirs
                await stream.send(b"still there?")
                assert await stream.recv() == b"still there?"

    run(test)


def test_a_peer_that_holds_its_interpreter_is_not_dead(kind: str) -> None:
    async def test() -> None:
        async with far_peer(kind, block_s=2.0) as far, peers(kind, 1, silence_s_max=0.5) as (here,):
            conn = await here.connect(far.peer, far.addresses)
            stream = await conn.open("echo", Traffic.CONTROL)
            await stream.send(b"think hard")
            assert await stream.recv() == b"think hard"

    run(test)


@pytest.mark.parametrize("kind", few_of(("iroh", "tls"), ("iroh",)), indirect=True)
def test_nobody_dies_while_all_cores_are_busy(kind: str) -> None:
    busy = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(4)]
    for process in busy:
        process.start()

    async def test() -> None:
        async with far_peer(kind) as far, peers(kind, 1, silence_s_max=1.5) as (here,):
            conn = await here.connect(far.peer, far.addresses)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3.0):
                    await conn.closed()

    try:
        run(test)
    finally:
        for process in busy:
            process.kill()
            process.join()


def spin() -> None:
    while True:
        pass


def test_a_peer_that_died_and_came_back_at_its_port_is_a_new_connection(kind: str) -> None:
    async def test() -> None:
        async with peers(kind, 1, silence_s_max=1.0) as (here,):
            async with far_peer(kind) as far:
                old = await here.connect(far.peer, far.addresses)
            port = int(far.addresses[0].rpartition(":")[2])
            async with far_peer(kind, port) as again:
                assert again.peer == far.peer
                new = await here.connect(again.peer, again.addresses)
                assert await old.closed()
                stream = await new.open("echo", Traffic.CONTROL)
                await stream.send(b"again")
                assert await stream.recv() == b"again"

    run(test)


def test_two_connections_between_the_same_peers_are_allowed(kind: str) -> None:
    async def test() -> None:
        async with peers(kind, 2) as (ann, bob):
            conns = [await ann.connect(bob.id, bob.addresses()) for _ in range(2)]
            others = [await bob.accept() for _ in conns]
            await conns[0].close("one is enough")
            stream = await conns[1].open("still", Traffic.ROUND)
            arrived = {task.result()[0] for task in await _first(*(other.accept() for other in others))}
            assert arrived == {"still"}
            stream.reset()

    run(test)


async def _first(*works: Awaitable[Any]) -> set[asyncio.Task[Any]]:
    """Return those of `works` that do not end in a lost connection."""
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.wait(tasks)
    return {task for task in tasks if not isinstance(task.exception(), ConnLost)}


def test_forgotten_streams_give_their_places_back(kind: str) -> None:
    async def test() -> None:
        async with joined(kind) as (here, there):
            for _ in range(2 * STREAMS_MAX):
                stream = await here.open("forgotten", Traffic.CONTROL)
                await stream.send(b"words")
                _, other = await there.accept()
                assert await other.recv() == b"words"
                del stream
                gc.collect(0)
                with pytest.raises(StreamReset):
                    await other.recv()

    run(test)


def test_an_answer_may_be_the_last_thing_its_sender_knows_of_a_stream(kind: str) -> None:
    async def answer(conn: LiveConn) -> None:
        _, stream = await conn.accept()
        await stream.send(await stream.recv())
        await stream.finish()

    async def test() -> None:
        async with joined(kind) as (here, there):
            for _ in range(10):
                stream = await here.open("ask", Traffic.CONTROL)
                await stream.send(b"words")
                await answer(there)
                gc.collect(0)
                assert await stream.recv() == b"words"
                later = await here.open("later", Traffic.CONTROL)
                await later.send(b"by now the other side has forgotten the first stream")
                await answer(there)
                await stream.send(b"more words")
                await stream.finish()
                with pytest.raises(StreamClosed):
                    await stream.recv()

    run(test)


def test_a_stream_finished_on_both_sides_is_not_open_although_held(kind: str) -> None:
    held: list[object] = []

    async def ask(here: LiveConn, there: LiveConn) -> None:
        stream = await here.open("ask", Traffic.CONTROL)
        _, other = await there.accept()
        held.extend([stream, other])
        await other.send(b"answer")
        async with asyncio.TaskGroup() as both:
            both.create_task(stream.finish())
            both.create_task(other.finish())
        assert await stream.recv() == b"answer"

    async def test() -> None:
        async with joined(kind) as (here, there):
            for _ in range(3):
                async with asyncio.TaskGroup() as asking:
                    for _ in range(STREAMS_MAX):
                        asking.create_task(ask(here, there))
        assert len(held) == 6 * STREAMS_MAX

    run(test)


def test_a_stream_without_a_tag_is_handed_on_as_such_and_one_that_is_cut_is_not(kind: str) -> None:
    async def test() -> None:
        async with joined(kind) as (here, there):
            wrong = (b"\0\0\0\1\x09", b"\0\0\0\0", b"\0\0\0\2\0\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff")
            cut = (b"\0", b"", b"\0\0\0\5\1pa")
            for junk in (*wrong, *cut):
                raw, _ = await here.line.open()
                await raw.write(junk)
                raw.abandon()
            await here.open("good", Traffic.CONTROL)
            accepted = [await there.accept() for _ in range(len(wrong) + 1)]
            assert sorted(tag for tag, _ in accepted) == [NO_TAG] * len(wrong) + ["good"]
            for tag, stream in accepted:
                if tag == NO_TAG:
                    with pytest.raises(PeerLost):  # there is nothing to be had from it
                        await stream.recv()

    run(test)


def test_nothing_is_left_to_be_retrieved(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with joined(kind) as (here, there):
            stream = await here.open("ask", Traffic.CONTROL)
            _, other = await there.accept()
            for waiting in (stream.recv(), other.recv(), here.accept()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await waiting

    run(test)
    gc.collect()
    assert caplog.records == []


def test_a_transport_has_the_identity_of_its_secret(kind: str) -> None:
    async def test() -> None:
        transport = await bind(kind, b"\3" * 32, host="127.0.0.1")
        assert transport.id == Identity.from_seed(b"\3" * 32).peer
        await transport.close()

    run(test)


def test_the_port_can_be_chosen_and_a_taken_one_is_a_local_error(kind: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "iroh" else socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == "tls":
            taken.listen()
        port = taken.getsockname()[1]

        async def fail() -> None:
            with pytest.raises(LocalError, match="in use") as refused:
                await bind(kind, bytes(32), host="127.0.0.1", port=port)
            assert "--port" in refused.value.hint

        run(fail)

    async def test() -> None:
        transport = await bind(kind, bytes(32), host="127.0.0.1", port=port)
        assert f"127.0.0.1:{port}" in transport.addresses()
        await transport.close()

    run(test)


def test_a_host_that_is_no_address_is_a_local_error(kind: str) -> None:
    async def test() -> None:
        with pytest.raises(LocalError, match="cannot listen"):
            await bind(kind, bytes(32), host="not an address")

    run(test)


def test_an_open_peer_is_found_at_each_of_its_addresses(kind: str) -> None:
    async def test() -> None:
        bob = await bind(kind, os.urandom(32))
        try:
            assert bob.addresses()
            assert not any("0.0.0.0" in address or "[::]" in address for address in bob.addresses())
            async with asyncio.timeout(PATIENCE_S):
                ann = await bind(kind, os.urandom(32))
                assert (await ann.connect(bob.id, bob.addresses())).peer == bob.id
                await ann.close()
        finally:
            await bob.close()

    run(test)


def test_an_address_may_be_a_name(kind: str) -> None:
    async def test() -> None:
        async with peers(kind, 2) as (ann, bob):
            port = next(address for address in bob.addresses() if address.startswith("127.")).rpartition(":")[2]
            assert (await ann.connect(bob.id, ["nowhere.invalid:1", f"localhost:{port}"])).peer == bob.id

    run(test)
