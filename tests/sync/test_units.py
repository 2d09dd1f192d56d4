"""Units: every element is in exactly one of them, and comes and goes through it unharmed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.errors import SpecError
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.when import Every, Fragments, Named
from atoll.sync.units import Unit, tensors_in, units_of, whole

LAYOUT = {
    "lm_head.weight": 30,
    "model.embed_tokens.weight": 40,
    **{f"model.layers.{layer}.{part}.weight": 5 for layer in range(4) for part in ("mlp", "norm")},
    "model.norm.weight": 3,
}
SIZE = sum(LAYOUT.values())
patterns = some.sampled_from(["strided", "sequential", "packed"])


@given(some.integers(1, 4), patterns)
def test_every_element_is_in_exactly_one_fragment(count: int, pattern: str) -> None:
    units = units_of(Fragments(steps=4 * count, count=count, pattern=pattern), LAYOUT, Fp32())  # type: ignore[arg-type]
    covered = sorted(place for unit in units for first, end in unit.spans for place in range(first, end))
    assert covered == list(range(SIZE))
    assert all(unit.grid.size == sum(end - first for first, end in unit.spans) for unit in units)


def test_layers_go_in_turn_or_in_runs_and_ends_with_their_neighbours() -> None:
    strided, runs = (
        units_of(Fragments(steps=4, count=2, pattern=pattern), LAYOUT, Fp32()) for pattern in ("strided", "sequential")
    )
    assert strided[0].spans == ((30, 80), (90, 100)), "the embedding, layers 0 and 2"
    assert runs[0].spans == ((30, 90),), "the embedding, layers 0 and 1"
    assert runs[1].spans == ((0, 30), (90, 113)), "the head, layers 2 and 3, the last norm"


def test_packed_fragments_are_about_as_large_as_each_other() -> None:
    sizes = [u.grid.size for u in units_of(Fragments(steps=3, count=3, pattern="packed"), LAYOUT, Fp32())]
    assert max(sizes) <= max(40, SIZE / 3 + 5)


def test_all_at_once_is_one_unit() -> None:
    assert units_of(Every(steps=7), LAYOUT, Fp32()) == (whole(SIZE, Fp32()),)


def test_more_fragments_than_layers_are_refused_with_a_way_out() -> None:
    with pytest.raises(SpecError, match="would be empty") as refused:
        units_of(Fragments(steps=8, count=8), LAYOUT, Fp32())
    assert "packed" in refused.value.hint
    assert len(units_of(Fragments(steps=8, count=8, pattern="packed"), LAYOUT, Fp32())) == 8


@given(some.integers(1, 4), patterns)
def test_a_fragments_tensors_lie_in_it_whole(count: int, pattern: str) -> None:
    vector = np.arange(SIZE, dtype=np.float32)
    ends = dict(zip(LAYOUT, np.cumsum(list(LAYOUT.values())).tolist(), strict=True))
    names = []
    for unit in units_of(Fragments(steps=4 * count, count=count, pattern=pattern), LAYOUT, Fp32()):  # type: ignore[arg-type]
        for name, first, end in tensors_in(unit, LAYOUT):
            names.append(name)
            assert unit.take(vector)[first:end].tolist() == list(range(ends[name] - LAYOUT[name], ends[name]))
    assert sorted(names) == sorted(LAYOUT)


def test_named_tensors_are_one_part_and_all_others_the_other() -> None:
    first, rest = units_of(Named(steps=4, names=("embed", "layers.1.mlp")), LAYOUT, Fp32())
    assert [name for name, _, _ in tensors_in(first, LAYOUT)] == [
        "model.embed_tokens.weight",
        "model.layers.1.mlp.weight",
    ]
    assert {name for unit in (first, rest) for name, _, _ in tensors_in(unit, LAYOUT)} == set(LAYOUT)
    assert first.size + rest.size == SIZE


@pytest.mark.parametrize(("name", "why"), [("layers.9.", "none is found among lm_head.weight,"), ("weight", "empty")])
def test_names_of_nothing_or_of_everything_are_refused(name: str, why: str) -> None:
    with pytest.raises(SpecError, match=why) as refused:
        units_of(Named(steps=4, names=(name,)), LAYOUT, Fp32())
    assert "some" in refused.value.hint


def test_versions_take_turns() -> None:
    when = Fragments(steps=30, count=3)
    assert [when.unit(version) for version in (1, 2, 3, 4)] == ["fragment 0", "fragment 1", "fragment 2", "fragment 0"]
    assert (when.round_steps, Every(steps=30).round_steps, Every(steps=30).unit(9)) == (10, 30, "model")


@given(some.data())
def test_what_is_put_into_a_unit_is_what_is_taken_from_it(data: some.DataObject) -> None:
    unit: Unit = units_of(Fragments(steps=4, count=2), LAYOUT, Fp32())[data.draw(some.integers(0, 1))]
    first = data.draw(some.integers(0, unit.grid.size - 1))
    end = data.draw(some.integers(first + 1, unit.grid.size))
    vector = np.arange(SIZE, dtype=np.float32)
    values = -1 - unit.take(vector, first, end)
    unit.put(vector, values, first)
    assert unit.take(vector, first, end).tolist() == values.tolist()
    assert (vector < 0).sum() == end - first
    places = np.concatenate([np.arange(a, b) for a, b in unit.spans])[first:end]
    assert (-1 - vector[places]).tolist() == places.tolist()


@given(some.integers(1, SIZE), some.integers(0, 5))
def test_by_lot_every_element_is_in_exactly_one_part_of_a_pass(count: int, number: int) -> None:
    units = [u.in_pass(number) for u in units_of(Fragments(steps=count, count=count, pattern="drawn"), LAYOUT, Fp32())]
    parts = [unit.take(np.arange(SIZE, dtype=np.float32)) for unit in units]
    assert sorted(np.concatenate(parts).tolist()) == list(range(SIZE))
    assert all((np.diff(part) > 0).all() for part in parts), "in the order of the vector"
    assert [part.size for part in parts] == [unit.grid.size for unit in units]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_lots_are_drawn_anew_in_every_pass_and_are_spread_over_the_vector() -> None:
    layout = {"a.weight": 100_000}
    first, *_ = units_of(Fragments(steps=200, count=200, pattern="drawn"), layout, Fp32())
    places = [first.in_pass(number).take(np.arange(100_000, dtype=np.float32)) for number in range(3)]
    assert [each.size for each in places] == [500] * 3
    assert all(len({*one.tolist()} & {*other.tolist()}) < 20 for one, other in pairwise(places)), "2.5 by chance"
    assert all(abs(float(each.mean()) / 100_000 - 0.5) < 0.06 for each in places)
    assert np.array_equal(places[0], first.in_pass(0).take(np.arange(100_000, dtype=np.float32))), "everybody's alike"


def test_what_is_put_into_a_part_by_lot_is_what_is_taken_from_it() -> None:
    unit = units_of(Fragments(steps=4, count=4, pattern="drawn"), LAYOUT, Fp32())[1].in_pass(2)
    vector = np.arange(SIZE, dtype=np.float32)
    values = -unit.take(vector, 3, 9)
    unit.put(vector, values, 3)
    assert np.array_equal(unit.take(vector, 3, 9), values)
    assert (vector < 0).sum() == 6


def test_more_parts_by_lot_than_elements_are_refused() -> None:
    with pytest.raises(SpecError, match="no 200 fragments"):
        units_of(Fragments(steps=200, count=200, pattern="drawn"), LAYOUT, Fp32())
