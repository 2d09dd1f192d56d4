"""Shares and take-overs: every chunk has one owner, the slowest member's time is the least, live owners keep theirs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from atoll.swarm.routes.shares import (
    Shard,
    Shards,
    cap_of,
    chunks_of,
    covers,
    cut,
    fill_in,
    owners_of,
    peak_bytes,
    slowest,
    solve,
    take_over,
)

A, B, C, D = (bytes([x]) * 32 for x in (1, 2, 3, 4))
rates = some.lists(some.floats(1e-2, 1e3), min_size=1, max_size=12)
shares = some.lists(some.floats(1e-3, 1e6), min_size=1, max_size=64)


def names(count: int) -> list[bytes]:
    return [bytes([i]) * 32 for i in range(count)]


def counts(shards: Shards) -> dict[bytes, int]:
    return {owner: len(chunks_of(shards, owner)) for owner in owners_of(shards)}


# cutting


@given(some.integers(1, 20_000), shares)
def test_a_cut_covers_the_grid_in_the_order_of_the_owners_and_nobody_is_off_by_a_whole_chunk(
    chunks: int, weights: list[float]
) -> None:
    owners = names(len(weights))
    shards = cut(chunks, owners, weights)
    assert covers(shards, chunks)
    assert list(owners_of(shards)) == [owner for owner in owners if owner in owners_of(shards)]
    for owner, weight in zip(owners, weights, strict=True):
        exact = chunks * weight / sum(weights)
        assert abs(counts(shards).get(owner, 0) - exact) < 1 + 1e-6 * exact


def test_an_owner_whose_share_rounds_to_nothing_owns_nothing() -> None:
    assert cut(2, [A, B, C], [1.0] * 3) == (Shard(A, 0, 1), Shard(B, 1, 1))
    assert cut(10, [A, B], [1e-3, 1e6]) == (Shard(B, 0, 10),)


@pytest.mark.parametrize(
    "shards",
    [
        (),
        (Shard(A, 0, 3),),
        (Shard(A, 0, 5),),
        (Shard(A, 0, 2), Shard(B, 3, 1)),
        (Shard(A, 0, 3), Shard(B, 2, 2)),
        (Shard(A, 0, 4), Shard(B, 4, 0)),
        (Shard(A, -1, 5),),
        (Shard(A, 0, 4, 1),),
        (Shard(A, 0, 4), Shard(B, 0, 3, 1)),
    ],
)
def test_shards_with_a_hole_an_overlap_or_a_missing_group_do_not_cover(shards: Shards) -> None:
    assert not covers(shards, 4)


def test_every_group_covers_the_grid_by_itself() -> None:
    assert covers((Shard(A, 0, 4), Shard(B, 0, 1, 1), Shard(C, 1, 3, 1)), 4)


# taking over


@given(some.integers(1, 500), some.integers(2, 12), some.data())
def test_a_take_over_moves_the_dead_owners_chunks_and_no_others(chunks: int, peers: int, data: some.DataObject) -> None:
    owners = names(peers)
    shards = cut(chunks, owners, [1.0] * peers)
    for _ in range(3):
        here = owners_of(shards)
        gone = data.draw(some.sets(some.sampled_from(here), max_size=len(here) - 1))
        heirs = [owner for owner in here if owner not in gone]
        after = take_over(shards, gone, heirs)
        assert covers(after, chunks)
        assert not gone & set(owners_of(after))
        for heir in heirs:
            assert set(chunks_of(shards, heir)) <= set(chunks_of(after, heir))
        shards = after


def test_what_is_taken_over_is_spread_by_speed_and_evenly_where_a_speed_is_not_known() -> None:
    shards = cut(30, [A, B, C], [1.0] * 3)
    assert counts(take_over(shards, {B}, [A, C], {A: 4.0, C: 1.0})) == {A: 18, C: 12}
    assert counts(take_over(shards, {B}, [A, C], {A: 4.0})) == {A: 15, C: 15}
    assert counts(take_over(shards, {A, B}, [C])) == {C: 30}


def test_a_take_over_stays_in_the_group_and_joins_what_touches() -> None:
    shards = (*cut(10, [A, B], [1.0, 1.0]), *cut(10, [C, D], [1.0, 1.0], group=1))
    after = take_over(shards, {B}, [A])
    assert after == (Shard(A, 0, 10), Shard(C, 0, 5, 1), Shard(D, 5, 5, 1))


# solving


def brute(rates: list[float], contributors: int, caps: list[float], steps: int = 40) -> float:
    """Return the least time of the slowest on a grid of shares."""
    best = float("inf")
    for head in product(range(steps + 1), repeat=len(rates) - 1):
        last = steps - sum(head)
        if last >= 0:
            tried = [part / steps for part in (*head, last)]
            if all(share <= cap + 1e-12 for share, cap in zip(tried, caps, strict=True)):
                best = min(best, slowest(rates, tried, contributors))
    return best


@pytest.mark.parametrize(
    ("rates", "contributors", "caps"),
    [
        ([1.0, 1.0, 1.0], 3, [1.0] * 3),
        ([10.0, 10.0, 1.0], 3, [1.0] * 3),
        ([10.0, 5.0, 1.0], 8, [1.0] * 3),
        ([10.0, 5.0, 2.0], 8, [0.5, 0.4, 0.9]),
        ([100.0, 1.0, 1.0], 3, [0.25, 1.0, 1.0]),
        ([3.0, 7.0, 11.0, 2.0], 4, [1.0] * 4),
        ([3.0, 7.0, 11.0, 2.0], 16, [0.3] * 4),
        ([5.0, 1.0], 2, [1.0, 1.0]),
    ],
)
def test_no_other_shares_make_the_slowest_faster(rates: list[float], contributors: int, caps: list[float]) -> None:
    found = solve(rates, contributors, caps)
    assert sum(found) == pytest.approx(1.0)
    assert all(-1e-12 <= share <= cap + 1e-12 for share, cap in zip(found, caps, strict=True))
    assert slowest(rates, found, contributors) <= brute(rates, contributors, caps) * (1 + 1e-9)


@settings(max_examples=300)
@given(rates, some.integers(3, 64), some.data())
def test_whoever_owns_something_and_has_room_for_more_finishes_last_and_nobody_finishes_later(
    rates: list[float], contributors: int, data: some.DataObject
) -> None:
    caps = data.draw(some.lists(some.floats(0.0, 1.0), min_size=len(rates), max_size=len(rates)))
    found = solve(rates, contributors, caps)
    assert sum(found) == pytest.approx(1.0)
    if sum(caps) <= 1.0:
        return
    times = [(1 + share * (contributors - 2)) / rate for rate, share in zip(rates, found, strict=True)]
    filled = max(time for time, share in zip(times, found, strict=True) if share > 0)
    for time, share, cap in zip(times, found, caps, strict=True):
        assert share <= cap + 1e-9
        if 1e-9 < share < cap - 1e-9:
            assert time == pytest.approx(filled)
        if share < 1e-9 and cap > 1e-6:
            assert time >= filled * (1 - 1e-9), "who could own without being last owns something"


def test_equal_lines_own_equal_shares_and_a_slow_one_nothing() -> None:
    assert solve([7.0] * 4, 4) == pytest.approx([0.25] * 4)
    assert solve([10.0, 10.0, 10.0, 1.0], 4) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])


def test_a_line_ten_times_as_fast_owns_everything_and_rounds_are_less_than_twice_as_short() -> None:
    """Owners alike, each line carries 2 (N-1)/N of a contribution either way; beside one that owns all, one."""
    for count in (4, 8):
        rates = [1000.0] + [100.0] * (count - 1)
        shares = solve(rates, count)
        assert shares == pytest.approx([1.0] + [0.0] * (count - 1))
        alike_s, alone_s = (slowest(rates, each, count) for each in ([1 / count] * count, shares))
        assert alike_s / alone_s == pytest.approx(2 * (count - 1) / count)


def test_where_two_contribute_shares_make_no_difference_and_are_equal() -> None:
    assert solve([5.0, 1.0], 2) == pytest.approx([0.5, 0.5])


def test_where_memory_is_short_for_all_everybody_carries_in_proportion() -> None:
    assert solve([1.0, 1.0], 5, [0.2, 0.1]) == pytest.approx([2 / 3, 1 / 3])
    assert solve([1.0, 1.0], 5, [0.0, 0.0]) == pytest.approx([0.5, 0.5])


def test_an_unknown_rate_counts_as_the_median_of_the_known() -> None:
    assert fill_in([0.0, 4.0, 10.0, 1.0]) == [4.0, 4.0, 10.0, 1.0]
    assert fill_in([0.0, 0.0]) == [1.0, 1.0]


# memory


@given(some.floats(1e3, 1e9), some.integers(2, 64), some.floats(2.0, 40.0))
def test_the_largest_share_a_memory_has_room_for_fills_it(size_bytes: float, contributors: int, times: float) -> None:
    memory_bytes = times * size_bytes
    cap = cap_of(memory_bytes, size_bytes, contributors)
    assert peak_bytes(size_bytes, cap, contributors) <= memory_bytes * (1 + 1e-9)
    if cap < 1:
        assert peak_bytes(size_bytes, cap + 0.01, contributors) > memory_bytes


def test_without_a_limit_on_memory_anybody_may_own_all() -> None:
    assert cap_of(0, 1e9, 64) == 1.0
    assert cap_of(1e9, 1e9, 64) == 0.0
