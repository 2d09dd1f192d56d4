"""Max-N: what is near the largest of its tensor, and which N so many bytes allow."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from atoll.model.compute import Vector
from atoll.spec.axes.codec import Fp16, MaxN
from atoll.sync.codec import decode, encode, sent
from atoll.sync.grid import Grid
from atoll.sync.peaks import fitting, kept_within, limits, peaks
from atoll.sync.units import Tensor

TENSORS = [Tensor("a", 0, 1000), Tensor("b", 1000, 4000), Tensor("c", 4000, 4096)]
GRID = Grid(4096, 1024)


def values(seed: int = 0) -> Vector:
    """Return a tensor of small values, one of large ones, and one of zeros."""
    rng = np.random.default_rng(seed)
    scale = np.repeat([1e-3, 10.0, 0.0], [1000, 3000, 96])
    drawn: Vector = (rng.standard_normal(4096) * scale).astype(np.float32)
    return drawn


def chosen(n: float, of: Vector) -> NDArray[np.bool_]:
    least = limits(n, peaks(of, TENSORS))
    return sent(MaxN(), encode(MaxN(), of, 0, least), of.size)


def test_it_is_relative_to_the_largest_of_the_tensor_and_not_of_all() -> None:
    found, of = chosen(50.0, values()), values()
    for tensor in TENSORS[:2]:
        part = slice(tensor.first, tensor.end)
        assert np.array_equal(found[part], np.abs(of[part]) >= 0.5 * np.abs(of[part]).max())
    assert not found[4000:].any(), "of zeros there is nothing to send"


def test_of_a_hundred_everything_is_sent_and_of_nearly_nothing_the_largest() -> None:
    of = values()
    assert chosen(100.0, of).all()
    assert chosen(1e-6, of).sum() == 2
    data = encode(MaxN(), of, 0, limits(100.0, peaks(of, TENSORS)))
    assert np.array_equal(decode(MaxN(), data, of.size), of)


@pytest.mark.parametrize("codec", [MaxN(least=0.1), MaxN(least=0.1, values=Fp16())])
@pytest.mark.parametrize("budget_bytes", [600, 3000, 9000])
def test_so_many_bytes_are_filled_and_not_exceeded(codec: MaxN, budget_bytes: int) -> None:
    of = values()
    peak = peaks(of, TENSORS)
    least = limits(fitting(codec, of, peak, kept_within(codec, GRID, budget_bytes)), peak)
    runs = [slice(*GRID.bounds(index)) for index in range(GRID.chunks)]
    size_bytes = sum(len(encode(codec, of[run], 0, least[run])) for run in runs)
    assert 0.9 * budget_bytes <= size_bytes <= 1.02 * budget_bytes


def test_a_tenth_of_the_bytes_is_about_a_tenth_of_the_values() -> None:
    few, many = (kept_within(MaxN(), Grid(10**6, 65536), size_bytes) for size_bytes in (3e4, 3e5))
    assert few == pytest.approx(many / 10, rel=0.01)


def test_n_stays_between_its_bounds() -> None:
    of, codec = values(), MaxN(least=5.0, most=60.0)
    peak = peaks(of, TENSORS)
    for budget_bytes, lowest, highest in ((0, 5.0, 5.0), (1e9, 60.0, 60.0), (3000, 5.1, 59.9)):
        n = fitting(codec, of, peak, kept_within(codec, GRID, budget_bytes))
        assert lowest <= n <= highest
