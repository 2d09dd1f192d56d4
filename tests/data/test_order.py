"""The global sample order: a permutation an epoch, the same everywhere."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.data.order import index_of, indices_of

seeds = st.integers(min_value=-(2**70), max_value=2**70)


@given(count=st.integers(1, 400), epoch=st.integers(0, 1000), seed=seeds)
def test_an_epoch_reads_every_sample_exactly_once(count: int, epoch: int, seed: int) -> None:
    positions = np.arange(epoch * count, (epoch + 1) * count)
    assert sorted(indices_of(positions, count, seed).tolist()) == list(range(count))


@given(
    count=st.integers(1, 2**48),
    places=st.lists(st.floats(0, 3, exclude_max=True), min_size=1, max_size=6),
    seed=seeds,
)
def test_one_position_and_many_positions_agree(count: int, places: list[float], seed: int) -> None:
    positions = [int(place * count) for place in places]
    assert indices_of(positions, count, seed).tolist() == [index_of(p, count, seed) for p in positions]


@given(count=st.integers(1, 2**48), seed=seeds, place=st.floats(0, 1, exclude_max=True))
def test_an_index_is_always_a_sample(count: int, seed: int, place: float) -> None:
    assert 0 <= index_of(int(place * count), count, seed) < count


@given(count=st.integers(64, 5000), seed=seeds)
def test_epochs_and_seeds_have_different_orders(count: int, seed: int) -> None:
    first = indices_of(np.arange(count), count, seed)
    second = indices_of(np.arange(count, 2 * count), count, seed)
    other = indices_of(np.arange(count), count, seed + 1)
    assert (first != second).any()
    assert (first != other).any()


def test_the_order_never_changes_between_versions() -> None:
    assert indices_of(range(8), 10, 0).tolist() == [7, 5, 8, 6, 3, 0, 9, 2]
    assert indices_of([0, 1, 999, 1000, 10**9], 1000, 7).tolist() == [55, 794, 119, 522, 425]
    assert index_of(123_456_789_012, 10**12 + 39, 2**63) == 568_015_937_714


def test_neighbours_in_the_order_are_far_apart_in_the_data() -> None:
    count = 10_000
    order = indices_of(np.arange(count), count, 3)
    steps = np.abs(np.diff(order))
    assert 0.30 < steps.mean() / count < 0.37  # a third for independent uniform draws
    assert abs(np.corrcoef(np.arange(count), order)[0, 1]) < 0.05


def test_no_positions_give_no_indices() -> None:
    assert indices_of([], 5, 0).shape == (0,)
