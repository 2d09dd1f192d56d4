"""What is special to TLS: who is let in, what the kernel tells of the other side, processes that hang."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import ssl
import struct
import time
from functools import partial

import pytest

from atoll.net import tls
from atoll.net.identity import Identity, anchor, credentials, server_name, who_is_named
from atoll.net.mux import Kind, frame
from atoll.net.stream import LineBroken
from atoll.net.transport import ConnectFailed, ConnLost, StreamReset, Traffic
from tests.net.loopback import far_peer, joined, peers, run

ANN, BOB, EVE = (Identity.from_seed(bytes((seed,)) * 32) for seed in range(1, 4))


def test_a_name_stands_for_a_peer_and_nothing_else_does() -> None:
    assert who_is_named(server_name(ANN.peer)) == ANN.peer
    assert len(server_name(ANN.peer)) <= 63, "a label of a host name holds no more"
    for junk in ("", "a", "example", "1" * 52, server_name(ANN.peer)[:-1], "ä" * 52):
        with pytest.raises(ValueError):
            who_is_named(junk)


def test_no_secret_of_a_peer_is_in_its_credentials() -> None:
    pem = credentials(ANN)
    key = ssl.PEM_cert_to_DER_cert(pem.decode().replace("PRIVATE KEY", "CERTIFICATE").partition("\n-----BEGIN")[0])
    assert ANN.secret not in key
    assert credentials(ANN) != pem, "the key is made for one life of the process"


def let_in(address: str, shown: Identity, claimed: str | None, version: ssl.TLSVersion | None = None) -> bool:
    """Return whether one gets in with somebody's credentials under some name."""
    host, _, port = address.rpartition(":")
    with tls._kept(credentials(shown)) as file:
        rules = tls._context(ssl.PROTOCOL_TLS_CLIENT, tls._path(file))
    rules.verify_mode = ssl.CERT_NONE
    if version is not None:
        rules.minimum_version = rules.maximum_version = version
    with socket.create_connection((host, int(port)), timeout=5) as plain:
        try:
            with rules.wrap_socket(plain, server_hostname=claimed) as pipe:
                return pipe.recv(1) != b""  # who is let in is soon knocked at
        except OSError:
            return False


def test_only_who_proves_its_claim_is_let_in() -> None:
    async def test() -> None:
        async with peers("tls", 1) as (here,):
            knock = partial(let_in, here.addresses()[0], EVE)
            assert await asyncio.to_thread(knock, server_name(EVE.peer))
            assert (await here.accept()).peer == EVE.peer
            assert not await asyncio.to_thread(knock, server_name(ANN.peer))
            assert not await asyncio.to_thread(knock, "example.org")
            assert not await asyncio.to_thread(knock, None)
            assert not await asyncio.to_thread(knock, server_name(EVE.peer), ssl.TLSVersion.TLSv1_2)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await here.accept()

    run(test)


def test_who_is_called_proves_itself_too() -> None:
    async def test() -> None:
        async with peers("tls", 2) as (ann, bob):
            with pytest.raises(ConnectFailed, match="(?i)certificate"):
                await ann.connect(EVE.peer, bob.addresses())

    run(test)


def test_an_anchor_vouches_for_one_peer_only() -> None:
    rules = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    rules.load_verify_locations(cadata=anchor(ANN.peer))
    (trusted,) = rules.get_ca_certs()
    assert tls._signer(trusted) == server_name(ANN.peer)


def test_a_failed_connect_says_why() -> None:
    async def test() -> None:
        async with peers("tls", 2, connect_s=0.5) as (ann, bob):
            with pytest.raises(ConnectFailed, match="no usable address"):
                await ann.connect(bob.id, ["junk", "1.2.3.4:99999", ":", ""])
            with pytest.raises(ConnectFailed, match="127.0.0.1:9: Connection refused|Connect call failed"):
                await ann.connect(bob.id, ["127.0.0.1:9"])

    run(test)


def test_a_caller_that_says_nothing_is_sent_away() -> None:
    async def test() -> None:
        async with peers("tls", 1, connect_s=0.3) as (here,):
            host, _, port = here.addresses()[0].rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            async with asyncio.timeout(5):
                assert await reader.read() == b""
            writer.close()

    run(test)


