"""Schedules: a factor on the peak rate that warms up, holds and comes down where it should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.spec.axes.work import Constant, Cosine, Schedule, Wsd
from atoll.spec.schedule import rate

WARM: list[Schedule] = [Constant(warmup_steps=10), Cosine(warmup_steps=10), Wsd(warmup_steps=10)]


@pytest.mark.parametrize("schedule", WARM)
def test_warm_up_rises_in_equal_steps_to_the_peak_and_stays_there(schedule: Schedule) -> None:
    assert [rate(schedule, step, 0.0) for step in range(12)] == pytest.approx([*(i / 10 for i in range(1, 11)), 1, 1])


@pytest.mark.parametrize("schedule", [Constant(), Cosine(), Wsd()])
def test_without_warm_up_the_first_step_is_at_the_peak(schedule: Schedule) -> None:
    assert rate(schedule, 0, 0.0) == 1.0


def test_a_constant_rate_does_not_care_how_much_is_spent() -> None:
    assert {rate(Constant(), 100, spent / 10) for spent in range(11)} == {1.0}


def test_the_cosine_goes_from_the_peak_through_the_middle_to_the_floor() -> None:
    cosine = Cosine(floor=0.2)
    assert [rate(cosine, 0, spent) for spent in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.6, 0.2])


def test_wsd_is_stable_until_the_decay_and_then_falls_in_a_line_to_the_floor() -> None:
    wsd = Wsd(decay=0.2, floor=0.1)
    assert [rate(wsd, 0, spent) for spent in (0.0, 0.5, 0.8)] == pytest.approx([1.0, 1.0, 1.0])
    assert [rate(wsd, 0, spent) for spent in (0.85, 0.9, 1.0)] == pytest.approx([0.775, 0.55, 0.1])


def test_wsd_without_decay_stays_at_the_peak() -> None:
    assert rate(Wsd(decay=0.0), 0, 1.0) == 1.0


@pytest.mark.parametrize("schedule", [Cosine(floor=0.1), Wsd(floor=0.1)])
def test_a_run_that_overspends_stays_at_the_floor(schedule: Schedule) -> None:
    assert rate(schedule, 0, 1.5) == rate(schedule, 0, 1.0) == pytest.approx(0.1)
    assert rate(schedule, 0, -0.5) == 1.0


schedules = some.one_of(
    some.builds(Constant, warmup_steps=some.integers(0, 100)),
    some.builds(Cosine, warmup_steps=some.integers(0, 100), floor=some.floats(0, 1)),
    some.builds(Wsd, warmup_steps=some.integers(0, 100), decay=some.floats(0, 1), floor=some.floats(0, 1)),
)


@given(schedules, some.integers(0, 10**6), some.floats(0, 1), some.floats(0, 1))
def test_after_warm_up_a_rate_never_rises_and_stays_between_nothing_and_the_peak(
    schedule: Schedule, step: int, one: float, other: float
) -> None:
    early, late = sorted((one, other))
    first, last = rate(schedule, step + 100, early), rate(schedule, step + 100, late)
    assert 0 <= last <= first + 1e-12 <= 1 + 2e-12
    assert 0 <= rate(schedule, step, early) <= first + 1e-12
