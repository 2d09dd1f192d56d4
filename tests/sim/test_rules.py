"""Storms over runs that combine, transform and choose in other ways than most: every promise holds all the same.

The cases are those of `skies`, with the recipe changed: what the weather is does not depend on that.
"""

from __future__ import annotations

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from atoll.sim.lots import BATCH, STEPS
from atoll.spec.axes.codec import Fp32, Significance
from atoll.spec.axes.merge import CentredClip, Combine, MedianNormClip, Merge, Rda, Sum, Trimmed
from atoll.spec.axes.optimizer import Assign
from atoll.spec.axes.pace import Block, Delay, OneRound, Shift
from atoll.spec.axes.what import Delta, Feedback, Hold
from atoll.spec.axes.when import Every
from atoll.spec.axes.whom import All, AllGather, Butterfly
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Channel, Recipe
from tests.few import few_of
from tests.sim.under import broken_under, read_back, run_under

RULES: list[tuple[Combine, bool]] = [
    (Trimmed(), False),
    (MedianNormClip(over="chunk"), False),
    (CentredClip(over="chunk"), False),
    (MedianNormClip(), True),
    (CentredClip(), True),
    (Rda(), False),
]
"""And whether everybody has to gather everything for it."""
SEEDS = range(400, 460)
QUICK = (400, 407, 425)


def recipes(seed: int) -> Recipe:
    """Return the recipe that a seed is played with: a shipped one, DiLoCo under another rule, or Gaia's filter."""
    shipped = load_recipe("diloco")
    channel = replace(shipped.channel["outer"], when=Every(steps=STEPS))
    match seed % 4:
        case 0:
            shipped = load_recipe("demo-sgd")
            overlap = OneRound(eager=False) if seed % 8 else Block()
            channel = replace(shipped.channel["outer"], overlap=overlap)
        case 1:
            shipped = load_recipe("fedht")
            channel = replace(shipped.channel["outer"], when=Every(steps=STEPS))
        case 2:
            combine, gathers = RULES[seed // 4 % len(RULES)]
            route = AllGather() if gathers else Butterfly()
            channel = replace(channel, whom=All(route=route), merge=replace(channel.merge, combine=combine))
        case _:
            holds = seed % 8 == 7
            what = Delta(codec=Significance(), residual=Hold() if holds else Feedback(), result=Fp32())
            channel = replace(channel, whom=All(route=AllGather()), what=what)
            if holds:
                late = Delay(steps=1, reconcile=Shift()) if seed % 16 == 7 else Block()
                channel = replace(channel, merge=Merge(outer=Assign(), combine=Sum()), overlap=late)
    return _cut_down(shipped, channel)


def _cut_down(shipped: Recipe, channel: Channel) -> Recipe:
    batch = BATCH if channel.when.round_steps > 1 else BATCH * STEPS
    return replace(shipped, work=replace(shipped.work, batch=batch), channel={"outer": channel})


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert broken_under(recipes(seed), seed) == []


def test_all_of_them_are_runs_that_a_person_could_have_written() -> None:
    played = [run_under(recipes(seed), seed) for seed in SEEDS]
    assert [read_back(run) for run in played] == played
    kinds = {str(to_builtins(run.recipe.channel["outer"].merge.combine)["kind"]) for run in played}
    assert kinds >= {"mean", "mean-present", "trimmed", "median-norm-clip", "centred-clip", "rda"}
