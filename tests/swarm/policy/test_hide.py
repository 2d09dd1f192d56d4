"""How late results are and how much is sent, chosen together: what the rule comes to, and that it stays with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from atoll.spec.axes.codec import Fp32, TopK
from atoll.spec.axes.control import Batches, Form, Hide, Knobs
from atoll.spec.knobs import beginning, objection, part_sent, turned
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from atoll.swarm.policy.forecast import View
from atoll.swarm.policy.hide import choose, cost_s, decide, round_s

FORMS = tuple(Form(codec=codec) for codec in (Fp32(), TopK(keep=1024), TopK(keep=410), TopK(keep=41)))
HIDE = Hide(ladder=FORMS)
RATIOS = (1.0, 0.5, 0.2, 0.02)
RECIPE = load_recipe("deco")


def view(wire_s: float, rest_s: float = 0.0) -> View:
    """Return a run of steps of a second whose bytes take so long when everything is sent."""
    return View(step_s=1.0, wire_s=wire_s, rest_s=rest_s, ratios=RATIOS, members=4)


@pytest.mark.parametrize(
    ("wire_s", "rest_s", "rung", "delay"),
    [
        (0.0, 0.0, 0, 0),  # nothing to hide: plain data parallelism
        (0.005, 0.0, 0, 0),  # too little to be late for
        (0.5, 0.0, 0, 1),  # a round late hides it: everything is sent
        (1.9, 0.0, 1, 1),  # the most that goes by while the next is worked on
        (4.0, 0.0, 2, 1),
        (4.0, 0.5, 2, 1),  # what is not bytes is hidden too
        (40.0, 0.0, 3, 1),
        (0.0, 0.9, 0, 1),
    ],
)
def test_exchanges_are_hidden_with_the_least_delay_and_the_most_that_is_sent(
    wire_s: float, rest_s: float, rung: int, delay: int
) -> None:
    assert choose(HIDE, view(wire_s, rest_s), 1) == Knobs(rung=rung, steps=1, delay=delay)


@pytest.mark.parametrize(
    ("wire_s", "rest_s", "rung", "delay"),
    [
        (0.5, 0.0, 0, 1),  # no later than need be
        (0.0, 3.9, 0, 4),  # long links: nothing but waiting is hidden, so everything is sent
        (0.0, 100.0, 0, 5),  # but not at any price: one later would cost more rounds than it saves time
        (4.0, 0.0, 2, 1),  # bytes fill the lines: more rounds under way share them
        (2.0, 3.0, 1, 4),  # as little as they carry in the time of the work, and as late as the rest takes
    ],
)
def test_where_results_may_be_later_as_many_rounds_hide_what_is_not_bytes(
    wire_s: float, rest_s: float, rung: int, delay: int
) -> None:
    later = replace(HIDE, late_max=8)
    assert choose(later, view(wire_s, rest_s), 1) == Knobs(rung=rung, steps=1, delay=delay)


@given(some.floats(0, 1e4), some.floats(0, 1e4), some.floats(0, 1), some.floats(1, 10))
def test_what_is_chosen_may_be_chosen_and_nothing_is_cheaper(
    wire_s: float, rest_s: float, penalty: float, amplify: float
) -> None:
    hide, seen = replace(HIDE, penalty=penalty, amplify=amplify), view(wire_s, rest_s)
    chosen = choose(hide, seen, 1)
    assert objection(replace(RECIPE, control=hide), chosen) == ""
    every = [Knobs(rung=rung, steps=1, delay=delay) for rung in range(4) for delay in (0, 1)]
    assert cost_s(hide, seen, chosen) == min(cost_s(hide, seen, each) for each in every)
    as_long = [each for each in every if round_s(seen, each) == round_s(seen, chosen)]
    gentler = [e for e in as_long if e.delay <= chosen.delay and _sent(e) > _sent(chosen)]
    assert not gentler or penalty == 0, "of rounds that are as long it is the one that sends most"


def _sent(knobs: Knobs) -> float:
    return part_sent(FORMS[knobs.rung].codec)


def test_lateness_makes_what_is_left_out_worse_exponentially() -> None:
    seen = view(0.0)

    def more(rung: int, delay: int) -> float:
        knobs = Knobs(rung=rung, steps=1, delay=delay)
        return cost_s(HIDE, seen, knobs) / round_s(seen, knobs) - 1

    assert more(0, 0) == 0.0
    assert more(3, 0) == pytest.approx(0.01 * (4096 / 41 - 1))
    assert more(3, 1) - more(3, 0) > 50 * (more(0, 1) - more(0, 0)) > 0


def test_a_setting_stays_while_nothing_is_clearly_cheaper() -> None:
    now = choose(HIDE, view(4.0), 1)
    for wander in (0.9, 1.0, 1.1):
        assert decide(HIDE, view(4.0 * wander), now)[0] == now
    harder, why = decide(HIDE, view(40.0), now)
    assert harder == Knobs(rung=3, steps=1, delay=1)
    assert "top-k of 0.01 of all values, results a round late" in why
    assert decide(HIDE, view(0.0), now)[0] == Knobs(rung=0, steps=1)
    first = Knobs(rung=0, steps=1)
    assert decide(HIDE, view(0.0), first) == (first, ""), "as the recipe has it is best"


@pytest.mark.parametrize(
    ("knobs", "problem"),
    [
        (Knobs(rung=7, steps=1), "no rung 7"),
        (Knobs(rung=1, steps=2), "no knobs"),
        (Knobs(rung=1, steps=1, lr=0.1), "no knobs"),
        (Knobs(rung=1, steps=1, delay=9), "9 rounds late, where they may be 8"),
    ],
)
def test_what_this_policy_could_not_have_said_is_refused(knobs: Knobs, problem: str) -> None:
    assert problem in objection(load_recipe("deco"), knobs)


# of how large a batch

BATCHES = (8, 16, 32, 64)
SIZED = replace(HIDE, batch=Batches(times=(1, 2, 4, 8), critical=32.0))


def of_eight(wire_s: float, rest_s: float = 0.0) -> View:
    """Return a run of batches of eight samples, whose work takes a second, and which may be larger."""
    return replace(view(wire_s, rest_s), samples=8, batches=BATCHES)


@pytest.mark.parametrize(
    ("wire_s", "rest_s", "rung", "delay", "samples"),
    [
        (0.0, 0.0, 0, 0, 8),  # nothing to hide: more samples would be read for nothing
        (0.9, 0.0, 0, 1, 8),
        (1.9, 0.0, 0, 1, 16),  # twice the work hides all of it, for a fifth more to read
        (0.0, 3.9, 0, 1, 32),  # what is not bytes is not made less by sending less
        (0.0, 1000.0, 0, 0, 64),  # it cannot be hidden, so it is shared among as many as may be
    ],
)
def test_batch_and_part_sent_are_chosen_together(
    wire_s: float, rest_s: float, rung: int, delay: int, samples: int
) -> None:
    penal = replace(SIZED, penalty=0.6)
    assert choose(penal, of_eight(wire_s, rest_s), 1) == Knobs(rung=rung, steps=1, delay=delay, samples=samples)


def test_where_leaving_out_costs_little_less_is_sent_and_where_it_costs_much_batches_are_larger() -> None:
    seen = of_eight(4.0)
    assert choose(replace(SIZED, penalty=0.01), seen, 1) == Knobs(rung=2, steps=1, delay=1, samples=8)
    assert choose(replace(SIZED, penalty=1.0), seen, 1) == Knobs(rung=0, steps=1, delay=0, samples=32)


@given(some.floats(0, 1e3), some.floats(0, 1e3), some.floats(1e-3, 1e6))
def test_of_batches_none_comes_as_far_in_less_time(wire_s: float, rest_s: float, critical: float) -> None:
    hide, seen = replace(SIZED, batch=Batches(times=(1, 2, 4, 8), critical=critical)), of_eight(wire_s, rest_s)
    chosen = choose(hide, seen, 1)

    def time_s(samples: int) -> float:
        """By the sample, of which larger batches need more."""
        return round_s(seen, replace(chosen, samples=samples)) / samples * (1 + samples / critical)

    assert time_s(chosen.samples) <= min(map(time_s, BATCHES)) * (1 + 1e-12)


def stella(times: tuple[int, ...] = (1, 2, 4)) -> Recipe:
    recipe = load_recipe("stellatrain")
    assert isinstance(recipe.control, Hide)
    return replace(recipe, control=replace(recipe.control, batch=Batches(times=times, critical=4096)))


def test_a_turned_batch_is_the_channels_and_only_listed_ones_may_be_said() -> None:
    recipe = stella()
    (channel,) = recipe.channel.values()
    first = beginning(recipe)
    assert first.samples == channel.when.round_steps * 2048
    assert turned(recipe, first) == channel
    assert turned(recipe, replace(first, samples=8192)).when == replace(channel.when, samples=8192)
    assert objection(recipe, replace(first, samples=8192)) == ""
    for samples in (0, 1, 3 * 2048, 8 * 2048):
        assert f"a batch of {samples} samples" in objection(recipe, replace(first, samples=samples))
    assert "a batch of 2048" in objection(load_recipe("deco"), Knobs(rung=0, steps=1, samples=2048))
    assert "a batch of 2048" in objection(load_recipe("auto"), Knobs(rung=0, steps=10, lr=0.6, samples=2048))
