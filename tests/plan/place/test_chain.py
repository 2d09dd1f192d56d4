from itertools import pairwise

import numpy as np
import pytest
from bench.plan.brute import all_rows, cuts, random_crew, random_job, slowest_s
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from atoll.plan.place.chain import balanced, best_row, in_order, moved, proportional
from atoll.plan.place.crew import Crew, Job
from atoll.plan.place.cuts import cut_stages
from atoll.plan.place.fence import fenced, fenced_row
from atoll.plan.place.near import communities
from atoll.plan.place.placement import Part, fits, pipeline_of
from tests.plan.place.crews import counted_bytes


def drawn(seed: int, peers: int = 4, layers: int = 5, regions: int = 0) -> tuple[Crew, Job]:
    draw = np.random.default_rng(seed)
    return random_crew(draw, peers, regions), random_job(draw, layers)


def test_no_row_of_few_peers_is_faster() -> None:
    for seed in range(4):
        crew, job = drawn(seed)
        row = best_row(crew, job)
        assert row is not None
        assert row.slowest_s == pytest.approx(min(slowest_s(crew, job, parts, 1) for parts in all_rows(crew, job)))


def test_cuts_in_a_given_order_are_the_best_where_memory_is_no_matter() -> None:
    crew, job = drawn(1)
    roomy = Crew(tuple(replace(peer, memory_bytes=1e15) for peer in crew.peers), crew.links)
    row = in_order(roomy, job, [2, 0, 3, 1])
    kept = [parts for parts in all_rows(roomy, job) if _keeps([part[2][0] for part in parts], [2, 0, 3, 1])]
    assert row is not None
    assert row.slowest_s == pytest.approx(min(slowest_s(roomy, job, parts, 1) for parts in kept))


def _keeps(some: list[int], order: list[int]) -> bool:
    return [place for place in order if place in some] == some


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.floats(0.05, 20), peers=st.integers(1, 9))
def test_no_row_asks_for_more_memory_than_there_is(seed: int, size: float, peers: int) -> None:
    crew, job = drawn(seed, peers, 5, regions=2)
    job = replace(job, layers=tuple(replace(layer, state_bytes=layer.state_bytes * size) for layer in job.layers))
    memory_bytes = {peer.name: peer.memory_bytes for peer in crew.peers}
    for found in (balanced(crew, job), fenced(crew, job)):
        for at, stage in enumerate(found.stages if found else ()):
            held, size = (min(found.micro_batches, len(found.stages) - at), found.micro_batch) if found else (0, 0)
            need = counted_bytes(job, stage.first, stage.end, size, held)
            assert all(need <= memory_bytes[name] for name in stage.machines)


def test_what_nobody_can_hold_gets_no_row() -> None:
    crew, job = drawn(0)
    heavy = replace(job, layers=tuple(replace(layer, state_bytes=1e15) for layer in job.layers))
    assert balanced(crew, heavy) is None
    assert fenced(crew, heavy) is None
    assert moved(crew, heavy, 1) is None


def test_moving_peers_comes_near_the_best_order() -> None:
    crew, job = drawn(3, peers=6, layers=12)
    best, near = best_row(crew, job), moved(crew, job, 1)
    assert best is not None
    assert near is not None
    assert best.slowest_s <= near.slowest_s <= 1.05 * best.slowest_s


def test_given_stages_are_cut_as_brute_force_cuts_them() -> None:
    crew, job = drawn(2, peers=3, layers=7)
    parts = cut_stages(crew, job, [[0], [1], [2]], 1, job.batch)
    busiest = []
    for ends in cuts(7, 3):
        rows: list[Part] = [(a, b, (at,)) for at, (a, b) in enumerate(pairwise([0, *ends]))]
        busiest.append(_busy_s(crew, job, rows))
    assert parts is not None
    assert _busy_s(crew, job, parts) == pytest.approx(min(busiest))


def _busy_s(crew: Crew, job: Job, parts: list[Part]) -> float:
    if not fits(crew, job, parts, 1):
        return float("inf")
    pipeline = pipeline_of(crew, job, parts, 1)
    return max(c + 2 * s for c, s in zip(pipeline.compute_s, (*pipeline.send_s, 0.0), strict=True))


@given(speeds=st.lists(st.floats(0.1, 10), min_size=2, max_size=3), layers=st.integers(3, 12))
@settings(max_examples=30, deadline=None)
def test_layers_by_speed_keep_the_slowest_stage_fastest(speeds: list[float], layers: int) -> None:
    counts = proportional(layers, speeds)
    assert sum(counts) == layers
    ways = [[first, layers - first] for first in range(layers + 1)]
    if len(speeds) == 3:
        ways = [[a, b, layers - a - b] for a in range(layers + 1) for b in range(layers + 1 - a)]
    slowest = [max(count / speed for count, speed in zip(way, speeds, strict=True)) for way in ways]
    assert max(count / speed for count, speed in zip(counts, speeds, strict=True)) == pytest.approx(min(slowest))


def test_slack_lets_the_faster_stages_take_more_than_their_part() -> None:
    assert proportional(40, [2.0, 1.0, 1.0]) == [20, 10, 10]
    assert proportional(40, [2.0, 1.0, 1.0], slack=1.05) == [21, 10, 9]
    assert sum(proportional(7, [5.0, 0.1], slack=3.0)) == 7


def two_clusters() -> tuple[Crew, Job]:
    """Six equal peers in two clusters of three, dealt so that neighbours by name are not near each other."""
    crew, job = drawn(4, peers=6, layers=12)
    at = np.array([0, 1, 0, 1, 0, 1])
    same = at[:, None] == at[None, :]
    peers = tuple(replace(peer, flop_s=1e13, memory_bytes=1e12) for peer in crew.peers)
    links = replace(crew.links, latency_s=np.where(same, 0.001, 0.02), bytes_s=np.where(same, 1e9, 1e8).astype(float))
    return Crew(peers, links), job


def test_two_clusters_are_told_apart_and_crossed_once() -> None:
    crew, job = two_clusters()
    apart_s = crew.links.transfer_s(4e6)
    assert sorted(map(sorted, communities(apart_s))) == [[0, 2, 4], [1, 3, 5]]
    row = fenced_row(crew, job)
    assert row is not None
    sides = [place % 2 for _, _, place in row.parts]
    assert len(row.parts) == 6
    assert sum(one != other for one, other in pairwise(sides)) == 1


def test_where_all_links_are_alike_all_are_one_cluster() -> None:
    assert communities(np.ones((5, 5)) - np.eye(5)) == [[0, 1, 2, 3, 4]]
