"""Bytes and times of exchanges among many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.plan.cost import collective as c
from atoll.plan.cost.links import transfer_s


def test_a_pipeline_and_data_parallelism_move_what_together_published() -> None:
    """GPT-3 1.3B in 8 stages, 64 sequences of 2048 in fp32: 15.03 and 10.4 GB an iteration."""
    boundary = c.boundary_bytes(1, 2048, 2048, 4.0)
    assert c.pipeline_bytes(boundary, 8, 64) / 1e9 == pytest.approx(15.03, abs=0.005)
    assert c.all_reduce_bytes(1.3e9 * 4, 1e12) / 1e9 == pytest.approx(10.4, abs=0.005)


def test_tensor_parallelism_moves_far_more_than_a_boundary() -> None:
    boundary = c.boundary_bytes(1, 4096, 4096)
    assert boundary / 1e9 == pytest.approx(0.034, abs=0.0005)
    assert c.tensor_bytes(boundary, 8) == 8 * 7 / 8 * boundary
    assert c.tensor_bytes(boundary, 8) / 1e9 == pytest.approx(0.23, abs=0.006)


def test_context_parallelism_moves_keys_and_values_or_its_own_tokens() -> None:
    assert c.ring_context_bytes(800.0, 4) == 3 * 2 * 200
    assert c.ulysses_bytes(800.0, 4) == 4 * 200 * 0.75


def test_full_sharding_moves_half_as_much_again() -> None:
    assert c.fsdp_bytes(100.0, 4.0) == 1.5 * c.all_reduce_bytes(100.0, 4.0)
    inside, between = c.hsdp_bytes(100.0, 4, 2)
    assert inside == c.fsdp_bytes(100.0, 4.0)
    assert between == c.all_reduce_bytes(25.0, 2.0)


@given(st.integers(2, 40), st.floats(0.01, 1))
def test_shares_of_a_butterfly_add_up_to_an_all_reduce(members: int, skew: float) -> None:
    shares = np.array([skew] + [1.0] * (members - 1))
    shares /= shares.sum()
    total = c.butterfly_bytes(np.full(members, 1.0), np.full(members, float(members)), shares).sum()
    assert total == pytest.approx(members * c.all_reduce_bytes(1.0, float(members)))


def test_a_grid_of_all_in_one_row_is_one_all_reduce() -> None:
    assert c.grid_bytes(1.0, 16, 1) == c.all_reduce_bytes(1.0, 16.0)
    assert c.grid_bytes(1.0, 4, 2) == 2 * c.all_reduce_bytes(1.0, 4.0)


def test_ring_and_butterfly_differ_by_their_delays_only() -> None:
    ring, butterfly = c.ring_s(1e6, 8.0, 0.01, 1e6), c.butterfly_s(1e6, 8.0, 0.01, 1e6)
    assert ring - butterfly == pytest.approx(12 * 0.01)
    assert c.ring_over_s(1e6, 8, lambda x: transfer_s(x, 0.01, 1e6)) == pytest.approx(ring)
    assert c.slowest_ring_s(1e6, [(0.01, 1e6)] * 8) == pytest.approx(ring)
    assert c.slowest_ring_s(1e6, [(0.01, 1e6)] * 7 + [(0.01, 0.5e6)]) > 1.9 * c.ring_s(1e6, 8.0, 0.0, 1e6)


def test_buckets_cost_a_delay_each() -> None:
    whole = c.ring_over_s(1e6, 4, lambda x: transfer_s(x, 0.01, 1e6))
    parts = c.bucketed_ring_s(1e6, 3e5, 4, lambda x: transfer_s(x, 0.01, 1e6))
    assert parts - whole == pytest.approx(3 * 6 * 0.01)


def test_trees_of_slow_mergers_are_worse_than_a_ring() -> None:
    up, down = 20e6 / 8, 250e6 / 8
    assert c.tree_levels(1000, 8) == 4 and c.tree_levels(1, 8) == 0
    assert c.tree_s(1e9, 1000, 8, 0.02, up, down) > 3 * c.ring_s(1e9, 1000.0, 0.0, up)


def test_islands_spare_the_slow_lines() -> None:
    near, far = (1e-5, 1e11), (0.05, 1e8)
    flat = c.ring_s(1e9, 32.0, *far)
    nested = c.islands_s(1e9, 8.0, 4.0, near, far)
    assert nested < flat / 4
    assert c.islands_s(1e9, 1.0, 4.0, near, far) == pytest.approx(c.ring_s(1e9, 4.0, *far))


def test_one_server_sends_everything() -> None:
    assert c.server_bytes(5.0, 4.0) == (5.0, 20.0)
    assert c.all_gather_s(1e6, 5.0, 0.5, 1e6) == 4.5
