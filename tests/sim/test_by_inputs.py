"""Storms over runs whose owners round results by what layers are given."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.sim.lots import BATCH, STEPS
from atoll.sim.parts import told
from atoll.spec.axes.codec import Bf16, Sign
from atoll.spec.axes.pace import Full, Quorum, Seconds
from atoll.spec.axes.what import ByInputs, Delta, Feedback, Hold
from atoll.spec.axes.when import Every, Fragments
from atoll.spec.axes.whom import All, Butterfly, Star
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from tests.few import few_of
from tests.sim.under import broken_under, read_back, run_under

BIT = Sign(block=64)
FORMS = (
    Delta(codec=BIT, residual=Hold()),
    Delta(codec=Bf16(), residual=Hold(decay=0.7), result=BIT),
    Delta(codec=BIT, residual=Feedback()),
)
ROUTES = (Butterfly(), Butterfly(group=2), Star())
SEEDS = range(3400, 3500)
QUICK = (3401, 3405)


def recipe_of(seed: int) -> Recipe:
    """Return the recipe that a seed is played with: all forms by all routes, whole or in parts."""
    shipped = load_recipe("held-bit")
    what, route = FORMS[seed % len(FORMS)], ROUTES[seed // len(FORMS) % len(ROUTES)]
    barrier = Quorum(contributors=2, grace=Seconds(s=0.5)) if seed % 5 == 4 else Full()
    channel = replace(
        shipped.channel["outer"],
        when=Fragments(steps=STEPS, count=2) if seed % 4 == 3 else Every(steps=STEPS),
        what=replace(what, owners=Feedback(), rounding=ByInputs(damping=0.5)),
        whom=All(route=route),
        barrier=barrier,
    )
    return replace(shipped, work=replace(shipped.work, batch=BATCH), channel={"outer": channel})


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert broken_under(recipe_of(seed), seed) == []


def test_all_of_them_are_runs_that_a_person_could_have_written() -> None:
    runs = [run_under(recipe_of(seed), seed) for seed in SEEDS[::7]]
    assert [read_back(run) for run in runs] == runs
    assert not any(told(run.recipe.channel["outer"]) for run in runs), "what owners see no log tells"
