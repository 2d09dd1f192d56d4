"""Which piece to ask whom for: everything comes, hardly anything twice, rare pieces first, and nobody holds it up."""

from __future__ import annotations

from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from atoll.net.transport import PeerId
from atoll.peer.pieces import (
    PIECE_BYTES,
    WINDOW_FIRST,
    WINDOW_MAX,
    Haul,
    Listing,
    piece_bytes,
)

A, B, C = (PeerId(name * 32) for name in (b"a", b"b", b"c"))


@given(st.integers(1, 2**36))
def test_pieces_are_a_mebibyte_or_less_and_not_many_when_small(size_bytes: int) -> None:
    step = piece_bytes(size_bytes)
    assert 4096 <= step <= PIECE_BYTES
    assert step == PIECE_BYTES or -(-size_bytes // step) <= 64


def test_spans_cover_a_file_once() -> None:
    for size_bytes in (1, 4096, 4097, 10**6, 64 * PIECE_BYTES, 70 * PIECE_BYTES + 5):
        count = -(-size_bytes // piece_bytes(size_bytes))
        listing = Listing(1, "", size_bytes, (b"d" * 32,) * count)
        assert listing.fits()
        at = 0
        for index in range(count):
            first, length = listing.span(index)
            assert first == at
            at += length
        assert at == size_bytes


def test_a_window_is_filled_and_then_grows_with_the_pace() -> None:
    haul = Haul(100, Random(0))
    haul.join(A, None)
    wants, _ = haul.turn(A, 0.0)
    assert len(wants) == WINDOW_FIRST
    assert haul.turn(A, 0.0) == ([], [])
    for at, index in enumerate(wants):
        assert haul.got(A, index, 0.01 * (at + 1))
    assert len(haul.turn(A, 0.05)[0]) == WINDOW_MAX


def test_what_few_have_comes_first() -> None:
    haul = Haul(20, Random(0))
    haul.join(B, range(10))
    haul.join(C, range(5))
    haul.join(A, None)
    wants, _ = haul.turn(A, 0.0)
    assert all(index >= 10 for index in wants)
    assert all(5 <= index < 10 for index in haul.turn(B, 0.0)[0])


def test_nothing_is_asked_for_twice_while_something_was_not_asked_for() -> None:
    haul = Haul(12, Random(0))
    for donor in (A, B, C):
        haul.join(donor, None)
    asked = [index for donor in (A, B, C) for index in haul.turn(donor, 0.0)[0]]
    assert sorted(asked) == list(range(12))


def test_what_a_donor_owed_goes_to_others_when_it_leaves() -> None:
    haul = Haul(6, Random(0))
    haul.join(A, None)
    owed, _ = haul.turn(A, 0.0)
    haul.join(B, None)
    rest, _ = haul.turn(B, 0.0)
    assert sorted(owed + rest) == list(range(6))
    haul.leave(A)
    again: list[int] = []
    for index in rest:
        haul.got(B, index, 0.1)
    while more := haul.turn(B, 0.2)[0]:
        again += more
        for index in more:
            haul.got(B, index, 0.3)
    assert sorted(again) == sorted(owed)
    assert haul.complete
    assert haul.donors == [B]


def test_the_tail_of_a_slow_donor_is_taken_over_and_called_off() -> None:
    haul = Haul(8, Random(0))
    for donor in (A, B):
        haul.join(donor, None)
    slow, fast = haul.turn(A, 0.0)[0], haul.turn(B, 0.0)[0]
    for at, index in enumerate(fast):
        haul.got(B, index, 0.1 * (at + 1))
    taken, _ = haul.turn(B, 5.0)
    assert set(taken) <= set(slow)
    assert len(taken) >= 3
    assert slow[0] not in taken[:1], "what it delivers last goes first"
    _, off = haul.turn(A, 5.0)
    assert set(off) == set(taken) - {slow[0]}
    assert all(haul.expects(A, index) for index in off), "one that was on its way is no offence"
    assert not haul.expects(A, fast[0])


def test_equal_donors_take_nothing_over_from_each_other() -> None:
    haul = Haul(40, Random(0))
    donors = (A, B)
    owed = {donor: [] for donor in donors}  # type: dict[PeerId, list[int]]
    for donor in donors:
        haul.join(donor, None)
    now_s = 0.0
    while not haul.complete:
        for donor in donors:
            owed[donor] += haul.turn(donor, now_s)[0]
        now_s += 0.25
        for donor in donors:
            if owed[donor]:
                haul.got(donor, owed[donor].pop(0), now_s)
    assert haul.twice == 0
    assert now_s == 0.25 * 20


def test_a_piece_that_nobody_has_is_hopeless() -> None:
    haul = Haul(4, Random(0), have=[0])
    haul.join(A, [1, 2])
    assert haul.hopeless()
    haul.grow(A, [3])
    assert not haul.hopeless()
    haul.leave(A)
    assert haul.hopeless()
    haul.join(B, None)
    assert not haul.hopeless()


@settings(max_examples=60)
@given(st.integers(0, 10**6))
@example(169802)  # two silent donors owe the last piece
def test_whoever_comes_goes_or_slows_down_everything_comes_and_little_comes_twice(seed: int) -> None:
    """Donors of any speed appear, vanish and have parts; one is whole and stays."""
    rng = Random(seed)
    count = rng.randint(1, 120)
    haul = Haul(count, rng)
    steady = PeerId(b"s" * 32)
    queues: dict[PeerId, list[int]] = {steady: []}
    speed: dict[PeerId, float] = {steady: 0.3}
    haul.join(steady, None)
    now_s, lost = 0.0, 0
    for number in range(20_000):
        if haul.complete:
            break
        now_s += 0.1
        if number < 300 and rng.random() < 0.05:
            peer = PeerId(bytes([rng.randrange(4)]) * 32)
            if peer in queues:
                lost += len(queues.pop(peer))
                haul.leave(peer)
            else:
                queues[peer], speed[peer] = [], rng.choice((0.0, 0.05, 0.5, 1.0))
                haul.join(peer, None if rng.random() < 0.5 else rng.sample(range(count), rng.randint(0, count)))
        for peer, queue in queues.items():
            wants, off = haul.turn(peer, now_s)
            queue[:] = [index for index in queue if index not in off] + wants
            if queue and rng.random() < speed[peer]:
                index = queue.pop(0)
                assert haul.expects(peer, index)
                haul.got(peer, index, now_s)
    assert haul.complete
    assert haul.twice <= 4 + count // 10
