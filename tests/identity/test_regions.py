"""Averages by region and sums by region, really trained and held against plain loops and against what they equal."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from atoll.model.compute import Vector
from atoll.sim.retell import commits
from atoll.sim.scenario import Outcome
from atoll.spec.axes.optimizer import Assign, Sgd
from atoll.spec.axes.what import Delta, Params
from atoll.spec.axes.whom import All, Circles, Regions, Whom
from atoll.spec.run import Run
from atoll.swarm.log import ALL
from tests.identity.small import SAME, apart, ddp, digest_of, diloco, engine_of, steps_over, trained, weights_of
from tests.identity.test_circles import own_weights
from tests.peer.world import log_of

STEPS, ROUNDS, K2 = 2, 6, 3
SGD = Sgd(lr=0.3)
UNEVEN = ("east", "west", "west")
LONG = pytest.mark.long


def run_of(whom: Whom, *, peers: int, rounds: int = ROUNDS) -> Run:
    run = diloco(inner=SGD, outer=Assign(), steps=STEPS, rounds=rounds, start_with=peers)
    channel = replace(run.recipe.channel["outer"], what=Params(), whom=whom)
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


def by_hand(run: Run, outcome: Outcome) -> dict[int, dict[bytes, Vector]]:
    """Return everybody's weights after every round: K1 local steps, then the mean of its region, or of all."""
    rounds = commits(log_of(outcome))
    engine = engine_of(run)
    held = {0: dict.fromkeys(rounds[0].announced.members, engine.weights())}
    for each in rounds:
        local = {}
        for peer, lease in each.announced.leases.items():
            engine.assign(held[each.version - 1][peer])
            engine.train(steps_over(lease[0], STEPS))
            local[peer] = engine.weights()
        together = [list(local)] if each.announced.key.scope == ALL else each.announced.groups
        held[each.version] = {peer: _mean([local[other] for other in group]) for group in together for peer in group}
    return held


def _mean(vectors: list[Vector]) -> Vector:
    total: Vector = np.sum(vectors, axis=0)
    return total / np.float32(len(vectors))


def test_hfa_is_what_a_loop_by_hand_makes_of_its_regions() -> None:
    run = run_of(Circles(pattern=Regions(), all_every=K2), peers=len(UNEVEN))
    outcome = trained(run, len(UNEVEN), places=UNEVEN)
    assert [len(each.announced.groups) for each in commits(log_of(outcome))][-3:] == [2, 2, 2]
    expected = by_hand(run, outcome)
    for version in range(ROUNDS - 1, ROUNDS + 1):
        for host in outcome.hosts:
            assert apart(own_weights(host, version), expected[version][bytes(host.peer)]) < SAME
    assert len({own_weights(host, ROUNDS - 1).tobytes() for host in outcome.hosts}) == 2, "one model in each region"


@pytest.mark.parametrize(
    ("places", "all_every"),
    [pytest.param(UNEVEN, 1, marks=LONG), pytest.param(("east",) * 4, K2, marks=LONG)],
)
def test_with_a_mean_of_all_every_time_or_in_one_region_it_is_local_sgd(
    places: tuple[str, ...], all_every: int
) -> None:
    """A mean of sums of regions is the mean of all, however many are in each."""
    hfa = trained(
        run_of(Circles(pattern=Regions(), all_every=all_every), peers=len(places)), len(places), places=places
    )
    flat = run_of(All(), peers=len(places))
    channel = replace(flat.recipe.channel["outer"], what=Delta())
    flat = replace(flat, recipe=replace(flat.recipe, channel={"outer": channel}))
    assert apart(weights_of(hfa), weights_of(trained(flat, len(places), places=places))) < SAME


@pytest.mark.parametrize("places", [UNEVEN, pytest.param(("east",) * 3, marks=LONG)])
def test_hips_is_ddp(places: tuple[str, ...]) -> None:
    """But for the order of additions; in one region to the bit."""
    run = ddp(outer=SGD, rounds=4, start_with=len(places))
    channel = replace(run.recipe.channel["outer"], whom=All(route=Regions()))
    hips = replace(run, recipe=replace(run.recipe, channel={"outer": channel}))
    far, flat = (trained(each, len(places), places=places) for each in (hips, run))
    assert len(commits(log_of(far))[-1].announced.groups) == len({*places})
    assert apart(weights_of(far), weights_of(flat)) < SAME
    assert len({*places}) > 1 or digest_of(far) == digest_of(flat)
