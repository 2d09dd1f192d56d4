"""What is special to iroh: the work-arounds of its binding, life and death, binding and finding."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import iroh
import pytest
from iroh import iroh_ffi

from atoll.errors import LocalError, PeerLost
from atoll.net.identity import Identity
from atoll.net.iroh import IrohConn, IrohTransport, bind, quicken
from atoll.net.transport import NO_TAG, STREAMS_MAX, ConnectFailed, ConnLost, PeerId, StreamClosed, StreamReset, Traffic

PATIENCE_S = 20.0


@contextlib.asynccontextmanager
async def peers(count: int, **options: Any) -> AsyncIterator[list[IrohTransport]]:
    made = [await bind(os.urandom(32), host="127.0.0.1", **options) for _ in range(count)]
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield made
    finally:
        await asyncio.gather(*(transport.close() for transport in made))


@contextlib.asynccontextmanager
async def joined(**options: Any) -> AsyncIterator[tuple[IrohConn, IrohConn]]:
    async with peers(2, **options) as (ann, bob):
        here = await ann.connect(bob.id, bob.addresses())
        yield here, await bob.accept()


@contextlib.asynccontextmanager
async def far_peer(port: int = 0, secret: bytes = b"\7" * 32, block_s: float = 0) -> AsyncIterator[Far]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).with_name("far_peer.py")), str(port), secret.hex(), str(block_s),
        stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        peer, *addresses = (await process.stdout.readline()).decode().split()
        yield Far(process, PeerId(bytes.fromhex(peer)), addresses)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Far:
    """A peer in another process."""

    def __init__(self, process: asyncio.subprocess.Process, peer: PeerId, addresses: list[str]) -> None:
        self.process = process
        self.peer = peer
        self.addresses = addresses


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run the body of a test in a fresh loop."""

    async def body() -> None:
        await test()

    asyncio.run(body())


def test_the_binding_copies_bytes_at_once() -> None:
    assert iroh_ffi._UniffiRustBufferBuilder.write.__module__ == "atoll.net.iroh", (
        "the binding changed: is it fast now?"
    )


def test_another_kind_of_binding_is_left_alone() -> None:
    class Renamed:
        def write(self, value: bytes) -> str:
            return "slow but right"

    assert not quicken(Renamed)
    assert Renamed().write(b"") == "slow but right"
    assert not quicken(None)


def test_sending_costs_little() -> None:
    async def test() -> None:
        async with joined() as (here, there):
            out = await here.open("bulk", Traffic.STATE)
            _, into = await there.accept()
            spent_s = time.process_time()
            for _ in range(4):
                async with asyncio.TaskGroup() as both:
                    both.create_task(out.send(bytes(4 * 2**20)))
                    both.create_task(into.recv())
            assert time.process_time() - spent_s < 1.6, "copying byte by byte takes 4 s for this"

    run(test)


def test_a_connection_stays_while_our_own_loop_is_blocked() -> None:
    async def test() -> None:
        async with far_peer() as far, peers(1, silence_s_max=0.5) as (here,):
            conn = await here.connect(far.peer, far.addresses)
            stream = await conn.open("echo", Traffic.CONTROL)
            for _ in range(2):
                time.sleep(1.0)  # a stall of ours, not of theirs
                await stream.send(b"still there?")
                assert await stream.recv() == b"still there?"

    run(test)


def test_a_peer_that_holds_its_interpreter_is_not_dead() -> None:
    async def test() -> None:
        async with far_peer(block_s=2.0) as far, peers(1, silence_s_max=0.5) as (here,):
            conn = await here.connect(far.peer, far.addresses)
            stream = await conn.open("echo", Traffic.CONTROL)
            await stream.send(b"think hard")
            assert await stream.recv() == b"think hard"

    run(test)


