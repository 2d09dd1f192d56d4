"""Tensors: every tensor has one in a period, little of them is waited for, and none could be cut better."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import SpecError
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.when import Tensors
from atoll.sync.tensors import Profile, turns
from atoll.sync.units import tensors_in, units_of

EVEN = [1.0] * 40


def half(period: int) -> Profile:
    """Return forty even tensors whose exchange takes half as many backward passes as a period has steps."""
    return Profile(EVEN, [period / 2] * len(EVEN))


def runs(turn: tuple[int, ...]) -> list[range]:
    """Return a turn as runs of tensors."""
    starts = [0, *(i for i in range(1, len(turn)) if turn[i] != turn[i - 1] + 1), len(turn)]
    return [range(turn[a], turn[b - 1] + 1) for a, b in pairwise(starts)]


def waited_s(profile: Profile, found: list[tuple[int, ...]]) -> float:
    return sum(profile.wait_s(*runs(turn)) for turn in found)


@pytest.mark.parametrize("period", [5, 10, 15])
def test_where_the_whole_model_takes_half_the_passes_of_a_period_less_than_a_fifth_is_waited_for(period: int) -> None:
    """Local SGD would wait for all of it."""
    profile = half(period)
    assert waited_s(profile, turns(profile, period)) < 0.2 * len(EVEN) * period / 2


@pytest.mark.parametrize("period", [1, 5, 10, 40])
def test_every_tensor_has_a_turn_in_every_period_and_every_step_has_one(period: int) -> None:
    found = turns(half(period), period)
    assert len(found) == period
    assert set().union(*found) == set(range(len(EVEN)))
    for tensor in range(len(EVEN)):
        mine = [step for step, turn in enumerate(found) if tensor in turn]
        gaps = [b - a for a, b in pairwise([*mine, mine[0] + period])]
        assert max(gaps) <= 2 * period - 1


def test_runs_go_from_the_last_tensor_to_the_first_and_what_time_is_left_goes_to_the_last_again() -> None:
    found = turns(half(5), 5)
    own = [runs(turn)[-1] for turn in found]
    assert [run.start for run in own[1:]] == [run.stop for run in own[:-1]]
    again = [len(runs(turn)[0]) for turn in found if len(runs(turn)) > 1]
    assert again, "some have the last tensors in them once more"
    assert sum(map(len, found)) > len(EVEN)


times = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 60)), min_size=3, max_size=8)


@given(times, st.integers(1, 3))
def test_no_other_cut_is_waited_for_less_and_filling_costs_nothing(each: list[tuple[int, int]], count: int) -> None:
    """The search looks only at as many tensors as are hidden in a run, and one more: that is enough."""
    profile = Profile([float(b) for b, _ in each], [float(t) for _, t in each])
    found = turns(profile, count)
    cuts = ([0, *middle, len(each)] for middle in combinations(range(1, len(each)), count - 1))
    best = min(sum(profile.wait_s(range(a, b)) for a, b in pairwise(cut)) for cut in cuts)
    assert waited_s(profile, found) == best


def test_of_what_takes_no_time_all_but_the_first_tensors_are_exchanged_at_every_step() -> None:
    found = turns(Profile(EVEN, [0.0] * len(EVEN)), 5)
    assert [len(turn) for turn in found] == [36, 37, 38, 39, 40]
    assert all(turn == tuple(range(len(turn))) for turn in found)


LAYOUT = {"model.embed.weight": 50, **{f"model.layers.{n}.weight": 100 for n in range(12)}, "model.norm.weight": 10}


def test_units_of_turns_are_whole_tensors_the_last_layers_first() -> None:
    units = units_of(Tensors(steps=4, count=4, passes=2.0), LAYOUT, Fp32())
    names = [[tensor.name for tensor in tensors_in(unit, LAYOUT)] for unit in units]
    assert "model.norm.weight" in names[0]
    assert "model.embed.weight" in names[-1]
    assert "model.embed.weight" not in names[0]
    assert {name for part in names for name in part} == set(LAYOUT)


def test_more_exchanges_than_tensors_are_refused() -> None:
    with pytest.raises(SpecError, match="15 exchanges in a period, but this model has 14 tensors"):
        units_of(Tensors(steps=15, count=15, passes=1.0), LAYOUT, Fp32())