def test_silent_callers_do_not_shut_the_door() -> None:
    async def test() -> None:
        async with peers("tls", 2) as (ann, bob):
            host, _, port = bob.addresses()[0].rpartition(":")
            silent = [await asyncio.to_thread(socket.create_connection, (host, int(port))) for _ in range(200)]
            await ann.connect(bob.id, bob.addresses())
            assert (await bob.accept()).peer == ann.id
            for caller in silent:
                caller.close()

    run(test)


def test_a_caller_that_hangs_up_at_once_is_its_own_affair(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with peers("tls", 1) as (here,):
            host, _, port = here.addresses()[0].rpartition(":")
            for _ in range(20):
                caller = socket.create_connection((host, int(port)))
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                caller.close()  # with a reset
            await asyncio.sleep(0.1)

    run(test)
    gc.collect()
    assert caplog.records == []


def test_a_flood_of_small_frames_leaves_the_loop_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    receive = tls._Line._receive_some

    def counted(line: tls._Line, until_s: float) -> None:
        nonlocal reads
        reads += 1
        receive(line, until_s)

    async def test() -> None:
        nonlocal reads
        async with joined("tls") as (here, there):
            assert isinstance(here.line, tls._Line) and isinstance(there.line, tls._Line)
            monkeypatch.setattr(tls._Line, "_receive_some", counted)
            here.line._mux._words.extend([frame(0, Kind.ANSWER) * 2000] * 500)
            here.line._mux.say(frame(0, Kind.ANSWER))
            most = 0
            while there.line._mux.answers < 500_000:
                reads = 0
                await asyncio.sleep(0)
                most = max(most, reads)
            assert most <= 2 * 2, "each of the two ends reads at most twice in a turn of the loop"

    run(test)


def test_a_connection_that_comes_about_while_its_transport_closes_is_closed_too() -> None:
    async def test() -> None:
        async with peers("tls", 2) as (ann, bob):
            dialling = asyncio.create_task(ann.connect(bob.id, bob.addresses()))
            await asyncio.sleep(0)
            await ann.close()
            with pytest.raises(ConnectFailed):
                await dialling

    run(test)


def test_a_killed_process_is_told_by_its_kernel_at_once() -> None:
    async def test() -> None:
        async with far_peer("tls") as far, peers("tls", 1) as (here,):
            conn = await here.connect(far.peer, far.addresses)
            stream = await conn.open("echo", Traffic.CONTROL)
            await stream.send(b"are you there?")
            assert await stream.recv() == b"are you there?"
            killed_s = time.monotonic()
            far.process.kill()
            assert await conn.closed() == "its process ended"
            assert time.monotonic() - killed_s < 1.0
            with pytest.raises(ConnLost):
                await stream.recv()

    run(test)


def test_a_frozen_process_is_lost_although_its_machine_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "HANGS_S", 2.0)

    async def test() -> None:
        async with far_peer("tls") as far, peers("tls", 1) as (here,):
            conn = await here.connect(far.peer, far.addresses)
            await asyncio.sleep(3.0)
            assert conn.lost() is None, "an idle process is not a frozen one"
            far.process.send_signal(signal.SIGSTOP)
            assert "its machine answers, its process has been silent" in await conn.closed()

    run(test)


def test_who_breaks_the_rules_of_the_line_loses_it_and_nobody_else_does() -> None:
    async def test() -> None:
        async with peers("tls", 3) as (ann, bob, eve):
            good = await ann.connect(bob.id, bob.addresses())
            await bob.accept()
            bad = await eve.connect(bob.id, bob.addresses())
            theirs = await bob.accept()
            bad.line._mux.say(frame(7, Kind.GRANT, size=2**24 - 1))  # type: ignore[attr-defined]
            assert "broke the rules of the line" in await theirs.closed()
            await good.open("still here", Traffic.CONTROL)

    run(test)


def test_what_was_said_before_a_close_is_heard() -> None:
    async def test() -> None:
        for _ in range(20):
            async with joined("tls") as (here, there):
                stream = await here.open("bulk", Traffic.STATE)
                _, other = await there.accept()
                sending = asyncio.create_task(stream.send(os.urandom(2**20)))
                message = await other.recv()
                await sending
                await there.close("enough")
                assert await here.closed() == "enough"
                with pytest.raises((ConnLost, StreamReset)):
                    await stream.recv()
                assert len(message) == 2**20

    run(test)


def test_an_endpoint_that_is_closed_has_no_lines() -> None:
    async def test() -> None:
        async with joined("tls") as (here, _):
            await here.close("bye")
            with pytest.raises(LineBroken):
                await here.line.open()

    run(test)
