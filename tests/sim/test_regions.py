"""Storms over runs whose members are in regions: every promise holds, and weights follow from the log to the bit."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.peer.store import anchor_from_bytes, anchor_to_bytes
from atoll.sim.check import violations
from atoll.sim.compute import UNIT
from atoll.sim.lots import BATCH, STEPS
from atoll.sim.retell import commits
from atoll.sim.skies import WITHIN_S
from atoll.spec.axes.codec import Fp16
from atoll.spec.axes.merge import Mean, Merge
from atoll.spec.axes.when import Every
from atoll.spec.axes.whom import All, Circles, Regions
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from tests.few import few_of
from tests.peer.world import counting_run, log_of
from tests.peer.world import play as world_play
from tests.sim.test_check import rewrite
from tests.sim.under import broken_under, read_back, run_under

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


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert broken_under(recipes(seed), seed) == []


def test_all_of_them_are_runs_that_a_person_could_have_written() -> None:
    runs = [run_under(recipes(seed), seed) for seed in SEEDS[:3]]
    assert [read_back(run) for run in runs] == runs


@pytest.mark.parametrize("name", ["hfa", "hips"])
def test_weights_that_do_not_follow_from_the_regions_of_the_log_are_found(name: str) -> None:
    run = counting_run(name, rounds=5, start_with=4)
    outcome = world_play(run, 4, places=("east", "west", "east", "west"))
    assert [len(each.announced.groups) for each in commits(log_of(outcome))][-2:] == [2, 2]
    assert violations(run, outcome) == []
    path = "checkpoint/4.safetensors"
    anchor = anchor_from_bytes(outcome.hosts[1].disk.files()[path], path)
    anchor.weights[5] += UNIT
    rewrite(outcome, 1, path, anchor_to_bytes(anchor))
    assert any("peer 1, version 4" in each for each in violations(run, outcome))
