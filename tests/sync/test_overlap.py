"""Taking a result in later: what of the steps taken meanwhile stays, and what of one's own goes."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.model.compute import Vector
from atoll.spec.axes.optimizer import Assign, Outer, Sgd
from atoll.sync.merge import advance, first_anchor
from atoll.sync.overlap import Lead, blend, shift

SIZE = 50
NESTEROV = Sgd(lr=0.7, momentum=0.9, nesterov=True)


def drawn(seed: int, size: int = SIZE) -> Vector:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("keep", [0.0, 0.25, 1.0])
def test_a_blend_is_so_much_of_one_and_the_rest_of_the_other(keep: float) -> None:
    weights, anchor = drawn(1), drawn(2)
    np.testing.assert_allclose(blend(weights.copy(), anchor, keep), keep * weights + (1 - keep) * anchor, atol=1e-6)


def test_a_shift_keeps_the_steps_since_and_replaces_what_was_before_them() -> None:
    local, anchor, newer = drawn(1), drawn(2), drawn(3)
    np.testing.assert_allclose(shift(local - newer, anchor, local), anchor - newer, atol=1e-6)


def test_shifts_of_all_peers_together_are_zero_where_the_mean_is_assigned() -> None:
    start = drawn(0)
    locals_ = [start - drawn(10 + peer) for peer in range(4)]
    anchor = np.stack(locals_).mean(axis=0, dtype=np.float64).astype(np.float32)
    shifts = [shift(local.copy(), anchor, local) - local for local in locals_]
    np.testing.assert_allclose(np.sum(shifts, axis=0), 0.0, atol=1e-5)


@pytest.mark.parametrize("outer", [Assign(), Sgd(lr=0.5), Sgd(lr=0.5, momentum=0.8), NESTEROV])
@pytest.mark.parametrize("peers", [1, 3])
def test_the_anchor_with_a_lead_is_the_eager_step_of_the_paper(outer: Outer, peers: int) -> None:
    """D~ = mean(t-1) + (D(t) - D(t-1)) / N into each peer's own optimizer, step by step, beside anchor plus lead."""
    rounds, start = 6, drawn(0)
    deltas = [[0.1 * drawn(100 * round_ + peer) for peer in range(peers)] for round_ in range(rounds)]
    own = first_anchor(outer, start.copy())
    common, lead = first_anchor(outer, start.copy()), Lead(outer, SIZE)
    before: Vector = np.zeros(SIZE, np.float32)
    for round_, now in enumerate(deltas):
        stale = np.mean(deltas[round_ - 1], axis=0) if round_ else np.zeros(SIZE, np.float32)
        own = advance(outer, own, (stale + (now[0] - before) / peers).astype(np.float32))
        before = now[0]
        if round_:
            common = advance(outer, common, stale.astype(np.float32))
        ahead = np.concatenate([lead.step(a, b, now[0][a:b], 1 / peers, 1 / peers) for a, b in ((0, 20), (20, SIZE))])
        np.testing.assert_allclose(common.weights + ahead, own.weights, atol=1e-5)


def test_a_lead_that_is_forgotten_is_none() -> None:
    lead = Lead(NESTEROV, SIZE)
    lead.step(0, SIZE, drawn(1), 0.5, 0.0)
    assert any(vector.any() for vector in lead.vectors().values())
    lead.forget()
    assert not any(vector.any() for vector in lead.vectors().values())
    assert set(lead.vectors()) == {"sent", "lead.weights", "lead.momentum"}
