"""Storms of gradients as factors, each step in two rounds; and that a wrong direction in an anchor is found.

What is left out is fed back in every other seed; where it is lost, anchors are judged to the bit.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from atoll.peer.store import anchor_from_bytes, anchor_to_bytes
from atoll.sim.check import violations
from atoll.sim.compute import UNIT
from atoll.sim.factored import anchors
from atoll.sim.lives import lives_of
from atoll.sim.lots import BATCH, STEPS
from atoll.sim.promises.disks import log_of_record
from atoll.spec.axes.what import Feedback, Forget, LowRank, Residual
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Recipe
from atoll.spec.run import Run
from atoll.sync.merge import Anchor
from tests.few import few_of
from tests.peer.world import counting_run
from tests.peer.world import play as played
from tests.sim.test_check import rewrite
from tests.sim.under import broken_under

SEEDS = range(500, 540)
QUICK = (500,)
PEERS = 3


def recipe(residual: Residual) -> Recipe:
    shipped = load_recipe("powersgd")
    channel = shipped.channel["outer"]
    what = replace(channel.what, transform=LowRank(rank=2, least=1.0), residual=residual)
    work = replace(shipped.work, batch=BATCH * STEPS)
    return replace(shipped, work=work, channel={"outer": replace(channel, what=what)})


@pytest.mark.parametrize("seed", few_of(SEEDS, QUICK))
def test_a_storm_breaks_no_promise(seed: int) -> None:
    assert broken_under(recipe(Feedback() if seed % 2 else Forget()), seed) == []


def forgetful(rounds: int) -> Run:
    run = counting_run("powersgd", rounds=rounds, start_with=PEERS)
    channel = run.recipe.channel["outer"]
    what = replace(channel.what, residual=Forget())
    return replace(run, recipe=replace(run.recipe, channel={"outer": replace(channel, what=what)}))


def test_anchors_follow_from_the_log_to_the_bit_directions_and_all() -> None:
    run = forgetful(rounds=6)
    outcome = played(run, PEERS)
    known = anchors(run, 256, log_of_record(outcome), 6, lives_of(outcome))
    assert max(known) == 6
    for version in (5, 6):
        path = f"checkpoint/{version}.safetensors"
        assert anchor_from_bytes(outcome.hosts[0].disk.files()[path], path).digest() == known[version].digest()


def _weight(anchor: Anchor) -> None:
    anchor.weights[5] += UNIT


def _direction(anchor: Anchor) -> None:
    assert anchor.basis is not None
    anchor.basis[5] *= 1.001


@pytest.mark.parametrize("tamper", [_weight, _direction])
@pytest.mark.parametrize("version", [5, 6])
def test_what_does_not_follow_is_found(version: int, tamper: Callable[[Anchor], None]) -> None:
    run = forgetful(rounds=6)
    outcome = played(run, PEERS)
    path = f"checkpoint/{version}.safetensors"
    anchor = anchor_from_bytes(outcome.hosts[1].disk.files()[path], path)
    tamper(anchor)
    rewrite(outcome, 1, path, anchor_to_bytes(anchor))
    assert violations(run, outcome) == [f"peer 1, version {version}: not what the log adds up to"]
