"""The chunk grid: whoever owns what, every element has exactly one owner."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from atoll.sync.grid import CHUNK_ELEMENTS_MAX, CHUNK_ELEMENTS_MIN, GROUP_MAX, Grid, Shard, grid_of, shards_of

sizes = some.one_of(some.integers(1, 20_000), some.integers(1, 10**11))
speeds = some.lists(some.floats(1e-3, 1e6), min_size=1, max_size=GROUP_MAX)


def names(count: int) -> list[bytes]:
    return [bytes([i]) * 32 for i in range(count)]


@settings(deadline=None)
@given(sizes)
def test_chunks_cover_a_vector_of_any_size_exactly_once(size: int) -> None:
    grid = grid_of(size)
    assert grid.bounds(0)[0] == 0
    assert grid.bounds(grid.chunks - 1)[1] == size
    for index in (0, grid.chunks // 2, grid.chunks - 1):
        first, end = grid.bounds(index)
        assert 0 < end - first <= grid.chunk
        assert index == grid.chunks - 1 or (end - first, grid.bounds(index + 1)[0]) == (grid.chunk, end)


@settings(deadline=None)
@given(sizes)
def test_a_chunk_is_never_larger_than_a_message_nor_smaller_than_is_worth_sending(size: int) -> None:
    grid = grid_of(size)
    assert CHUNK_ELEMENTS_MIN <= grid.chunk <= CHUNK_ELEMENTS_MAX
    if grid.chunk < CHUNK_ELEMENTS_MAX:
        assert grid.chunks <= GROUP_MAX


def test_a_model_of_any_real_size_has_a_chunk_for_every_member_of_a_full_group() -> None:
    assert all(grid_of(size).chunks == GROUP_MAX for size in (GROUP_MAX * CHUNK_ELEMENTS_MIN, 10**6, 4 * 10**6))
    assert grid_of(10**9).chunks > GROUP_MAX


@settings(deadline=None)
@given(sizes, speeds)
def test_shards_cover_the_grid_exactly_once_whatever_the_owners_and_their_speeds(
    size: int, speeds: list[float]
) -> None:
    grid, owners = grid_of(size), names(len(speeds))
    shards = shards_of(grid, owners, speeds)
    at = 0
    for shard in shards:
        assert shard.first == at
        assert shard.count > 0
        assert shard.chunks == range(at, at + shard.count)
        at += shard.count
    assert at == grid.chunks
    assert [s.owner for s in shards] == [owner for owner in owners if owner in {s.owner for s in shards}]


@settings(deadline=None)
@given(sizes, speeds)
def test_no_owner_gets_a_whole_chunk_more_or_less_than_its_share(size: int, speeds: list[float]) -> None:
    grid, owners = grid_of(size), names(len(speeds))
    counts = {s.owner: s.count for s in shards_of(grid, owners, speeds)}
    for owner, speed in zip(owners, speeds, strict=True):
        share = grid.chunks * speed / sum(speeds)
        assert abs(counts.get(owner, 0) - share) < 1 + 1e-6 * share


def test_without_speeds_owners_share_alike() -> None:
    assert shards_of(Grid(640, 64), [b"a", b"b", b"c"]) == (Shard(b"a", 0, 4), Shard(b"b", 4, 3), Shard(b"c", 7, 3))


def test_an_owner_whose_share_rounds_to_nothing_owns_nothing() -> None:
    assert shards_of(Grid(100, 64), [b"a", b"b", b"c"]) == (Shard(b"a", 0, 1), Shard(b"b", 1, 1))
    assert shards_of(Grid(640, 64), [b"slow", b"fast"], [1e-3, 1e6]) == (Shard(b"fast", 0, 10),)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4095, 4096, 4097])
def test_the_last_chunk_is_the_short_one(size: int) -> None:
    grid = grid_of(size)
    lengths = [end - first for first, end in map(grid.bounds, range(grid.chunks))]
    assert sum(lengths) == size
    assert all(length == grid.chunk for length in lengths[:-1])
