"""Bandwidth: what the formulas of exchanging now and then come to, and rings and swarms really played."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.plan.cost.collective import ring_s
from atoll.plan.cost.local import computed_part, local_s, spread_s
from atoll.plan.limits import bandwidth as b
from atoll.plan.limits.flows import ring_run, rounds_run, steps_found, swarm_run_slots
from atoll.plan.limits.reader import load_scenario
from atoll.plan.limits.scenario import with_value

CARD = 165.2e12 * 0.30
CABLE, FIBRE, DOWN = 20e6 / 8, 500e6 / 8, 250e6 / 8
MANY = 10**9
"""So many peers that (R - 1) / R is 1."""


def computing(sent_bytes: float, up_bytes_s: float, parameters: float = 70e9) -> float:
    local = local_s(500, 16384, parameters, CARD)
    return float(computed_part(local, ring_s(parameters * sent_bytes, MANY, 0.0, up_bytes_s)))


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
    """Our own derivation, worked out beforehand by hand."""
    assert computing(sent_bytes, up) == pytest.approx(expected, abs=0.006)


def test_the_size_of_the_model_cancels() -> None:
    assert computing(2, CABLE, 1.3e9) == pytest.approx(computing(2, CABLE, 405e9))


def test_a_round_of_70b_over_cable_takes_hours_as_told() -> None:
    assert local_s(500, 16384, 70e9, CARD) / 3600 == pytest.approx(19.3, abs=0.05)
    assert spread_s(140e9, CABLE, CABLE, DOWN, 1000) / 3600 == pytest.approx(15.6, abs=0.05)
    assert spread_s(140e9, FIBRE, FIBRE, FIBRE, 1000) / 3600 == pytest.approx(0.62, abs=0.005)


@pytest.mark.parametrize("sent_bytes", [4, 2, 1, 4 / 146])
@pytest.mark.parametrize("peers", [64, 1000])
def test_a_tree_of_homes_is_worse_than_a_ring_of_them(sent_bytes: float, peers: int) -> None:
    size_bytes = 70e9 * sent_bytes
    assert b.merged_s(size_bytes, peers, (CABLE, DOWN)) > ring_s(size_bytes, peers, 0.0, CABLE)


def test_a_tree_takes_a_merge_at_each_level_and_a_swarm_back() -> None:
    merge_h = 8 * 140e9 / FIBRE / 3600  # eight contributions come down one merger's line
    assert b.merged_s(140e9, 512, (FIBRE, FIBRE)) / 3600 == pytest.approx(3 * merge_h + 0.62, rel=0.01)
    assert b.merged_s(140e9, 4096, (FIBRE, FIBRE)) / 3600 == pytest.approx(4 * merge_h + 0.62, rel=0.01)


def test_a_tree_whose_mergers_have_thick_lines_beats_a_ring_and_one_of_homes_does_not() -> None:
    ring = ring_s(1e9, 64, 0.0, CABLE)
    assert b.merged_s(1e9, 64, (CABLE, DOWN)) > ring
    assert b.merged_s(1e9, 64, (CABLE, DOWN), merger=(100 * CABLE, 100 * CABLE)) < ring


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0.1, 0.99), st.floats(0.02, 4), st.floats(1e12, 1e16), st.floats(1e5, 1e10), st.floats(1e3, 1e6),
    st.integers(2, 60),
)  # fmt: skip
def test_the_least_steps_are_those_with_which_played_rounds_compute_enough(
    wanted: float, sent: float, flop_s: float, up: float, batch: float, peers: int
) -> None:
    formula = max(1, np.ceil(b.steps_min(wanted, sent, flop_s, up, batch, peers) * (1 - 1e-9)))
    found = steps_found(1e9 * sent, np.full(peers, up), 6e9 * batch / flop_s, wanted)
    assert found == pytest.approx(formula, rel=1e-6, abs=1)


@pytest.mark.parametrize("peers", [2, 7, 64])
def test_a_ring_played_piece_by_piece_takes_as_long_as_its_slowest_line_needs(peers: int) -> None:
    lines = CABLE * np.exp(0.3 * np.random.default_rng(peers).standard_normal(peers))
    assert ring_run(7e9, np.full(peers, CABLE)).lasts_s == pytest.approx(float(ring_s(7e9, peers, 0.0, CABLE)))
    assert ring_run(7e9, lines).lasts_s == pytest.approx(float(ring_s(7e9, peers, 0.0, lines.min())), rel=0.05)


def test_played_rounds_compute_and_send_what_the_scenario_says() -> None:
    s = with_value(load_scenario("labs"), "work.local_steps", 40.0)
    step_s = 6 * 7e9 * 131072 / (8 * 312e12 * 0.4)
    played = rounds_run(7e9, np.full(8, 1000e6 / 8), step_s, 40, 2)
    assert played.computing == pytest.approx(float(b.number(s)))
    assert 2 * played.sent_bytes_s * 30 * 86400 / 1e9 == pytest.approx(float(b.month_gb(s)))


def test_a_swarm_played_piece_by_piece_comes_near_the_fluid_bound_and_never_below_it() -> None:
    peers, pieces = 24, 120
    bound = spread_s(pieces, 1.0, 1.0, 12.0, peers)
    for seed in range(3):
        slots = swarm_run_slots(peers, pieces, 12, np.random.default_rng(seed))
        assert bound <= slots <= 1.15 * bound


def test_a_cap_binds_however_fast_the_line_is() -> None:
    fast = with_value(with_value(load_scenario("homes"), "line.up_mbit", 1e4), "line.down_mbit", 1e4)
    assert b.judge(fast).verdict == "binds"
    assert "1,200" in b.judge(fast).binds
    assert b.judge(with_value(fast, "line.cap_gb_month", 0.0)).verdict == "no wall"
