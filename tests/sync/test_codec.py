"""Codecs: exact lengths, exact values where promised, and whatever is not finite is the sender's fault."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from atoll.errors import PeerError
from atoll.model.compute import Vector
from atoll.spec.recipe import Codec, Fp16, Fp32, Int8
from atoll.sync.codec import BadChunk, decode, encode, wire_bytes

FLOATS: list[Codec] = [Fp32(), Fp16()]
"""Each element by itself."""
CODECS: list[Codec] = [*FLOATS, Int8(), Int8(block=16)]
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
    for codec in FLOATS:
        once = encode(codec, values)
        assert encode(codec, decode(codec, once, len(values))) == once


@settings(deadline=None)
@given(finite, some.integers(0, 300))
def test_a_chunk_means_the_same_whoever_cut_it(values: Vector, cut: int) -> None:
    for codec in FLOATS:
        assert bytes(encode(codec, values[:cut])) + encode(codec, values[cut:]) == encode(codec, values)


@pytest.mark.parametrize(("codec", "each"), [(Fp32(), 4), (Fp16(), 2)])
def test_a_chunk_has_exactly_so_many_bytes(codec: Codec, each: int) -> None:
    for count in (0, 1, 64, 65536):
        assert len(encode(codec, np.ones(count, np.float32))) == wire_bytes(codec, count) == count * each


@pytest.mark.parametrize(("count", "blocks"), [(0, 0), (1, 1), (256, 1), (257, 2), (65536, 256)])
def test_in_int8_a_chunk_has_a_byte_an_element_and_four_a_block(count: int, blocks: int) -> None:
    chunk = encode(Int8(block=256), np.ones(count, np.float32))
    assert len(chunk) == wire_bytes(Int8(block=256), count) == count + 4 * blocks


@settings(deadline=None)
@given(finite, some.sampled_from([16, 100, 256]))
def test_in_int8_nothing_is_off_by_more_than_half_a_step_of_its_block(values: Vector, block: int) -> None:
    values = np.clip(values, -1e35, 1e35)
    back = decode(Int8(block=block), encode(Int8(block=block), values), len(values))
    assert back.dtype == np.float32
    for at in range(0, len(values), block):
        here = slice(at, at + block)
        largest = float(np.abs(values[here]).max())
        off = np.abs(back[here].astype(np.float64) - values[here]).max()
        assert off <= largest / 127 * 0.5001 + 2.0**-112


def test_in_int8_the_largest_of_a_block_and_zero_are_kept_and_a_block_knows_nothing_of_the_next() -> None:
    values = np.array([*[0.0] * 15, 127.0, *[0.0] * 14, -1e-6, 3e-7], np.float32)
    back = decode(Int8(block=16), encode(Int8(block=16), values), 32)
    assert back[:16].tolist() == values[:16].tolist()
    assert back[30:].tolist() == pytest.approx([-1e-6, 3e-7], rel=0.02)


def test_in_int8_values_too_small_for_a_step_are_zeros() -> None:
    tiny = np.full(16, 1e-40, np.float32)
    assert decode(Int8(block=16), encode(Int8(block=16), tiny), 16).tolist() == [0.0] * 16


@pytest.mark.parametrize("step", [np.nan, np.inf, -np.inf, 3e38, -3e38])
def test_in_int8_a_step_that_makes_values_that_are_not_finite_is_refused(step: float) -> None:
    chunk = np.array([step], "<f4").tobytes() + bytes(16)
    with pytest.raises(BadChunk, match="not finite"):
        decode(Int8(block=16), chunk, 16)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_in_int8_a_value_that_is_not_finite_is_seen_by_who_decodes(bad: float) -> None:
    values = np.ones(100, np.float32)
    values[57] = bad
    with pytest.raises(BadChunk, match="not finite"):
        decode(Int8(), encode(Int8(), values), 100)


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
    [(codec, bad) for codec in FLOATS for bad in ("nan", "inf", "-inf")],
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