def test_nobody_dies_while_all_cores_are_busy() -> None:
    busy = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(4)]
    for process in busy:
        process.start()

    async def test() -> None:
        async with far_peer() as far, peers(1, silence_s_max=1.5) as (here,):
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


def test_a_frozen_peer_is_lost() -> None:
    async def test() -> None:
        async with far_peer() as far, peers(1, silence_s_max=0.5) as (here,):
            conn = await here.connect(far.peer, far.addresses)
            far.process.send_signal(signal.SIGSTOP)
            assert "silent" in await conn.closed()

    run(test)


def test_a_peer_that_died_and_came_back_at_its_port_is_a_new_connection() -> None:
    async def test() -> None:
        async with peers(1, silence_s_max=1.0) as (here,):
            async with far_peer() as far:
                old = await here.connect(far.peer, far.addresses)
            port = int(far.addresses[0].rpartition(":")[2])
            async with far_peer(port) as again:
                assert again.peer == far.peer
                new = await here.connect(again.peer, again.addresses)
                assert await old.closed()
                stream = await new.open("echo", Traffic.CONTROL)
                await stream.send(b"again")
                assert await stream.recv() == b"again"

    run(test)


def test_two_connections_between_the_same_peers_are_allowed() -> None:
    async def test() -> None:
        async with peers(2) as (ann, bob):
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


def test_forgotten_streams_give_their_places_back() -> None:
    async def test() -> None:
        async with joined() as (here, there):
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


def test_an_answer_may_be_the_last_thing_its_sender_knows_of_a_stream() -> None:
    async def answer(conn: IrohConn) -> None:
        _, stream = await conn.accept()
        await stream.send(await stream.recv())
        await stream.finish()

    async def test() -> None:
        async with joined() as (here, there):
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


def test_a_stream_finished_on_both_sides_is_not_open_although_held() -> None:
    held: list[object] = []

    async def ask(here: IrohConn, there: IrohConn) -> None:
        stream = await here.open("ask", Traffic.CONTROL)
        _, other = await there.accept()
        held.extend([stream, other])
        await other.send(b"answer")
        async with asyncio.TaskGroup() as both:
            both.create_task(stream.finish())
            both.create_task(other.finish())
        assert await stream.recv() == b"answer"

    async def test() -> None:
        async with joined() as (here, there):
            for _ in range(3):
                async with asyncio.TaskGroup() as asking:
                    for _ in range(STREAMS_MAX):
                        asking.create_task(ask(here, there))
        assert len(held) == 6 * STREAMS_MAX

    run(test)


def test_a_stream_without_a_tag_is_handed_on_as_such_and_one_that_is_cut_is_not() -> None:
    async def test() -> None:
        async with joined() as (here, there):
            wrong = (b"\0\0\0\1\x09", b"\0\0\0\0", b"\0\0\0\2\0\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff")
            cut = (b"\0", b"", b"\0\0\0\5\1pa")
            for junk in (*wrong, *cut):
                raw = (await here._raw.open_bi()).send()
                await raw.write_all(junk)
                await raw.finish()
            await here.open("good", Traffic.CONTROL)
            accepted = [await there.accept() for _ in range(len(wrong) + 1)]
            assert sorted(tag for tag, _ in accepted) == [NO_TAG] * len(wrong) + ["good"]
            for tag, stream in accepted:
                if tag == NO_TAG:
                    with pytest.raises(PeerLost):  # there is nothing to be had from it
                        await stream.recv()

    run(test)


def test_bytes_are_counted_by_class() -> None:
    async def test() -> None:
        async with peers(2) as (ann, bob):
            here = await ann.connect(bob.id, bob.addresses())
            there = await bob.accept()
            for traffic in Traffic:
                stream = await here.open("count", traffic)
                _, other = await there.accept()
                await stream.send(bytes(10 * (traffic + 1)))
                await other.send(await other.recv())
                await stream.recv()
            expected = {Traffic.CONTROL: 10, Traffic.ROUND: 20, Traffic.STATE: 30}
            assert ann.counts.sent_bytes == ann.counts.received_bytes == expected
            assert bob.counts.sent_bytes == bob.counts.received_bytes == expected

    run(test)


