"""The bigram baseline: as good as a table of pairs can be, and never better than the truth."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from numpy.typing import NDArray

from atoll.data.bigram import bigram_loss


def _chain(table: NDArray[np.float64], count: int, seed: int) -> NDArray[np.int64]:
    """Return tokens drawn from a table of which follows which."""
    rng = np.random.default_rng(seed)
    limits = table.cumsum(axis=1)
    draws = rng.random(count)
    tokens = np.zeros(count, np.int64)
    for place in range(1, count):
        tokens[place] = min(int(np.searchsorted(limits[tokens[place - 1]], draws[place])), len(table) - 1)
    return tokens


def _rows(tokens: NDArray[np.int64], context: int) -> NDArray[np.int64]:
    count = (len(tokens) - 1) // context
    return np.stack([tokens[n * context : n * context + context + 1] for n in range(count)])


def test_on_a_markov_chain_it_comes_close_to_the_entropy() -> None:
    table = np.random.default_rng(0).dirichlet(np.full(12, 0.3), size=12)
    train, held_out = _chain(table, 40_000, 1), _chain(table, 20_000, 2)
    rows = _rows(held_out, 32)
    true_loss = float(-np.log(table[rows[:, :-1], rows[:, 1:]]).mean())
    loss = bigram_loss(train, [rows[:100], rows[100:]], 12)
    assert true_loss - 1e-9 < loss < true_loss + 0.01


def test_on_uniform_noise_it_learns_nothing() -> None:
    tokens = np.random.default_rng(0).integers(0, 50, 30_000)
    loss = bigram_loss(tokens[:20_000], [_rows(tokens[20_000:], 16)], 50)
    assert log(50) - 0.01 < loss < log(50) + 0.05


def test_a_pair_never_seen_costs_much_but_not_everything() -> None:
    train = np.tile(np.array([1, 2, 3], np.uint16), 200)
    assert bigram_loss(train, [np.array([[1, 2, 3, 1, 2]])], 5) < 0.05
    unseen = bigram_loss(train, [np.array([[1, 4, 4, 2, 2]])], 5)
    assert 3 < unseen < 30


def test_the_result_is_the_mean_over_all_batches() -> None:
    tokens = np.random.default_rng(3).integers(0, 9, 5_000)
    rows = _rows(tokens[4000:], 8)
    whole = bigram_loss(tokens[:4000], [rows], 9)
    assert bigram_loss(tokens[:4000], [rows[:1], rows[1:]], 9) == pytest.approx(whole)
