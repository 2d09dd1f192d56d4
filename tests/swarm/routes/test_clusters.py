"""Clusters of near members and the rings between them."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atoll.swarm.routes.clusters import ALIKE, clusters_of, inside_s, rings_of
from atoll.swarm.routes.grow import Cargo, Links, forecast_s
from atoll.swarm.routes.ring import NEVER_S, Costs

CHUNKS = 60


def apart(places: list[int], near_s: float = 0.001, far_s: float = 0.15) -> Costs:
    """Return round trips between members who are in these regions."""
    return [
        [0.0 if a == b else near_s if p == q else far_s for b, q in enumerate(places)] for a, p in enumerate(places)
    ]


def owner_of(up: tuple[int, ...], clusters: list[list[int]]) -> list[int]:
    """Return whom each cluster brings everything to, having looked that it does."""
    owners = []
    for cluster in clusters:
        (owner,) = {up[place] for place in cluster if up[place] in cluster and up[place] != place} or {cluster[0]}
        assert all(up[place] == owner for place in cluster if place != owner)
        owners.append(owner)
    return owners


def test_members_of_one_region_are_in_one_cluster_wherever_they_stand_in_the_list() -> None:
    regions = [0, 1, 2, 3, 0, 1, 2, 3]
    clusters = clusters_of(apart(regions), 4)
    assert sorted(sorted(each) for each in clusters) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_where_all_are_alike_clusters_are_equal_and_in_the_order_given() -> None:
    assert clusters_of(apart([0] * 7), 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert clusters_of(apart([0, 0]), 4) == [[0], [1]], "no more than there are members"


def test_members_whom_a_way_round_has_parted_change_places() -> None:
    points = [(1, 4), (2, 3), (2, 4), (2, 0), (1, 3), (3, 5)]
    trips_s = [[float(abs(a - c) + abs(b - d)) for c, d in points] for a, b in points]
    clusters = clusters_of(trips_s, 2)
    assert sorted(sorted(each) for each in clusters) == [[0, 2, 5], [1, 3, 4]]
    assert inside_s(trips_s, clusters) < ALIKE * inside_s(trips_s, [[0, 1, 2], [3, 4, 5]]), "as the way has them"


@given(some.integers(2, 8), some.integers(2, 4), some.integers(0, 1000))
def test_no_two_members_had_clearly_better_change_places(count: int, clusters: int, seed: int) -> None:
    draw = Random(seed)
    far = [[NEVER_S if draw.random() < 0.1 else draw.random() for _ in range(count)] for _ in range(count)]
    trips_s = [[0.0 if a == b else far[min(a, b)][max(a, b)] for b in range(count)] for a in range(count)]
    found = clusters_of(trips_s, clusters)
    assert sorted(place for cluster in found for place in cluster) == list(range(count))
    for one, other in combinations(range(count), 2):
        change = {one: other, other: one}
        swapped = [[change.get(place, place) for place in cluster] for cluster in found]
        assert inside_s(trips_s, swapped) >= 0.999 * ALIKE * inside_s(trips_s, found)


@given(some.integers(1, 9), some.integers(1, 5), some.integers(1, 40))
def test_every_chunk_goes_to_one_owner_in_each_cluster_and_round_all_of_these(
    count: int, clusters: int, chunks: int
) -> None:
    trips_s = apart([0] * count)
    forest = rings_of(trips_s, chunks, clusters)
    groups = clusters_of(trips_s, clusters)
    assert sum(each for each, _ in forest) == chunks
    for _, up in forest:
        owners = owner_of(up, groups) if all(len(group) > 1 for group in groups) else []
        if owners:
            ring = [up[owner] for owner in owners]
            roots = [owner for owner in owners if up[owner] == owner]
            assert len(roots) == 1
            assert all(up[a] == b for a, b in zip(owners, owners[1:] + owners[:1], strict=True) if a != roots[0])
            assert set(ring) <= set(owners), "between clusters only owners speak"


def test_segments_begin_wherever_any_cluster_cuts() -> None:
    """Two members cut the model in halves, three in thirds: four segments, each with a root in either cluster."""
    forest = rings_of(apart([0, 0, 1, 1, 1]), CHUNKS, 2)
    clusters = [[0, 1], [2, 3, 4]]
    segments: dict[tuple[int, ...], int] = {}
    for chunks, up in forest:
        owners = tuple(owner_of(up, clusters))
        segments[owners] = segments.get(owners, 0) + chunks
    assert segments == {(0, 2): 20, (0, 3): 10, (1, 3): 10, (1, 4): 20}
    assert len(forest) == 8
    roots = [sum(chunks for chunks, up in forest if up[place] == place) for place in range(5)]
    assert roots == [15, 15, 10, 10, 10], "each owner is root of half of what it owns"


@pytest.mark.parametrize("members", [2, 3, 4])
def test_rings_of_clusters_take_the_part_of_a_ring_that_their_members_own(members: int) -> None:
    """Three clusters on slow links: with so many owners in each, every link between them carries that part only."""
    cargo = Cargo(1200, 262_144.0)

    def took_s(each: int) -> float:
        regions = [number // each for number in range(3 * each)]
        trips_s = apart(regions)
        byte_s = [[1e-6 if p != q else 1e-9 for q in regions] for p in regions]
        links = Links(byte_s, [[0.0] * len(regions) for _ in regions])
        return forecast_s(rings_of(trips_s, cargo.chunks, 3), links, cargo)

    assert took_s(members) / took_s(1) == pytest.approx(1 / members, rel=0.1)
