"""Storms over runs whose first rounds have another form than later ones, of the whole model or of named tensors."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from atoll.model.folder import layout_of
from atoll.sim.lots import BATCH, STEPS
from atoll.sim.parts import told
from atoll.sim.scenario import stand_in
from atoll.sim.skies import case_of, family_of
from atoll.spec.axes.codec import Bf16, Buckets, Fp16, Fp32, Quaternary, Sign
from atoll.spec.axes.pace import Full, Quorum, Seconds
from atoll.spec.axes.what import ByInputs, Delta, Feedback, Hold, Nearest
from atoll.spec.axes.when import Every, Fragments, Named, When
from atoll.spec.axes.whom import All, Butterfly, Star
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Finer, Recipe
from atoll.spec.run import Fresh
from atoll.sync.units import units_in
from tests.few import few_of
from tests.sim.under import broken_under, read_back, run_under

BIT = Sign(block=64)
WHENS: tuple[When, ...] = (
    Every(steps=STEPS),
    Named(steps=2 * STEPS, names=("layers.1.", "layers.3.")),
    Fragments(steps=2 * STEPS, count=2),
    Named(steps=2 * STEPS, names=("layers.0.",)),
)
FORMS: tuple[tuple[Delta, tuple[Finer, ...]], ...] = (
    (Delta(codec=BIT, residual=Hold(), owners=Feedback(decay=0.7)), (Finer(rounds=2, codec=Quaternary(block=64)),)),
    (Delta(codec=Bf16(), residual=Hold()), (Finer(rounds=3, codec=Fp32()),)),
    (
        Delta(codec=BIT, residual=Feedback(), owners=Feedback()),
        (Finer(rounds=2, codec=Buckets(bits=4), result=Fp16()),),
    ),
    (Delta(codec=Fp16(), residual=Hold()), (Finer(rounds=2, codec=Fp32(), result=Fp16()),)),
)
"""Those of sixteen bits are judged to the bit."""
ROUTES = (Butterfly(), Butterfly(group=2), Star())
SEEDS = range(3500, 3680)
QUICK = (3501, 3506)


def recipe_of(seed: int) -> Recipe:
    """Return the recipe that a seed is played with: all forms in all parts by all routes, waiting or not."""
    shipped = load_recipe("held-bit")
    (what, finer), when = FORMS[seed % len(FORMS)], WHENS[seed // 3 % len(WHENS)]
    if not isinstance(when, Every) and seed % 2:
        finer = (*finer, replace(finer[0], rounds=1, part=2))
    if what.codec == BIT and seed % 8 == 4:
        what = replace(what, rounding=ByInputs(damping=0.3, gain=1.2))
    barrier = Quorum(contributors=2, grace=Seconds(s=0.5)) if seed % 5 == 4 else Full()
    whom = All(route=ROUTES[seed // len(FORMS) % len(ROUTES)])
    channel = replace(shipped.channel["outer"], when=when, what=what, whom=whom, barrier=barrier, finer=finer)
    return replace(shipped, work=replace(shipped.work, batch=BATCH), channel={"outer": channel})


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert broken_under(recipe_of(seed), seed) == []


def test_all_of_them_are_runs_that_a_person_could_have_written_and_many_are_judged_to_the_bit() -> None:
    runs = [run_under(recipe_of(seed), seed) for seed in SEEDS]
    assert [read_back(run) for run in runs[::7]] == runs[::7]
    channels = [run.recipe.channel["outer"] for run in runs]
    assert sum(told(channel) and not isinstance(channel.when, Every) for channel in channels) > len(runs) / 4
    assert any(channel.what.rounding != Nearest() for channel in channels)


def test_storms_are_drawn_over_such_runs() -> None:
    channels = [c for seed in range(400) for c in case_of(family_of(seed), seed).run.recipe.channel.values()]
    assert sum(bool(channel.finer) for channel in channels) >= 20
    assert sum(isinstance(channel.when, Named) for channel in channels) >= 5


def test_what_stands_for_a_model_has_parts_as_large_as_its_own() -> None:
    """And the tensors of a model, which it does not have, are no mistake of a recipe."""
    recipe = recipe_of(3)
    channel = replace(recipe.channel["outer"], when=Named(steps=2 * STEPS, names=("embed_tokens", "0.self_attn")))
    run = replace(run_under(replace(recipe, channel={"outer": channel}), 3), model=Fresh(size="tiny"))
    build, _ = stand_in(run, 512)
    first, others = units_in(channel, build(run).layout)
    real_first, real_others = units_in(channel, {name: math.prod(s) for name, s in layout_of(run, 512)[1].items()})
    assert first.size / others.size == pytest.approx(real_first.size / real_others.size, rel=0.01)
