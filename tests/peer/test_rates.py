"""The measured rate of a line: of what arrived, at its best, and not from too long ago."""

from __future__ import annotations

import pytest

from atoll.peer.rates import NEWEST, ROUNDS, ROUNDS_MAX, Line, Link, Meter, Slope


def carry(meter: Meter, rate_bytes_s: float, for_s: float, *, at_s: float, every_s: float = 0.1) -> None:
    """Move bytes at a rate for a while."""
    meter.begin(at_s)
    for step in range(1, round(for_s / every_s) + 1):
        meter.moved(round(rate_bytes_s * every_s), at_s + step * every_s)


def test_nothing_moved_is_an_unknown_rate() -> None:
    assert Meter().rate_bytes_s() == 0


@pytest.mark.parametrize("rate", [12_000, 1_500_000, 990_000_000])
def test_a_steady_transfer_has_its_rate(rate: int) -> None:
    meter = Meter()
    carry(meter, rate, 8.0, at_s=100.0)
    assert meter.rate_bytes_s() == pytest.approx(rate, rel=0.02)


def test_waiting_for_others_does_not_lower_the_rate() -> None:
    meter = Meter()
    carry(meter, 1e6, 3.0, at_s=0.0)
    carry(meter, 1e3, 60.0, at_s=3.0)
    assert meter.rate_bytes_s() == pytest.approx(1e6, rel=0.02)


def test_a_burst_counts_as_if_it_had_taken_a_fifth_of_a_second() -> None:
    meter = Meter()
    meter.begin(0.0)
    meter.moved(1_000_000, 0.001)
    assert meter.rate_bytes_s() == 5_000_000


def test_when_it_is_not_known_when_bytes_set_out_only_what_follows_the_first_counts() -> None:
    meter = Meter()
    for at_s in (10.0, 13.0, 16.0):
        for _ in range(6):
            meter.moved(25_000, at_s)
        assert meter.rate_bytes_s() == (0 if at_s == 10.0 else 50_000)


def test_what_was_held_up_and_comes_at_once_is_not_taken_for_speed() -> None:
    meter = Meter()
    carry(meter, 1e6, 2.0, at_s=0.0)
    meter.moved(3_000_000, 5.0)
    assert meter.rate_bytes_s() == pytest.approx(1e6, rel=0.05)


def test_what_several_peers_send_slowly_and_comes_together_is_not_taken_for_speed() -> None:
    """Seven senders, each of a message nearly every second: those of all arrive within a moment."""
    meter = Meter()
    meter.begin(0.0)
    for turn in range(1, 20):
        for sender in range(7):
            meter.moved(100_000, 0.97 * turn + 0.01 * sender)
    assert meter.rate_bytes_s() == pytest.approx(700_000 / 0.97, rel=0.2)


def test_a_rate_is_of_one_round_and_not_of_two() -> None:
    meter = Meter()
    carry(meter, 8e6, 2.0, at_s=0.0)
    for round_ in range(1, ROUNDS + 1):
        meter.turn()
        carry(meter, 1e6, 2.0, at_s=3.0 * round_)
    meter.turn()
    assert meter.rate_bytes_s() == pytest.approx(1e6, rel=0.02)


def test_time_between_transfers_does_not_count() -> None:
    meter = Meter()
    carry(meter, 1e6, 0.5, at_s=0.0)
    carry(meter, 2e6, 0.5, at_s=1000.0)
    assert meter.rate_bytes_s() == pytest.approx(2e6, rel=0.02)


def test_a_line_that_got_slower_is_known_for_it_after_a_few_rounds_and_a_faster_one_at_once() -> None:
    meter = Meter()
    carry(meter, 8e6, 2.0, at_s=0.0)
    for round_ in range(1, ROUNDS + 1):
        meter.turn()
        assert meter.rate_bytes_s() == pytest.approx(8e6, rel=0.02)
        carry(meter, 1e6, 2.0, at_s=100.0 * round_)
    meter.turn()
    assert meter.rate_bytes_s() == pytest.approx(1e6, rel=0.02)
    carry(meter, 8e6, 2.0, at_s=1000.0)
    assert meter.rate_bytes_s() == pytest.approx(8e6, rel=0.02)


def test_rounds_without_traffic_leave_the_rate_as_it_was() -> None:
    meter = Meter()
    carry(meter, 8e6, 2.0, at_s=0.0)
    for _ in range(10):
        meter.turn()
    assert meter.rate_bytes_s() == pytest.approx(8e6, rel=0.02)


def test_small_differences_are_not_reported() -> None:
    one, other = Meter(), Meter()
    carry(one, 1.004e6, 2.0, at_s=0.0)
    carry(other, 0.996e6, 2.0, at_s=0.0)
    assert one.rate_bytes_s() == other.rate_bytes_s() == 1_000_000


# both directions


def played(line: Line, up: float, down: float, *, owned: float, at_s: float) -> tuple[int, int]:
    """Move bytes both ways for a round and return what is known of the line after it."""
    carry(line.up, up, 3.0, at_s=at_s)
    carry(line.down, down, 3.0, at_s=at_s)
    line.turn(owned=owned)
    return line.rates_bytes_s()


