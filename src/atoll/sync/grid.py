"""The chunk grid: how one flat vector is cut so that many peers can each look after a part.

The grid depends on the model's size and the codec alone, so every peer derives the same one from the spec. A shard is a
run of whole chunks with one owner, as a round's plan says; owners change, chunks never do. Digests, transfers
and take-overs all speak of chunks.

    vector   |-- 0 --|-- 1 --|-- 2 --|-- 3 --|-- 4 --|- 5 -|
    shards   [ owner A       ][ owner B      ][ owner C    ]
"""

from __future__ import annotations

from msgspec import Struct

from atoll.spec.axes.codec import CacheLines, Codec, Fp32, TopK, TurnedSign
from atoll.sync.codec import is_exact, wire_bytes
from atoll.sync.codec.above import ELEMENTS_MAX as PLACES_MAX

FP32 = Fp32()
CHUNK_BYTES = 256 * 1024
"""What a large chunk is about on the wire, at most a quarter more: a message costs the same whatever is in it."""
CHUNK_ELEMENTS_MIN = 64
CHUNK_ELEMENTS_MAX = 8 * CHUNK_BYTES
"""What a chunk decoded may take in memory, however few bits stand for an element."""
GROUP_MAX = 64
"""Members of one all-to-all exchange; a grid has at least about this many chunks when the model allows."""


class Grid(Struct, frozen=True):
    """A vector of `size` elements in chunks of `chunk` elements, the last one shorter; or several, one by one."""

    size: int
    chunk: int
    copies: int = 1
    """So many vectors of the same elements."""

    @property
    def chunks(self) -> int:
        return self.copies * self.each

    @property
    def each(self) -> int:
        """Return how many chunks each of them has."""
        return -(-self.size // self.chunk)

    def bounds(self, index: int) -> tuple[int, int]:
        """Return the first element of a chunk and the one after its last."""
        index %= self.each
        return index * self.chunk, min((index + 1) * self.chunk, self.size)


def grid_of(size: int, codec: Codec = FP32) -> Grid:
    """Return the grid of a vector: chunks as large as the limit allows while there are enough to share out.

    A chunk of what is chosen or turned by the block has whole blocks, since of a short one more is sent.
    """
    fair = max(CHUNK_ELEMENTS_MIN, -(-size // GROUP_MAX))
    block = codec.block if isinstance(codec, TopK | TurnedSign) else codec.line if isinstance(codec, CacheLines) else 1
    return Grid(size, min(chunk_elements_max(codec), -(-fair // block) * block))


def chunk_elements_max(codec: Codec) -> int:
    """Return how many elements a chunk has at most; a power of two, so that blocks fit in."""
    count = CHUNK_ELEMENTS_MIN
    most = CHUNK_ELEMENTS_MAX if is_exact(codec) else PLACES_MAX
    while count < most and wire_bytes(codec, 2 * count) <= 1.25 * CHUNK_BYTES:
        count *= 2
    return count
