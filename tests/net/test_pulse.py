"""Silence is counted in ticks of our own and judged by what the link has shown before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.net.pulse import MEMORY_S, SILENCE_S_MAX, SILENCE_S_MIN, TICK_S, Pulse, Rhythm

MINUTE = round(60 / TICK_S)

histories = some.lists(some.booleans(), max_size=400)
"""Whether something came, tick by tick."""
round_trips = some.lists(some.floats(0.0005, 5.0), max_size=50)
ceilings = some.floats(0.2, 120.0)


def lived(history: list[bool], silence_s_max: float = SILENCE_S_MAX, round_trip_s: float | None = None) -> Pulse | None:
    """Return the pulse of a link after this history, if it was not given up in it; its last sign of life is new."""
    pulse, heard = Pulse(silence_s_max), 0
    for came in (True, *history, True):
        heard += came
        if pulse.dead(heard, round_trip_s) is not None:
            return None
    return pulse


def silent_ticks(pulse: Pulse) -> int:
    """Return how many ticks without a new sign of life it takes to give up."""
    pulse.dead(heard := 1_000_000)
    ticks = 1
    while pulse.dead(heard) is None:
        ticks += 1
    return ticks


def given_up_s(pulse: Pulse) -> float:
    return silent_ticks(pulse) * pulse.tick_s


def test_a_new_link_is_given_up_after_five_seconds() -> None:
    assert 4.0 <= given_up_s(Pulse()) <= 5.0


def test_a_quiet_link_is_given_up_after_half_of_that() -> None:
    pulse = lived([True] * MINUTE, round_trip_s=0.001)
    assert pulse is not None
    assert given_up_s(pulse) == SILENCE_S_MIN


def test_a_link_with_gaps_is_given_up_later_and_the_later_the_longer_they_are() -> None:
    seconds = round(1 / TICK_S)
    waits_s = []
    for gap_s in (1.5, 2, 3):
        pulse = lived(([False] * round(gap_s * seconds) + [True] * 30 * seconds) * 4)
        assert pulse is not None
        waits_s.append(given_up_s(pulse))
    assert 5.0 < waits_s[0] < waits_s[1] < waits_s[2] <= SILENCE_S_MAX


def test_old_gaps_are_forgotten() -> None:
    gaps = ([False] * 6 + [True] * MINUTE) * 3
    fresh, old = lived(gaps), lived(gaps + [True] * round(4 * MEMORY_S / TICK_S))
    assert fresh is not None and old is not None
    assert given_up_s(old) < given_up_s(fresh) / 2


def test_round_trips_and_what_they_vary_by_are_waited_for() -> None:
    near, far, wild = Rhythm(), Rhythm(), Rhythm()
    for at in range(100):
        near, far, wild = near.measured(0.01), far.measured(0.8), wild.measured(0.3 + at % 2)
    assert near.improbable_s() < far.improbable_s() < wild.improbable_s()
    assert far.improbable_s() - near.improbable_s() == pytest.approx(0.79, abs=0.01)


@given(histories, ceilings)
def test_the_ceiling_holds_whatever_was_seen(history: list[bool], silence_s_max: float) -> None:
    pulse = lived(history, silence_s_max)
    if pulse is not None:
        # A sign of life may be nearly a tick old when it is noticed.
        assert given_up_s(pulse) + pulse.tick_s <= silence_s_max * 1.0001


@given(histories, round_trips, some.floats(SILENCE_S_MIN + TICK_S, 120.0))
def test_nobody_is_given_up_below_the_floor(history: list[bool], trips: list[float], silence_s_max: float) -> None:
    pulse = lived(history, silence_s_max)
    for at, round_trip_s in enumerate(trips if pulse is not None else []):
        assert pulse is not None
        pulse.dead(500 + at, round_trip_s)
    if pulse is not None:
        assert given_up_s(pulse) >= SILENCE_S_MIN


@given(some.lists(some.tuples(some.booleans(), some.booleans()), max_size=400))
def test_who_was_silent_more_often_is_waited_for_longer(ticks: list[tuple[bool, bool]]) -> None:
    signs, fewer = [one for one, _ in ticks], [one and other for one, other in ticks]
    rare, often = lived(fewer), lived(signs)
    if rare is None:
        return
    if often is not None:
        assert silent_ticks(rare) >= silent_ticks(often)
    else:
        died = next(at for at in range(len(signs) + 1) if lived(signs[:at]) is None)
        assert longest_over(fewer[:died]) > longest_over(signs[:died]), "it had shown longer silences before"


def longest_over(history: list[bool]) -> int:
    """Return the longest silence that ended with a sign of life."""
    runs = "".join(".x"[sign] for sign in history).split("x")[:-1]
    return max((len(run) for run in runs), default=0)


def test_who_has_shown_a_longer_silence_outlives_one_that_has_not() -> None:
    silence = [False] * 9
    assert lived([False, False, False, True, *silence]) is not None
    assert lived([False, False, True, True, *silence]) is None


@given(histories, some.integers(1, 40))
def test_any_sign_of_life_starts_the_count_anew(history: list[bool], signs: int) -> None:
    pulse = lived(history)
    for heard in range(signs if pulse is not None else 0):
        assert pulse is not None
        assert pulse.dead(1000 + 2 * heard) is None
        assert pulse.dead(1000 + 2 * heard) is None


@given(some.integers(1, 5000), some.integers(0, 50), some.integers(1, 5000))
def test_a_stretch_of_ticks_counts_like_its_ticks_one_by_one(before: int, silent: int, after: int) -> None:
    at_once = Rhythm().after(before).after(silent + 1, silent).after(after)
    by_one = Rhythm()
    for _ in range(min(before, 300)):
        by_one = by_one.after(1)
    by_one = by_one.after(max(0, before - 300)).after(silent + 1, silent)
    for _ in range(min(after, 300)):
        by_one = by_one.after(1)
    by_one = by_one.after(max(0, after - 300))
    assert by_one.ticks == pytest.approx(at_once.ticks)
    assert by_one.longest_s == pytest.approx(at_once.longest_s)


def test_a_tick_that_comes_late_counts_once() -> None:
    # The pulse is never told the time: an hour between two calls, as a stall of ours makes it, is one tick.
    pulse = Pulse()
    pulse.dead(1)
    assert all(pulse.dead(1) is None for _ in range(4))
    pulse.dead(2)
    assert pulse.rhythm.longest_s == 5 * TICK_S


def test_the_verdict_says_why_in_numbers() -> None:
    pulse = lived([True] * MINUTE, round_trip_s=0.012)
    assert pulse is not None
    pulse.dead(500, 0.012)
    said = [pulse.dead(500) for _ in range(5)]
    assert said[:4] == [None] * 4
    assert said[4] == "silent for 2.5 s; its longest silence lately was 0.5 s, a round trip takes 12 ms"


def test_under_a_low_ceiling_ticks_come_faster() -> None:
    assert Pulse(60.0).tick_s == TICK_S
    assert Pulse(1.0).tick_s == 0.2
    assert given_up_s(Pulse(1.0)) == pytest.approx(0.8)
