"""Storms over runs whose regions hold states of their own: every promise holds, region by region and above them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.peer.store import anchor_from_bytes, anchor_to_bytes
from atoll.sim.check import violations
from atoll.sim.compute import UNIT
from atoll.sim.lots import BATCH, STEPS
from atoll.sim.skies import WITHIN_S
from atoll.spec.axes.when import Every
from atoll.spec.axes.whom import Circles, Regions
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from tests.few import few_of
from tests.peer.test_homes import TWOS, play, run_of
from tests.sim.test_check import rewrite
from tests.sim.under import broken_under, read_back, run_under

SEEDS = range(700, 760)
QUICK = (708,)
NEAR = Regions(near_ms=3000 * WITHIN_S)
"""Storms are over three regions, and this is half as far again as it is within one."""


def recipe_of(seed: int) -> Recipe:
    """Return the recipe that a seed is played with: regions tell every time, or every few times."""
    shipped = load_recipe("halos")
    how = shipped.channel["outer"]
    assert how.regional is not None
    home = replace(how.regional, pushes=1 + seed % 4)
    how = replace(how, when=Every(steps=STEPS), whom=Circles(pattern=NEAR), home=home)
    return replace(shipped, work=replace(shipped.work, batch=BATCH), channel={"outer": how})


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert broken_under(recipe_of(seed), seed) == []


def test_it_is_a_run_that_a_person_could_have_written() -> None:
    run = run_under(recipe_of(SEEDS[0]), SEEDS[0])
    assert read_back(run) == run


def test_a_state_that_does_not_follow_from_what_its_region_took_in_is_found() -> None:
    run = run_of(peers=len(TWOS), rounds=12)
    outcome = play(run)
    assert violations(run, outcome) == []
    path = "checkpoint/11.safetensors"
    saved = outcome.hosts[1].disk.files()[path]
    for name in ("weights", "momentum", "reference", "above", "above.momentum"):
        anchor = anchor_from_bytes(saved, path)
        anchor.vectors()[name][5] += UNIT
        rewrite(outcome, 1, path, anchor_to_bytes(anchor))
        assert any("peer 1, version 11" in each for each in violations(run, outcome)), name
