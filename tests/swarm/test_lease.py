"""Leases: whatever is handed out and given back, every position of the order is somewhere, and only once."""

from __future__ import annotations

from itertools import accumulate, pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as some

from atoll.swarm.lease import Lease, Range, give_back, part, positions, size, take, without

quotas = some.lists(some.integers(0, 40), max_size=6)


def hand_out(wanted: list[int], returned: Lease, fresh: int) -> tuple[tuple[Lease, ...], Lease, int]:
    ranges, left, after = take(sum(wanted), returned, fresh)
    starts = accumulate(wanted, initial=0)
    return tuple(part(ranges, skip, quota) for skip, quota in zip(starts, wanted, strict=False)), left, after


def all_of(*leases: Lease) -> list[int]:
    return [position for lease in leases for position in positions(lease)]


@given(some.lists(some.tuples(quotas, some.randoms(use_true_random=False)), max_size=12))
def test_no_position_is_lost_or_leased_twice_however_many_rounds_give_leases_back(
    rounds: list[tuple[list[int], Random]],
) -> None:
    returned: Lease = ()
    fresh, used = 0, list[int]()
    for wanted, rng in rounds:
        leases, left, after = hand_out(wanted, returned, fresh)
        assert [size(lease) for lease in leases] == wanted
        assert sorted(all_of(*leases, left)) == sorted(all_of(returned) + list(range(fresh, after)))
        kept = [lease for lease in leases if rng.random() < 0.6]
        back = [lease for lease in leases if lease not in kept or not lease]
        used += all_of(*(lease for lease in kept if lease))
        returned, fresh = give_back(left, back), after
        assert sorted(used + all_of(returned)) == list(range(fresh))


@given(quotas, some.integers(0, 10**12))
def test_fresh_positions_go_in_roster_order_without_a_gap(wanted: list[int], fresh: int) -> None:
    leases, left, after = hand_out(wanted, (), fresh)
    assert all_of(*leases) == list(range(fresh, after))
    assert left == ()
    assert after == fresh + sum(wanted)


def test_what_was_given_back_goes_out_first() -> None:
    leases, left, fresh = hand_out([4, 4], (Range(0, 3), Range(10, 3)), 20)
    assert leases == ((Range(0, 3), Range(10, 1)), (Range(11, 2), Range(20, 2)))
    assert left == ()
    assert fresh == 22


def test_what_nobody_wants_stays_returned() -> None:
    assert hand_out([2], (Range(0, 5), Range(9, 1)), 20) == (((Range(0, 2),),), (Range(2, 3), Range(9, 1)), 20)


def test_ranges_that_touch_are_joined_and_sorted() -> None:
    back = give_back((Range(8, 2),), [(Range(4, 4),), (Range(0, 2), Range(20, 1))])
    assert back == (Range(0, 2), Range(4, 6), Range(20, 1))


@given(some.sets(some.integers(0, 60)), some.randoms(use_true_random=False))
def test_giving_back_piece_by_piece_in_any_order_is_giving_back_at_once(places: set[int], rng: Random) -> None:
    pieces: list[Lease] = [(Range(place, 1),) for place in places]
    rng.shuffle(pieces)
    returned: Lease = ()
    for piece in pieces:
        returned = give_back(returned, [piece])
    assert returned == give_back((), pieces)
    assert all_of(returned) == sorted(places)
    assert all(a.first + a.count < b.first for a, b in pairwise(returned))


@given(some.lists(some.booleans(), max_size=40), some.integers(0, 45), some.integers(0, 45))
def test_a_part_and_what_is_left_without_it_are_the_whole(held: list[bool], skip: int, count: int) -> None:
    whole = give_back((), [tuple(Range(at, 1) for at, there in enumerate(held) if there)])
    some_of_it = part(whole, skip, count)
    assert all_of(some_of_it) == all_of(whole)[skip : skip + count]
    assert all_of(without(whole, some_of_it)) == [p for p in all_of(whole) if p not in all_of(some_of_it)]
