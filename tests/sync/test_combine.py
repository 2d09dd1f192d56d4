"""Combining: what each rule makes of contributions, and how far a bad one moves it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from atoll.model.compute import Vector
from atoll.peer.lengths import Lengths
from atoll.spec.axes.codec import TopK
from atoll.spec.axes.merge import CentredClip, Combine, Mean, MeanPresent, MedianNormClip, Trimmed
from atoll.sync.codec import decode, encode, sent
from atoll.sync.combine import combined, numbers, products
from atoll.sync.grid import Grid
from atoll.sync.merge import inner
from atoll.sync.units import Tensor, Unit

SIZE = 4096
ROBUST: list[Combine] = [
    Trimmed(drop=0.2),
    MedianNormClip(over="chunk"),
    CentredClip(over="chunk", radius=2.0),
]


def draw(seed: int, size: int = SIZE) -> Vector:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def honest(count: int, noise: float = 1.0) -> list[Vector]:
    """Return contributions that have a signal in common, and each a noise of its own."""
    return [draw(0) + np.float32(noise) * draw(1 + i) for i in range(count)]


def long(vector: Vector) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


def test_a_sum_in_a_fixed_order_is_the_sum() -> None:
    assert inner(draw(1), draw(2)) == pytest.approx(float(draw(1).astype(np.float64) @ draw(2).astype(np.float64)))
    assert inner(draw(1)[:0], draw(2)[:0]) == 0.0


@pytest.mark.parametrize("combine", [MedianNormClip(), CentredClip(), *ROBUST])
def test_one_contribution_alone_stays_as_it_is(combine: Combine) -> None:
    assert np.allclose(combined(combine, [draw(1)], [3.0]), draw(1), rtol=1e-6)


@pytest.mark.parametrize("combine", ROBUST)
@pytest.mark.parametrize("large", [1e2, 1e30, 3e38])
def test_one_of_five_cannot_move_a_robust_rule_far_whatever_it_sends(combine: Combine, large: float) -> None:
    good = honest(4)
    bad = np.clip(draw(9), -1, 1) * np.float32(large)
    aim = combined(Mean(), good, [1.0] * 4)
    made = combined(combine, [*good[:2], bad, *good[2:]], [1.0] * 5)
    assert np.isfinite(made).all()
    assert long(made - aim) < long(aim), "it is nearer to the honest ones than to nothing"
    assert long(combined(Mean(), [*good, bad], [1.0] * 5) - aim) > 5 * long(aim)


def test_a_delta_a_hundred_times_too_large_less_than_doubles_a_clipped_mean() -> None:
    """Without clipping it multiplies it by about a hundred over the number of peers."""
    good = honest(8, noise=0.3)
    large = [*good[:-1], good[-1] * np.float32(100)]

    def grows(combine: Combine) -> float:
        before, after = (combined(combine, parts, [1.0] * 8) for parts in (good, large))
        return float(np.linalg.norm(after) / np.linalg.norm(before))

    assert grows(MedianNormClip()) < 1.1
    assert grows(Mean()) == pytest.approx((100 + 7) / 8, rel=0.1)


def test_clipping_shortens_those_above_the_median_and_nobody_else() -> None:
    parts = [draw(seed) * np.float32(scale) for seed, scale in enumerate((1, 2, 3, 4, 50))]
    found = numbers(MedianNormClip(), products(MedianNormClip(), parts), [1.0] * 5)
    lengths = [5 * number * float(np.linalg.norm(part)) for number, part in zip(found, parts, strict=True)]
    assert lengths == pytest.approx([float(np.linalg.norm(part)) for part in parts[:3]] + [lengths[2]] * 2, rel=1e-6)


def test_a_centre_is_where_pulls_of_at_most_the_radius_balance() -> None:
    parts = [*honest(6), draw(9) * np.float32(30)]
    centre = combined(CentredClip(radius=1.0, iterations=200), parts, [1.0] * 7)
    radius = sorted(float(np.linalg.norm(part)) for part in parts)[3]
    pulls = [part - centre for part in parts]
    clipped = [pull * np.float32(min(1.0, radius / float(np.linalg.norm(pull)))) for pull in pulls]
    assert np.linalg.norm(np.sum(clipped, axis=0)) < 1e-3 * radius


def test_a_centre_with_a_large_radius_is_the_mean() -> None:
    parts = honest(5)
    assert np.allclose(combined(CentredClip(radius=100.0), parts, [1.0] * 5), np.mean(parts, axis=0), atol=1e-5)


@settings(max_examples=30)
@given(some.integers(1, 9), some.floats(0.01, 0.49))
def test_a_trimmed_mean_is_that_of_the_middle(count: int, drop: float) -> None:
    parts = [draw(seed, 40) for seed in range(count)]
    cut = min(math.ceil(drop * count), (count - 1) // 2)
    middle = np.sort(np.stack(parts), axis=0)[cut : count - cut]
    assert np.allclose(combined(Trimmed(drop=drop), parts, [1.0] * count), middle.mean(axis=0), atol=1e-6)


def test_what_is_left_of_a_trimmed_mean_weighs_what_it_weighs() -> None:
    parts = [np.array([value], np.float32) for value in (100.0, 1.0, 2.0, -100.0)]
    assert combined(Trimmed(drop=0.25), parts, [9.0, 3.0, 1.0, 9.0]).tolist() == [1.25]


def test_a_mean_of_those_present_divides_by_those_who_sent_a_coordinate() -> None:
    codec = TopK(keep=1, block=16)
    values = [np.zeros(16, np.float32) for _ in range(3)]
    values[0][3], values[1][3], values[2][5] = 2.0, 6.0, 8.0
    wires = [encode(codec, each) for each in values]
    there = [sent(codec, wire, 16) for wire in wires]
    assert [each.sum() for each in there] == [1, 1, 1]
    made = combined(MeanPresent(), [decode(codec, wire, 16) for wire in wires], [1.0, 3.0, 1.0], there)
    assert made[[3, 5]].tolist() == [5.0, 8.0]
    assert np.count_nonzero(made) == 2, "what nobody sent is zero"


def test_who_sent_a_zero_sent_it() -> None:
    codec = TopK(keep=1, block=16)
    zero, one = np.zeros(16, np.float32), np.zeros(16, np.float32)
    wire = encode(codec, zero)
    place = int(np.flatnonzero(sent(codec, wire, 16))[0])
    one[place] = 4.0
    there = [sent(codec, each, 16) for each in (wire, encode(codec, one))]
    assert combined(MeanPresent(), [zero, one], [1.0, 1.0], there)[place] == 2.0


@pytest.mark.parametrize("combine", [MedianNormClip(), CentredClip(over="tensor")])
def test_tensors_are_measured_over_all_the_chunks_they_lie_in(combine: MedianNormClip | CentredClip) -> None:
    sizes = {"layers.0": 700, "norm": 3, "layers.1": 1297, "embed": 500}
    ends = np.cumsum(list(sizes.values())).tolist()
    tensors = [Tensor(name, end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)]
    grid = Grid(ends[-1], 256)
    lengths = Lengths(combine, Unit(((0, grid.size),), grid), tensors)
    parts = [draw(seed, grid.size) * np.float32(1 + 2 * seed) for seed in range(4)]
    bounds = [grid.bounds(index) for index in range(grid.chunks)]
    for index, (first, end) in enumerate(bounds):
        assert not lengths.complete(b"set")
        lengths.measure(index, b"set", [part[first:end] for part in parts])
    assert lengths.complete(b"set")
    assert not lengths.knows(0, b"another set")
    made = [
        lengths.combined(index, b"set", [part[first:end] for part in parts], [1.0] * 4)
        for index, (first, end) in enumerate(bounds)
    ]
    whole = np.concatenate(made)
    for tensor in tensors:
        own = [part[tensor.first : tensor.end] for part in parts]
        expected = combined(combine, own, [1.0] * 4)
        assert np.allclose(whole[tensor.first : tensor.end], expected, rtol=1e-5, atol=1e-6)
