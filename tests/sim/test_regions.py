"""Storms over runs whose members are in regions: every promise holds, and weights follow from the log to the bit."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.sim.case import Case, play
from atoll.sim.skies import BATCH, STEPS, WITHIN_S
from atoll.spec.load import decode_run, load_recipe
from atoll.spec.recipe import All, Circles, Every, Fp16, Mean, Merge, Recipe, Regions
from atoll.spec.run import canonical
from tests.sim.under import few_of, under

SEEDS = range(500, 560)
QUICK = (501, 538)
NEAR = Regions(near_ms=3000 * WITHIN_S)
"""Storms are over three regions, and this is half as far again as it is within one."""


def recipes(seed: int) -> Recipe:
    """Return the recipe that a seed is played with: weights by region, gradients by region, or deltas by region."""
    match seed % 3:
        case 0:
            shipped = load_recipe("hfa")
            how = replace(shipped.channel["outer"], when=Every(steps=STEPS), whom=Circles(pattern=NEAR, all_every=4))
            batch = BATCH
        case 1:
            shipped = load_recipe("hips")
            how, batch = replace(shipped.channel["outer"], whom=All(route=NEAR)), BATCH * STEPS
        case _:
            shipped = load_recipe("diloco")
            how = replace(shipped.channel["outer"], when=Every(steps=STEPS), whom=All(route=NEAR))
            merge = Merge(outer=how.merge.outer, combine=Mean(weights="samples"))
            how, batch = replace(how, what=replace(how.what, codec=Fp16()), merge=merge), BATCH
    return replace(shipped, work=replace(shipped.work, batch=batch), channel={"outer": how})


def case(seed: int) -> Case:
    return under(recipes(seed), seed)


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert play(case(seed)).broken == []


def test_all_of_them_are_runs_that_a_person_could_have_written() -> None:
    for seed in SEEDS[:3]:
        run = case(seed).run
        assert decode_run(canonical(run)) == run
