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
    assert c.tensor_bytes(boundary, 8) / 1e9 == pytest.approx(0.23, abs=0.006)


class Ranks:
    """Vectors of several ranks that really pass parts of them round a ring, and count what each sends."""

    def __init__(self, members: int, parts: int = 12) -> None:
        self.held = np.random.Generator(np.random.PCG64(members)).random((members, parts))
        self.sent = np.zeros(members)

    def scatter(self, ring: list[int], here: slice = slice(None)) -> None:
        """Add up: afterwards the member at place p of the ring has the sum of the part p + 1."""
        for step in range(len(ring) - 1):
            self._pass(ring, [(place - step) % len(ring) for place in range(len(ring))], here, add=True)

    def gather(self, ring: list[int], here: slice = slice(None)) -> None:
        """Pass on what each has all of."""
        for step in range(len(ring) - 1):
            self._pass(ring, [(place + 1 - step) % len(ring) for place in range(len(ring))], here, add=False)

    def _pass(self, ring: list[int], parts: list[int], here: slice, *, add: bool) -> None:
        before = self.held.copy()
        places = np.array_split(np.arange(self.held.shape[1])[here], len(ring))
        for place, member in enumerate(ring):
            following, cells = ring[(place + 1) % len(ring)], places[parts[place]]
            self.held[following, cells] = before[member, cells] + (before[following, cells] if add else 0.0)
            self.sent[member] += len(cells) / self.held.shape[1]


def test_a_ring_and_full_sharding_send_what_ranks_that_do_it_send() -> None:
    for members in (2, 3, 4, 6):
        ranks, ring = Ranks(members), list(range(members))
        total = ranks.held.sum(axis=0)
        ranks.scatter(ring)
        ranks.gather(ring)
        assert np.allclose(ranks.held, total)
        assert ranks.sent == pytest.approx(float(c.all_reduce_bytes(1.0, float(members))))
        ranks.gather(ring)  # sharded weights are gathered once more
        assert ranks.sent == pytest.approx(float(c.fsdp_bytes(1.0, float(members))))


def test_a_grid_averages_all_along_one_dimension_after_the_other() -> None:
    ranks = Ranks(9)
    total = ranks.held.sum(axis=0)
    lines = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8]]
    for ring in lines:
        ranks.scatter(ring)
        ranks.gather(ring)
    assert np.allclose(ranks.held, total)
    assert ranks.sent == pytest.approx(float(c.grid_bytes(1.0, 3, 2)))


def test_between_islands_only_the_shard_that_each_rank_holds_is_sent() -> None:
    ranks = Ranks(6)
    total, islands = ranks.held.sum(axis=0), [[0, 1, 2], [3, 4, 5]]
    for ring in islands:
        ranks.scatter(ring)
    inside = ranks.sent.copy()
    for place, pair in enumerate(zip(*islands, strict=True)):
        part = (place + 1) % 3
        ranks.scatter(list(pair), slice(4 * part, 4 * part + 4))
        ranks.gather(list(pair), slice(4 * part, 4 * part + 4))
    between = ranks.sent - inside
    for ring in islands:
        ranks.gather(ring)
    assert np.allclose(ranks.held, total)
    within, across = c.hsdp_bytes(1.0, 3, 2)
    assert between == pytest.approx(float(across))
    assert ranks.sent - between == pytest.approx(float(within) * 2 / 3), "weights are gathered a second time"


def test_context_parallelism_moves_less_than_the_boundary_of_a_tensor_parallel_layer() -> None:
    boundary = c.boundary_bytes(1, 8192, 4096)
    assert c.ulysses_bytes(boundary, 8) < c.ring_context_bytes(boundary, 8) < c.tensor_bytes(boundary, 8)
    assert c.ring_context_bytes(boundary / 8, 8) < c.ulysses_bytes(boundary, 8), "not with few heads of keys and values"


@given(st.integers(2, 40), st.floats(0.01, 1))
def test_shares_of_a_butterfly_add_up_to_an_all_reduce(members: int, skew: float) -> None:
    shares = np.array([skew] + [1.0] * (members - 1))
    shares /= shares.sum()
    total = c.butterfly_bytes(np.full(members, 1.0), np.full(members, float(members)), shares).sum()
    assert total == pytest.approx(members * c.all_reduce_bytes(1.0, float(members)))


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


def test_everybody_has_everything_when_the_slowest_line_is_through() -> None:
    summed, gathered = c.butterfly_s(1e6, 5.0, 0.5, 1e6), c.all_gather_s(1e6, 5.0, 0.5, 1e6)
    assert gathered > summed, "what cannot be summed on the way is longer"
    assert c.all_gather_s(1e6, 5.0, 0.5, 0.5e6) - gathered == pytest.approx(4), "four others' megabytes"
