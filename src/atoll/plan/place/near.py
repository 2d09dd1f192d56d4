"""Who is near whom: clusters found from links alone, and orders in which near peers stand together.

Peers are joined, nearest first (average linkage). Where the next join would be over links that are several times slower
than the last, the clusters are what has been joined so far. Clusters stand in the order whose borders are shortest;
within each, peers stand so that its ends are where its borders are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.plan.place.crew import Floats
from atoll.plan.place.path import path

CLEFT_MIN = 2.0
"""Links across are at least so many times slower than those within; else all are one cluster."""


def near(apart_s: Floats) -> list[int]:
    """Return an order in which who is near each other stands together."""
    from scipy.cluster.hierarchy import leaves_list

    if len(apart_s) < 3:
        return list(range(len(apart_s)))
    return [int(leaf) for leaf in leaves_list(_joins(apart_s))]


def communities(apart_s: Floats) -> list[list[int]]:
    """Return clusters of peers that are near each other, or all as one where no cleft is wide enough."""
    from scipy.cluster.hierarchy import fcluster

    everybody = list(range(len(apart_s)))
    if len(apart_s) < 3:
        return [everybody]
    joins = _joins(apart_s)
    heights_s = np.maximum(joins[:, 2], 1e-12)
    clefts = heights_s[1:] / heights_s[:-1]
    at = int(clefts.argmax())
    if clefts[at] < CLEFT_MIN:
        return [everybody]
    labels = fcluster(joins, (heights_s[at] * heights_s[at + 1]) ** 0.5, "distance")
    return [[int(place) for place in np.flatnonzero(labels == label)] for label in sorted(set(labels))]


def _joins(apart_s: Floats) -> Floats:
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    found: Floats = linkage(squareform(apart_s, checks=False), "average")
    return found


def lined(apart_s: Floats, clusters: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return clusters in the order of their borders, each with its members from one border to the other."""
    count = len(clusters)
    borders = np.zeros((count, count))
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    for one in range(count):
        for other in range(count):
            if one != other:
                links = apart_s[np.ix_(clusters[one], clusters[other])]
                i, j = divmod(int(links.argmin()), links.shape[1])
                borders[one, other] = links[i, j]
                ends[one, other] = clusters[one][i], clusters[other][j]
    order = path(borders)
    found = []
    for at, cluster in enumerate(order):
        enters = ends[order[at - 1], cluster][1] if at else None
        leaves = ends[cluster, order[at + 1]][0] if at + 1 < count else None
        found.append(_through(apart_s, clusters[cluster], enters, leaves))
    return found


def _through(apart_s: Floats, members: Sequence[int], enters: int | None, leaves: int | None) -> list[int]:
    """Return the members of a cluster by a short way, its ends put where the borders are."""
    inner = [place for place in members if place not in (enters, leaves)]
    if inner:
        inner = [inner[at] for at in path(apart_s[np.ix_(inner, inner)])]
        if enters is not None and apart_s[enters, inner[-1]] < apart_s[enters, inner[0]]:
            inner.reverse()
    head = [enters] if enters is not None else []
    tail = [leaves] if leaves is not None and leaves != enters else []
    return [*head, *inner, *tail]
