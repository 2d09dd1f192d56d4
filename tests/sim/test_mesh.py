"""Storms over runs whose gradients go over each link by itself, and in which one now and then teaches the others.

Where everything is sent, everybody's weights follow from log and journals to the bit; where it is not, every other
promise holds. The cases are those of `skies`, with the recipe changed.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.sim.lots import BATCH, STEPS
from atoll.spec.axes.codec import Fp16, Fp32, MaxN
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.what import Grad
from atoll.spec.axes.when import Growth, TargetBatch
from atoll.spec.axes.whom import Circles, Mesh
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from tests.few import few_of
from tests.sim.under import broken_under, read_back, run_under

SEEDS = range(600, 660)
QUICK = (605,)


def recipe_of(seed: int) -> Recipe:
    """Return the shipped recipe, cut down: as it is, of a fixed N, or with everything sent."""
    shipped = load_recipe("dlion")
    channel = shipped.channel["outer"]
    what = channel.what
    match seed % 4:
        case 0 | 1:
            what = Grad(codec=Fp32() if seed % 8 else Fp16())
        case 2:
            what = replace(what, codec=MaxN(least=30.0, most=30.0))
        case _:
            pass
    growth = Growth(every=4, add=BATCH, until=5 * BATCH * STEPS, most=64)
    outer = Sgd(lr=0.1, momentum=0.9 if seed % 3 else 0.0)
    channel = replace(
        channel,
        when=TargetBatch(samples=4 * BATCH * STEPS, growth=growth),
        what=what,
        whom=Circles(pattern=Mesh(teach_every=2 + seed % 5, pull=0.75)),
        merge=replace(channel.merge, outer=outer),
    )
    return replace(shipped, work=replace(shipped.work, batch=BATCH), channel={"outer": channel})


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert broken_under(recipe_of(seed), seed) == []


def test_all_of_them_are_runs_that_a_person_could_have_written() -> None:
    runs = [run_under(recipe_of(seed), seed) for seed in SEEDS[:8]]
    assert [read_back(run) for run in runs] == runs
