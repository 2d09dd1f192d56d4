"""What every transport keeps, as checks that run on any of them.

A check is a coroutine that takes a `Lab`, gets its transports from it and uses nothing but the contract
and asyncio, so that it runs unchanged over real sockets and in virtual time. `CHECKS` lists them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from atoll.errors import PeerLost
from atoll.net.pulse import SILENCE_S_MAX, SILENCE_S_MIN
from atoll.net.transport import (
    MESSAGE_BYTES_MAX,
    STREAMS_MAX,
    Conn,
    ConnectFailed,
    ConnLost,
    Malformed,
    PeerId,
    Stream,
    StreamClosed,
    StreamReset,
    Traffic,
    Transport,
)

MIB = 2**20
PATIENCE_S = 20.0
"""No single wait of a check takes longer unless the transport is broken."""
QUIET_S = 8.0
"""A link that was quiet for so long is trusted to be so."""
SLACK_S = 1.5
"""What a loaded machine may add to a wait: ticks that come late put a verdict off."""


class Lab(Protocol):
    """A world with transports in it."""

    silence_s_max: float
    """The ceiling of this lab's transports: a connection that is silent for so long is lost."""
    connect_s: float
    """Time after which a `connect` without answer fails."""

    async def transport(self, name: str) -> Transport:
        """Return a new peer's transport, reachable for all others of this lab; the lab closes it in the end."""

    async def mortal(self, name: str) -> Transport:
        """Return a transport like the others, of a peer that may be killed."""

    async def kill(self, transport: Transport) -> None:
        """End the peer of a mortal transport without a word: from now on nothing comes from it."""

    def now_s(self) -> float:
        """Return the time by which waits are measured."""


Check = Callable[[Lab], Awaitable[None]]


async def join(caller: Transport, called: Transport) -> tuple[Conn, Conn]:
    """Return both ends of a new connection."""
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as both:
        accepted = both.create_task(called.accept())
        conn = await caller.connect(called.id, called.addresses())
    return conn, accepted.result()


async def pair(lab: Lab) -> tuple[Conn, Conn]:
    """Return both ends of a connection between two new peers."""
    return await join(await lab.transport("ann"), await lab.transport("bob"))


async def talk(here: Conn, there: Conn, tag: str = "talk", traffic: Traffic = Traffic.ROUND) -> tuple[Stream, Stream]:
    """Return both ends of a new stream."""
    async with asyncio.timeout(PATIENCE_S):
        stream = await here.open(tag, traffic)
        accepted_tag, accepted = await there.accept()
    assert accepted_tag == tag
    return stream, accepted


