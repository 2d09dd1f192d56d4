"""Gradients as factors (PowerSGD): of full rank they are DDP; of less what a loop by hand comes to, whoever crashes."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from atoll import journal
from atoll.model.compute import Engine, Vector
from atoll.sim.faults import Crash
from atoll.spec.axes.optimizer import AdamW, Sgd
from atoll.spec.axes.what import Feedback, Forget, LowRank, Residual
from atoll.spec.run import Membership, Run
from atoll.sync.factors import Factors
from atoll.sync.merge import advance, first_anchor
from tests.identity.small import (
    BATCH,
    SAME,
    apart,
    ddp,
    digest_of,
    engine_of,
    low_rank,
    steps_over,
    trained,
    weights_of,
)
from tests.peer.world import events, lines

Array = NDArray[np.float64]
FULL = LowRank(rank=1000, least=0.0)
SOME = LowRank(rank=2, least=1.5)


@pytest.mark.parametrize(
    ("outer", "same"), [(Sgd(lr=0.3), SAME), pytest.param(AdamW(lr=3e-3), 1e-4, marks=pytest.mark.long)]
)
def test_of_full_rank_it_is_ddp(outer: Sgd | AdamW, same: float) -> None:
    """Adam divides by roots of tiny squares: what rounding leaves is larger there."""
    peers, steps = 2, 3
    whole = weights_of(trained(ddp(outer=outer, rounds=steps, start_with=peers), peers))
    full, some = (
        weights_of(trained(low_rank(low, Forget(), outer=outer, rounds=2 * steps, start_with=peers), peers))
        for low in (FULL, SOME)
    )
    assert apart(full, whole) < same
    assert apart(some, whole) > 100 * same, "of less than that it is not"


@pytest.mark.parametrize(
    "residual",
    [
        pytest.param(Forget(), marks=pytest.mark.long),
        Feedback(),
        pytest.param(Feedback(decay=0.5), marks=pytest.mark.long),
    ],
)
def test_it_is_what_a_loop_by_hand_comes_to(residual: Residual) -> None:
    peers, steps, outer = 3, 4, Sgd(lr=0.3, momentum=0.9)
    run = low_rank(SOME, residual, outer=outer, rounds=2 * steps, start_with=peers)
    assert apart(weights_of(trained(run, peers)), by_hand(run, residual, peers, steps, outer)) < SAME


def by_hand(run: Run, residual: Residual, peers: int, steps: int, outer: Sgd) -> Vector:
    """Return the weights that the authors' loop comes to, in fp64, with a library's own orthonormal bases."""
    engine = engine_of(run)
    decay = residual.decay if isinstance(residual, Feedback) else 0.0
    anchor = first_anchor(outer, engine.weights())
    left_out = [np.zeros(engine.size) for _ in range(peers)]
    bases = first_bases(engine)
    for step in range(steps):
        engine.assign(anchor.weights)
        wanted = [
            engine.gradient(steps_over((step * peers + place) * BATCH, 1))[1] + decay * left_out[place]
            for place in range(peers)
        ]
        mean = np.mean(wanted, axis=0)
        taken_for, kept = mean.copy(), [mine.copy() for mine in wanted]
        for name, values in places(engine).items():
            if name not in bases:
                continue
            shape = engine.shapes[name]
            left, _ = np.linalg.qr(mean[values].reshape(shape) @ bases[name])
            bases[name] = mean[values].reshape(shape).T @ left
            taken_for[values] = (left @ bases[name].T).reshape(-1)
            for mine in kept:
                mine[values] = (left @ (left.T @ mine[values].reshape(shape))).reshape(-1)
        left_out = [mine - sent for mine, sent in zip(wanted, kept, strict=True)]
        anchor = advance(outer, anchor, taken_for.astype(np.float32))
    return anchor.weights


def places(engine: Engine) -> dict[str, slice]:
    """Return where each tensor lies."""
    ends = list(accumulate(engine.layout.values()))
    return {name: slice(end - engine.layout[name], end) for name, end in zip(engine.layout, ends, strict=True)}


def first_bases(engine: Engine) -> dict[str, Array]:
    """Return the directions that a run begins with, of each matrix that is worth it: one column for each."""
    first, found, at = Factors(SOME, engine.shapes, seed=7).first_basis(), {}, 0
    for name, shape in engine.shapes.items():
        if len(shape) == 2 and shape[0] * shape[1] >= SOME.least * SOME.rank * sum(shape):
            count = shape[1] * SOME.rank
            found[name] = first[at : at + count].reshape(shape[1], SOME.rank).astype(np.float64)
            at += count
    assert at == first.size
    return found


@pytest.mark.long
@pytest.mark.parametrize("after", [journal.RoundApplied, journal.LeaseTaken])
def test_who_crashes_between_the_two_rounds_of_a_step_comes_to_the_same_model(after: type) -> None:
    """In the middle of the second step: the directions are there, and what lies along them is to come."""
    run = low_rank(SOME, Feedback(), outer=Sgd(lr=0.3), rounds=8, start_with=3)
    run = replace(run, membership=Membership(start_with=3, contributors_min=3))
    undisturbed = trained(run, 3)
    version = 3 if after is journal.RoundApplied else 4
    at_s = next(line.at_s for line in lines(undisturbed, after, peer=2) if line.event.version == version)  # type: ignore[union-attr]
    outcome = trained(run, 3, [Crash(at_s=at_s + 1e-4, peer=2, restart_after_s=0.5)])
    assert digest_of(outcome) == digest_of(undisturbed)
    assert len(events(outcome, journal.PeerStarted, peer=2)) == 2


def test_samples_are_counted_in_the_second_round_of_a_step_only() -> None:
    outcome = trained(low_rank(SOME, Feedback(), outer=Sgd(lr=0.3), rounds=4, start_with=2), 2)
    told = events(outcome, journal.RoundCommitted, peer=0)
    assert [event.samples for event in told] == [0, 8, 0, 8]
    assert [event.carried for event in told] == [[(0, 8)], [], [(8, 8)], []]
    assert [event.counted for event in told] == [[], [(0, 8)], [], [(8, 8)]]
