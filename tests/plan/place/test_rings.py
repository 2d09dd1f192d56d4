import numpy as np
import pytest
from bench.plan.brute import random_crew
from bench.plan.tries import linear_s
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.plan.place.rings import clustered, shared
from atoll.swarm.routes.clusters import clusters_of
from atoll.swarm.routes.shares import cap_of, slowest, solve
from tests.plan.place.crews import counted_bytes, even_job, island_crew


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 100_000), count=st.integers(2, 12), tight=st.booleans())
def test_the_engines_shares_are_those_of_a_linear_program(seed: int, count: int, tight: bool) -> None:
    draw = np.random.default_rng(seed)
    rates = 10 ** draw.uniform(5, 9, count)
    caps = draw.uniform(0.8 / count, 1.0, count) if tight else np.ones(count)
    if caps.sum() <= 1:
        caps = caps / caps.sum() * 1.2
    found = solve(rates.tolist(), count, np.minimum(caps, 1.0).tolist())
    assert sum(found) == pytest.approx(1.0)
    assert all(0 <= share <= cap + 1e-9 for share, cap in zip(found, np.minimum(caps, 1.0), strict=True))
    best_s = linear_s(rates, np.minimum(caps, 1.0), count)
    assert slowest(rates.tolist(), found, count) == pytest.approx(best_s, rel=1e-6)


def test_shares_of_the_planner_are_the_engines() -> None:
    rates, memory_bytes = [1e6, 5e6, 2e7], [4e9, 8e9, 0.0]
    caps = [cap_of(memory, 1e9, 3) for memory in memory_bytes]
    assert shared(rates, memory_bytes, 1e9) == solve(rates, 3, caps)


def test_clusters_are_the_engines_and_each_holds_every_layer_once() -> None:
    crew, job = island_crew([3, 3]), even_job(12)
    found = clustered(crew, job, 2)
    assert found is not None
    trips_s = (2 * crew.links.transfer_s(0.0)).tolist()
    groups = [{crew.peers[place].name for place in group} for group in clusters_of(trips_s, 2)]
    assert [set(names) for names in zip(*(stage.machines for stage in found.stages), strict=True)] == groups
    assert [stage.first for stage in found.stages] == [0, *(stage.end for stage in found.stages[:-1])]
    assert found.stages[-1].end == 12
    assert not found.runs


def test_segments_begin_wherever_a_cluster_is_cut() -> None:
    crew = island_crew([2, 3])
    found = clustered(crew, even_job(12), 2)
    assert found is not None
    assert [(stage.first, stage.end) for stage in found.stages] == [(0, 4), (4, 6), (6, 8), (8, 12)]


def test_clusters_of_one_are_data_parallel_and_run() -> None:
    found = clustered(island_crew([3]), even_job(12), 3)
    assert found is not None
    assert len(found.stages) == 1
    assert found.runs


@pytest.mark.parametrize("seed", range(6))
def test_no_member_of_a_cluster_holds_more_than_it_has_memory_for(seed: int) -> None:
    draw = np.random.default_rng(seed)
    crew, job = random_crew(draw, 6, regions=2), even_job(12, state_bytes=10 ** draw.uniform(8, 9.6))
    memory_bytes = {peer.name: peer.memory_bytes for peer in crew.peers}
    found = clustered(crew, job, 2)
    for cluster in zip(*(stage.machines for stage in found.stages), strict=True) if found else ():
        for name in set(cluster):
            own = [stage for stage, owner in zip(found.stages, cluster, strict=True) if owner == name] if found else []
            after = len(set(cluster[cluster.index(name) :]))
            assert counted_bytes(job, own[0].first, own[-1].end, 1, after) <= memory_bytes[name]
