"""Numbers of a few bits: as long as they must be, and back as they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.sync.codec.bits import is_padded, pack, packed_bytes, unpack


@given(some.integers(1, 24), some.integers(0, 200), some.integers(0, 2**32))
def test_numbers_come_back_from_no_more_bytes_than_their_bits_need(bits: int, count: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 1 << bits, count)
    packed = pack(numbers, bits)
    assert packed.size == packed_bytes(count, bits)
    assert packed.size <= -(-count * bits // 8) + (bits > 8) + (bits > 16)
    assert unpack(packed, count, bits).tolist() == numbers.tolist()
    assert is_padded(packed, count, bits)


@pytest.mark.parametrize(
    ("bits", "packed"), [(1, "d2"), (2, "8d"), (4, "21 03"), (8, "01 02 03"), (12, "01 02 03 54 06")]
)
def test_the_lowest_bits_come_first_and_of_long_numbers_the_lowest_bytes(bits: int, packed: str) -> None:
    numbers = {1: [0, 1, 0, 0, 1, 0, 1, 1], 2: [1, 3, 0, 2], 4: [1, 2, 3], 8: [1, 2, 3], 12: [0x401, 0x502, 0x603]}
    assert pack(np.array(numbers[bits]), bits).tobytes() == bytes.fromhex(packed)


@pytest.mark.parametrize("bits", [1, 3, 4, 12])
def test_a_bit_after_the_last_number_is_seen(bits: int) -> None:
    packed = pack(np.zeros(5, np.int64), bits).copy()
    assert is_padded(packed, 5, bits)
    packed[-1] |= 0x80
    assert not is_padded(packed, 5, bits)
