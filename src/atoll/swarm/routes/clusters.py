"""Clusters of near members, and the rings between them: one for every stretch of the model that has the same owners.

Each cluster cuts the model into equal parts, one for each of its members. Wherever any cluster does, another segment
begins; of a segment every cluster has one owner. Members bring what is theirs to their cluster's owner, the owners are
a ring, and results come back the way that sums went. A segment's chunks end at its owners in turn, so all rings go
round at once, and every link between clusters carries only its owners' share of the model:

    cluster 1   |      a      |      b      |        segments   | a d | a e | b e | b f |
    cluster 2   |   d   |    e    |    f    |
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import inf

from atoll.swarm.routes.grow import Forest
from atoll.swarm.routes.ring import GAIN_MIN, Costs, length, tour

ALIKE = 0.9
"""Of ways to cut, those that come so near the best are as good: the rest is noise."""
Cluster = list[int]
"""Members by their places."""


def rings_of(trips_s: Costs, chunks: int, clusters: int) -> Forest:
    """Return the trees of all rings, in the order of the chunks that they are for."""
    groups = clusters_of(trips_s, clusters)
    starts = {chunks * place // len(group) for group in groups for place in range(len(group) + 1)}
    forest: Forest = []
    for first, end in pairwise(sorted(starts)):
        ring = [_owner(group, first, chunks) for group in groups]
        for root in range(len(ring)):
            count = (end - first) * (root + 1) // len(ring) - (end - first) * root // len(ring)
            if count:
                forest.append((count, _up(groups, ring, root)))
    return forest


def _owner(group: Cluster, index: int, chunks: int) -> int:
    """Return which member of a cluster owns a chunk: the last whose part begins there or before."""
    return group[max(place for place in range(len(group)) if chunks * place // len(group) <= index)]


def clusters_of(trips_s: Costs, clusters: int) -> list[Cluster]:
    """Return clusters as equal as can be along a short way round, cut where it is furthest from each to the next.

    Where members had better change places, and that brings clusters clearly closer together, they do.
    """
    given, order = list(range(len(trips_s))), tour(trips_s)
    if length(trips_s, given) < GAIN_MIN * length(trips_s, order):
        order = given
    count, size = min(clusters, len(order)), len(order)
    bounds = [size * number // count for number in range(count + 1)]

    def apart_s(turn: int) -> float:
        return sum(trips_s[order[(turn + at) % size]][order[(turn + at - 1) % size]] for at in bounds[:-1])

    furthest_s = max(map(apart_s, range(size)))
    turn = next(turn for turn in range(size) if apart_s(turn) >= ALIKE * furthest_s)
    order = order[turn:] + order[:turn]
    along = [order[first:end] for first, end in pairwise(bounds)]
    closer = _swapped(trips_s, along)
    return closer if inside_s(trips_s, closer) < ALIKE * inside_s(trips_s, along) else along


def inside_s(trips_s: Costs, clusters: Sequence[Cluster]) -> float:
    """Return the trips from every member to every other of its cluster, all together."""
    return sum(trips_s[one][other] for cluster in clusters for one in cluster for other in cluster)


def _swapped(trips_s: Costs, clusters: Sequence[Cluster]) -> list[Cluster]:
    """Return clusters after members changed places, each time the two that gain most, until nothing is gained."""
    left_s, found = inf, [list(cluster) for cluster in clusters]
    while (now_s := inside_s(trips_s, found)) < left_s:
        left_s, best = now_s, found
        found = _swap(trips_s, best)
    return best


def _swap(trips_s: Costs, clusters: Sequence[Cluster]) -> list[Cluster]:
    """Return clusters with the two members in each other's place of whom that is most gained, or least lost."""
    seats = [(number, place) for number, cluster in enumerate(clusters) for place in cluster]
    far_s = [[sum(map(trip_s.__getitem__, cluster)) for cluster in clusters] for trip_s in trips_s]

    def gain_s(pair: tuple[tuple[int, int], tuple[int, int]]) -> float:
        (one, a), (other, b) = pair
        return far_s[a][one] - far_s[a][other] + far_s[b][other] - far_s[b][one] + 2 * trips_s[a][b]

    pairs = [pair for pair in combinations(seats, 2) if pair[0][0] != pair[1][0]]
    (_, a), (_, b) = max(pairs, key=gain_s, default=((0, 0), (0, 0)))
    return [[b if place == a else a if place == b else place for place in cluster] for cluster in clusters]


def _up(groups: Sequence[Cluster], ring: Sequence[int], root: int) -> tuple[int, ...]:
    """Return the tree in which clusters bring everything to their owners, and these pass it round to the root."""
    up = [0] * sum(map(len, groups))
    for number, group in enumerate(groups):
        for place in group:
            up[place] = ring[number]
        up[ring[number]] = ring[(number + 1) % len(ring)] if number != root else ring[root]
    return tuple(up)
