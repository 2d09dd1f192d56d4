"""Chance is even, and one number says nothing of the next, of another place's or of another seed's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from atoll.model.encoding.chance import DRAWN_BITS, keys_of
from atoll.spec.axes.codec import Stochastic
from atoll.sync.codec import decode, encode, seed_of
from atoll.sync.codec.chance import drawn
from tests.few import few_of

MANY = 2**20
SEEDS = [0, 1, 2, 2**32, 2**127 + 1, seed_of(1, 0, b"peer"), seed_of(1, 1, b"peer"), seed_of(2, 0, b"peer")]


def parts(seed: int, count: int = MANY) -> NDArray[np.float64]:
    return drawn(seed, count) / 2.0**DRAWN_BITS


def far(value: float, expected: float, deviation: float) -> float:
    """Return how many deviations a value is from where it should be."""
    return abs(value - expected) / deviation


@pytest.mark.parametrize("seed", SEEDS)
def test_mean_and_spread_are_those_of_even_numbers(seed: int) -> None:
    values = parts(seed)
    assert values.min() >= 0 and values.max() < 1
    assert far(values.mean(), 0.5, (12 * MANY) ** -0.5) < 4
    assert far(values.var(), 1 / 12, (180 * MANY) ** -0.5) < 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shift", [0, 8, 16])
def test_every_byte_of_it_is_as_likely_as_any(seed: int, shift: int) -> None:
    counts = np.bincount((drawn(seed, MANY) >> np.uint32(shift)) & np.uint32(255), minlength=256)
    chi = float(((counts - MANY / 256) ** 2).sum() / (MANY / 256))
    assert far(chi, 255, (2 * 255) ** 0.5) < 5


@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_of_neighbours_fall_everywhere_alike(seed: int) -> None:
    numbers = drawn(seed, MANY) >> np.uint32(DRAWN_BITS - 5)
    counts = np.bincount(numbers[:-1:2] * 32 + numbers[1::2], minlength=1024)
    chi = float(((counts - MANY / 2048) ** 2).sum() / (MANY / 2048))
    assert far(chi, 1023, (2 * 1023) ** 0.5) < 5


@pytest.mark.parametrize("away", [1, 2, 3, 16, 31, 32, 256, 512, 4096])
def test_numbers_at_any_distance_are_not_alike(away: int) -> None:
    for seed in SEEDS:
        values = parts(seed) - 0.5
        assert far(float((values[:-away] * values[away:]).mean()), 0.0, 1 / 12 / (MANY - away) ** 0.5) < 5


def test_those_of_different_seeds_are_not_alike() -> None:
    values = [parts(seed, 2**18) - 0.5 for seed in [*range(12), *SEEDS[3:]]]
    for nth, one in enumerate(values):
        for other in values[:nth]:
            for shift in (0, 1, 7):
                alike = float((np.roll(one, shift) * other).mean())
                assert far(alike, 0.0, 1 / 12 / 2**9) < 5


def test_one_place_of_many_seeds_is_even_too() -> None:
    for place in (0, 1, 511):
        values = np.array([parts(seed, 512)[place] for seed in range(4096)])
        assert far(values.mean(), 0.5, (12 * 4096) ** -0.5) < 4
        counts = np.bincount((values * 64).astype(np.int64), minlength=64)
        assert far(float(((counts - 64) ** 2).sum() / 64), 63, (2 * 63) ** 0.5) < 5


def test_each_bit_of_a_seed_changes_half_of_the_bits_of_both_keys() -> None:
    changed = [
        bin(one ^ other).count("1")
        for place in range(128)
        for one, other in zip(keys_of(seed_of(3, 4)), keys_of(seed_of(3, 4) ^ (1 << place)), strict=True)
    ]
    assert far(float(np.mean(changed)), 16, (8 / 256) ** 0.5) < 4
    assert min(changed) > 2


def test_these_numbers_are_these_for_good() -> None:
    """On every machine and in every release: whoever makes a chunk again makes the same one."""
    assert drawn(0, 4).tolist() == [322957, 14101831, 8851202, 1022419]
    assert drawn(2**100 + 7, 3).tolist() == [4395815, 4496917, 2644589]


@pytest.mark.parametrize("bits", few_of((2, 4, 8, 12), (2, 8)))
def test_what_is_rounded_by_chance_is_right_in_the_mean(bits: int) -> None:
    codec, values = Stochastic(bits=bits, block=64), np.random.default_rng(0).standard_normal(64, np.float32)
    draws = [decode(codec, encode(codec, values, seed_of(1, seed)), 64) for seed in range(4000)]
    step = float(np.linalg.norm(values)) / max(1, 2 ** (bits - 1) - 1)
    off = np.abs(np.mean(draws, axis=0) - values) / (step / 2 / 4000**0.5)
    assert off.max() < 4.5
    assert float(np.mean(off)) > 0.1, "by chance, and not to the nearest"


def test_what_lies_on_a_step_stays_there() -> None:
    codec, values = Stochastic(bits=4, block=16), np.zeros(16, np.float32)
    values[3], values[4] = 8.0, 0.0
    for seed in range(50):
        assert decode(codec, encode(codec, values, seed), 16).tolist() == values.tolist()
