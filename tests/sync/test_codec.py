"""Codecs: exact lengths, exact values where promised, and whatever is not finite is the sender's fault."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from atoll.errors import PeerError
from atoll.model.compute import Vector
from atoll.spec.recipe import Codec, Fp16, Fp32
from atoll.sync.codec import BadChunk, decode, element_bytes, encode

CODECS: list[Codec] = [Fp32(), Fp16()]
finite = arrays(
    np.float32, some.integers(0, 300), elements=some.floats(width=32, allow_nan=False, allow_infinity=False)
)


@settings(deadline=None)
@given(finite)
def test_fp32_comes_back_bit_for_bit(values: Vector) -> None:
    assert decode(Fp32(), encode(Fp32(), values), len(values)).tobytes() == values.tobytes()


@settings(deadline=None)
@given(finite)
def test_fp16_comes_back_as_the_nearest_half(values: Vector) -> None:
    back = decode(Fp16(), encode(Fp16(), values), len(values))
    inside = np.clip(values, -65504, 65504)
    assert back.dtype == np.float32
    assert (np.abs(back - inside) <= np.maximum(np.abs(inside) * 2.0**-11, 2.0**-25)).all()


@settings(deadline=None)
@given(finite)
def test_encoding_what_was_decoded_changes_nothing(values: Vector) -> None:
    for codec in CODECS:
        once = encode(codec, values)
        assert encode(codec, decode(codec, once, len(values))) == once


@settings(deadline=None)
@given(finite, some.integers(0, 300))
def test_a_chunk_means_the_same_whoever_cut_it(values: Vector, cut: int) -> None:
    for codec in CODECS:
        assert bytes(encode(codec, values[:cut])) + encode(codec, values[cut:]) == encode(codec, values)


@pytest.mark.parametrize(("codec", "each"), [(Fp32(), 4), (Fp16(), 2)])
def test_a_chunk_has_exactly_so_many_bytes(codec: Codec, each: int) -> None:
    assert element_bytes(codec) == each
    for count in (0, 1, 64, 65536):
        assert len(encode(codec, np.ones(count, np.float32))) == count * each


def test_bytes_on_the_wire_are_little_endian() -> None:
    assert bytes(encode(Fp32(), np.array([1.0], np.float32))) == b"\x00\x00\x80\x3f"
    assert bytes(encode(Fp16(), np.array([1.0], np.float32))) == b"\x00\x3c"


def test_fp16_clips_what_a_half_cannot_hold() -> None:
    values = np.array([65504.0, 65520.0, 1e9, -1e9, 3.4e38, np.inf, -np.inf], np.float32)
    back = decode(Fp16(), encode(Fp16(), values), len(values))
    assert back.tolist() == [65504.0, 65504.0, 65504.0, -65504.0, 65504.0, 65504.0, -65504.0]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wrong", [-4, -1, 1, 4])
def test_a_chunk_of_another_length_is_refused(codec: Codec, wrong: int) -> None:
    data = bytes(encode(codec, np.ones(10, np.float32)))
    data = data[:wrong] if wrong < 0 else data + bytes(wrong)
    with pytest.raises(BadChunk, match="10 elements"):
        decode(codec, data, 10)


@pytest.mark.parametrize(
    ("codec", "bad"),
    [(codec, bad) for codec in CODECS for bad in ("nan", "inf", "-inf")],
)
def test_a_chunk_with_one_value_that_is_not_finite_is_refused(codec: Codec, bad: str) -> None:
    values = np.ones(100, "<f4" if isinstance(codec, Fp32) else "<f2")
    values[57] = float(bad)
    with pytest.raises(BadChunk, match="not finite"):
        decode(codec, values.tobytes(), 100)


def test_a_bad_chunk_is_the_other_peers_fault() -> None:
    assert issubclass(BadChunk, PeerError)


def test_what_was_decoded_is_ours_to_change() -> None:
    values = decode(Fp32(), encode(Fp32(), np.ones(3, np.float32)), 3)
    values[0] = 7.0
    assert values.tolist() == [7.0, 1.0, 1.0]