def test_nothing_is_left_to_be_retrieved(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with joined() as (here, there):
            stream = await here.open("ask", Traffic.CONTROL)
            _, other = await there.accept()
            for waiting in (stream.recv(), other.recv(), here.accept()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await waiting

    run(test)
    gc.collect()
    assert caplog.records == []


def test_a_transport_has_the_identity_of_its_secret() -> None:
    async def test() -> None:
        transport = await bind(b"\3" * 32, host="127.0.0.1")
        assert transport.id == Identity.from_seed(b"\3" * 32).peer
        await transport.close()

    run(test)


def test_the_port_can_be_chosen_and_a_taken_one_is_a_local_error() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        async def fail() -> None:
            with pytest.raises(LocalError, match="in use") as refused:
                await bind(bytes(32), host="127.0.0.1", port=port)
            assert "--port" in refused.value.hint

        run(fail)

    async def test() -> None:
        transport = await bind(bytes(32), host="127.0.0.1", port=port)
        assert f"127.0.0.1:{port}" in transport.addresses()
        await transport.close()

    run(test)


def test_a_host_that_is_no_address_is_a_local_error() -> None:
    async def test() -> None:
        with pytest.raises(LocalError, match="cannot listen"):
            await bind(bytes(32), host="not an address")

    run(test)


def test_a_loopback_peer_listens_on_loopback_only() -> None:
    async def test() -> None:
        async with peers(1) as (here,):
            sockets = here._endpoint.bound_sockets()
            assert all(address.startswith(("127.0.0.1:", "[::1]:")) for address in sockets), sockets

    run(test)


def test_an_open_peer_is_found_at_each_of_its_addresses() -> None:
    async def test() -> None:
        bob = await bind(os.urandom(32))
        try:
            assert bob.addresses()
            assert not any("0.0.0.0" in address or "[::]" in address for address in bob.addresses())
            async with asyncio.timeout(PATIENCE_S):
                ann = await bind(os.urandom(32))
                assert (await ann.connect(bob.id, bob.addresses())).peer == bob.id
                await ann.close()
        finally:
            await bob.close()

    run(test)


def test_an_address_may_be_a_name() -> None:
    async def test() -> None:
        async with peers(2) as (ann, bob):
            port = next(address for address in bob.addresses() if address.startswith("127.")).rpartition(":")[2]
            assert (await ann.connect(bob.id, ["nowhere.invalid:1", f"localhost:{port}"])).peer == bob.id

    run(test)


def test_a_failed_connect_says_why() -> None:
    async def test() -> None:
        async with peers(3, connect_s=0.5) as (ann, bob, eve):
            with pytest.raises(ConnectFailed, match="no usable address"):
                await ann.connect(bob.id, ["junk", "1.2.3.4:99999", ":", ""])
            with pytest.raises(ConnectFailed, match="no answer from 127.0.0.1:9 in 0.5 s"):
                await ann.connect(bob.id, ["127.0.0.1:9"])
            with pytest.raises(ConnectFailed, match="certificate"):
                await ann.connect(eve.id, bob.addresses())

    run(test)


def test_a_stranger_with_another_protocol_is_not_let_in() -> None:
    async def test() -> None:
        async with peers(1) as (here,):
            builder = iroh.EndpointBuilder()  # type: ignore[no-untyped-call]
            builder.apply_minimal()
            builder.relay_mode(iroh.RelayMode.disabled())
            stranger = await builder.bind()
            target = iroh.EndpointAddr(iroh.EndpointId.from_bytes(here.id), None, here.addresses())
            with pytest.raises(iroh.IrohError):
                await stranger.connect(target, b"other/1")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await here.accept()
            await stranger.close()

    run(test)
