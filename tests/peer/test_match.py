"""Each peer in the form its line carries: times that match, rounds that are shorter, and every promise kept."""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.plan.lines import Line
from atoll.plan.traffic import traffic
from atoll.sim.case import play as play_case
from atoll.sim.check import violations
from atoll.sim.faults import Crash, Fault, SlowLink
from atoll.sim.scenario import Entrance, Outcome, Scenario, key_of, simulate
from atoll.sim.skies import case_of
from atoll.spec.axes.codec import Fp16, Fp32, Int8, Stochastic
from atoll.spec.axes.control import Form, Match, Nobody
from atoll.spec.recipe import Recipe
from atoll.spec.run import Run
from tests.peer.test_control import turns
from tests.peer.test_hide import rounds_s
from tests.peer.world import DELAYS_S, assert_sound, counting_run, events, machines, name, play, sized

SIZE, SCALE = 8192, 200.0
"""A small vector stands for a larger model: its messages share lines."""
UNEQUAL = (1e7, 5e6, 1e6)


def matching(*, rounds: int, start_with: int = 3, every: int = 3) -> Run:
    run = counting_run("sagq", rounds=rounds, start_with=start_with)
    assert isinstance(run.recipe.control, Match)
    return replace(run, recipe=replace(run.recipe, control=replace(run.recipe.control, every=every)))


def on_lines(run: Run, rates: tuple[float, ...], faults: tuple[Fault, ...] = ()) -> Outcome:
    """Play a run on lines of these rates."""
    each = zip(machines(len(rates)), rates, strict=True)
    unequal = [replace(machine, up_bytes_s=rate, down_bytes_s=rate) for machine, rate in each]
    return simulate(
        Scenario(run=run, machines=unequal, delays_s=DELAYS_S, faults=faults, build=sized(SIZE), scale=SCALE)
    )


def sent_s(outcome: Outcome, version: int) -> list[float]:
    """Return how long each took to bring in its contribution to a round."""
    return [e.took_s for e in events(outcome, journal.ContributionSent) if e.version == version]


@cache
def matched() -> tuple[Run, Outcome]:
    run = matching(rounds=10)
    return run, on_lines(run, UNEQUAL)


@pytest.mark.long
def test_contributions_over_lines_of_ten_five_and_one_take_as_long() -> None:
    run, outcome = matched()
    assert_sound(run, outcome, version=10)
    before, after = sent_s(outcome, 3), sent_s(outcome, 9)
    assert max(before) > 7 * min(before), "all in 32 bits, once the slow one owns nothing"
    assert max(after) < 1.3 * min(after)
    assert rounds_s(outcome)[9] < rounds_s(outcome)[3] / 3
    assert len({rung for turn in turns(outcome) for rung in turn.each.values()} | {turns(outcome)[-1].rung}) > 1


@pytest.mark.long
@pytest.mark.xfail(strict=True, reason="0.71, 0.73 and 0.90 s: the slow line takes 15.2 % longer than the mean")
def test_contributions_take_as_long_to_fifteen_percent() -> None:
    after = sent_s(matched()[1], 9)
    mean_s = sum(after) / len(after)
    assert all(abs(took_s - mean_s) <= 0.15 * mean_s for took_s in after), after


@pytest.mark.long
def test_lines_that_are_alike_stay_with_everything() -> None:
    run = matching(rounds=6)
    outcome = on_lines(run, (5e6, 5e6, 5e6))
    assert_sound(run, outcome, version=6)
    assert not turns(outcome)


@pytest.mark.long
def test_a_line_that_falls_sends_less_and_the_others_as_before() -> None:
    run = matching(rounds=16)
    outcome = on_lines(run, (5e6, 5e6, 5e6), (SlowLink(at_s=20.0, peer=1, for_s=1e6, factor=8.0),))
    assert_sound(run, outcome, version=16)
    slow = name(outcome.hosts[1])
    last = turns(outcome)[-1]
    rungs = {name(host): last.each.get(name(host), last.rung) for host in outcome.hosts}
    assert rungs[slow] > max(rung for who, rung in rungs.items() if who != slow)
    assert rounds_s(outcome)[15] < max(rounds_s(outcome).values()) / 2


