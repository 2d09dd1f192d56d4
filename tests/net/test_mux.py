"""Streams on one pipe: order, fairness, bounds, and what garbage does to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.net.mux import (
    BUDGET_BYTES,
    FRAME_BYTES_MAX,
    HEAD,
    STREAMS_ACCEPTED_MAX,
    WINDOW_BYTES,
    WINDOW_BYTES_MAX,
    Garbled,
    Kind,
    Mux,
    MuxRecv,
    MuxSend,
    frame,
)
from atoll.net.stream import LineBroken


class Ends:
    """Two ends of a pipe that moves bytes when told to."""

    def __init__(self, round_trip_s: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        self.ann = Mux(dialled=True, loop=loop, wake=lambda: None, round_trip_s=lambda: round_trip_s)
        self.bob = Mux(dialled=False, loop=loop, wake=lambda: None, round_trip_s=lambda: round_trip_s)

    def move(self, piece: int = 2**30) -> int:
        """Carry everything that is to be sent, both ways, in pieces of some size; return how many frames it was."""
        moved = 0
        for out, into in ((self.ann, self.bob), (self.bob, self.ann)):
            while (made := out.next()) is not None:
                moved += 1
                for at in range(0, len(made), piece):
                    into.feed(memoryview(made)[at : at + piece])
        return moved

    async def settle(self, piece: int = 2**30) -> None:
        """Carry until nothing moves, letting everybody have a turn."""
        idle = 0
        while idle < 5:
            idle = 0 if self.move(piece) else idle + 1
            await asyncio.sleep(0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(body())


async def read(half: MuxRecv, limit: int) -> bytes:
    """Return what comes next on a stream; nothing: its end."""
    await half.wait(1)
    return half.take(limit) or b""


async def _begun(ends: Ends, words: bytes = b"hello") -> tuple[MuxSend, MuxRecv, MuxSend, MuxRecv]:
    """Return both ends of a stream that ann opened with a few words, read by bob."""
    out, back = await ends.ann.open()
    writing = asyncio.create_task(out.write(words))
    await ends.settle()
    await writing
    answer, into = await ends.bob.accept()
    assert await read(into, 100) == words
    return out, back, answer, into


@settings(max_examples=50)
@given(
    messages=st.lists(st.lists(st.integers(1, 300_000), max_size=4), min_size=1, max_size=5),
    piece=st.sampled_from([1 << 30, 16_384, 1_000, 37]),
)
def test_what_is_written_arrives_in_order_on_every_stream(messages: list[list[int]], piece: int) -> None:
    async def test() -> None:
        ends = Ends()

        async def write(at: int, sizes: list[int]) -> None:
            out, _ = await ends.ann.open()
            await out.set_priority(at % 4)
            await out.write(b"%d:" % at)
            for size in sizes:
                await out.write(bytes((at,)) * size)
            await out.finish()

        async def hear() -> None:
            _, into = await ends.bob.accept()
            got = b""
            while chunk := await read(into, 50_000):
                got += chunk
            name, _, rest = got.partition(b":")
            assert rest == bytes((int(name),)) * sum(messages[int(name)])

        works = [asyncio.create_task(write(at, sizes)) for at, sizes in enumerate(messages)]
        works += [asyncio.create_task(hear()) for _ in messages]
        while not all(work.done() for work in works):
            ends.move(piece)
            await asyncio.sleep(0)
        for work in works:
            work.result()

    run(test)


def test_a_writer_waits_when_its_reader_does_not_read() -> None:
    async def test() -> None:
        ends = Ends()
        out, _, _, into = await _begun(ends)
        writing = asyncio.create_task(out.write(bytes(8 * WINDOW_BYTES)))
        await ends.settle()
        assert not writing.done()
        assert len(await read(into, 2**30)) == WINDOW_BYTES - len(b"hello"), "as much as was granted, and no byte more"
        await ends.settle()
        assert not writing.done()
        window = into._window
        assert len(await read(into, 2**30)) == window, "and again, when the reader took it"
        writing.cancel()

    run(test)


def test_control_goes_before_bulk() -> None:
    async def test() -> None:
        ends = Ends()
        bulk, _, _, _ = await _begun(ends)
        control, _, _, _ = await _begun(ends)
        await bulk.set_priority(1)
        await control.set_priority(3)
        works = [asyncio.create_task(bulk.write(bytes(200_000)))]
        await asyncio.sleep(0)
        assert ends.ann.next() is not None
        works.append(asyncio.create_task(control.write(b"now")))
        await asyncio.sleep(0)
        assert ends.ann.next() == frame(control.id, Kind.DATA, b"now")
        for work in works:
            work.cancel()

    run(test)


def test_streams_of_one_class_take_turns() -> None:
    async def test() -> None:
        ends = Ends()
        first, _, _, _ = await _begun(ends)
        second, _, _, _ = await _begun(ends)
        works = [asyncio.create_task(half.write(bytes(200_000))) for half in (first, second)]
        await asyncio.sleep(0)
        ids = [HEAD.unpack_from(ends.ann.next() or b"")[0] for _ in range(6)]
        assert ids == [first.id, second.id] * 3
        for work in works:
            work.cancel()

    run(test)


async def _widest(ends: Ends, pause_s: float, turns: int) -> int:
    """Pour into a stream that is read with pauses, and return the most that was ever there to be read."""
    out, _, _, into = await _begun(ends)
    writing = asyncio.create_task(out.write(bytes(8 * WINDOW_BYTES_MAX)))
    widest = 0
    for _ in range(turns):
        await ends.settle()
        widest = max(widest, len(await read(into, 2**30)))
        await asyncio.sleep(pause_s)
    writing.cancel()
    return widest


def test_a_long_line_gets_a_long_window_and_a_slow_reader_does_not() -> None:
    async def test() -> None:
        assert await _widest(Ends(round_trip_s=10.0), 0.0, turns=8) == WINDOW_BYTES_MAX
        assert await _widest(Ends(), 0.3, turns=8) <= 2 * WINDOW_BYTES, "its first words came quickly, the rest did not"

    run(test)


def test_all_windows_together_stay_within_the_budget() -> None:
    async def test() -> None:
        ends = Ends(round_trip_s=10.0)
        for _ in range(BUDGET_BYTES // WINDOW_BYTES_MAX):
            await _widest(ends, 0.0, turns=7)
        windows = [recv._window for _, recv in ends.bob._halves.values()]
        assert sum(windows) <= BUDGET_BYTES and min(windows) < WINDOW_BYTES_MAX
        assert ends.bob.spare_bytes >= 0

    run(test)


def test_a_cut_stream_is_not_an_ended_one() -> None:
    async def test() -> None:
        ends = Ends()
        out, back, _, into = await _begun(ends)
        out.reset()
        await ends.settle()
        with pytest.raises(LineBroken):
            await read(into, 10)
        with pytest.raises(LineBroken):
            await out.write(b"more")
        back.stop()
        await ends.settle()

    run(test)


def test_streams_are_forgotten_when_both_halves_are_over() -> None:
    async def test() -> None:
        ends = Ends()
        for _ in range(2 * STREAMS_ACCEPTED_MAX):
            out, _, answer, _ = await _begun(ends)
            await asyncio.gather(out.finish(), answer.finish(), ends.settle())
        assert not ends.ann._halves and not ends.bob._halves and ends.bob._accepted == 0

    run(test)


def test_when_the_line_goes_what_came_is_still_to_be_had() -> None:
    async def test() -> None:
        ends = Ends()
        out, back, _, into = await _begun(ends)
        writing = asyncio.create_task(out.write(b"last words"))
        await ends.settle()
        await writing
        reading = asyncio.create_task(read(back, 10))
        await asyncio.sleep(0)
        for mux in (ends.ann, ends.bob):
            mux.fail("unplugged")
        assert await read(into, 100) == b"last words"
        for failing in (read(into, 1), reading, out.write(b"x"), ends.bob.accept()):
            with pytest.raises(LineBroken):
                await failing
        with pytest.raises(LineBroken, match="unplugged"):
            await ends.ann.open()

    run(test)


def test_what_ended_and_was_not_read_keeps_its_place() -> None:
    async def test() -> None:
        bob = Ends().bob
        for at in range(10):
            bob.feed(memoryview(frame(2 * at + 1, Kind.DATA, b"words") + frame(2 * at + 1, Kind.END)))
            bob.feed(memoryview(frame(2 * at + 1, Kind.STOP)))
        assert bob._accepted == 10, "what they brought is still held"
        for _ in range(5):
            _, into = await bob.accept()
            assert await read(into, 100) == b"words" and await read(into, 100) == b""
        for _ in range(5):
            _, into = await bob.accept()
            into.stop()
        assert bob._accepted == 0

    run(test)


def test_streams_that_are_given_up_at_once_are_nobodys_business() -> None:
    async def test() -> None:
        bob = Ends().bob
        for at in range(100):
            bob.feed(memoryview(frame(2 * at + 1, Kind.CUT) + frame(2 * at + 1, Kind.STOP)))
        bob.feed(memoryview(frame(201, Kind.DATA, b"here")))
        _, into = await bob.accept()
        assert await read(into, 10) == b"here"
        ids = range(203, 203 + 4 * STREAMS_ACCEPTED_MAX, 2)
        flood = b"".join(frame(id, Kind.CUT) + frame(id, Kind.STOP) for id in ids)
        with pytest.raises(Garbled, match="at once"):
            bob.feed(memoryview(flood))

    run(test)


def test_small_pieces_are_kept_together() -> None:
    async def test() -> None:
        bob = Ends().bob
        bob.feed(memoryview(frame(1, Kind.DATA, b"ab") * 50_000))
        _, into = await bob.accept()
        assert len(into._held._pieces) < 10
        assert await read(into, 2**20) == b"ab" * 50_000

    run(test)


def test_whoever_speaks_is_not_to_blame_for_who_does_not_read() -> None:
    async def test() -> None:
        bob = Ends().bob
        bob.feed(memoryview(frame(1, Kind.DATA, bytes(60_000)) * 3))
        _, into = await bob.accept()
        with contextlib.suppress(Garbled):
            bob.feed(memoryview(frame(0, Kind.KNOCK) * 100_000))
        assert len(await read(into, 2**20)) == 180_000, "a grant is said whatever else waits"

    run(test)


def test_open_waits_for_a_place_on_the_other_side() -> None:
    async def test() -> None:
        ends = Ends()
        held = [await ends.ann.open() for _ in range(STREAMS_ACCEPTED_MAX)]
        one_more = asyncio.create_task(ends.ann.open())
        await asyncio.sleep(0)
        assert not one_more.done()
        send, recv = held[0]
        send.reset()
        recv.stop()
        await one_more

    run(test)


WRONG = {
    "unknown kind": HEAD.pack(1, 9 << 24),
    "long words": HEAD.pack(1, Kind.BYE << 24 | 257),
    "long data": HEAD.pack(1, FRAME_BYTES_MAX + 1),
    "stream zero": frame(0, Kind.DATA, b"x"),
    "our own number": frame(2, Kind.DATA, b"x"),
    "more than granted": frame(1, Kind.DATA, bytes(FRAME_BYTES_MAX)) * (WINDOW_BYTES // FRAME_BYTES_MAX + 1),
    "granted too much": frame(1, Kind.DATA, b"x") + frame(1, Kind.GRANT, size=2**24 - 1),
    "data after the end": frame(1, Kind.END) + frame(1, Kind.DATA, b"x"),
    "too many streams": b"".join(frame(2 * at + 1, Kind.DATA, b"x") for at in range(STREAMS_ACCEPTED_MAX + 1)),
    "questions without end": frame(0, Kind.KNOCK) * 100_000,
}


@pytest.mark.parametrize("name", WRONG)
def test_what_breaks_the_rules_is_garbled(name: str) -> None:
    async def test() -> None:
        with pytest.raises(Garbled):
            Ends().bob.feed(memoryview(WRONG[name]))

    run(test)


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 12), st.integers(0, 9), st.integers(0, 40) | st.sampled_from([256, 65_536, 2**24 - 1])
        ),
        max_size=30,
    ),
    st.binary(max_size=40),
    st.integers(1, 50),
)
def test_garbage_is_refused_or_harmless(heads: list[tuple[int, int, int]], tail: bytes, piece: int) -> None:
    async def test() -> None:
        bob = Ends().bob
        junk = b"".join(HEAD.pack(id, kind << 24 | size) + bytes(min(size, 300)) for id, kind, size in heads) + tail
        with contextlib.suppress(Garbled):
            for at in range(0, len(junk), piece):
                bob.feed(memoryview(junk)[at : at + piece])
        held = sum(len(recv._held) for _, recv in bob._halves.values())
        assert held <= len(junk) and bob._accepted <= STREAMS_ACCEPTED_MAX
        while bob.next() is not None:
            pass
        bob.fail("over")

    run(test)
