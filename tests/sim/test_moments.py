"""Storms over runs whose moments travel with the weights, each at a period of its own.

They hold how these travel. What an optimizer makes of them is held with real ones (`tests/identity/test_moments.py`).
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.sim.case import Case, play
from atoll.sim.lots import BATCH, STEPS
from atoll.sim.skies import case_of, family_of
from atoll.spec.axes.codec import Bf16, Fp32
from atoll.spec.axes.merge import Mean, Merge, Trimmed
from atoll.spec.axes.optimizer import Assign
from atoll.spec.axes.pace import Full, Quorum, Seconds
from atoll.spec.axes.what import Params
from atoll.spec.axes.when import WithMoments
from atoll.spec.axes.whom import All, AllGather, Butterfly, Rings, Star, Trees
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from tests.few import few_of
from tests.sim.under import read_back, run_under

ROUTES = (Butterfly(), Butterfly(), AllGather(), Star(), Trees(), Rings(clusters=2))
PERIODS = ((3, 6), (1, 1), (2, 3), (0, 2), (1, 2))
SEEDS = range(3000, 3120)
QUICK = (3001, 3003, 3013)


def recipe_of(seed: int) -> Recipe:
    """Return the recipe that a seed is played with: all periods and routes, some by quorum, in two forms."""
    shipped = load_recipe("desloc")
    first, second = PERIODS[seed % len(PERIODS)]
    route = ROUTES[seed % len(ROUTES)]
    goes_round = isinstance(route, Trees | Rings)  # and so is exact, and waits for everybody
    combine = Trimmed() if isinstance(route, Butterfly) and seed % 4 == 0 else Mean()
    channel = replace(
        shipped.channel["outer"],
        when=WithMoments(steps=STEPS, first=first, second=second),
        what=Params(codec=Bf16() if seed % 3 == 0 and not goes_round else Fp32()),
        whom=All(route=route),
        merge=Merge(outer=Assign(), combine=combine),
        barrier=Quorum(contributors=2, grace=Seconds(s=0.5)) if seed % 5 == 4 and not goes_round else Full(),
    )
    return replace(shipped, work=replace(shipped.work, batch=BATCH), channel={"outer": channel})


def storm_of(seed: int) -> Case:
    """Return the storm of a seed over such a run."""
    case, run = case_of(family_of(seed), seed), run_under(recipe_of(seed), seed)
    return replace(case, run=read_back(run))


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert play(storm_of(seed)).broken == []
