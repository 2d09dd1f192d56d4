"""Codecs: exact lengths, exact values where promised, and whatever is not finite is the sender's fault."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

from atoll.errors import PeerError
from atoll.model.compute import Vector
from atoll.model.encoding.chance import keys_of
from atoll.spec.axes.codec import (
    Bf16,
    Buckets,
    CacheLines,
    Codec,
    E3m0,
    Fp16,
    Fp32,
    Int8,
    Quaternary,
    Sign,
    Significance,
    Stochastic,
    Ternary,
    Threshold,
    TopK,
    TurnedSign,
)
from atoll.sync.codec import BadChunk, decode, encode, length_of, sent, wire_bytes
from atoll.sync.feedback import encode_fed_back

FLOATS: list[Codec] = [Fp32(), Fp16(), Bf16()]
"""Each element by itself."""
DENSE: list[Codec] = [
    *FLOATS,
    Int8(),
    Int8(block=16),
    Buckets(),
    Buckets(bits=2, width=6.0),
    E3m0(),
    Sign(block=32),
    Ternary(block=32),
    Quaternary(block=32),
    Stochastic(),
    Stochastic(bits=3, block=32),
    Stochastic(bits=12, block=32),
    TurnedSign(block=32),
]
SPARSE: list[Codec] = [
    TopK(keep=4, block=64),
    TopK(keep=1, block=16, values=Int8(block=16)),
    TopK(keep=64, block=4096, values=Buckets(bits=2, width=6.0)),
    TopK(keep=16, block=16, values=Sign(block=16)),
    CacheLines(keep=0.1),
    CacheLines(keep=0.3, line=4, values=Int8(block=16)),
]
ABOVE: list[Codec] = [
    Threshold(least=1.0),
    Threshold(least=0.0),
    Threshold(least=2.5, values=Int8(block=16)),
    Threshold(least=1.5, values=Buckets(bits=2, width=6.0)),
    Significance(least=100.0, values=E3m0()),
]
"""How long these are depends on values."""
CODECS = DENSE + SPARSE + ABOVE
finite = arrays(
    np.float32, some.integers(0, 300), elements=some.floats(width=32, allow_nan=False, allow_infinity=False)
)


@given(finite)
def test_fp32_comes_back_bit_for_bit(values: Vector) -> None:
    assert decode(Fp32(), encode(Fp32(), values), len(values)).tobytes() == values.tobytes()


@given(finite)
def test_fp16_comes_back_as_the_nearest_half(values: Vector) -> None:
    back = decode(Fp16(), encode(Fp16(), values), len(values))
    inside = np.clip(values, -65504, 65504)
    assert back.dtype == np.float32
    assert (np.abs(back - inside) <= np.maximum(np.abs(inside) * 2.0**-11, 2.0**-25)).all()


@given(finite)
def test_encoding_what_was_decoded_changes_nothing(values: Vector) -> None:
    for codec in FLOATS:
        once = encode(codec, values)
        assert encode(codec, decode(codec, once, len(values))) == once


@given(finite, some.integers(0, 300))
def test_a_chunk_means_the_same_whoever_cut_it(values: Vector, cut: int) -> None:
    for codec in FLOATS:
        assert bytes(encode(codec, values[:cut])) + encode(codec, values[cut:]) == encode(codec, values)


@pytest.mark.parametrize(("codec", "each"), [(Fp32(), 4), (Fp16(), 2), (Bf16(), 2)])
def test_a_chunk_has_exactly_so_many_bytes(codec: Codec, each: int) -> None:
    for count in (0, 1, 64, 65536):
        assert len(encode(codec, np.ones(count, np.float32))) == wire_bytes(codec, count) == count * each


@pytest.mark.parametrize(("count", "blocks"), [(0, 0), (1, 1), (256, 1), (257, 2), (65536, 256)])
def test_in_int8_a_chunk_has_a_byte_an_element_and_four_a_block(count: int, blocks: int) -> None:
    chunk = encode(Int8(block=256), np.ones(count, np.float32))
    assert len(chunk) == wire_bytes(Int8(block=256), count) == count + 4 * blocks


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


@pytest.mark.parametrize("exponent", range(110, 128))
@pytest.mark.parametrize("bits", [2, 4, 8, 9, 12])
def test_of_steps_that_are_not_refused_as_many_as_there_can_be_are_finite(bits: int, exponent: int) -> None:
    chunk = np.array([2.0**exponent], "<f4").tobytes() + bytes(np.full(32 * bits // 8, 255, np.uint8))
    try:
        assert np.isfinite(decode(Stochastic(bits=bits, block=32), chunk, 32)).all()
    except BadChunk as refused:
        assert exponent > 115, "what training comes to is taken"
        assert "not finite" in str(refused)


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
    wire = {"fp32": "<f4", "fp16": "<f2"}.get(str(type(codec).__struct_config__.tag), "")
    values = np.ones(100, wire or "<f4")
    values[57] = float(bad)
    data = values.tobytes() if wire else values.view("<u2")[1::2].tobytes()  # bf16: the upper half of fp32
    with pytest.raises(BadChunk, match="not finite"):
        decode(codec, data, 100)


def test_a_bad_chunk_is_the_other_peers_fault() -> None:
    assert issubclass(BadChunk, PeerError)


def test_what_was_decoded_is_ours_to_change() -> None:
    values = decode(Fp32(), encode(Fp32(), np.ones(3, np.float32)), 3)
    values[0] = 7.0
    assert values.tolist() == [7.0, 1.0, 1.0]


# every codec


def bell(count: int, seed: int = 0) -> Vector:
    """Return normally distributed values."""
    return np.random.default_rng(seed).standard_normal(count, np.float32)


def off(codec: Codec, values: Vector) -> float:
    """Return how much of a vector's norm is lost on the way."""
    back = decode(codec, encode(codec, values), len(values)).astype(np.float64)
    return float(np.linalg.norm(back - values) / np.linalg.norm(values))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [0, 1, 15, 63, 64, 65, 4096, 5000, 9001])
