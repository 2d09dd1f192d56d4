"""Some of many as bits: whoever goes in comes out, and nobody beyond the last ever does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from atoll.swarm.bits import bits_of, places_of


@given(some.integers(0, 200), some.data())
def test_bits_say_which_places(count: int, data: some.DataObject) -> None:
    places = sorted(data.draw(some.sets(some.integers(0, count - 1)))) if count else []
    bits = bits_of(places, count)
    assert len(bits) == -(-count // 8)
    assert places_of(bits, count) == places


@given(some.integers(0, 200), some.binary(max_size=100))
def test_any_bytes_name_places_that_are_there(count: int, bits: bytes) -> None:
    set_ = [place for place in range(min(count, 8 * len(bits))) if bits[place // 8] >> place % 8 & 1]
    assert places_of(bits, count) == set_
