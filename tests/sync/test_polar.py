"""Directions and lengths: what their mean comes to, to which bits, and what cannot be one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from atoll.model.compute import Vector
from atoll.spec.axes.codec import Bf16, Codec, Fp16, Fp32
from atoll.spec.axes.merge import Rda
from atoll.spec.axes.when import Every, Fragments
from atoll.sync.codec import BadChunk, decode, encode
from atoll.sync.combine import combined
from atoll.sync.polar import Polar
from atoll.sync.units import Unit, units_of

LAYOUT = {"embed.weight": 500, "layers.0.weight": 700, "layers.0.norm": 3, "layers.1.weight": 1297, "head": 600}
SIZE = sum(LAYOUT.values())
PLAIN = slice(0, 500)
DIRECTED = {"layers.0.weight": slice(500, 1200), "layers.0.norm": slice(1200, 1203), "head": slice(2500, 3100)}


def draw(seed: int, size: int = SIZE) -> Vector:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def unit(codec: Codec | None = None) -> Unit:
    (found,) = units_of(Every(steps=1), LAYOUT, codec or Fp32(), polar=True)
    return found


def polar() -> Polar:
    return Polar(unit(), LAYOUT)


def rda(parts: Sequence[Vector], weights: Sequence[float], form: Polar | None = None) -> Vector:
    """Return what everybody comes to: what is sent, averaged by owners, and brought back."""
    form = form or polar()
    return form.back(combined(Rda(), [form.of(part) for part in parts], weights))


def long(vector: Vector) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


@settings(max_examples=20)
@given(some.lists(some.integers(1, 50), min_size=1, max_size=6))
def test_each_tensor_becomes_its_mean_direction_at_its_mean_length_embeddings_their_mean(weights: list[int]) -> None:
    parts = [draw(seed) * np.float32(1 + seed) for seed in range(len(weights))]
    made = rda(parts, [float(w) for w in weights])
    for where in DIRECTED.values():
        own = [part[where] for part in parts]
        direction = np.average([part / long(part) for part in own], axis=0, weights=weights)
        length = np.average([long(part) for part in own], weights=weights)
        assert np.allclose(made[where], length * direction / np.linalg.norm(direction), rtol=1e-4, atol=1e-5)
    mean = np.average([part[PLAIN] for part in parts], axis=0, weights=weights)
    assert np.allclose(made[PLAIN], mean, rtol=1e-5, atol=1e-6)


def test_the_mean_of_random_directions_shrinks_with_their_number_and_this_does_not() -> None:
    layout = {"layers.0.weight": 2**16}
    (whole,) = units_of(Every(steps=1), layout, Fp32(), polar=True)
    form = Polar(whole, layout)
    means, kept, lengths = [], [], []
    for count in (2, 4, 8, 16):
        parts = [draw(seed, 2**16) / np.float32(2**8) for seed in range(count)]
        means.append(long(np.mean(parts, axis=0)))
        kept.append(long(rda(parts, [1.0] * count, form)))
        lengths.append(float(np.mean([long(part) for part in parts])))
    assert means == pytest.approx([0.706, 0.501, 0.354, 0.250], rel=0.02)
    assert kept == pytest.approx(lengths, rel=1e-4)
    assert lengths == pytest.approx([1.0] * 4, rel=0.01)


def test_one_contribution_alone_stays_as_it_is() -> None:
    assert np.allclose(rda([draw(1)], [3.0]), draw(1), rtol=1e-6)


def test_contributions_that_cancel_out_have_no_direction() -> None:
    made = rda([draw(1), -3 * draw(1)], [1.0, 1.0])
    assert not made[PLAIN.stop :].any()
    assert made[PLAIN].any(), "an embedding's mean is what it is"
    assert not rda([np.zeros(SIZE, np.float32)] * 3, [1.0] * 3).any()


@pytest.mark.parametrize("scale", [1e-30, 1e-42, 1e-3, 1e30])
def test_however_long_or_short_values_are_they_come_back(scale: float) -> None:
    values = draw(3) * np.float32(scale)
    made = rda([values], [1.0])
    assert np.isfinite(made).all()
    assert np.allclose(made, values, rtol=1e-5, atol=3e-45 * 2**12)


@pytest.mark.parametrize("codec", [Fp32(), Fp16(), Bf16()])
def test_what_is_honest_passes_in_every_form_it_travels_in(codec: Codec) -> None:
    found = unit(codec)
    form = Polar(found, LAYOUT)
    sent, grid = form.of(draw(5) * np.float32(1e-3)), found.grid
    arrived = []
    for index in range(grid.chunks):
        first, end = grid.bounds(index)
        arrived.append(decode(codec, encode(codec, sent[first:end]), end - first))
        form.check(index, arrived[-1])
    made = form.back(np.concatenate(arrived))
    assert np.allclose(made, draw(5) * np.float32(1e-3), rtol=1e-2, atol=1e-5)


def refusals(change: slice | int, by: float) -> set[str]:
    """Return why chunks of a contribution are refused in which something was changed."""
    found = unit()
    form, sent = Polar(found, LAYOUT), polar().of(draw(5))
    sent[change] *= np.float32(by)
    refused = set()
    for index in range(found.grid.chunks):
        first, end = found.grid.bounds(index)
        try:
            form.check(index, sent[first:end])
        except BadChunk as error:
            refused.add(str(error))
    return refused


@pytest.mark.parametrize("where", DIRECTED.values())
def test_a_direction_that_is_longer_than_one_is_refused_by_who_has_enough_of_it(where: slice) -> None:
    assert refusals(where, 1.0) == set()
    (why,) = refusals(where, 40.0)
    assert "longer than a direction" in why


@pytest.mark.parametrize("by", [-1.0, 1e38])
@pytest.mark.parametrize("place", [SIZE, SIZE + 3])
def test_a_length_that_no_values_have_is_refused(place: int, by: float) -> None:
    (why,) = refusals(place, by)
    assert "lengths that no values have" in why


def test_what_an_owner_cannot_see_is_a_direction_shorter_than_one_or_another_length() -> None:
    assert refusals(DIRECTED["head"], 0.1) == set()
    assert refusals(SIZE, 1e3) == set()


def test_every_fragment_has_the_lengths_of_its_own_tensors() -> None:
    units = units_of(Fragments(steps=4, count=2), LAYOUT, Fp32(), polar=True)
    assert [each.grid.size - each.size for each in units] == [2, 2], "the embedding, which is in the first, has none"
    values = draw(7)
    for each in units:
        form = Polar(each, LAYOUT)
        assert np.allclose(form.back(form.of(each.take(values))), each.take(values), rtol=1e-5)


def test_what_is_not_finite_does_not_become_so() -> None:
    values = draw(1)
    values[600] = np.inf
    assert not np.isfinite(polar().of(values)[DIRECTED["layers.0.weight"]]).all()
