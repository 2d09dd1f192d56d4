"""Bytes from another machine become a message or a `BadMessage`, nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.errors import PeerError
from atoll.net.wire import WIRE_VERSION, BadMessage, Message, Wire, encode


class Ask(Message, frozen=True, tag="ask"):
    names: list[str]
    deep: dict[str, list[tuple[int, float | None]]] = {}
    anything: msgspec.Raw = msgspec.Raw(b"\xc0")


class Chunk(Message, frozen=True, tag="chunk"):
    at: int
    data: memoryview


class Foreign(Message, frozen=True, tag="foreign"):
    pass


wire: Wire[Ask | Chunk] = Wire(Ask | Chunk)


def packed(value: Any) -> bytes:
    return bytes((WIRE_VERSION,)) + msgspec.msgpack.encode(value)


@given(
    some.lists(some.text()), some.dictionaries(some.text(), some.lists(some.tuples(some.integers(0, 9), some.none())))
)
def test_a_message_comes_back(names: list[str], deep: dict[str, list[tuple[int, float | None]]]) -> None:
    back = wire.decode(encode(Ask(names=names, deep=deep)))
    assert isinstance(back, Ask)
    assert (back.names, back.deep) == (names, deep)


def test_bulk_is_not_copied() -> None:
    data = encode(Chunk(at=3, data=memoryview(b"x" * 1000)))
    chunk = wire.decode(data)
    assert isinstance(chunk, Chunk)
    assert chunk.data == b"x" * 1000
    whole = chunk.data.obj
    assert whole is data or (isinstance(whole, memoryview) and whole.obj is data)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "an empty message"),
        (b"\x02" + packed({"kind": "ask", "names": []})[1:], "wire version 2"),
        (packed({"kind": "foreign"}), "foreign"),
        (encode(Foreign()), "foreign"),
        (packed({"names": []}), "kind"),
        (packed({"kind": "ask"}), "names"),
        (packed({"kind": "ask", "names": [], "surprise": 1}), "surprise"),
        (packed({"kind": "ask", "names": [1]}), "names"),
        (packed({"kind": "ask", "names": []}) + b"\x00", "trailing"),
        (packed({"kind": "ask", "names": ["abc"]})[:-1], "truncated"),
        (packed({"kind": "ask", "names": []})[:-1] + b"\xdd\xff\xff\xff\xff", "truncated"),
        (packed({"kind": "ask", "names": ["xy"]})[:-2] + b"\xff\xff", "utf-8"),
        (packed({"kind": "ask", "names": [], "anything": 1})[:-1] + b"\x91" * 100_000 + b"\x01", "recursion"),
        (packed([1, 2, 3]), "Expected `object`"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(data: bytes, what: str) -> None:
    with pytest.raises(BadMessage, match=f"(?i){what}") as refused:
        wire.decode(data)
    assert isinstance(refused.value, PeerError)


def test_a_message_over_the_limit_is_not_even_looked_at() -> None:
    data = encode(Ask(names=["x"]))
    assert wire.decode(data, limit=len(data)) == wire.decode(data)
    with pytest.raises(BadMessage, match="over the limit"):
        wire.decode(data, limit=len(data) - 1)


@given(some.binary())
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for whole in (data, bytes((WIRE_VERSION,)) + data):
        try:
            assert isinstance(wire.decode(whole), Ask | Chunk)
        except BadMessage as error:
            assert error.what


@given(some.data())
def test_a_damaged_message_raises_nothing_else(data: some.DataObject) -> None:
    whole = bytearray(encode(Ask(names=["one", "two"], deep={"k": [(1, 2.0), (3, None)]})))
    for _ in range(data.draw(some.integers(1, 4))):
        whole[data.draw(some.integers(0, len(whole) - 1))] = data.draw(some.integers(0, 255))
    del whole[data.draw(some.integers(0, len(whole))) :]
    try:
        assert isinstance(wire.decode(bytes(whole)), Ask | Chunk)
    except BadMessage as error:
        assert error.what


def test_a_long_message_that_is_told_again_is_the_same_and_nonsense_is_never_remembered() -> None:
    told: Wire[Ask] = Wire(Ask, remember=2)
    long, short = encode(Ask(names=["x" * 10_000])), encode(Ask(names=["x"]))
    assert told.decode(long) is told.decode(memoryview(long))
    assert told.decode(short) is not told.decode(short)
    for _ in range(2):
        with pytest.raises(BadMessage):
            told.decode(packed({"kind": "ask", "names": 1, "more": "x" * 10_000}))
