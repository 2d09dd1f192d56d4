"""Storms over runs that merge by directions and lengths; and that a wrong weight in an anchor is found.

The whole model, parts of it, or both with peers that do not wait for each other, as the shipped recipe has it. Where
everybody waits, anchors are judged to the bit.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from atoll.peer.store import anchor_from_bytes, anchor_to_bytes
from atoll.sim.check import violations
from atoll.sim.compute import UNIT
from atoll.sim.lots import BATCH, STEPS
from atoll.spec.axes.merge import Merge, Rda
from atoll.spec.axes.pace import Block, Discard, Full
from atoll.spec.axes.when import Every, Fragments
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from atoll.spec.run import Run
from tests.few import few_of
from tests.peer.world import counting_run
from tests.peer.world import play as played
from tests.sim.test_check import rewrite
from tests.sim.under import broken_under

SEEDS = range(600, 640)
QUICK = (601,)
PEERS = 3


def recipe(kind: int) -> Recipe:
    shipped = load_recipe("decoupled")
    channel = shipped.channel["outer"]
    parts = Fragments(steps=3 * STEPS, count=3, pattern="packed")
    if kind == 0:
        channel = replace(channel, when=parts, overlap=replace(channel.overlap, steps=min(2, STEPS)))
    else:
        channel = replace(channel, when=parts if kind == 1 else Every(steps=STEPS), **_waits(channel.merge))
    return replace(shipped, work=replace(shipped.work, batch=BATCH), channel={"outer": channel})


def _waits(merge: Merge) -> dict[str, Any]:
    """Return what makes everybody wait, so that log and journals tell what anchors must be."""
    even = replace(merge, combine=Rda(weights="samples"))
    return {"overlap": Block(), "barrier": Full(), "late": Discard(), "merge": even}


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert broken_under(recipe(seed % 3), seed) == []


def waiting(*, parts: bool) -> Run:
    run = counting_run("decoupled", rounds=6, start_with=PEERS)
    channel = run.recipe.channel["outer"]
    when = replace(channel.when, steps=4, count=2) if parts else Every(steps=2)
    channel = replace(channel, when=when, **_waits(channel.merge))
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


@pytest.mark.parametrize("parts", [False, True])
def test_what_does_not_follow_is_found(parts: bool) -> None:
    run, version = waiting(parts=parts), 6
    outcome = played(run, PEERS)
    assert violations(run, outcome) == []
    path = f"checkpoint/{version}.safetensors"
    anchor = anchor_from_bytes(outcome.hosts[1].disk.files()[path], path)
    anchor.weights[5] += UNIT
    rewrite(outcome, 1, path, anchor_to_bytes(anchor))
    (said,) = violations(run, outcome)
    assert "away from what the log adds up to" in said
