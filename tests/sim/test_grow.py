"""Storms over runs whose rounds grow, as the rate falls or when one moved little.

Rates fall as a budget is spent, so these have a small one, of rounds or of tokens.
"""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.sim.case import Case, play
from atoll.sim.lots import BATCH, STEPS
from atoll.sim.skies import case_of, family_of
from atoll.spec.axes.pace import Carry, Quorum, Seconds
from atoll.spec.axes.when import Every, Fragments
from atoll.spec.axes.work import ByRate, Cosine, Growing, Quota, Wsd
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.run import Budget
from tests.few import few_of
from tests.sim.under import read_back, run_under

RATES: tuple[Quota, ...] = (ByRate(power=6.0, most=4 * STEPS), ByRate(most=3 * STEPS))
LITTLE: Quota = Growing(below=1e3, most=2 * STEPS)
WAITING = ("diloco", "held-bit", "noloco", "co-learning", "qsr")
BESIDE = ("eager", "streaming", "decoupled")
"""Whose members go on while results are on their way: their rounds do not follow the rate."""
WAYS = [*product(WAITING, RATES), *((recipe, LITTLE) for recipe in WAITING + BESIDE)]
SCHEDULES = (Cosine(floor=0.05), Wsd(decay=0.9, floor=0.1))
SEEDS = range(2000, 2180)
QUICK = (2000, 2024)
ROUNDS = 24


def recipe_of(seed: int) -> Recipe:
    """Return the recipe that a seed is played with: all ways, some of them with a quorum whose late ones work on."""
    name, quota = WAYS[seed % len(WAYS)]
    shipped = load_recipe(name)
    channel = _in_few_steps(shipped.channel["outer"])
    if name == "diloco" and seed % 2:
        channel = replace(channel, barrier=Quorum(contributors=2, grace=Seconds(s=0.5)), late=Carry())
    work = replace(shipped.work, batch=BATCH, quota=quota, schedule=SCHEDULES[seed // len(WAYS) % len(SCHEDULES)])
    return replace(shipped, work=work, channel={"outer": channel})


def _in_few_steps(channel: Channel) -> Channel:
    match channel.when:
        case Fragments(count=count):
            return replace(channel, when=replace(channel.when, steps=count * STEPS))
        case _:
            return replace(channel, when=Every(steps=STEPS))


def storm_of(seed: int) -> Case:
    """Return the storm of a seed over such a run."""
    case, run = case_of(family_of(seed), seed), run_under(recipe_of(seed), seed)
    samples = ROUNDS * len(case.machines) * STEPS * BATCH
    budget = Budget(tokens=samples * run.data.context) if seed // 30 % 2 else Budget(rounds=ROUNDS)
    return replace(case, run=read_back(replace(run, budget=budget)))


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert play(storm_of(seed)).broken == []


@pytest.mark.parametrize("seed", few_of((2000, 2002, 2005, 2024), QUICK))
def test_rounds_grow_in_storms(seed: int) -> None:
    told: set[int] = set()

    def sees(line: journal.Line) -> None:
        if isinstance(line.event, journal.QuotasChanged):
            told.update(line.event.quotas.values())

    play(storm_of(seed), sees=sees)
    assert max(told) >= 1.5 * BATCH * STEPS
