"""What is special to iroh: the work-arounds of its binding, a frozen process, strangers."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
import warnings

import iroh
import pytest
from iroh import iroh_ffi

from atoll.net.iroh import IrohEndpoint, quicken
from atoll.net.transport import ConnectFailed, Traffic
from tests.net.loopback import far_peer, joined, peers, run


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
        async with joined("iroh") as (here, there):
            out = await here.open("bulk", Traffic.STATE)
            _, into = await there.accept()
            spent_s = time.process_time()
            for _ in range(4):
                async with asyncio.TaskGroup() as both:
                    both.create_task(out.send(bytes(4 * 2**20)))
                    both.create_task(into.recv())
            assert time.process_time() - spent_s < 1.6, "copying byte by byte takes 4 s for this"

    run(test)


def test_a_frozen_peer_is_lost() -> None:
    async def test() -> None:
        async with far_peer("iroh") as far, peers("iroh", 1, silence_s_max=0.5) as (here,):
            conn = await here.connect(far.peer, far.addresses)
            far.process.send_signal(signal.SIGSTOP)
            assert "silent" in await conn.closed()

    run(test)


def test_a_stream_given_up_as_all_ends_leaves_nothing_that_nobody_awaited() -> None:
    """Tasks that are cancelled before they begin."""

    async def test() -> None:
        async with joined("iroh") as (here, _):
            sender, receiver = await here.line.open()
            before = asyncio.all_tasks()
            writing = asyncio.create_task(sender.write(b"piece"))
            receiver.stop()
            sender.reset()
            for task in asyncio.all_tasks() - before:
                task.cancel()
            await asyncio.wait([writing])

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run(test)
        gc.collect()
    assert [str(each.message) for each in said] == []


def test_a_loopback_peer_listens_on_loopback_only() -> None:
    async def test() -> None:
        async with peers("iroh", 1) as (here,):
            assert isinstance(here.endpoint, IrohEndpoint)
            sockets = here.endpoint.raw.bound_sockets()
            assert all(address.startswith(("127.0.0.1:", "[::1]:")) for address in sockets), sockets

    run(test)


def test_a_failed_connect_says_why() -> None:
    async def test() -> None:
        async with peers("iroh", 3, connect_s=0.5) as (ann, bob, eve):
            with pytest.raises(ConnectFailed, match="no usable address"):
                await ann.connect(bob.id, ["junk", "1.2.3.4:99999", ":", ""])
            with pytest.raises(ConnectFailed, match="no answer from 127.0.0.1:9 in 0.5 s"):
                await ann.connect(bob.id, ["127.0.0.1:9"])
            with pytest.raises(ConnectFailed, match="certificate"):
                await ann.connect(eve.id, bob.addresses())

    run(test)


def test_a_stranger_with_another_protocol_is_not_let_in() -> None:
    async def test() -> None:
        async with peers("iroh", 1) as (here,):
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
