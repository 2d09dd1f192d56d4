"""Storms over runs whose peers hold a part of what results leave out of their contributions."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.sim.lots import BATCH, STEPS
from atoll.sim.parts import told
from atoll.spec.axes.codec import Bf16, E3m0, Fp16, Sign, Ternary
from atoll.spec.axes.pace import Full, Quorum, Seconds
from atoll.spec.axes.what import Delta, Feedback, Hold
from atoll.spec.axes.when import Every
from atoll.spec.axes.whom import All, Butterfly, Star
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from tests.few import few_of
from tests.sim.under import broken_under, read_back, run_under

FORMS = (
    Delta(codec=Sign(block=64), residual=Hold(shared=0.25)),
    Delta(codec=Sign(block=64), residual=Hold(shared=1.0), result=Ternary(block=64)),
    Delta(codec=Bf16(), residual=Hold(decay=0.7, shared=0.5)),
    Delta(codec=E3m0(), residual=Hold(shared=0.5), result=Fp16()),
)
ROUTES = (Butterfly(), Butterfly(group=2), Star())
SEEDS = range(3200, 3320)
QUICK = (3201, 3206)


def recipe_of(seed: int) -> Recipe:
    """Return the recipe that a seed is played with: all forms by all routes, waiting for everybody or not."""
    shipped = load_recipe("held-bit")
    what, route = FORMS[seed % len(FORMS)], ROUTES[seed // len(FORMS) % len(ROUTES)]
    barrier = Quorum(contributors=2, grace=Seconds(s=0.5)) if seed % 5 == 4 else Full()
    channel = replace(
        shipped.channel["outer"],
        when=Every(steps=STEPS),
        what=replace(what, owners=Feedback()),
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
    assert not any(told(run.recipe.channel["outer"]) for run in runs), "what owners keep no log tells"
