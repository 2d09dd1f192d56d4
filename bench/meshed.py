"""What goes over each link by itself, for `bench.phases`: a contribution as `peer.mesh` makes it, on the processor.

Every link has a residual of its own, carries about one value in a hundred here, and is searched for how near to the
largest of its tensor that is; a peer keeps all of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from bench.transforms import COLUMNS

from atoll.model.compute import Vector
from atoll.peer.mesh import chunks_of, over_link
from atoll.spec.axes.codec import MaxN
from atoll.sync.codec import wire_bytes
from atoll.sync.grid import grid_of
from atoll.sync.units import Tensor

SENT_PART = 0.01
PLACE_BYTES = 2


def contribution(codec: MaxN, values: Vector, links: int) -> Callable[[], list[memoryview]]:
    """Return how all chunks of a contribution are made, of a vector as square matrices; what is left out is kept."""
    size, grid = COLUMNS**2, grid_of(values.size, codec)
    tensors = [Tensor("", first, min(first + size, values.size)) for first in range(0, values.size, size)]
    sent = int(SENT_PART * values.size)
    room_bytes = wire_bytes(codec.values, sent) + PLACE_BYTES * sent
    kept = [np.zeros_like(values) for _ in range(links)]

    def contribute() -> list[memoryview]:
        made = chunks_of(grid, codec, values, None)
        for link, left in enumerate(kept):
            chunks, kept[link] = over_link(codec, grid, values + left, tensors, room_bytes)
            made += chunks
        return made

    return contribute
