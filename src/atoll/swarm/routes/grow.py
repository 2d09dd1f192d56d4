"""Which trees sums should travel along: grown over what members measured of the links between them.

What goes up a link comes down it again, so a link is as fast as its slower direction. Chunks are shared out a slice at
a time. Each slice takes the tree, of any root that may be one, on which the longest queue is shortest: the queue of a
link is what earlier slices put on it and this one, at the rate measured, and half a round trip. So several roots share
the chunks, in the measure that their trees are fast; and what would have to wait for a busy link goes by idle ones,
through members that add what is their own to it on the way.

    slice 1   a --> r <-- b         slice 9   a --> b --> r      once the queue from a to r is longer

Chunks follow each other closely, so a forest takes as long as its longest queue, and the first chunk's way up and down:
`forecast_s`. Growing is greedy: whatever comes of it is held against the best star, and against trees of short ways
in place of fast links.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

SLICES = 16
"""Into so many parts at most chunks are shared out."""
CLOSE = 1e-9
"""Two times that differ by less are the same."""

Matrix = Sequence[Sequence[float]]
Up = tuple[int, ...]


class Links(Struct, frozen=True):
    """The links between some members: what a byte takes on each, and how long the way is."""

    s_byte: Matrix
    delay_s: Matrix


class Cargo(Struct, frozen=True):
    """What is to be brought together."""

    chunks: int
    chunk_bytes: float


Forest = list[tuple[int, Up]]
"""Trees, each with how many chunks it is for."""


def grown(links: Links, cargo: Cargo, roots: int) -> Forest:
    """Return the trees that take the shortest time, with so many roots at most."""
    found = [_shared_out(links, cargo, roots, by_queue=by_queue) for by_queue in (True, False)]
    return min([*found, _star(links, cargo)], key=lambda forest: forecast_s(forest, links, cargo))


def forecast_s(forest: Forest, links: Links, cargo: Cargo) -> float:
    """Return how long a forest takes: its longest queue, and the first chunk's way up and down."""
    load = [[0.0] * len(links.s_byte) for _ in links.s_byte]
    longest_s = 0.0
    for chunks, up in forest:
        _put(load, up, chunks * cargo.chunk_bytes)
        for place in range(len(up)):
            longest_s = max(longest_s, _way_s(up, place, links, cargo.chunk_bytes))
    queues_s = [
        size * s for sizes, each in zip(load, links.s_byte, strict=True) for size, s in zip(sizes, each, strict=True)
    ]
    return max(queues_s, default=0.0) + 2 * longest_s


def _way_s(up: Up, place: int, links: Links, size_bytes: float) -> float:
    """Return how long one chunk is on its way to the root, if nothing is before it."""
    took_s = 0.0
    while up[place] != place:
        took_s += size_bytes * links.s_byte[place][up[place]] + links.delay_s[place][up[place]]
        place = up[place]
    return took_s


def _put(load: list[list[float]], up: Up, size_bytes: float) -> None:
    for place, above in enumerate(up):
        if above != place:
            load[place][above] += size_bytes
            load[above][place] += size_bytes


def _star(links: Links, cargo: Cargo) -> Forest:
    """Return the best star: everybody brings everything to one, who returns it."""
    count, size_bytes = len(links.s_byte), cargo.chunks * cargo.chunk_bytes

    def took_s(root: int) -> float:
        others = [place for place in range(count) if place != root]
        queue_s = max((size_bytes * links.s_byte[root][place] for place in others), default=0.0)
        up = (root,) * count
        return queue_s + 2 * max((_way_s(up, place, links, cargo.chunk_bytes) for place in others), default=0.0)

    return [(cargo.chunks, (min(range(count), key=took_s),) * count)]


def _shared_out(links: Links, cargo: Cargo, roots: int, *, by_queue: bool) -> Forest:
    """Return trees for all chunks, a slice at a time; equal ones are one."""
    count, slices = len(links.s_byte), min(SLICES, cargo.chunks)
    load = [[0.0] * count for _ in range(count)]
    able = _able(links, cargo, roots)
    chosen: dict[int, None] = {}
    shared: dict[Up, int] = {}
    for number in range(slices):
        chunks = cargo.chunks * (number + 1) // slices - cargo.chunks * number // slices
        size_bytes = chunks * cargo.chunk_bytes
        costs = [
            [(load[a][b] + size_bytes) * links.s_byte[a][b] + links.delay_s[a][b] for b in range(count)]
            for a in range(count)
        ]
        trees = [_nearest(costs, root, by_queue=by_queue) for root in (chosen if len(chosen) >= roots else able)]
        _, up = min(trees)
        chosen[next(place for place, above in enumerate(up) if above == place)] = None
        shared[up] = shared.get(up, 0) + chunks
        _put(load, up, size_bytes)
    return [(chunks, up) for up, chunks in shared.items()]


def _able(links: Links, cargo: Cargo, roots: int) -> list[int]:
    """Return who may be a root: anybody among a few, among many those of the best trees."""
    count = len(links.s_byte)
    if count <= SLICES:
        return list(range(count))
    costs = [
        [cargo.chunk_bytes * s + d for s, d in zip(*each, strict=True)]
        for each in zip(links.s_byte, links.delay_s, strict=True)
    ]
    ranked = sorted(range(count), key=lambda root: (_nearest(costs, root, by_queue=False)[0], root))
    return sorted(ranked[:roots])


def _nearest(costs: Matrix, root: int, *, by_queue: bool) -> tuple[tuple[float, float], Up]:
    """Return the tree of least ways to a root (Dijkstra), and what the worst way in it costs, and all its links.

    A way is as long as its longest queue and, of equal ones, as all its links together; or else just as these.
    """
    up, cost = [root] * len(costs), [(float("inf"), float("inf"))] * len(costs)
    cost[root], left = (0.0, 0.0), list(range(len(costs)))
    while left:
        place = min(left, key=lambda each: (cost[each], each))
        left.remove(place)
        queue_s, way_s = cost[place]
        for other in left:
            link_s = costs[other][place]
            way = (max(queue_s, link_s) if by_queue else 0.0, way_s + link_s)
            if way < (cost[other][0] - CLOSE, cost[other][1]) or way < (cost[other][0], cost[other][1] - CLOSE):
                cost[other], up[other] = way, place
    links_s = sum(costs[place][above] for place, above in enumerate(up) if above != place)
    return (max(cost)[0 if by_queue else 1], links_s), tuple(up)
