"""Several clouds, and a cloud beside one's own machines: small enough to try everything."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from atoll.errors import SpecError
from atoll.plan.money.clouds import Functions, Machines, Option, Site, cheapest, front, priced
from atoll.plan.money.hybrid import Line, Offer, Own, Work, decide, line_needed_bytes_s, mix

rate = st.sampled_from([1.0, 2.0, 5.0, 9.0])


@st.composite
def options(draw: st.DrawFn) -> Option:
    """Draw functions or machines."""
    if draw(st.booleans()):
        return Machines(name="vm", count=draw(st.integers(1, 3)), usd_hour=draw(rate), samples_s=draw(rate))
    return Functions(
        name="fn",
        count=draw(st.integers(1, 8)),
        memory_gb=draw(rate),
        usd_gb_s=draw(st.sampled_from([2e-5, 2e-4])),
        samples_s=draw(rate),
        start_s=draw(st.sampled_from([0.0, 30.0])),
    )


sites = st.lists(
    st.builds(
        Site,
        name=st.just("site"),
        samples=st.sampled_from([100.0, 900.0, 4000.0]),
        options=st.lists(options(), min_size=1, max_size=3).map(tuple),
        up_bytes_s=st.sampled_from([1e6, 1e8]),
        usd_gb=st.sampled_from([0.0, 0.1]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(sites, st.floats(0.05, 20))
def test_the_choice_for_all_sites_is_what_trying_everything_finds(some: list[Site], deadline_h: float) -> None:
    tried = [priced(some, chosen, 10, 1e8) for chosen in product(*(site.options for site in some))]
    found = front(some, 10, 1e8)
    assert found[0].hours == pytest.approx(min(each.hours for each in tried))
    assert found[-1].usd == pytest.approx(min(each.usd for each in tried))
    for each in found:
        as_quick = [one.usd for one in tried if one.hours <= each.hours * (1 + 1e-12)]
        assert each.usd == pytest.approx(min(as_quick))
    in_time = [one.usd for one in tried if one.hours <= deadline_h]
    best = cheapest(some, 10, 1e8, deadline_h)
    assert (best is None) == (not in_time)
    assert best is None or best.usd == pytest.approx(min(in_time))


def test_a_slow_site_makes_machines_elsewhere_wait_and_functions_not() -> None:
    slow = Site(
        name="slow",
        samples=36_000,
        options=(Machines(name="vm", count=1, usd_hour=1.0, samples_s=1.0),),
        up_bytes_s=1e9,
    )
    machine = Machines(name="vm", count=1, usd_hour=4.0, samples_s=100.0)
    function = Functions(name="fn", count=10, memory_gb=4, usd_gb_s=5e-5, samples_s=10.0)
    other = Site(name="other", samples=36_000, options=(machine, function), up_bytes_s=1e9)
    alone, both = cheapest([other], 1, 0.0), cheapest([slow, other], 1, 0.0)
    assert alone is not None and alone.options == (machine,)
    assert both is not None and both.options[1] == function


WORK = Work(samples=1e7, round_samples=4096, round_bytes=5e7)
OWN = Own(count=4, samples_s=50, power_kw=0.5, usd_kwh=0.2)
SPOT = Offer(name="spot", usd_hour=1.0, samples_s=150, count_max=12, up_fraction=0.8, usd_gb=0.09)
STEADY = Offer(name="on demand", usd_hour=3.0, samples_s=150, count_max=12, usd_gb=0.09)
FIBRE = Line(up_bytes_s=1.25e8, down_bytes_s=1.25e8, latency_s=0.02)


def test_the_slower_the_line_the_less_hiring_helps_until_it_harms() -> None:
    alone = mix(WORK, OWN, None, 0, FIBRE)
    need = line_needed_bytes_s(WORK, OWN, STEADY, 8, FIBRE.latency_s)
    just, short = (
        mix(WORK, OWN, STEADY, 8, replace(FIBRE, up_bytes_s=part * need, down_bytes_s=part * need))
        for part in (1.01, 0.99)
    )
    assert just.hours < alone.hours < short.hours
    assert mix(WORK, OWN, STEADY, 8, FIBRE).hours < just.hours
    assert short.binds == "line" and alone.binds == "compute"


def test_one_hires_as_little_as_the_deadline_allows_and_nothing_where_ones_own_are_enough() -> None:
    work = replace(WORK, round_bytes=5e5)
    alone = mix(work, OWN, None, 0, FIBRE)
    calm = decide(work, OWN, [SPOT, STEADY], FIBRE, 1.01 * alone.hours)
    assert calm.best == alone and not calm.hybrid_pays
    hurried = decide(work, OWN, [SPOT, STEADY], FIBRE, alone.hours / 3)
    assert hurried.hybrid_pays and hurried.best.offer == "spot"
    assert hurried.cloud_only is not None and hurried.cloud_only.hired > hurried.best.hired
    fewer = mix(work, OWN, SPOT, hurried.best.hired - 1, FIBRE)
    assert fewer.hours > alone.hours / 3
    impossible = decide(work, OWN, [SPOT, STEADY], FIBRE, 0.1)
    assert not impossible.in_time and impossible.best.hours > 0.1


def test_spot_machines_work_and_are_paid_only_while_they_are_there() -> None:
    half = replace(SPOT, up_fraction=0.5)
    nobody = Own(count=0, samples_s=1)
    always, sometimes = (mix(WORK, nobody, offer, 4, FIBRE) for offer in (replace(SPOT, up_fraction=1.0), half))
    assert sometimes.hours == pytest.approx(2 * always.hours)
    assert sometimes.paid.total_usd == pytest.approx(always.paid.total_usd)


def test_what_leaves_a_cloud_can_cost_more_than_ones_own_machines_save() -> None:
    deadline_h = mix(WORK, OWN, None, 0, FIBRE).hours / 3
    priced_gb = decide(WORK, OWN, [SPOT], FIBRE, deadline_h)
    assert priced_gb.best.own == 0, "a hundred times the bytes: all is hired"
    assert decide(WORK, OWN, [replace(SPOT, usd_gb=0.0)], FIBRE, deadline_h).hybrid_pays


def test_over_a_slow_line_all_is_hired_and_ones_own_machines_stay_idle() -> None:
    dsl = Line(up_bytes_s=1e6, down_bytes_s=5e6)
    found = decide(WORK, OWN, [STEADY], dsl, 8.0)
    assert found.in_time and found.best.own == 0 and not found.hybrid_pays


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 8), st.sampled_from([0.0, 0.3, 5.0]), st.booleans(), st.sampled_from([0.0, 0.1])
)
def test_the_line_that_is_needed_divides_what_is_quicker_from_what_is_not(
    count: int, hired: int, near_s: float, overlapped: bool, latency_s: float
) -> None:
    work, own = replace(WORK, near_s=near_s, overlapped=overlapped), replace(OWN, count=count)
    alone_h = mix(work, own, None, 0, FIBRE).hours
    need = line_needed_bytes_s(work, own, STEADY, hired, latency_s)
    if need == float("inf"):
        fast = Line(up_bytes_s=1e15, down_bytes_s=1e15, latency_s=latency_s)
        assert mix(work, own, STEADY, hired, fast).hours >= alone_h
        return
    just, short = (Line(up_bytes_s=f * need, down_bytes_s=1e12, latency_s=latency_s) for f in (1.001, 0.999))
    assert mix(work, own, STEADY, hired, just).hours < alone_h < mix(work, own, STEADY, hired, short).hours


def test_who_is_alone_at_a_site_agrees_with_nobody_there() -> None:
    one, slow = replace(OWN, count=1), replace(WORK, near_s=1e4)
    assert mix(slow, one, None, 0, FIBRE) == mix(WORK, one, None, 0, FIBRE)
    assert mix(slow, one, STEADY, 1, FIBRE) == mix(WORK, one, STEADY, 1, FIBRE)
    assert mix(slow, one, STEADY, 2, FIBRE).hours > mix(WORK, one, STEADY, 2, FIBRE).hours
    assert line_needed_bytes_s(slow, one, STEADY, 2) == float("inf"), "agreeing costs more than the second one saves"


def test_what_binds_is_what_more_of_would_shorten_a_round() -> None:
    work = replace(WORK, near_s=30.0)
    line = Line(up_bytes_s=5e6, down_bytes_s=5e6)
    assert mix(work, OWN, STEADY, 8, line).binds == "line", "10 s on the line, 3 to calculate, 30 that nobody shortens"
    assert mix(replace(work, overlapped=True), OWN, STEADY, 8, line).binds == "compute", "the line is hidden"


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda: replace(FIBRE, up_bytes_s=0.0), "up_bytes_s: 0.0 is out of range"),
        (lambda: replace(FIBRE, latency_s=float("nan")), "latency_s: nan is out of range"),
        (lambda: replace(WORK, round_samples=0.0), "round_samples: 0.0"),
        (lambda: replace(WORK, samples=float("inf")), "samples: inf"),
        (lambda: replace(SPOT, up_fraction=0.0), "up_fraction: 0.0"),
        (lambda: replace(SPOT, up_fraction=1.5), "up_fraction: 1.5"),
        (lambda: replace(SPOT, usd_hour=-1.0), "usd_hour: -1.0"),
        (lambda: replace(OWN, samples_s=0.0), "samples_s: 0.0"),
        (lambda: mix(WORK, replace(OWN, count=0), None, 0, FIBRE), "nobody is there"),
        (lambda: decide(WORK, replace(OWN, count=0), [], FIBRE, 1.0), "nobody is there"),
        (lambda: Machines(name="vm", count=0, usd_hour=1.0, samples_s=1.0), "count: 0"),
        (lambda: Site(name="s", samples=1.0, options=(), up_bytes_s=1.0), "nothing can work at 's'"),
        (lambda: front([], 1, 1.0), "sites: 0"),
    ],
)
def test_what_nothing_can_be_computed_with_is_refused_by_its_name(wrong: Callable[[], object], what: str) -> None:
    with pytest.raises(SpecError) as caught:
        wrong()
    assert what in caught.value.what and caught.value.hint


def test_free_machines_cost_nothing_and_are_chosen_for_it() -> None:
    found = decide(WORK, replace(OWN, power_kw=0.0), [replace(STEADY, usd_hour=0.0, usd_gb=0.0)], FIBRE, 1e9)
    assert found.best.paid.total_usd == 0 and found.best.hours == min(
        mix(WORK, replace(OWN, power_kw=0.0), STEADY, 12, FIBRE).hours,
        mix(WORK, replace(OWN, count=0), STEADY, 12, FIBRE).hours,
    )
