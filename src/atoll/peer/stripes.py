"""How many streams a bulk transfer goes over: on a fast and long path one is too narrow.

A stream has no more on its way than its window, so it carries at most a window per round trip. What a line carries is
only known from what it has carried, so there are always streams for twice as much: while they are what holds it down,
their number doubles from round to round.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil

from atoll.net.transport import PeerId
from atoll.peer.links import Links

STREAM_BYTES = 1_250_000
"""What iroh lets one stream have on its way; it cannot be set from Python."""
STRIPES_MAX = 8


def stripes_to(links: Links, peer: PeerId, chunks: int) -> int:
    """Return over how many streams to send a peer so many chunks."""
    on_way_bytes = 2 * links.line.up.rate_bytes_s() * (links.round_trip_s(peer) or 0.0)
    return max(1, min(ceil(on_way_bytes / STREAM_BYTES), chunks, STRIPES_MAX))


def stripe(chunks: Collection[int], number: int, of: int) -> list[int]:
    """Return the chunks, in their order, that go over one of several streams."""
    return [index for index in chunks if index % of == number]
