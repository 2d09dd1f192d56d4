"""Bandwidth: what the formulas of exchanging now and then come to, and rings and swarms really played."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.plan.limits import bandwidth as b
from atoll.plan.limits.flows import ring_run_s, swarm_run_slots

CARD = 165.2e12 * 0.30
CABLE, FIBRE, DOWN = 20e6 / 8, 500e6 / 8, 250e6 / 8
MANY = 10**9
"""So many peers that (R - 1) / R is 1."""


def computing(sent_bytes: float, up_bytes_s: float, parameters: float = 70e9) -> float:
    local = b.local_s(500, 16384, parameters, CARD)
    return float(b.efficiency(local, b.ring_s(parameters * sent_bytes, MANY, up_bytes_s)))


@pytest.mark.parametrize(
    ("sent_bytes", "up", "expected"),
    [
        (2, CABLE, 0.38),
        (1, CABLE, 0.55),
        (4 / 146, CABLE, 0.978),
        (2, FIBRE, 0.94),
        (1, FIBRE, 0.97),
        (4 / 146, FIBRE, 0.999),
    ],
)
def test_a_ring_over_cable_and_fibre_computes_this_part_of_the_time(
    sent_bytes: float, up: float, expected: float
) -> None:
    assert computing(sent_bytes, up) == pytest.approx(expected, abs=0.006)


def test_the_size_of_the_model_cancels() -> None:
    assert computing(2, CABLE, 1.3e9) == pytest.approx(computing(2, CABLE, 405e9))


def test_a_round_of_70b_over_cable_takes_hours_as_told() -> None:
    assert b.local_s(500, 16384, 70e9, CARD) / 3600 == pytest.approx(19.3, abs=0.05)
    assert b.swarm_s(140e9, CABLE, np.full(1000, CABLE), DOWN) / 3600 == pytest.approx(15.6, abs=0.05)
    assert b.swarm_s(140e9, FIBRE, np.full(1000, FIBRE), FIBRE) / 3600 == pytest.approx(0.62, abs=0.005)


@pytest.mark.parametrize("sent_bytes", [4, 2, 1, 4 / 146])
@pytest.mark.parametrize("peers", [64, 1000])
def test_a_tree_of_homes_is_worse_than_a_ring_of_them(sent_bytes: float, peers: int) -> None:
    size_bytes = 70e9 * sent_bytes
    assert b.tree_s(size_bytes, peers, CABLE, DOWN) > b.ring_s(size_bytes, peers, CABLE)


def test_a_tree_whose_mergers_have_thick_lines_beats_a_ring() -> None:
    thick = b.levels(64) * max(8 * 1e9 / (100 * CABLE), 1e9 / (100 * CABLE)) + 1e9 / (100 * CABLE)
    assert thick < b.ring_s(1e9, 64, CABLE)


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0.1, 0.99), st.floats(0.02, 4), st.floats(1e12, 1e16), st.floats(1e5, 1e10), st.floats(1e3, 1e6),
    st.integers(2, 5000),
)  # fmt: skip
def test_the_least_steps_give_just_the_efficiency_that_was_asked_for(
    wanted: float, sent: float, flop_s: float, up: float, batch: float, peers: int
) -> None:
    steps = b.steps_min(wanted, sent, flop_s, up, batch, peers)
    found = b.efficiency(b.local_s(steps, batch, 1e9, flop_s), b.ring_s(1e9 * sent, peers, up))
    assert found == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("peers", [2, 7, 64])
def test_a_ring_played_piece_by_piece_takes_as_long_as_its_slowest_line_needs(peers: int) -> None:
    lines = CABLE * np.exp(0.3 * np.random.default_rng(peers).standard_normal(peers))
    assert ring_run_s(7e9, np.full(peers, CABLE)) == pytest.approx(float(b.ring_s(7e9, peers, CABLE)))
    assert ring_run_s(7e9, lines) == pytest.approx(float(b.ring_s(7e9, peers, lines.min())), rel=0.05)


def test_a_swarm_played_piece_by_piece_comes_near_the_fluid_bound_and_never_below_it() -> None:
    peers, pieces = 24, 120
    bound = b.swarm_s(pieces, 1.0, np.ones(peers), 12.0)
    for seed in range(3):
        slots = swarm_run_slots(peers, pieces, 12, np.random.default_rng(seed))
        assert bound <= slots <= 1.15 * bound
