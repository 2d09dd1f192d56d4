"""Some of many peers as bits: whoever goes in comes out, in the order of the many, and nothing else passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.swarm.bits import bits_of, named

MANY = tuple(bytes([place]) * 32 for place in range(20))


@given(some.integers(0, 20), some.sets(some.sampled_from(MANY)))
def test_who_is_named_comes_out_again(count: int, chosen: set[bytes]) -> None:
    many = MANY[:count]
    bits = bits_of(chosen, many)
    assert len(bits) == -(-count // 8)
    assert named(bits, many) == tuple(peer for peer in many if peer in chosen)


@pytest.mark.parametrize("bits", [b"", b"\x01", b"\x01\x00\x00", b"\x00\x08"])
def test_bits_that_cannot_be_theirs_are_refused(bits: bytes) -> None:
    with pytest.raises(ValueError, match="11 peers"):
        named(bits, MANY[:11])
