"""The chunk grid: every element is in exactly one chunk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.spec.axes.codec import Buckets, Codec, E3m0, Fp16, Fp32, Int8, Stochastic, TopK
from atoll.sync.codec import wire_bytes
from atoll.sync.grid import CHUNK_BYTES, CHUNK_ELEMENTS_MIN, GROUP_MAX, chunk_elements_max, grid_of

sparse = TopK(keep=64, block=4096, values=Buckets(bits=2, width=6.0))
odd = Stochastic(bits=7)
codecs: list[Codec] = [Fp32(), Fp16(), Int8(), Int8(block=16), E3m0(), odd, sparse]
sizes = some.one_of(some.integers(1, 20_000), some.integers(1, 10**11))


@given(sizes)
def test_chunks_cover_a_vector_of_any_size_exactly_once(size: int) -> None:
    grid = grid_of(size)
    assert grid.bounds(0)[0] == 0
    assert grid.bounds(grid.chunks - 1)[1] == size
    for index in (0, grid.chunks // 2, grid.chunks - 1):
        first, end = grid.bounds(index)
        assert 0 < end - first <= grid.chunk
        assert index == grid.chunks - 1 or (end - first, grid.bounds(index + 1)[0]) == (grid.chunk, end)


@given(sizes, some.sampled_from(codecs))
def test_a_chunk_is_never_larger_than_a_message_nor_smaller_than_is_worth_sending(size: int, codec: Codec) -> None:
    grid = grid_of(size, codec)
    assert CHUNK_ELEMENTS_MIN <= grid.chunk <= chunk_elements_max(codec)
    if grid.chunk < chunk_elements_max(codec):
        assert grid.chunks <= GROUP_MAX


@pytest.mark.parametrize("codec", [codec for codec in codecs if codec not in (sparse, odd)])
def test_a_chunk_of_a_large_model_is_about_as_long_in_every_codec(codec: Codec) -> None:
    assert CHUNK_BYTES <= wire_bytes(codec, grid_of(10**9, codec).chunk) <= 1.25 * CHUNK_BYTES


def test_where_elements_have_an_odd_number_of_bits_a_chunk_is_at_least_half_as_long() -> None:
    assert CHUNK_BYTES / 2 <= wire_bytes(odd, grid_of(10**9, odd).chunk) <= CHUNK_BYTES


@given(sizes)
def test_chunks_have_whole_blocks_where_something_is_chosen_of_each(size: int) -> None:
    assert grid_of(size, sparse).chunk % 4096 == 0


def test_a_model_of_any_real_size_has_a_chunk_for_every_member_of_a_full_group() -> None:
    assert all(grid_of(size).chunks == GROUP_MAX for size in (GROUP_MAX * CHUNK_ELEMENTS_MIN, 10**6, 4 * 10**6))
    assert grid_of(10**9).chunks > GROUP_MAX


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4095, 4096, 4097])
def test_the_last_chunk_is_the_short_one(size: int) -> None:
    grid = grid_of(size)
    lengths = [end - first for first, end in map(grid.bounds, range(grid.chunks))]
    assert sum(lengths) == size
    assert all(length == grid.chunk for length in lengths[:-1])
