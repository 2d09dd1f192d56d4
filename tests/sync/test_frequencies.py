"""Frequencies: the cosine transform of each tile, there and back, with the same bits on every machine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray

from atoll.model.compute import Vector
from atoll.model.encoding.tiles import DIGITS
from atoll.spec.axes.codec import Fp32, TopK
from atoll.spec.axes.what import Dct
from atoll.spec.axes.when import Every, Fragments
from atoll.sync.codec import decode, encode
from atoll.sync.frequencies import Frequencies
from atoll.sync.units import units_of, whole

SHAPES: dict[str, tuple[int, ...]] = {
    "head": (6, 64),
    "layers.0.norm": (48,),
    "layers.0.weight": (128, 64),
    "layers.1.odd": (35, 7),
    "layers.1.weight": (64, 192),
    "scalar": (1,),
}
SIZES = {name: math.prod(shape) for name, shape in SHAPES.items()}
SIZE = sum(SIZES.values())


def draw(seed: int, size: int = SIZE) -> Vector:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def basis(side: int) -> NDArray[np.float64]:
    """Return the orthonormal DCT-II as a matrix, by its definition."""
    k, i = np.mgrid[:side, :side]
    rows: NDArray[np.float64] = np.cos((i + 0.5) * k * np.pi / side) * np.sqrt(2 / side)
    rows[0] /= np.sqrt(2)
    return rows


def frequencies(tile: int = 64) -> Frequencies:
    return Frequencies(Dct(tile=tile), whole(SIZE, Fp32()), SHAPES)


@pytest.mark.parametrize("tile", [2, 5, 16, 64])
def test_there_and_back_is_where_it_was(tile: int) -> None:
    there = frequencies(tile).of(draw(0))
    assert np.linalg.norm(there) == pytest.approx(np.linalg.norm(draw(0)), rel=1e-6)
    assert np.abs(frequencies(tile).back(there) - draw(0)).max() < 2e-6


@settings(max_examples=40)
@given(some.integers(1, 130), some.integers(1, 130))
def test_each_tile_is_transformed_by_the_definition(rows: int, columns: int) -> None:
    values = draw(1, rows * columns)
    shapes: dict[str, tuple[int, ...]] = {"weight": (rows, columns)}
    found = Frequencies(Dct(), whole(values.size, Fp32()), shapes).of(values)
    high, wide = (max(s for s in range(1, 65) if side % s == 0) for side in (rows, columns))
    tiles = values.astype(np.float64).reshape(rows // high, high, columns // wide, wide).transpose(0, 2, 1, 3)
    expected = basis(high) @ tiles @ basis(wide).T
    assert np.abs(found - expected.reshape(-1)).max() < 1e-5


def test_matrices_with_whole_tiles_come_first_so_that_blocks_are_tiles() -> None:
    values = np.zeros(SIZE, np.float32)
    first = SIZES["head"] + SIZES["layers.0.norm"]
    values[first : first + SIZES["layers.0.weight"]] = 1.0
    found = frequencies().of(values)
    assert found[[0, 4096]].tolist() == pytest.approx([64.0, 64.0]), "a flat tile has one frequency"
    found[[0, 4096]] = 0.0
    assert np.abs(found).max() < 1e-5


def test_fragments_are_transformed_by_themselves() -> None:
    for unit in units_of(Fragments(steps=2, count=2), SIZES, Fp32()):
        values = draw(2, unit.grid.size)
        one = Frequencies(Dct(), unit, SHAPES)
        assert np.abs(one.back(one.of(values)) - values).max() < 2e-6
    (unit,) = units_of(Every(steps=1), SIZES, Fp32())
    assert unit.grid.size == SIZE


def test_few_frequencies_say_more_of_a_smooth_matrix_than_few_values() -> None:
    row, column = np.mgrid[:64, :64] / 64
    smooth = (np.sin(3 * row) * np.cos(2 * column)).astype(np.float32).reshape(-1)
    codec, one = TopK(keep=32, block=4096), Frequencies(Dct(), whole(4096, Fp32()), {"weight": (64, 64)})
    by_values = decode(codec, encode(codec, smooth), 4096)
    by_frequencies = one.back(decode(codec, encode(codec, one.of(smooth)), 4096))
    assert np.linalg.norm(by_frequencies - smooth) < 0.05 * np.linalg.norm(by_values - smooth)


def test_no_constant_is_so_near_to_the_border_of_its_last_digit_that_libraries_could_differ() -> None:
    """They disagree by a unit or two in the last of 53 bits."""
    constants = [1 / (2 * math.cos((i + 0.5) * math.pi / n)) for n in range(2, 257, 2) for i in range(n // 2)]
    constants += [math.sqrt(c / n) for n in range(2, 257) for c in (1, 2)]
    constants += [math.cos((i + 0.5) * k * math.pi / n) for n in range(3, 65, 2) for i in range(n) for k in range(n)]
    for value in constants:
        beyond = abs(value) * 10**DIGITS % 1.0
        ulp = math.ulp(value) * 10**DIGITS
        assert abs(beyond - 0.5) > 4 * ulp, value