def test_a_chunk_is_as_long_as_was_known_before_it_came(codec: Codec, count: int) -> None:
    data = encode(codec, bell(count))
    assert len(data) == wire_bytes(codec, count) if codec not in ABOVE else len(data) <= wire_bytes(codec, count)
    assert len(data) == length_of(codec, data, count)
    assert decode(codec, data, count).shape == (count,)
    assert decode(codec, data, count).dtype == np.float32


@given(finite, some.sampled_from(CODECS))
def test_whatever_is_finite_arrives_finite(values: Vector, codec: Codec) -> None:
    values = np.clip(values, -1e30, 1e30)
    assert np.isfinite(decode(codec, encode(codec, values), len(values))).all()


@pytest.mark.parametrize("codec", CODECS)
def test_a_chunk_of_zeros_arrives_as_zeros(codec: Codec) -> None:
    assert not decode(codec, encode(codec, np.zeros(1000, np.float32)), 1000).any()


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec not in FLOATS])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_seen_by_who_decodes(codec: Codec, bad: float) -> None:
    values = bell(5000)
    values[57] = bad
    with pytest.raises(BadChunk, match="not finite"):
        decode(codec, encode(codec, values), 5000)


@given(some.sampled_from(CODECS), some.integers(0, 300), some.integers(0, 2**32))
def test_whatever_bytes_come_they_are_refused_or_finite(codec: Codec, count: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(wire_bytes(codec, count))
    try:
        values = decode(codec, data, count)
    except BadChunk:
        return
    assert values.shape == (count,)
    assert np.isfinite(values).all()


# whatever is large enough


@given(finite, some.floats(0, 100, width=32))
def test_what_is_large_enough_arrives_and_nothing_else(values: Vector, least: float) -> None:
    codec = Threshold(least=least)
    data = encode(codec, values)
    there = np.abs(values) >= np.float32(least)
    assert decode(codec, data, values.size).tolist() == np.where(there, values, np.float32(0)).tolist()
    assert sent(codec, data, values.size).tolist() == there.tolist()


@given(some.integers(1, 2**16), some.floats(0.0, 1.0), some.integers(0, 9))
def test_a_chunk_is_a_number_values_and_the_shorter_form_of_their_places(count: int, part: float, seed: int) -> None:
    there = np.random.default_rng(seed).random(count) < part
    data = encode(Threshold(least=0.5), there.astype(np.float32))
    kept = int(there.sum())
    bits = max(1, (count - 1).bit_length())
    listed = -(-kept * bits // 8) if bits <= 8 else kept + -(-kept * (bits - 8) // 8)
    assert len(data) == 4 + 4 * kept + min(listed, -(-count // 8))
    assert decode(Threshold(least=0.5), data, count).tolist() == there.astype(np.float32).tolist()


def test_the_caller_may_say_how_large_and_for_each_element() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    codec = Significance(least=9.0)
    assert decode(codec, encode(codec, values, least=2.5), 4).tolist() == [0.0, 0.0, 3.0, 4.0]
    each = np.array([0.0, 5.0, 3.0, 5.0], np.float32)
    assert decode(codec, encode(codec, values, least=each), 4).tolist() == [1.0, 0.0, 3.0, 0.0]


@pytest.mark.parametrize("least", [0.1, 2.0])
def test_a_chunk_that_lies_about_its_number_is_refused_before_it_is_decoded(least: float) -> None:
    codec = Threshold(least=least)
    data = bytes(encode(codec, bell(1000)))
    kept = int.from_bytes(data[:4], "little")
    for said in (0, kept - 1, kept + 1, 1001, 2**32 - 1):
        lie = said.to_bytes(4, "little") + data[4:]
        assert length_of(codec, lie, 1000) != len(lie)
        with pytest.raises(BadChunk, match="came as"):
            decode(codec, lie, 1000)
    for cut in (b"", data[:3], data[:-1], data + b"\0"):
        with pytest.raises(BadChunk, match="came as"):
            decode(codec, cut, 1000)


def test_places_out_of_order_outside_or_of_another_number_are_refused() -> None:
    codec, values = Threshold(least=0.5), np.zeros(100, np.float32)
    values[[3, 7]] = 1.0
    data = bytearray(encode(codec, values))
    assert len(data) == 4 + 8 + 2, "two places of seven bits"
    twice = bytearray(data)
    twice[-2:] = (3 | 3 << 7).to_bytes(2, "little")
    outside = bytearray(data)
    outside[-2:] = (3 | 101 << 7).to_bytes(2, "little")
    beyond = bytearray(data)
    beyond[-1] |= 0x80
    mapped = bytearray(encode(codec, np.ones(100, np.float32)))
    mapped[-13] = 0x7F
    for bad, why in ((twice, "order"), (outside, "outside"), (beyond, "after its last"), (mapped, "another number")):
        with pytest.raises(BadChunk, match=why):
            decode(codec, bytes(bad), 100)


# what is lost, of a million normally distributed values


def test_of_three_levels_five_are_a_byte_and_each_value_goes_to_the_nearest() -> None:
    codec = Ternary(block=16)
    values = np.array([0.0, 0.7, -0.8, 0.76, -9.0, 3.0, *[1.0] * 10, -2.0], np.float32)
    wire = encode(codec, values)
    assert len(wire) == wire_bytes(codec, 17) == 2 * 4 + 4
    level = np.float32(np.abs(values[:16]).mean()) * np.float32(1.534)
    expected = np.where(np.abs(values[:16]) < level / 2, 0, np.sign(values[:16])) * level
    assert decode(codec, wire, 17).tolist() == [*expected, np.float32(2.0) * np.float32(1.534) * -1]
    assert not decode(codec, encode(codec, np.zeros(17, np.float32)), 17).any()


@pytest.mark.parametrize(("byte", "said"), [(242, ""), (243, "no elements"), (255, "no elements")])
def test_a_byte_that_is_not_five_digits_is_refused(byte: int, said: str) -> None:
    wire = bytes(encode(Ternary(), bell(5)))[:-1] + bytes([byte])
    if not said:
        assert np.isfinite(decode(Ternary(), wire, 5)).all()
        return
    with pytest.raises(BadChunk, match=said):
        decode(Ternary(), wire, 5)


def test_digits_after_the_last_element_are_refused() -> None:
    wire = bytearray(encode(Ternary(), bell(7)))
    assert wire[-1] < 9, "two digits"
    wire[-1] = 9
    with pytest.raises(BadChunk, match="no elements"):
        decode(Ternary(), bytes(wire), 7)


def test_of_four_levels_each_value_goes_to_the_nearest() -> None:
    codec = Quaternary(block=16)
    values = np.array([0.1, -0.1, 3.0, -3.0, *[1.0] * 12, -2.0], np.float32)
    wire = encode(codec, values)
    assert len(wire) == wire_bytes(codec, 17) == 2 * 4 + 5
    small = np.float32(np.abs(values[:16]).mean()) * np.float32(0.5675)
    large = small * np.float32(3.335)
    assert decode(codec, wire, 17)[:5].tolist() == [small, -small, large, -large, small]
    assert decode(codec, wire, 17)[16] == -np.float32(2.0) * np.float32(0.5675), "of two sizes this one is the nearer"
    assert not decode(codec, encode(codec, np.zeros(17, np.float32)), 17).any()


BELL = bell(2**20)


@pytest.mark.parametrize(
    ("codec", "lost"),
    [
        (Bf16(), 0.0017),
        (Int8(block=2**20), 0.0113),
        (Buckets(bits=8, width=12.0), 0.0135),
        (Buckets(bits=8, width=6.0), 0.016),
        (Buckets(bits=4, width=6.0), 0.111),
        (Buckets(bits=2, width=6.0), 0.42),
        (E3m0(block=2**20), 0.195),
        (E3m0(block=64), 0.188),
        (Sign(), 0.603),  # sqrt(1 - 2 / pi)
        (Ternary(), 0.436),  # of the best three levels for a bell
        (Quaternary(), 0.343),  # and of the best four
        (TurnedSign(), 0.603),
    ],
)
def test_so_much_of_a_bell_is_lost(codec: Codec, lost: float) -> None:
    assert off(codec, BELL) == pytest.approx(lost, rel=0.06)


@pytest.mark.parametrize(("keep", "energy"), [(32, 0.070), (64, 0.119), (128, 0.200), (410, 0.439)])
def test_so_much_of_a_bell_is_in_the_largest_of_each_block(keep: int, energy: float) -> None:
    assert 1 - off(TopK(keep=keep), BELL) ** 2 == pytest.approx(energy, rel=0.02)


def test_two_bits_for_the_largest_are_a_sign_and_a_size() -> None:
    """Four bins over six deviations: of what is large on either side only two are used."""
    codec = TopK(keep=64, values=Buckets(bits=2, width=6.0))
    values, exact = BELL[:65536], decode(TopK(keep=64), encode(TopK(keep=64), BELL[:65536]), 65536)
    back = decode(codec, encode(codec, values), 65536)
    assert 0.10 < np.linalg.norm(back - exact) / np.linalg.norm(exact) < 0.13
    _, counts = np.unique(back, return_counts=True)
    assert np.sort(counts)[-3:].sum() > 0.999 * 65536, "zero, and one value on either side"


def test_one_bit_and_a_size_for_the_largest_are_hardly_worse_than_two_bits() -> None:
    def lost(values: Sign | Buckets) -> float:
        codec, exact = TopK(keep=64, values=values), decode(TopK(keep=64), encode(TopK(keep=64), BELL), 2**20)
        return float(np.linalg.norm(decode(codec, encode(codec, BELL), 2**20) - exact) / np.linalg.norm(exact))

    assert lost(Sign(block=4096)) < 1.1 * lost(Buckets(bits=2, width=6.0))


# in a basis of its own


def test_what_is_turned_loses_as_much_of_unequal_values_as_of_a_bell() -> None:
    """Where a sign's block has few large values and many small ones, one magnitude says little of either."""
    steep = np.sign(BELL[:65536]) * np.abs(BELL[:65536]) ** 4
    assert off(Sign(block=512), steep) > 0.85
    assert off(TurnedSign(block=512), steep) == pytest.approx(0.603, rel=0.06)


def test_each_seed_turns_another_way_and_the_chunk_says_which() -> None:
    codec, values = TurnedSign(block=64), bell(200)
    one, other = encode(codec, values, 1), encode(codec, values, 2)
    assert bytes(one) == bytes(encode(codec, values, 1))
    assert not np.array_equal(decode(codec, one, 200), decode(codec, other, 200))
    first = np.frombuffer(one, "<u4", 2).tolist()
    assert first == list(keys_of(1)) != np.frombuffer(other, "<u4", 2).tolist()


def test_what_is_left_out_of_what_is_turned_is_soon_sent_and_of_signs_it_is_not() -> None:
    """With feedback and nothing new: what one basis cannot say another can."""

    def left_after(codec: Codec, rounds: int) -> float:
        values = np.sign(BELL[:4096]) * np.abs(BELL[:4096]) ** 3
        left = np.zeros_like(values)
        for seed in range(rounds):
            encode_fed_back(codec, values if not seed else np.zeros_like(values), left, 1.0, seed)
        return float(np.linalg.norm(left) / np.linalg.norm(values))

    assert left_after(TurnedSign(block=512), 6) == pytest.approx(0.603**6, rel=0.25)
    assert left_after(Sign(block=512), 6) > 5 * left_after(TurnedSign(block=512), 6)


@pytest.mark.parametrize("block", [16, 512, 65536])
def test_a_scale_is_refused_from_where_as_many_as_a_block_has_are_not_finite(block: int) -> None:
    """Where all bits are alike all of a block is in one element."""
    codec, most = TurnedSign(block=block), 2.0 ** min(120, 127 - int(np.log2(block)))
    chunk = np.frombuffer(encode(codec, np.ones(block, np.float32)), np.uint8).copy()
    chunk[12:] = 0
    chunk[8:12].view("<f4")[:] = most
    assert np.abs(decode(codec, chunk.tobytes(), block)).max() == most * block
    chunk[8:12].view("<f4")[:] = np.nextafter(np.float32(most), np.float32(np.inf))
    with pytest.raises(BadChunk):
        decode(codec, chunk.tobytes(), block)


def test_large_values_are_not_refused_for_what_they_add_up_to_on_the_way() -> None:
    codec, large = TurnedSign(block=65536), np.full(65536, 1e33, np.float32)
    assert np.isfinite(decode(codec, encode(codec, large), large.size)).all()


def test_nothing_that_is_turned_is_nothing() -> None:
    assert bytes(encode(TurnedSign(), np.empty(0, np.float32))) == b""
    assert decode(TurnedSign(), b"", 0).size == 0


def test_a_block_that_is_turned_is_sent_whole_where_it_is_short() -> None:
    assert wire_bytes(TurnedSign(block=64), 64) == 8 + 4 + 8
    assert wire_bytes(TurnedSign(block=64), 65) == 8 + 2 * (4 + 8)
    nothing = np.zeros(65, np.float32)
    assert not decode(TurnedSign(block=64), encode(TurnedSign(block=64), nothing), 65).any()


# rounding by chance


def test_rounding_by_chance_is_right_in_the_mean_and_the_same_for_the_same_seed() -> None:
    codec, values = Stochastic(bits=3, block=64), bell(64)
    draws = [decode(codec, encode(codec, values, seed), 64) for seed in range(10_000)]
    assert np.abs(np.mean(draws, axis=0) - values).max() < 0.05 * np.linalg.norm(values)
    assert np.std(draws, axis=0).max() > 0.1
    assert encode(codec, values, 7) == encode(codec, values, 7) != encode(codec, values, 8)


# the largest of each block


@given(some.integers(1, 700), some.integers(1, 64), some.integers(0, 2**32))
def test_the_largest_of_each_block_arrive_and_nothing_else(count: int, keep: int, seed: int) -> None:
    codec, values = TopK(keep=keep, block=64), bell(count, seed)
    back = decode(codec, encode(codec, values), count)
    for at in range(0, count, 64):
        block, came = values[at : at + 64], back[at : at + 64]
        kept = came != 0
        assert (came[kept] == block[kept]).all()
        assert kept.sum() == -(-keep * len(block) // 64)
        assert kept.all() or np.abs(block[kept]).min() >= np.abs(block[~kept]).max()


def test_who_keeps_everything_sends_everything() -> None:
    values = bell(1000)
    codec = TopK(keep=64, block=64)
    assert decode(codec, encode(codec, values), 1000).tobytes() == values.tobytes()


def test_sixty_four_of_four_thousand_in_two_bits_are_fourteen_bits_each() -> None:
    """0.219 bits an element, 146 times less than fp32; the table of the chunk's four bins comes on top."""
    codec = TopK(keep=64, block=4096, values=Buckets(bits=2, width=6.0))
    assert 8 * (wire_bytes(codec, 2**20) - 4 * 4) / 2**20 == 14 * 64 / 4096


@pytest.mark.parametrize("places", [[3, 3], [4, 3], [0, 9]])
def test_places_that_nobody_would_name_are_refused(places: list[int]) -> None:
    codec = TopK(keep=4, block=16)  # of the last 8 of 24 elements two are kept
    data = bytearray(encode(codec, np.arange(24, dtype=np.float32) + 1))
    data[-1] = places[0] | places[1] << 4
    with pytest.raises(BadChunk, match="places out of order or outside"):
        decode(codec, bytes(data), 24)


# whole lines, by a threshold that is remembered


def drifting(size: int, rounds: int) -> list[Vector]:
    """Return vectors with heavy tails of which each is much like the one before."""
    rng = np.random.default_rng(5)
    vectors = [rng.standard_t(3, size).astype(np.float32)]
    for _ in range(rounds):
        vectors.append((0.98 * vectors[-1] + 0.2 * rng.standard_t(3, size)).astype(np.float32))
    return vectors


def test_a_remembered_threshold_keeps_as_many_lines_every_time_and_nearly_as_much_as_an_exact_choice() -> None:
    size, codec = 2**18, CacheLines(keep=0.01)
    known, kept = np.zeros(2, np.float32), []
    for values in drifting(size, 60):
        there = decode(codec, encode(codec, values, least=known), size)
        rows = values.reshape(-1, 16)
        best = np.sort(np.abs(rows).sum(axis=1))[-164:]
        lines = np.flatnonzero(np.abs(there.reshape(-1, 16)).sum(axis=1))
        assert lines.size == 164, "a hundredth, to the line"
        assert (there.reshape(-1, 16)[lines] == rows[lines]).all()
        kept.append(float(np.abs(there).sum() / best.sum()))
    assert kept[0] == pytest.approx(1.0), "the first choice is exact"
    assert min(kept) > 0.9
    assert float(np.mean(kept)) > 0.97


def test_of_more_lines_than_sixteen_bits_can_count_the_last_come_back_where_they_were() -> None:
    """A model of a hundred million parameters has chunks as long as that."""
    codec = CacheLines(keep=0.0001)
    values = np.zeros((70_000, codec.line), np.float32)
    values[69_990:69_997] = np.arange(7 * codec.line).reshape(7, -1) + 1.0
    there = decode(codec, encode(codec, values.reshape(-1), least=np.zeros(2, np.float32)), values.size)
    assert there.tobytes() == values.tobytes()


@pytest.mark.long
def test_a_remembered_threshold_takes_less_than_a_quarter_of_the_time_of_sorting() -> None:
    size, codec, known = 2**18, CacheLines(keep=0.01), np.zeros(2, np.float32)
    ours_s, sorting_s = [], []
    for values in drifting(size, 20):
        began_s = time.process_time()
        encode(codec, values, least=known)
        middle_s = time.process_time()
        np.argsort(np.abs(values))
        ours_s.append(middle_s - began_s)
        sorting_s.append(time.process_time() - middle_s)
    assert min(ours_s) < 0.25 * min(sorting_s)


def test_the_threshold_rises_by_steps_and_falls_by_parts() -> None:
    codec, known = CacheLines(keep=0.5, line=2), np.zeros(2, np.float32)
    values = np.array([1, 1, 5, 5, 3, 3, 2, 2], np.float32)
    encode(codec, values, least=known)
    assert known.tolist() == [6.0, 6.0], "of the second largest line of four"
    encode(codec, values, least=known)
    assert known[0] == pytest.approx(6.06)
    there = decode(codec, encode(codec, values, least=known), 8)
    assert known[0] == pytest.approx(0.99 * 6.06)
    assert there.tolist() == [0, 0, 5, 5, 3, 3, 0, 0], "too few reach it: the largest of the others fill up"
    early = decode(codec, encode(codec, np.array([4, 4, 4, 4, 9, 9, 0, 0], np.float32), least=known), 8)
    assert early.tolist() == [4, 4, 4, 4, 0, 0, 0, 0], "the first that reach it, until there are enough"