def test_what_a_person_says_of_a_line_holds_until_it_was_put_to_it() -> None:
    line = Line(10_000_000)
    assert line.rates_bytes_s() == (10_000_000, 10_000_000)
    assert played(line, 1e6, 1e6, owned=1.0, at_s=100.0) == (10_000_000, 10_000_000), "others send it no more"
    assert played(line, 7e6, 8e6, owned=8.0, at_s=200.0) == (7_000_000, 8_000_000), "more than that nobody saw"
    for at_s in (300.0, 400.0):
        known = played(line, 1e6, 1e6, owned=1.0, at_s=at_s)
    assert known == (7_000_000, 7_000_000), "it carried that once"


def test_what_a_person_says_wrongly_is_believed_once() -> None:
    line = Line(10_000_000)
    for at_s in (100.0, 200.0):
        known = played(line, 1e6, 1e6, owned=8.0, at_s=at_s)
    assert known == (1_000_000, 1_000_000)


def test_a_line_is_what_its_owner_saw_of_it() -> None:
    line = Line()
    assert line.rates_bytes_s() == (0, 0)
    for round_ in range(ROUNDS):
        known = played(line, 8e6, 1e6, owned=True, at_s=100.0 * round_)
    assert known == (8_000_000, 1_000_000)
    assert played(line, 8e6, 1e6, owned=False, at_s=500.0) == known
    assert played(line, 8e6, 8e6, owned=True, at_s=600.0) == (8_000_000, 8_000_000)


def test_who_owns_nothing_and_shows_more_than_when_it_last_owned_is_unknown_until_it_owns_again() -> None:
    line = Line()
    for round_ in range(ROUNDS):
        played(line, 2e6, 2e6, owned=True, at_s=100.0 * round_)
    assert played(line, 8e6, 2.2e6, owned=False, at_s=500.0) == (8_000_000, 2_200_000), "as fast as it was, one way"
    assert played(line, 8e6, 5e6, owned=False, at_s=600.0) == (0, 0)
    assert played(line, 8e6, 5e6, owned=False, at_s=700.0) == (0, 0)
    assert played(line, 8e6, 8e6, owned=True, at_s=800.0) == (8_000_000, 8_000_000)


def test_a_line_that_was_never_seen_as_an_owner_is_what_was_seen_of_it() -> None:
    assert played(Line(), 8e6, 5e6, owned=False, at_s=0.0) == (8_000_000, 5_000_000)


# links


def pass_on(link: Link, chunks: int, *, rate_bytes_s: float, trip_s: float = 0.1, wait_s: float = 5.0) -> None:
    """Send chunks one by one, each a long while after the one before has arrived, and end the round."""
    size_bytes, at_s = 100_000, 0.0
    for _ in range(chunks):
        link.begin(size_bytes, at_s)
        at_s += size_bytes / rate_bytes_s + trip_s
        link.moved(size_bytes, at_s)
        at_s += wait_s
    link.turn(trip_s)


def test_a_link_is_as_fast_as_what_is_on_its_way_gets_there_however_long_it_waits_for_more() -> None:
    link = Link()
    pass_on(link, 10, rate_bytes_s=1e6)
    assert link.rate_bytes_s() == pytest.approx(1e6, rel=0.05)


def test_chunks_that_are_on_their_way_together_count_as_one_transfer() -> None:
    link = Link()
    for _ in range(10):
        link.begin(100_000, 0.0)
    for number in range(1, 11):
        link.moved(100_000, 0.1 + 0.1 * number)
    link.turn(0.1)
    assert link.rate_bytes_s() == pytest.approx(1e6, rel=0.05)


def test_what_a_byte_takes_on_a_link_is_averaged_over_rounds_so_that_what_became_slow_is_known_at_once() -> None:
    link = Link()
    pass_on(link, 4, rate_bytes_s=1e6)
    pass_on(link, 4, rate_bytes_s=1e5)
    assert link.rate_bytes_s() == pytest.approx(1e6 / (1 - NEWEST + 10 * NEWEST), rel=0.05)
    for _ in range(5):
        pass_on(link, 4, rate_bytes_s=1e6)
    assert link.rate_bytes_s() > 8e5


def test_what_never_arrived_does_not_count_and_a_link_without_use_is_forgotten() -> None:
    link = Link()
    link.begin(100_000, 0.0)
    link.turn(0.1)
    assert link.rate_bytes_s() == 0
    pass_on(link, 4, rate_bytes_s=1e6)
    for _ in range(ROUNDS_MAX - 1):
        link.turn(0.1)
    assert link.rate_bytes_s() > 0
    link.turn(0.1)
    assert link.rate_bytes_s() == 0


def test_what_a_link_carries_is_what_more_bytes_take_longer_and_not_what_all_take() -> None:
    slope = Slope()
    for size_bytes in (1_000_000, 20_000, 21_000, 20_000):
        slope.took(size_bytes, 0.8 + size_bytes / 1e5)
    assert slope.rate_bytes_s() == pytest.approx(1e5, rel=0.2), "by bytes over time it would be a fifth of that"


def test_a_link_that_became_slower_or_faster_is_known_for_it_within_a_few_rounds() -> None:
    slope = Slope()
    for rate in (1e6, 1e5, 1e5, 1e5, 1e5, 1e6, 1e6, 1e6, 1e6):
        sent = int(0.2 * (slope.rate_bytes_s() or 1e6))
        slope.took(sent, 0.02 + sent / rate)
        if rate == 1e5:
            slow = slope.rate_bytes_s()
    assert slow < 2e5
    assert slope.rate_bytes_s() > 5e5
