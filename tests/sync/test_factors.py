"""Matrices as factors: what they lose, what they do not, and that everybody makes the same of them."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.errors import SpecError
from atoll.model.compute import Vector
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.what import LowRank
from atoll.sync.factors import Factors

SHAPES = {"a.tall": (40, 12), "b.norm": (12,), "c.wide": (10, 30), "d.small": (3, 4)}
SIZE = 40 * 12 + 12 + 10 * 30 + 3 * 4


def drawn(seed: int = 0) -> Vector:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


def factors(rank: int = 2, least: float = 1.5) -> Factors:
    return Factors(LowRank(rank=rank, least=least), SHAPES, seed=7)


def taken_for(low: Factors, values: Vector, steps: int = 1) -> Vector:
    """Return what values are taken for after so many steps on the same ones."""
    basis = low.first_basis()
    for step in range(steps):
        left = low.orthonormal(low.directions(values, basis))
        merged = low.along(values, left)
        made, basis = low.values(merged, left), low.next_basis(merged, 2 * step + 2)
    return made


def matrix(values: Vector) -> Vector:
    return values[: 40 * 12].reshape(40, 12)


def test_factors_of_full_rank_lose_nothing() -> None:
    values = drawn()
    assert np.abs(taken_for(factors(rank=12, least=0.0), values) - values).max() < 1e-5


def test_what_has_no_more_directions_than_the_rank_comes_through_whole() -> None:
    values = drawn()
    rng = np.random.default_rng(1)
    matrix(values)[:] = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 12))
    assert np.abs(matrix(taken_for(factors(), values)) - matrix(values)).max() < 1e-4


def test_step_after_step_on_the_same_matrix_comes_to_its_best_approximation() -> None:
    values = drawn()
    u, s, vt = np.linalg.svd(matrix(values).astype(np.float64), full_matrices=False)
    best = (u[:, :2] * s[:2]) @ vt[:2]
    first, later = (np.linalg.norm(matrix(taken_for(factors(), values, n)) - best) for n in (1, 60))
    assert later < 1e-3 * first


def test_directions_are_orthonormal_and_what_says_nothing_new_is_none() -> None:
    low, values = factors(rank=3, least=1.0), drawn()
    matrix(values)[:] = np.outer(np.arange(40), np.ones(12))  # of rank one
    left = low.orthonormal(low.directions(values, low.first_basis()))[: 40 * 3].reshape(40, 3).astype(np.float64)
    assert np.abs(left.T @ left - np.diag([1.0, 0.0, 0.0])).max() < 1e-6


def test_a_direction_that_was_none_is_drawn_anew_and_finds_what_comes_later() -> None:
    low = factors()
    nothing = np.zeros(low.right_size, np.float32)
    basis = low.next_basis(nothing, 2)
    lengths = np.linalg.norm(basis[: 12 * 2].reshape(12, 2), axis=0)
    assert lengths == pytest.approx(1.0, abs=1e-6)
    assert (basis != low.next_basis(nothing, 4)).any(), "another one each time"
    assert (basis == low.next_basis(nothing, 2)).all(), "the same for everybody"


def test_vectors_and_what_would_hardly_be_smaller_travel_as_they_are() -> None:
    low, values = factors(), drawn()
    made = taken_for(low, values)
    whole = np.r_[480:492, 792:804]
    assert (made[whole] == values[whole]).all()
    assert (made[:480] != values[:480]).any()
    assert low.left_size == 2 * (40 + 10)
    assert low.right_size == 2 * (12 + 30) + 12 + 12


def test_the_mean_of_factors_is_the_factors_of_the_mean() -> None:
    low, all_ = factors(), [drawn(seed) for seed in range(3)]
    basis = low.first_basis()
    mean: Vector = np.array(all_).mean(axis=0, dtype=np.float64).astype(np.float32)
    sent = np.mean([low.directions(values, basis) for values in all_], axis=0)
    assert np.abs(sent - low.directions(mean, basis)).max() < 1e-5
    left = low.orthonormal(low.directions(mean, basis))
    sent = np.mean([low.along(values, left) for values in all_], axis=0)
    assert np.abs(sent - low.along(mean, left)).max() < 1e-5


def test_what_everybody_makes_does_not_depend_on_how_memory_lies() -> None:
    """A library's own sums go by lanes and alignment; ours must not."""
    low, values = factors(), drawn()
    merged = low.directions(values, low.first_basis())
    shifted = np.empty(merged.size + 1, np.float32)[1:]
    shifted[:] = merged
    left = low.orthonormal(merged)
    assert left.tobytes() == low.orthonormal(shifted).tobytes()
    column = merged[: 40 * 2].reshape(40, 2)[:, 0].astype(np.float64)
    squares = list(column * column)
    while len(squares) > 1:  # by halves, the odd one last
        half = len(squares) // 2
        squares = [a + b for a, b in zip(squares[:half], squares[half:], strict=False)] + squares[2 * half :]
    assert left[0] == np.float32(column[0] / np.sqrt(squares[0]))


def test_units_are_all_of_the_model_in_chunks_of_what_stands_for_it() -> None:
    left, right = factors().units(Fp32())
    assert left.spans == right.spans == ((0, SIZE),)
    assert (left.grid.size, right.grid.size) == (100, 108)


def test_a_model_of_which_nothing_becomes_smaller_is_refused() -> None:
    with pytest.raises(SpecError, match="nothing here is 100 times smaller"):
        factors(least=100.0)
