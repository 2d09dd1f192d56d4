"""Error feedback: nothing that was wanted is lost, only late, and a decay loses as much as it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.model.compute import Vector
from atoll.spec.axes.codec import Buckets, Codec, Fp32, Int8, TopK
from atoll.sync.codec import decode
from atoll.sync.feedback import encode_fed_back

SPARSE = TopK(keep=64, block=4096)
CODECS: list[Codec] = [Fp32(), Int8(), SPARSE, TopK(keep=64, values=Buckets(bits=2, width=6.0))]


def sent(codec: Codec, rounds: list[Vector], decay: float) -> tuple[list[Vector], Vector]:
    """Return what arrives of some rounds' values, and what is left in the end."""
    residual = np.zeros_like(rounds[0])
    came = [decode(codec, encode_fed_back(codec, each, residual, decay), each.size) for each in rounds]
    return came, residual


@given(some.sampled_from(CODECS), some.integers(1, 9000), some.integers(0, 2**32))
def test_all_that_arrived_and_what_is_left_are_all_that_was_wanted(codec: Codec, count: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    rounds = [chance.standard_normal(count, np.float32) for _ in range(6)]
    came, left = sent(codec, rounds, 1.0)
    assert np.abs(np.sum(came, axis=0, dtype=np.float64) + left - np.sum(rounds, axis=0, dtype=np.float64)).max() < 2e-5


def test_where_values_are_whole_numbers_they_add_up_to_the_bit() -> None:
    chance = np.random.default_rng(0)
    rounds = [chance.integers(-100, 100, 10_000).astype(np.float32) for _ in range(20)]
    came, left = sent(SPARSE, rounds, 1.0)
    assert (np.sum(came, axis=0) + left == np.sum(rounds, axis=0)).all()
    assert left.any()


def test_a_decay_keeps_so_much_of_what_was_left_out() -> None:
    rounds = [np.arange(16, dtype=np.float32), np.zeros(16, np.float32)]
    _, left = sent(TopK(keep=1, block=16), rounds[:1], 0.5)
    assert left.tolist() == [*range(15), 0]
    came, left = sent(TopK(keep=1, block=16), rounds, 0.5)
    assert came[1][14] == 7.0
    assert left.tolist() == [*(each / 2 for each in range(14)), 0, 0]


def test_without_a_residual_before_it_decay_zero_is_the_codec_alone() -> None:
    values = np.random.default_rng(3).standard_normal(5000, np.float32)
    came, _ = sent(SPARSE, [values, values], 0.0)
    assert (came[0] == came[1]).all()


@pytest.mark.parametrize(
    ("decay", "alike", "size", "left"),
    [(1.0, 0.999, 0.96, 7.9), (0.95, 0.97, 0.61, 3.8), (0.9, 0.95, 0.49, 2.6), (0.0, 0.90, 0.13, 0.9)],
)
def test_of_a_direction_under_noise_so_much_arrives(decay: float, alike: float, size: float, left: float) -> None:
    """A constant direction under three times as much noise, 64 of 4096 for 400 rounds."""
    chance = np.random.default_rng(7)
    direction = chance.standard_normal(2 * 4096, np.float32)
    rounds = [direction + 3 * chance.standard_normal(direction.size, np.float32) for _ in range(400)]
    came, residual = sent(SPARSE, rounds, decay)
    total, wanted = np.stack(came).sum(axis=0, dtype=np.float64), np.stack(rounds).sum(axis=0, dtype=np.float64)
    cosine = np.dot(total, wanted) / np.linalg.norm(total) / np.linalg.norm(wanted)
    assert cosine == pytest.approx(alike, abs=0.01)
    assert np.linalg.norm(total) / np.linalg.norm(wanted) == pytest.approx(size, abs=0.03)
    assert np.linalg.norm(residual) / np.linalg.norm(rounds[-1]) == pytest.approx(left, rel=0.1)
