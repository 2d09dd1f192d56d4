"""The chunk grid: how one flat vector is cut so that many peers can each look after a part.

The grid depends on the model's size alone, so every peer derives the same one from the spec. A shard is a
run of whole chunks with one owner; owners change from round to round, chunks never do. Digests, transfers
and take-overs all speak of chunks.

    vector   |-- 0 --|-- 1 --|-- 2 --|-- 3 --|-- 4 --|- 5 -|
    shards   [ owner A       ][ owner B      ][ owner C    ]
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

CHUNK_ELEMENTS_MAX = 65536
CHUNK_ELEMENTS_MIN = 64
GROUP_MAX = 64
"""Members of one all-to-all exchange; a grid has at least about this many chunks when the model allows."""


class Grid(Struct, frozen=True):
    """A vector of `size` elements in chunks of `chunk` elements, the last one shorter."""

    size: int
    chunk: int

    @property
    def chunks(self) -> int:
        return -(-self.size // self.chunk)

    def bounds(self, index: int) -> tuple[int, int]:
        """Return the first element of a chunk and the one after its last."""
        return index * self.chunk, min((index + 1) * self.chunk, self.size)


class Shard(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A run of chunks and the peer that reduces it."""

    owner: bytes
    first: int
    count: int

    @property
    def chunks(self) -> range:
        return range(self.first, self.first + self.count)


def grid_of(size: int) -> Grid:
    """Return the grid of a vector: chunks as large as the limit allows while there are enough to share out."""
    fair = -(-size // GROUP_MAX)
    return Grid(size, min(CHUNK_ELEMENTS_MAX, max(CHUNK_ELEMENTS_MIN, fair)))


def shards_of(grid: Grid, owners: Sequence[bytes], speeds: Sequence[float] | None = None) -> tuple[Shard, ...]:
    """Return who owns which chunks: shares proportional to speed, whole chunks, by largest remainder.

    An owner whose share rounds to nothing owns nothing.
    """
    weights = list(speeds) if speeds is not None else [1.0] * len(owners)
    exact = [grid.chunks * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(owners)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: grid.chunks - sum(counts)]:
        counts[i] += 1
    shards, first = [], 0
    for owner, count in zip(owners, counts, strict=True):
        if count:
            shards.append(Shard(owner, first, count))
            first += count
    assert first == grid.chunks
    return tuple(shards)
