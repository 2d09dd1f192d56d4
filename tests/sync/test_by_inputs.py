"""Rounding by inputs: the same form on the wire, less of an error where inputs look, and nothing where they do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.compute import Vector
from atoll.spec.axes.codec import Sign
from atoll.sync.by_inputs import Matrix, RowsHere, Seen, Segment, rounded_rows, segments_of
from atoll.sync.codec import decode, encode
from atoll.sync.feedback import encode_fed_back
from atoll.sync.units import whole

BLOCK = 64
CODEC = Sign(block=BLOCK)
NAME = "layers.0.weight"


def few_directions(width: int, seed: int = 0, tokens: int = 400) -> Matrix:
    """Return second moments of inputs most of which is along a few directions."""
    rng = np.random.default_rng(seed)
    sizes = 1.0 / np.arange(1, width + 1)
    given = (rng.normal(size=(tokens, width)) * sizes) @ np.linalg.qr(rng.normal(size=(width, width)))[0]
    moments: Matrix = (given.T @ given / tokens).astype(np.float32)
    return moments


def a_matrix(rows: int, width: int, seed: int = 1) -> Vector:
    return np.random.default_rng(seed).normal(size=rows * width).astype(np.float32)


def rounds(moments: Matrix, rows: int, damping: float = 1.0, gain: float = 1.0) -> Seen:
    segment = Segment(NAME, slice(0, rows * len(moments)), slice(0, len(moments)))
    return Seen({0: [segment]}, RowsHere({NAME: moments}, damping), block=BLOCK, gain=gain)


def as_sent(values: Vector) -> Vector:
    return decode(CODEC, encode(CODEC, values), values.size)


def cost(error: Vector | Matrix, moments: Matrix) -> float:
    each = error.reshape(-1, len(moments)).astype(np.float64)
    return float(np.einsum("ij,jk,ik->", each, moments, each))


@given(st.integers(1, 40), st.integers(1, 80), st.integers(0, 9))
def test_what_it_makes_is_what_the_form_can_say(rows: int, width: int, seed: int) -> None:
    values = a_matrix(rows, width, seed)
    made = rounds(few_directions(width, seed), rows).rounded(0, values)
    assert np.array_equal(values, a_matrix(rows, width, seed)), "which are whoever's they were"
    assert np.allclose(as_sent(made), made, rtol=1e-6, atol=0)


@given(st.integers(1, 20), st.integers(1, 80))
def test_of_inputs_with_nothing_in_common_it_is_what_is_nearest(rows: int, width: int) -> None:
    values = a_matrix(rows, width)
    made = rounds(np.eye(width, dtype=np.float32), rows).rounded(0, values)
    assert np.allclose(as_sent(made), as_sent(values), rtol=1e-5)
    damped = rounds(few_directions(width), rows, damping=1e7).rounded(0, values)
    assert np.allclose(damped, as_sent(values), rtol=1e-4)


@pytest.mark.parametrize(("rows", "width"), [(64, 96), (300, 160), (20, 400)])
def test_it_costs_inputs_half_as_much_and_misses_little_more(rows: int, width: int) -> None:
    """Beyond the columns that are rounded one by one errors are passed on too."""
    values, moments = a_matrix(rows, width), few_directions(width)
    made, nearest = rounds(moments, rows).rounded(0, values), as_sent(values)
    assert cost(values - made, moments) < 0.5 * cost(values - nearest, moments)
    missed, least = (float(np.square(values - each).sum()) for each in (made, nearest))
    assert least < missed < 1.8 * least


def test_more_damping_is_nearer_to_each_element_by_itself() -> None:
    values, moments = a_matrix(64, 96), few_directions(96)
    made = [rounds(moments, 64, damping).rounded(0, values) for damping in (1.0, 10.0, 100.0)]
    costs = [cost(values - each, moments) for each in made]
    missed = [float(np.square(values - each).sum()) for each in made]
    assert costs == sorted(costs)
    assert missed == sorted(missed, reverse=True)


def test_larger_magnitudes_make_up_for_more_where_there_is_little_damping() -> None:
    values, moments = a_matrix(64, 96), few_directions(96)
    mean, larger = (rounds(moments, 64, 0.1, gain).rounded(0, values) for gain in (1.0, 1.3))
    assert cost(values - larger, moments) < 0.8 * cost(values - mean, moments)


@given(st.integers(2, 150), st.integers(0, 9))
def test_the_last_of_a_row_is_the_best_there_is_once_the_others_are_chosen(width: int, seed: int) -> None:
    moments: Matrix = few_directions(width, seed) + np.eye(width, dtype=np.float32) / np.float32(width)
    upper = np.linalg.cholesky(moments.astype(np.float64)[::-1, ::-1])[::-1, ::-1]
    assert np.allclose(upper @ upper.T, moments, atol=1e-5)
    passed_on = (upper / np.diagonal(upper)).astype(np.float32)
    wanted, sizes = a_matrix(8, width, seed).reshape(8, width), np.ones((8, width), np.float32)
    made = rounded_rows(wanted, sizes, passed_on)
    other = made.copy()
    other[:, -1] *= -1
    for row in range(8):
        least, most = (cost(wanted[row] - each[row], moments) for each in (made, other))
        assert least <= most * (1 + 1e-4)


def test_what_a_row_misses_is_brought_later() -> None:
    """All that was sent and what is still left out add up to all that was wanted, and that stays of one size."""
    rows, width = 40, 96
    rounder, wanted = rounds(few_directions(width), rows), a_matrix(rows, width)
    left, came, sizes = np.zeros_like(wanted), np.zeros_like(wanted), []
    for _ in range(60):
        data = encode_fed_back(CODEC, wanted, left, 1.0, rounded=lambda values: rounder.rounded(0, values))
        came += decode(CODEC, data, wanted.size)
        sizes.append(float(np.linalg.norm(left)))
    assert np.allclose(came + left, 60 * wanted, atol=1e-3)
    assert max(sizes[40:]) < 2.0 * max(sizes[20:40])


@given(
    st.lists(st.sampled_from([(3, 7), (5,), (1, 9), (8, 2), (4,), (6, 5)]), min_size=1, max_size=5),
    st.sampled_from([16, 64]),
)
def test_every_element_of_a_matrix_is_in_one_segment_and_in_its_column(
    shapes: list[tuple[int, ...]], block: int
) -> None:
    named = {f"t{number}": shape for number, shape in enumerate(shapes)}
    layout = {name: int(np.prod(shape)) for name, shape in named.items()}
    unit = whole(sum(layout.values()), Sign(block=block))
    columns = np.concatenate(
        [np.arange(layout[name]) % shape[1] if len(shape) == 2 else np.full(shape, -1) for name, shape in named.items()]
    )
    found = np.full(unit.size, -1)
    for index, segments in enumerate(segments_of(unit, layout, named)):
        first, end = unit.grid.bounds(index)
        for segment in segments:
            assert 0 <= segment.run.start < segment.run.stop <= end - first
            width = segment.columns.stop - segment.columns.start
            assert (segment.run.stop - segment.run.start) % width == 0
            there = slice(first + segment.run.start, first + segment.run.stop)
            assert (found[there] == -1).all(), "one only"
            found[there] = np.resize(np.arange(segment.columns.start, segment.columns.stop), there.stop - there.start)
    assert (found == columns).all()


def test_the_end_of_a_row_is_rounded_by_the_inputs_of_its_columns() -> None:
    """A chunk that begins within a row: as if the matrix were as narrow there."""
    moments, values = few_directions(80), a_matrix(1, 30)
    narrow = np.ascontiguousarray(moments[50:, 50:])
    segment = Segment(NAME, slice(0, 30), slice(50, 80))
    part = Seen({0: [segment]}, RowsHere({NAME: moments}, 1.0), block=BLOCK)
    damping = float(np.diagonal(moments).mean() / np.diagonal(narrow).mean())
    assert np.allclose(part.rounded(0, values), rounds(narrow, 1, damping).rounded(0, values), rtol=1e-5)


def test_the_beginning_of_a_row_costs_less_than_what_is_nearest_too() -> None:
    moments, values = few_directions(80), a_matrix(1, 30)
    segment = Segment(NAME, slice(0, 30), slice(0, 30))
    made = Seen({0: [segment]}, RowsHere({NAME: moments}, 1.0), block=BLOCK).rounded(0, values)
    assert cost(values - made, moments[:30, :30]) < cost(values - as_sent(values), moments[:30, :30])


@pytest.mark.parametrize("moments", [np.zeros((8, 8), np.float32), np.full((8, 8), np.nan, np.float32)])
def test_of_a_layer_that_is_given_nothing_or_no_numbers_each_element_is_rounded_by_itself(moments: Matrix) -> None:
    values = a_matrix(4, 8)
    assert np.array_equal(rounds(moments, 4).rounded(0, values), values)


@pytest.mark.parametrize("large", [1e20, 1e30, 1e36])
def test_values_of_any_size_become_what_can_be_sent(large: float) -> None:
    values = a_matrix(30, 96)
    values[40:60] *= np.float32(large)
    made = rounds(few_directions(96), 30).rounded(0, values)
    assert np.isfinite(made).all()
    assert np.isfinite(as_sent(made)).all()


def test_what_is_no_matrix_stays_as_it_is_beside_one() -> None:
    values = a_matrix(1, 48)
    run = slice(0, 32)
    made = Seen({0: [Segment(NAME, run, slice(0, 16))]}, RowsHere({NAME: few_directions(16)}, 1.0), block=BLOCK)
    rounded = made.rounded(0, values)
    assert np.array_equal(rounded[32:], values[32:])
    assert len(set(np.abs(rounded[run]).tolist())) == 1, "of one block"
