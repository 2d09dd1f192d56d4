"""Forms matched to lines: who contributes in which, what is believed of a line, and what is no knob."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.spec.axes.codec import Codec, Fp16, Fp32, Stochastic
from atoll.spec.axes.control import Form, Knobs, Match
from atoll.spec.knobs import objection
from atoll.spec.load import load_recipe
from atoll.swarm.policy.match import FINER, SLOWER, Line, believe, decide, finest, setting_of, time_of

A, B, C = (bytes([n]) * 32 for n in (1, 2, 3))
SIZES = (3200, 1600, 800, 400, 200)
CODECS: tuple[Codec, ...] = (Fp32(), Fp16(), Stochastic(bits=8), Stochastic(bits=4), Stochastic(bits=2))
FORMS = tuple(Form(codec=codec) for codec in CODECS)
MATCH = Match(ladder=FORMS)


def line(up: float, down: float | None = None, share: float = 0.0) -> Line:
    down = up if down is None else down
    return Line(up, up, down, min(up, down), share)


def decided(lines: dict[bytes, Line], now: Knobs | None = None, work_s: float = 0.0) -> Knobs | None:
    return decide(MATCH, setting_of(SIZES, sorted(lines), now), lines, now, work_s, 1)[0]


def test_each_contributes_in_the_finest_form_that_goes_by_while_the_fastest_sends_its_own() -> None:
    wanted = decided({A: line(1000), B: line(500), C: line(100)})
    assert wanted == Knobs(rung=4, steps=1, each=((A, 0), (B, 1))), "32, 16 and the most of 3.2 bits; so are results"
    wide = decided({A: line(1000), B: line(500), C: line(100, down=800)})
    assert wide == Knobs(rung=1, steps=1, each=((A, 0), (C, 4))), "results as the slowest line brings them in"


def test_nothing_is_won_by_being_faster_than_the_work() -> None:
    lines = {A: line(1000), B: line(500), C: line(100)}
    assert decided(lines, work_s=32.0) is None, "all have time for everything: that is data parallelism"
    assert decided(lines, work_s=8.0) == Knobs(rung=2, steps=1, each=((A, 0), (B, 0)))


def test_lines_that_are_alike_and_lines_that_nobody_knows_change_nothing() -> None:
    assert decided({A: line(500), B: line(500), C: line(490)}) is None
    assert decided({A: line(500), B: Line(), C: Line()}) is None
    some_known = decided({A: line(1000), B: line(500), C: Line()})
    assert some_known is not None
    assert dict(some_known.each)[C] == 0


def test_what_an_owner_keeps_it_need_not_send() -> None:
    assert time_of(SIZES, {A: line(1000, share=0.5), B: line(500)}, 0.0) == 1.6
    assert decided({A: line(1000, share=0.5), B: line(1000, share=0.5)}) is None


def test_forms_stay_while_rates_wander() -> None:
    lines = {A: line(1000), B: line(500), C: line(125)}
    now = decided(lines)
    for wander in (0.9, 1.0, 1.1):
        moved = {A: line(1000), B: line(500 * wander), C: line(125 * wander)}
        assert decided(moved, now) == now
    fell = decided({A: line(1000), B: line(100), C: line(125)}, now)
    assert fell is not None
    assert dict(fell.each).get(B, fell.rung) == 4


@given(some.floats(0, 1e5), some.integers(0, 4))
def test_the_form_that_is_taken_fits_or_is_the_one_before_or_the_last(room: float, had: int) -> None:
    taken = finest(SIZES, room, had)
    if taken == had:
        finer = [size for size in SIZES[:had] if size <= FINER * room]
        assert not finer
        assert SIZES[had] <= SLOWER * room or had == len(SIZES) - 1
    else:
        assert SIZES[taken] <= room or taken == len(SIZES) - 1


def test_a_rate_that_was_measured_over_little_is_only_a_bound() -> None:
    known, low = line(1000, down=4000), Line(100, 0, 50, 50)
    short = believe(known, low, took_s=0.1, time_s=1.0)
    assert (short.up_bytes_s, short.down_bytes_s, short.owner_bytes_s) == (1000, 4000, 1000)
    long = believe(known, low, took_s=0.9, time_s=1.0)
    assert (long.up_bytes_s, long.down_bytes_s, long.owner_bytes_s) == (100, 400, 50), "all of the line has fallen"
    again = believe(long, Line(2000, 0, 50, 50), took_s=0.1, time_s=1.0)
    assert (again.up_bytes_s, again.down_bytes_s) == (2000, 4000)


@pytest.mark.parametrize(
    ("knobs", "problem"),
    [
        (Knobs(rung=11, steps=1), "no rung 11"),
        (Knobs(rung=1, steps=2), "no knobs"),
        (Knobs(rung=1, steps=1, delay=1), "no knobs"),
        (Knobs(rung=1, steps=1, lr=0.1), "no knobs"),
        (Knobs(rung=1, steps=1, each=((A, 11),)), "no rung"),
        (Knobs(rung=1, steps=1, each=((B, 1), (A, 1))), "out of order"),
        (Knobs(rung=1, steps=1, each=((A, 1), (A, 2))), "out of order"),
        (Knobs(rung=1, steps=1, each=((b"x", 1),)), "wrongly"),
        (Knobs(rung=1, steps=1, each=((A, 0), (B, 2))), ""),
    ],
)
def test_what_this_policy_could_not_have_said_is_refused(knobs: Knobs, problem: str) -> None:
    said = objection(load_recipe("sagq"), knobs)
    assert problem in said
    assert bool(said) == bool(problem)
    other = load_recipe("deco")
    if knobs.each:
        assert objection(other, Knobs(rung=1, steps=1, each=knobs.each))
