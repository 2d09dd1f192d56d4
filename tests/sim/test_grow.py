"""Storms over runs whose rounds grow, as the rate falls or when one moved little: results at once, late, in parts.

Rates fall as a budget is spent, so these have a small one, of rounds or of tokens; none of them comes to its end.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.sim.case import Case, play
from atoll.sim.lots import BATCH, STEPS
from atoll.sim.skies import case_of, family_of
from atoll.spec.axes.when import Every, Fragments
from atoll.spec.axes.work import ByRate, Cosine, Growing, Quota, Wsd
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.run import Budget
from tests.sim.under import few_of, read_back, run_under

RECIPES = ("diloco", "held-bit", "eager", "streaming", "noloco", "decoupled")
QUOTAS: tuple[Quota, ...] = (ByRate(power=6.0, most=4 * STEPS), ByRate(), Growing(below=1e3, most=2 * STEPS))
SCHEDULES = (Cosine(floor=0.05), Wsd(decay=0.9, floor=0.1))
SEEDS = range(2000, 2180)
QUICK = (2000, 2007, 2026, 2045)
ROUNDS = 40


def recipe_of(seed: int) -> Recipe:
    """Return the recipe that a seed is played with: every one with every way to grow."""
    shipped = load_recipe(RECIPES[seed % len(RECIPES)])
    quota, schedule = QUOTAS[seed // len(RECIPES) % len(QUOTAS)], SCHEDULES[seed // 18 % len(SCHEDULES)]
    work = replace(shipped.work, batch=BATCH, quota=quota, schedule=schedule)
    return replace(shipped, work=work, channel={"outer": _in_few_steps(shipped.channel["outer"])})


def _in_few_steps(channel: Channel) -> Channel:
    match channel.when:
        case Fragments(count=count):
            return replace(channel, when=replace(channel.when, steps=count * STEPS))
        case _:
            return replace(channel, when=Every(steps=STEPS))


def storm_of(seed: int) -> Case:
    """Return the storm of a seed over such a run."""
    run = run_under(recipe_of(seed), seed)
    samples = ROUNDS * 5 * STEPS * BATCH
    budget = Budget(tokens=samples * run.data.context) if seed % 2 else Budget(rounds=ROUNDS)
    return replace(case_of(family_of(seed), seed), run=read_back(replace(run, budget=budget)))


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert play(storm_of(seed)).broken == []


def test_rounds_grow_in_storms() -> None:
    told: set[int] = set()

    def sees(line: journal.Line) -> None:
        if isinstance(line.event, journal.QuotasChanged):
            told.update(line.event.quotas.values())

    play(storm_of(2003), sees=sees)
    assert len(told) > 3
    assert max(told) > 1.5 * BATCH * STEPS
