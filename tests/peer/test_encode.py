"""In which order a contribution is encoded: every chunk once, the first ones of all owners first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from atoll.peer.encode import _in_turn
from atoll.sync.grid import Grid


@given(some.integers(1, 300), some.integers(1, 9), some.integers(1, 40), some.integers(0, 20))
def test_every_chunk_has_its_turn_once(chunks: int, owners: int, many: int, stretch: int) -> None:
    grid = Grid(size=10 * chunks, chunk=10)
    batches = list(_in_turn(grid, owners, 10 * many, stretch))
    assert sorted(index for batch in batches for index in batch) == list(range(chunks))
    assert all(len(batch) == many for batch in batches[:-1])


def test_a_device_is_given_stretches_of_every_owner() -> None:
    first, *_ = _in_turn(Grid(size=120, chunk=1), 4, 24, 6)
    assert first == [start + at for start in (0, 30, 60, 90) for at in range(6)]
    first, *_ = _in_turn(Grid(size=120, chunk=1), 4, 8)
    assert first == [0, 30, 60, 90, 1, 31, 61, 91]