@contextlib.asynccontextmanager
async def running(*works: Awaitable[object]) -> AsyncIterator[list[asyncio.Task[object]]]:
    """Run `works` beside the body and cancel what is left of them after it."""

    async def run(work: Awaitable[object]) -> object:
        return await work

    tasks = [asyncio.create_task(run(work)) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def outcome(work: Awaitable[object], within_s: float = PATIENCE_S) -> object:
    """Return what `work` returned, or the error of the transport it raised."""
    try:
        async with asyncio.timeout(within_s):
            return await work
    except (ConnectFailed, ConnLost, StreamReset, StreamClosed, Malformed) as error:
        return error


async def send_all(stream: Stream, messages: list[bytes]) -> None:
    for message in messages:
        await stream.send(message)


async def echo(conn: Conn) -> None:
    """Answer one message on each stream that comes, one stream after the other."""
    while True:
        _, stream = await conn.accept()
        await stream.send(await stream.recv())
        await stream.finish()


def pattern(size: int, seed: int) -> bytes:
    """Return `size` bytes that no shift of another pattern repeats."""
    return (b"%d-" % seed * (size // 2 + 1))[:size]


async def check_messages_arrive_whole_and_in_order(lab: Lab) -> None:
    out, into = await talk(*await pair(lab))
    sizes = [0, 1, 4, 5, 1000, 65_536, 0, MESSAGE_BYTES_MAX, 3, 2 * MIB + 1, 0]
    messages = [pattern(size, seed) for seed, size in enumerate(sizes)]
    async with asyncio.timeout(PATIENCE_S), running(send_all(out, messages)):
        for message in messages:
            assert await into.recv() == message


async def check_both_directions_are_independent(lab: Lab) -> None:
    out, into = await talk(*await pair(lab))
    there, back = [b"there %d" % at for at in range(100)], [b"back %d" % at for at in range(100)]
    async with asyncio.timeout(PATIENCE_S), running(send_all(out, there), send_all(into, back)):
        assert [await out.recv() for _ in back] == back
        assert [await into.recv() for _ in there] == there


async def check_messages_of_several_senders_do_not_mix(lab: Lab) -> None:
    out, into = await talk(*await pair(lab))
    messages = [pattern(MIB + seed, seed) for seed in range(6)]
    async with asyncio.timeout(PATIENCE_S), running(*(send_all(out, [message]) for message in messages)):
        got = [await into.recv() for _ in messages]
    assert sorted(got, key=len) == messages


async def check_a_message_over_the_limit_is_its_senders_doing_and_resets_the_stream(lab: Lab) -> None:
    out, into = await talk(*await pair(lab))
    await out.send(bytes(1000))
    await out.send(bytes(1001))
    assert len(await into.recv(limit=1000)) == 1000
    refused = await outcome(into.recv(limit=1000))
    assert isinstance(refused, Malformed) and not isinstance(refused, PeerLost), "no accident: somebody sent it"
    assert "1001 bytes" in str(refused) and "1000" in str(refused)
    assert isinstance(await outcome(into.recv()), StreamReset), "a reset stream stays reset"
    assert isinstance(await outcome(out.recv()), StreamReset), "the sender is told"


async def check_a_tag_arrives_before_any_message(lab: Lab) -> None:
    here, there = await pair(lab)
    async with asyncio.timeout(PATIENCE_S):
        held = [await here.open(f"tag {at}", Traffic.CONTROL) for at in range(3)]
        tags = [(await there.accept())[0] for _ in held]
    assert sorted(tags) == ["tag 0", "tag 1", "tag 2"]


async def _impatient(stream: Stream, turns: int) -> bytes | None:
    """Ask for a message and give up after some turns of the loop."""
    asking = asyncio.create_task(stream.recv())
    for _ in range(turns):
        await asyncio.sleep(0)
    asking.cancel()
    try:
        return await asking
    except asyncio.CancelledError:
        return None


async def check_a_cancelled_recv_loses_nothing(lab: Lab) -> None:
    out, into = await talk(*await pair(lab))
    messages = [pattern(size, size) for size in (0, 1, 5, 300_000, 7, 70_000, 0, 2 * MIB, 9)] * 2
    got: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S), running(send_all(out, messages)):
        while len(got) < len(messages):
            for turns in (0, 1, 2, 3, 5, 8):
                message = await _impatient(into, turns)
                got += [] if message is None else [message]
            if len(got) < len(messages):
                got.append(await into.recv())
    assert got == messages


async def _send_until_stuck(stream: Stream, message: bytes, stuck_s: float) -> int:
    """Send copies until one is not taken within `stuck_s`, cancel that one and return how many went through."""
    for count in range(1000):
        try:
            async with asyncio.timeout(stuck_s):
                await stream.send(message)
        except TimeoutError:
            return count
    raise AssertionError("nothing holds a sender back")


async def _recv_until_error(stream: Stream) -> tuple[list[bytes], object]:
    got: list[bytes] = []
    while isinstance(result := await outcome(stream.recv()), bytes):
        got.append(result)
    return got, result


async def check_a_cancelled_send_is_seen_as_a_reset(lab: Lab) -> None:
    out, into = await talk(*await pair(lab))
    message = pattern(8 * MIB, 1)
    count = await _send_until_stuck(out, message, 0.5)
    got, error = await _recv_until_error(into)
    assert isinstance(error, StreamReset), error
    assert len(got) <= count and all(whole == message for whole in got)
    assert isinstance(await outcome(out.send(b"more")), StreamReset)


async def check_a_peer_killed_in_mid_message_is_no_clean_end(lab: Lab) -> None:
    ann, bob = await lab.mortal("ann"), await lab.transport("bob")
    out, into = await talk(*await join(ann, bob))
    message = pattern(8 * MIB, 1)
    async with running(send_all(out, [b"first"] + [message] * 100)):
        assert await into.recv() == b"first"
        await lab.kill(ann)
        got, error = await _recv_until_error(into)
    assert isinstance(error, StreamReset | ConnLost), error
    assert all(whole == message for whole in got)


async def check_a_peer_killed_between_messages_is_no_clean_end(lab: Lab) -> None:
    ann, bob = await lab.mortal("ann"), await lab.transport("bob")
    out, into = await talk(*await join(ann, bob))
    await out.send(b"first")
    assert await into.recv() == b"first"
    await lab.kill(ann)
    assert isinstance(await outcome(into.recv()), StreamReset | ConnLost)


async def check_finish_ends_one_direction_after_all_messages(lab: Lab) -> None:
    out, into = await talk(*await pair(lab))
    async with asyncio.timeout(PATIENCE_S), running(send_all(out, [b"one", b"two"])) as (sending,):
        await sending
        async with running(out.finish()) as (finishing,):
            assert [await into.recv(), await into.recv()] == [b"one", b"two"]
            for _ in range(2):
                assert isinstance(await outcome(into.recv()), StreamClosed)
            await finishing
    await into.send(b"still here")
    assert await outcome(out.recv()) == b"still here"


async def check_finish_and_close_lose_nothing(lab: Lab) -> None:
    here, there = await pair(lab)
    out, into = await talk(here, there)
    messages = [pattern(300_000, seed) for seed in range(5)]

    async def leave() -> None:
        await send_all(out, messages)
        await out.finish()
        await here.close("done")

    async with running(leave()) as (leaving,):
        got, error = await _recv_until_error(into)
        await leaving
    assert got == messages
    assert isinstance(error, StreamClosed), error


async def check_a_reset_wakes_both_sides(lab: Lab) -> None:
    out, into = await talk(*await pair(lab))
    async with running(outcome(out.recv()), outcome(into.recv()), outcome(send_all(out, [bytes(MIB)] * 200))) as tasks:
        stuck = tasks[2]
        await asyncio.wait([stuck], timeout=0.3)
        out.reset()
        results = [await task for task in tasks]
    assert isinstance(results[0], StreamReset), results
    assert isinstance(results[2], StreamReset), results
    _, error = await _recv_until_error(into)
    assert isinstance(error, StreamReset), error
    assert isinstance(await outcome(into.send(b"answer")), StreamReset)


async def check_open_waits_beyond_the_limit_of_streams(lab: Lab) -> None:
    here, there = await pair(lab)
    held: list[Stream] = []

    async def ask(at: int) -> bytes:
        stream = await here.open("ask", Traffic.CONTROL)
        held.append(stream)
        await stream.send(b"%d" % at)
        answer = await stream.recv()
        await stream.finish()
        return answer

    async def answer(stream: Stream) -> None:
        held.append(stream)
        await stream.send(await stream.recv())
        await stream.finish()

    count = STREAMS_MAX + 36
    async with asyncio.timeout(PATIENCE_S), running(*(ask(at) for at in range(count))) as asking:
        waiting = [(await there.accept())[1] for _ in range(STREAMS_MAX)]
        async with running(there.accept()) as (beyond,):
            await asyncio.wait([beyond], timeout=0.3)
            assert not beyond.done(), "one stream too many was opened"
        async with asyncio.TaskGroup() as answering:
            for stream in waiting:
                answering.create_task(answer(stream))
            for _ in range(count - STREAMS_MAX):
                answering.create_task(answer((await there.accept())[1]))
        assert [await task for task in asking] == [b"%d" % at for at in range(count)]


async def check_a_silent_peer_is_lost_within_the_bound(lab: Lab) -> None:
    ann, bob = await lab.mortal("ann"), await lab.transport("bob")
    theirs, ours = await join(ann, bob)
    _, stream = await talk(theirs, ours)
    async with running(outcome(stream.recv()), outcome(ours.accept()), ours.closed()) as tasks:
        await asyncio.wait(tasks, timeout=2 * lab.silence_s_max)
        assert not any(task.done() for task in tasks), "an idle peer is not a dead one"
        killed_s = lab.now_s()
        await lab.kill(ann)
        received, accepted, why = [await task for task in tasks]
    assert lab.now_s() - killed_s < lab.silence_s_max + SLACK_S
    assert isinstance(received, ConnLost | StreamReset), received
    assert isinstance(accepted, ConnLost), accepted
    assert isinstance(why, str) and why
    for work in (ours.open("late", Traffic.CONTROL), stream.send(b"late")):
        assert isinstance(await outcome(work), ConnLost)


async def check_a_quiet_link_is_given_up_early_and_the_error_says_why(lab: Lab) -> None:
    ann, bob = await lab.mortal("ann"), await lab.transport("bob")
    bob.limit_silence(SILENCE_S_MAX)
    theirs, ours = await join(ann, bob)
    _, stream = await talk(theirs, ours)
    async with running(ours.closed()) as (closed,):
        await asyncio.wait([closed], timeout=QUIET_S)
        assert not closed.done(), "an idle peer is not a dead one"
        killed_s = lab.now_s()
        await lab.kill(ann)
        await closed
    assert SILENCE_S_MIN - 0.5 < lab.now_s() - killed_s < 4.0 + SLACK_S, "judged by its history, far below the ceiling"
    lost = await outcome(stream.recv())
    assert isinstance(lost, ConnLost), lost
    found = re.search(r"silent for (.*) s; its longest silence lately was (.*) s, a round trip takes \d+ ms", str(lost))
    assert found is not None, lost
    assert float(found[1]) > float(found[2])


async def check_a_limit_on_silence_holds_for_links_that_exist(lab: Lab) -> None:
    ann, bob = await lab.mortal("ann"), await lab.transport("bob")
    bob.limit_silence(SILENCE_S_MAX)
    _, ours = await join(ann, bob)
    bob.limit_silence(1.5)
    killed_s = lab.now_s()
    await lab.kill(ann)
    await ours.closed()
    assert lab.now_s() - killed_s < 1.5 + SLACK_S


async def check_close_wakes_everyone_and_says_why(lab: Lab) -> None:
    here, there = await pair(lab)
    out, into = await talk(here, there)
    pending = [out.recv(), into.recv(), here.accept(), there.accept()]
    async with running(*map(outcome, pending), here.closed(), there.closed()) as tasks:
        await asyncio.wait(tasks, timeout=0.1)
        async with asyncio.timeout(PATIENCE_S):
            await here.close("enough for today")
            *lost, _, told = [await task for task in tasks]
    assert all(isinstance(error, ConnLost) for error in lost), lost
    assert "enough for today" in str(told)
    assert "enough for today" in str(lost[-1]), "the error says why, too"
    assert isinstance(await outcome(there.open("late", Traffic.ROUND)), ConnLost)
    assert isinstance(await outcome(here.open("late", Traffic.ROUND)), ConnLost)


async def check_closing_a_transport_closes_its_connections(lab: Lab) -> None:
    ann, bob = await lab.transport("ann"), await lab.transport("bob")
    _, there = await join(ann, bob)
    async with running(outcome(ann.accept()), there.closed()) as (accepting, closed):
        await asyncio.wait([accepting], timeout=0.1)
        async with asyncio.timeout(PATIENCE_S):
            await ann.close()
            assert isinstance(await accepting, ConnLost)
            await closed
    assert isinstance(await outcome(bob.connect(ann.id, ann.addresses()), lab.connect_s + 5), ConnectFailed)


async def check_connecting_to_a_dead_address_fails_in_time(lab: Lab) -> None:
    ann, bob = await lab.mortal("ann"), await lab.transport("bob")
    addresses = ann.addresses()
    await lab.kill(ann)
    started_s = lab.now_s()
    assert isinstance(await outcome(bob.connect(ann.id, addresses), lab.connect_s + 5), ConnectFailed)
    assert lab.now_s() - started_s < lab.connect_s + 1


async def check_connecting_to_the_wrong_peer_fails(lab: Lab) -> None:
    ann, bob = await lab.transport("ann"), await lab.transport("bob")
    nobody = PeerId(bytes(reversed(bob.id)))
    for peer in (ann.id[:16] + bob.id[16:], nobody):
        failed = await outcome(ann.connect(PeerId(peer), bob.addresses()), lab.connect_s + 5)
        assert isinstance(failed, ConnectFailed), failed


async def check_connecting_without_an_address_fails(lab: Lab) -> None:
    ann, bob = await lab.transport("ann"), await lab.transport("bob")
    for addresses in ([], ["not an address"]):
        assert isinstance(await outcome(ann.connect(bob.id, addresses), lab.connect_s + 5), ConnectFailed)


async def check_connecting_to_oneself_fails(lab: Lab) -> None:
    ann = await lab.transport("ann")
    assert isinstance(await outcome(ann.connect(ann.id, ann.addresses())), ConnectFailed)


async def check_both_ends_know_each_other(lab: Lab) -> None:
    ann, bob = await lab.transport("ann"), await lab.transport("bob")
    here, there = await join(ann, bob)
    assert (here.peer, there.peer) == (bob.id, ann.id)
    assert len(ann.id) == 32 and ann.id != bob.id


async def check_a_sender_waits_for_its_reader(lab: Lab) -> None:
    here, there = await pair(lab)
    out, into = await talk(here, there, traffic=Traffic.STATE)
    sent = 0

    async def pour() -> None:
        nonlocal sent
        for at in range(100):
            await out.send(pattern(MIB, at))
            sent += 1

    async with asyncio.timeout(2 * PATIENCE_S), running(pour(), echo(there)) as (pouring, _):
        before = -1
        while sent != before:
            before = sent
            await asyncio.wait([pouring], timeout=0.3)
        assert sent <= 32, f"{sent} MiB left the sender although nobody reads"
        control = await here.open("ask", Traffic.CONTROL)
        await control.send(b"anyone there?")
        assert await control.recv() == b"anyone there?", "control passes a stream that is stuck"
        for at in range(100):
            assert await into.recv() == pattern(MIB, at)


async def check_control_is_not_delayed_by_bulk(lab: Lab) -> None:
    here, there = await pair(lab)
    bulk = [await talk(here, there, f"bulk {at}", Traffic.STATE) for at in range(4)]
    waits_s: list[float] = []

    async def pour(out: Stream) -> None:
        while True:
            await out.send(bytes(MIB))

    async def swallow(into: Stream) -> None:
        while True:
            await into.recv()

    async with (
        asyncio.timeout(2 * PATIENCE_S),
        running(*(pour(out) for out, _ in bulk), *(swallow(i) for _, i in bulk)),
    ):
        out, into = await talk(here, there, "ask", Traffic.CONTROL)
        for at in range(20):
            asked_s = lab.now_s()
            await out.send(b"%d" % at)
            assert await into.recv() == b"%d" % at
            await into.send(b"yes")
            assert await out.recv() == b"yes"
            waits_s.append(lab.now_s() - asked_s)
    assert sorted(waits_s)[10] < 0.5, waits_s


async def check_round_trips_are_measured(lab: Lab) -> None:
    here, there = await pair(lab)
    async with asyncio.timeout(PATIENCE_S), running(echo(there)):
        stream = await here.open("ask", Traffic.CONTROL)
        await stream.send(b"hello")
        await stream.recv()
        while (measured_s := here.round_trip_s()) is None:
            await asyncio.sleep(0.1)
        shortest_s = here.distance_s()
    assert 0 < measured_s < 5
    assert shortest_s is not None
    assert 0 < shortest_s <= measured_s, "a distance is the shortest of them"


async def check_bytes_are_counted_by_class_on_both_sides(lab: Lab) -> None:
    ann, bob = await lab.transport("ann"), await lab.transport("bob")
    here, there = await join(ann, bob)
    for traffic in Traffic:
        out, into = await talk(here, there, traffic=traffic)
        async with asyncio.timeout(PATIENCE_S):
            await out.send(bytes(10 * (traffic + 1)))
            await into.send(await into.recv())
            await out.recv()
    expected = {Traffic.CONTROL: 10, Traffic.ROUND: 20, Traffic.STATE: 30}
    for door in (ann, bob):
        assert door.counts.sent_bytes == door.counts.received_bytes == expected


CHECKS: list[Check] = [
    check_messages_arrive_whole_and_in_order,
    check_both_directions_are_independent,
    check_messages_of_several_senders_do_not_mix,
    check_a_message_over_the_limit_is_its_senders_doing_and_resets_the_stream,
    check_a_tag_arrives_before_any_message,
    check_a_cancelled_recv_loses_nothing,
    check_a_cancelled_send_is_seen_as_a_reset,
    check_a_peer_killed_in_mid_message_is_no_clean_end,
    check_a_peer_killed_between_messages_is_no_clean_end,
    check_finish_ends_one_direction_after_all_messages,
    check_finish_and_close_lose_nothing,
    check_a_reset_wakes_both_sides,
    check_open_waits_beyond_the_limit_of_streams,
    check_a_silent_peer_is_lost_within_the_bound,
    check_a_quiet_link_is_given_up_early_and_the_error_says_why,
    check_a_limit_on_silence_holds_for_links_that_exist,
    check_close_wakes_everyone_and_says_why,
    check_closing_a_transport_closes_its_connections,
    check_connecting_to_a_dead_address_fails_in_time,
    check_connecting_to_the_wrong_peer_fails,
    check_connecting_without_an_address_fails,
    check_connecting_to_oneself_fails,
    check_both_ends_know_each_other,
    check_a_sender_waits_for_its_reader,
    check_control_is_not_delayed_by_bulk,
    check_round_trips_are_measured,
    check_bytes_are_counted_by_class_on_both_sides,
]