@pytest.mark.long
def test_who_joins_or_restarts_finds_its_form_in_the_log() -> None:
    run = matching(rounds=20, every=2)
    faults = [Crash(at_s=3.0, peer=2, restart_after_s=1.0), Crash(at_s=6.0, peer=0, restart_after_s=1.0)]
    outcome = play(run, 4, build=sized(SIZE), rate_bytes_s=1e5, faults=faults, entrances=[Entrance(3, 5)])
    assert_sound(run, outcome, version=20)


# forms that somebody fixed by hand


def by_hand(run: Run) -> Run:
    """Return a run whose first peers contribute in 16 and 8 bits, all others in 32."""
    ((channel_name, channel),) = run.recipe.channel.items()
    peers = [key_of(0, place).peer.hex() for place in range(2)]
    forms = replace(channel, forms=dict(zip(peers, (Fp16(), Int8()), strict=True)))
    return replace(run, recipe=replace(run.recipe, channel={channel_name: forms}, control=Nobody()))


def test_the_log_and_the_recipe_tell_what_arrives_of_contributions_in_forms_of_their_own() -> None:
    run = by_hand(counting_run("ddp", rounds=5, start_with=3))
    outcome = play(run, 3, faults=[Crash(at_s=0.6, peer=1, restart_after_s=0.5)])
    assert_sound(run, outcome, version=5)
    otherwise = by_hand(run)
    ((channel_name, channel),) = otherwise.recipe.channel.items()
    wrong = replace(channel, forms={})
    otherwise = replace(run, recipe=replace(run.recipe, channel={channel_name: wrong}))
    assert any("away from what the log adds up to" in each for each in violations(otherwise, outcome))


def test_predicted_bytes_are_those_that_are_sent() -> None:
    size, rounds = 200_000, 2
    run = by_hand(counting_run("ddp", rounds=rounds, start_with=3, checkpoint_every=100))
    outcome = play(run, 3, build=sized(size), rate_bytes_s=1e9)
    ((channel_name, channel),) = run.recipe.channel.items()
    members = [number.to_bytes(4, "big").hex() for number in range(3)]
    told = replace(channel, forms=dict(zip(members, (Fp16(), Int8()), strict=False)))
    recipe, plain = (replace(run.recipe, channel={channel_name: each}) for each in (told, replace(told, forms={})))
    predicted = traffic(recipe, size, [Line()] * 3)
    told_bytes = sum(moved.sent_bytes for moved in predicted.moved)
    counts = [events(outcome, journal.TrafficCounted, peer=place)[-1].round_sent_bytes for place in range(3)]
    assert told_bytes <= sum(counts) / rounds <= 1.02 * told_bytes
    assert told_bytes < 0.85 * sum(moved.sent_bytes for moved in traffic(plain, size, [Line()] * 3).moved)


# storms


def stormy(recipe: Recipe, *, exact: bool) -> Recipe:
    """Return a recipe in which every peer has a form of its own, of which a log tells all or not."""
    ((channel_name, channel),) = recipe.channel.items()
    coarse = Int8() if exact else Stochastic(bits=4)
    ladder = (Form(codec=Fp32()), Form(codec=Fp16()), Form(codec=coarse))
    return replace(recipe, channel={channel_name: channel}, control=Match(ladder=ladder, every=1))


@pytest.mark.parametrize(
    ("exact", "family", "seeds"),
    [
        (True, "fog", 1),
        *(
            pytest.param(exact, family, 12, marks=pytest.mark.long)
            for exact in (True, False)
            for family in ("squall", "pair", "tide", "regent", "fog", "rot", "doubt", "blackout", "vandal")
        ),
    ],
)
def test_no_storm_breaks_a_promise_though_forms_differ(exact: bool, family: str, seeds: int) -> None:
    for seed in range(seeds):
        case = case_of(family, seed)
        shipped = counting_run("ddp").recipe
        recipe = stormy(replace(shipped, work=replace(shipped.work, batch=8)), exact=exact)
        verdict = play_case(replace(case, run=replace(case.run, recipe=recipe)))
        assert verdict.broken == [], (family, seed)
        assert verdict.rounds > verdict.stormy_rounds
