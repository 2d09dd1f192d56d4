"""Streams from somebody who writes any bytes: messages come out, then one error of the contract, in little memory."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import PeerLost
from atoll.net.frame import END_MARK, header
from atoll.net.stream import TAG_BYTES_MAX, Crew, MessageStream, Slot
from atoll.net.transport import MESSAGE_BYTES_MAX, Counts, Malformed, StreamClosed, StreamReset

LIMIT = 64


class Bytes:
    """Both raw halves of a stream on which some bytes came, in some pieces, and then no more."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = b""
        self._ended = False

    async def wait(self, count: int) -> None:
        if not self._piece:
            self._piece = next(self._pieces, b"")
            self._ended = not self._piece

    def take(self, limit: int) -> bytes | None:
        taken, self._piece = self._piece[:limit], self._piece[limit:]
        return None if self._ended else taken

    def stop(self) -> None: ...
    async def set_priority(self, p: int) -> None: ...
    async def write(self, *pieces: bytes) -> None: ...
    async def finish(self) -> None: ...
    def reset(self) -> None: ...
    def abandon(self) -> None: ...


class Host:
    """A connection that lives."""

    def __init__(self) -> None:
        self.crew = Crew()
        self.counts = Counts()
        self.loop = asyncio.get_running_loop()

    def blame(self, error: BaseException) -> BaseException:
        return error


def heard(data: bytes, cuts: list[int]) -> tuple[str | None, list[bytes], Exception]:
    """Return the tag, the messages and the error that some bytes make, arriving in pieces cut at these places."""
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in pairwise(bounds)]

    async def listen() -> tuple[str | None, list[bytes], Exception]:
        host, raw, tag = Host(), Bytes(iter(pieces)), None
        stream = MessageStream(host, raw, raw, Slot(lambda: None))
        got: list[bytes] = []
        try:
            tag = await stream.welcome()
            while True:
                got.append(await stream.recv(LIMIT))
        except (StreamClosed, StreamReset, Malformed) as error:
            stream.reset()
            while host.crew._tasks:  # the other side is told
                await asyncio.sleep(0)
            return tag, got, error

    return asyncio.run(listen())


def framed(*messages: bytes) -> bytes:
    return b"".join(header(message) + message for message in messages)


TAGGED = framed(b"\x01part")


@settings(max_examples=150)
@given(
    st.lists(st.binary(max_size=LIMIT), max_size=4),
    st.sampled_from([b"", END_MARK]),
    st.lists(st.integers(0, 500), max_size=6),
    st.lists(st.tuples(st.integers(0, 500), st.binary(min_size=1, max_size=4)), max_size=3),
)
def test_any_bytes_make_messages_and_then_one_error_of_the_contract(
    messages: list[bytes], end: bytes, cuts: list[int], spoils: list[tuple[int, bytes]]
) -> None:
    data = bytearray(TAGGED + framed(*messages) + end)
    for at, patch in spoils:
        data[at % len(data) : at % len(data) + len(patch)] = patch
    tag, got, error = heard(bytes(data), cuts)
    assert all(len(message) <= LIMIT for message in got)
    if not spoils:
        assert (tag, got) == ("part", messages)
        assert isinstance(error, StreamClosed if end else StreamReset)


@pytest.mark.parametrize("length", [LIMIT + 1, MESSAGE_BYTES_MAX, 2**31, 2**32 - 2])
def test_who_announces_too_much_is_refused_at_once_and_is_to_blame(length: int) -> None:
    data = TAGGED + framed(b"fine") + length.to_bytes(4, "big") + b"nothing of the kind follows"
    heard(data, [])  # what is made once is not its fault
    tracemalloc.start()
    try:
        tag, got, error = heard(data, [3, 20])
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert (tag, got) == ("part", [b"fine"])
    assert isinstance(error, Malformed) and not isinstance(error, PeerLost)
    assert f"{length} bytes" in str(error)


@pytest.mark.parametrize(
    "first",
    [
        framed(b""),
        framed(b"\xffpart"),
        framed(b"\x01\xff\xfe"),
        framed(b"\x01" + b"x" * (TAG_BYTES_MAX + 1)),
        b"\x7f\xff\xff\xff",
        END_MARK,
    ],
    ids=["empty", "no such class", "no text", "too long", "far too long", "the end"],
)
def test_who_begins_a_stream_without_a_tag_is_to_blame(first: bytes) -> None:
    tag, got, error = heard(first + framed(b"more"), [])
    assert (tag, got) == (None, [])
    assert isinstance(error, Malformed)


def test_a_stream_that_is_cut_anywhere_is_lost_and_nobody_is_to_blame() -> None:
    """A peer that is killed leaves just that behind."""
    whole = TAGGED + framed(b"one", b"two") + END_MARK
    for length in range(len(whole)):
        _, _, error = heard(whole[:length], [])
        assert isinstance(error, StreamReset), length


class Freed(Bytes):
    """A raw half that crashes the process when it is read from after it was freed, as the binding's does."""

    def __init__(self, crashes: list[str]) -> None:
        super().__init__(iter(()))
        self._alive = True
        self._crashes = crashes

    async def read(self, size_limit: int) -> bytes:
        if not self._alive:
            self._crashes.append("read after free")
        return b""

    def __del__(self) -> None:
        self._alive = False


def test_a_stream_that_is_forgotten_within_a_cycle_is_let_go_before_its_raw_half_is_freed() -> None:
    crashes: list[str] = []
    given_back: list[bool] = []

    async def forget() -> None:
        raw = Freed(crashes)
        holder: dict[str, object] = {"stream": MessageStream(Host(), raw, raw, Slot(lambda: given_back.append(True)))}
        holder["itself"] = holder
        del raw, holder
        gc.collect()
        while not given_back:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(forget())
    assert not crashes
