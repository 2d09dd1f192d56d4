"""Storms over runs whose sums go up trees, or round the rings of clusters: every promise holds all the same.

The cases are those of `skies`, with the recipe changed: what the weather is does not depend on that.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.sim.lots import BATCH, STEPS
from atoll.spec.axes.codec import Fp16, Int8
from atoll.spec.axes.when import Every
from atoll.spec.axes.whom import All, Rings, Trees
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from tests.few import few_of
from tests.sim.under import broken_under, read_back, run_under

SEEDS = range(500, 560)
QUICK = (533, 540)


def recipes(seed: int) -> Recipe:
    """Return the recipe that a seed is played with: a shipped one, or DiLoCo by these routes in fewer bits."""
    match seed % 4:
        case 0:
            shipped = load_recipe("netstorm")
            return replace(shipped, work=replace(shipped.work, batch=BATCH * STEPS))
        case 1:
            shipped = load_recipe("ravnest")
            channel = replace(shipped.channel["outer"], when=Every(steps=STEPS), whom=All(route=Rings(clusters=2)))
        case 2:
            channel = replace(load_recipe("diloco").channel["outer"], when=Every(steps=STEPS))
            what = replace(channel.what, codec=Int8())
            channel = replace(channel, what=what, whom=All(route=Trees(roots=2, gain=0.0)))
        case _:
            channel = replace(load_recipe("diloco").channel["outer"], when=Every(steps=STEPS))
            what = replace(channel.what, codec=Fp16())
            channel = replace(channel, what=what, whom=All(route=Rings(clusters=3)))
    shipped = load_recipe("ravnest" if seed % 4 == 1 else "diloco")
    return replace(shipped, work=replace(shipped.work, batch=BATCH), channel={"outer": channel})


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert broken_under(recipes(seed), seed) == []


def test_all_of_them_are_runs_that_a_person_could_have_written() -> None:
    runs = [run_under(recipes(seed), seed) for seed in SEEDS[:4]]
    assert [read_back(run) for run in runs] == runs
