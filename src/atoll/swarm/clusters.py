"""Clusters of near members, and the rings between them: one for every stretch of the model that has the same owners.

Each cluster cuts the model among its members, by what their lines carry. Wherever any cluster does, another segment
begins; of a segment every cluster has one owner. Members bring what is theirs to their cluster's owner, the owners are
a ring, and results come back the way that sums went. A segment's chunks end at its owners in turn, so all rings go
round at once, and every link between clusters carries only its owners' share of the model:

    cluster 1   |      a      |      b      |        segments   | a d | a e | b e | b f |
    cluster 2   |   d   |    e    |    f    |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log2

from atoll.swarm.grow import Forest
from atoll.swarm.ring import GAIN_MIN, Costs, length, tour
from atoll.swarm.shares import cut, solve

ALIKE = 0.9
"""Of ways to cut, those that come so near the best are as good: the rest is noise. Rates are told apart by twice."""
Cluster = list[int]
"""Members by their places."""


def rings_of(trips_s: Costs, rates: Sequence[float], chunks: int, clusters: int) -> Forest:
    """Return the trees of all rings, in the order of the chunks that they are for."""
    groups = clusters_of(trips_s, clusters)
    between = 2 * (len(groups) - 1) / len(groups)
    owners = [_owners(group, rates, chunks, between) for group in groups]
    forest: Forest = []
    starts = sorted({0, chunks, *(index for each in owners for index in _starts(each))})
    for first, end in pairwise(starts):
        ring = [each[first] for each in owners]
        for root in range(len(ring)):
            count = (end - first) * (root + 1) // len(ring) - (end - first) * root // len(ring)
            if count:
                forest.append((count, _up(groups, ring, root)))
    return forest


def clusters_of(trips_s: Costs, clusters: int) -> list[Cluster]:
    """Return clusters as equal as can be along a short way round, cut where it is furthest from each to the next."""
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
    return [order[first:end] for first, end in pairwise(bounds)]


def _owners(group: Cluster, rates: Sequence[float], chunks: int, between: float) -> list[int]:
    """Return which member of a cluster owns each chunk."""
    named: Mapping[bytes, int] = {place.to_bytes(4, "big"): place for place in group}
    shares = solve([2.0 ** round(log2(rates[place])) for place in group], len(group) + between)
    return [named[shard.owner] for shard in cut(chunks, list(named), shares) for _ in shard.chunks]


def _starts(owners: Sequence[int]) -> list[int]:
    return [index for index in range(1, len(owners)) if owners[index] != owners[index - 1]]


def _up(groups: Sequence[Cluster], ring: Sequence[int], root: int) -> tuple[int, ...]:
    """Return the tree in which clusters bring everything to their owners, and these pass it round to the root."""
    up = [0] * sum(map(len, groups))
    for number, group in enumerate(groups):
        for place in group:
            up[place] = ring[number]
        up[ring[number]] = ring[(number + 1) % len(ring)] if number != root else ring[root]
    return tuple(up)
