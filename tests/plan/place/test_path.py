from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.plan.place.crew import Floats
from atoll.plan.place.path import DENSE_MAX, matched, path, path_s, short, shortest, spanned_s


def drawn(seed: int, count: int) -> Floats:
    costs = np.random.default_rng(seed).integers(1, 20, (count, count)).astype(float)
    upper: Floats = np.triu(costs, 1)
    return upper + upper.T


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 5))
def test_no_pairing_has_a_smaller_largest_cost(seed: int, count: int) -> None:
    costs = np.random.default_rng(seed).integers(1, 20, (count, count)).astype(float)
    largest, columns = matched(costs)
    assert sorted(columns) == list(range(count))
    assert costs[range(count), columns].max() == largest
    assert largest == min(costs[range(count), list(order)].max() for order in permutations(range(count)))


def test_large_groups_are_paired_as_small_ones_are() -> None:
    count = DENSE_MAX + 8
    costs = np.random.default_rng(3).uniform(1, 2, (count, count))
    largest, columns = matched(costs)
    assert sorted(columns) == list(range(count))
    assert costs[range(count), columns].max() == largest
    below = costs < largest  # with anything less somebody is left over: as many partners as rows cannot be found
    from scipy.optimize import linear_sum_assignment

    assert not below[linear_sum_assignment(~below)].all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 6))
def test_no_way_past_all_is_shorter(seed: int, count: int) -> None:
    costs = drawn(seed, count)
    length = path_s(costs, shortest(costs))
    orders = permutations(range(count))
    assert length == min(sum(costs[one, other] for one, other in pairwise(order)) for order in orders)
    assert spanned_s(costs) <= length


def test_beyond_what_is_exact_a_way_still_passes_all_once() -> None:
    costs = drawn(1, 15)
    order = path(costs)
    random = [np.random.default_rng(seed).permutation(15).tolist() for seed in range(20)]
    assert sorted(order) == list(range(15))
    assert order == short(costs)
    assert path_s(costs, order) < np.mean([path_s(costs, way) for way in random])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_way_of_thirteen_is_within_its_stated_gap(seed: int) -> None:
    points = np.random.default_rng(seed).uniform(0, 1, (13, 2))
    costs = np.hypot(*(points[:, None] - points[None, :]).transpose(2, 0, 1))
    assert path_s(costs, short(costs)) <= 1.05 * path_s(costs, shortest(costs))
