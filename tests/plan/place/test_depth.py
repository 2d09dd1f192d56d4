from collections.abc import Callable
from time import process_time

import numpy as np
import pytest
from bench.plan.brute import all_placements, random_crew, random_job, step_s
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from atoll.plan.place.chain import balanced
from atoll.plan.place.crew import Crew, Job
from atoll.plan.place.depth import deepened
from atoll.plan.place.fence import fenced
from atoll.plan.place.islands import by_speed, islanded
from atoll.plan.place.lay import aligned, laid
from atoll.plan.place.placement import Pipeline, Placement, at_once, in_turn
from tests.plan.place.crews import counted_bytes, even_job, home_crew, island_crew


def fits(crew: Crew, job: Job, found: Placement) -> bool:
    """Whether every stage has what it needs while it holds what 1F1B holds, counted anew."""
    memory_bytes = {peer.name: peer.memory_bytes for peer in crew.peers}
    for at, stage in enumerate(found.stages):
        held = min(found.micro_batches, len(found.stages) - at)
        need = counted_bytes(job, stage.first, stage.end, found.micro_batch, held)
        if any(need > memory_bytes[name] for name in stage.machines):
            return False
    return True


def covers(job: Job, found: Placement) -> bool:
    """Whether every layer has one stage, every machine one at most, and every sequence a place in a micro-batch."""
    names = [name for stage in found.stages for name in stage.machines]
    ends = [0, *(stage.end for stage in found.stages)]
    width = len(found.stages[0].machines)
    return (
        [stage.first for stage in found.stages] == ends[:-1]
        and ends[-1] == len(job.layers)
        and len(set(names)) == len(names)
        and width * found.micro_batch * found.micro_batches >= job.batch
    )


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000), peers=st.integers(1, 6), size=st.floats(0.02, 30))
def test_a_placement_never_asks_for_more_memory_than_there_is(seed: int, peers: int, size: float) -> None:
    draw = np.random.default_rng(seed)
    crew, job = random_crew(draw, peers, regions=2), random_job(draw, 6, batch=int(draw.integers(1, 40)))
    job = replace(job, layers=tuple(replace(layer, state_bytes=layer.state_bytes * size) for layer in job.layers))
    for found in (deepened(crew, job, explain=False), islanded(crew, job), by_speed(crew, job)):
        if found is not None:
            assert fits(crew, job, found)
            assert covers(job, found)


@pytest.mark.parametrize("seed", [3, 5])
def test_no_depth_width_or_order_of_few_machines_is_faster(seed: int) -> None:
    draw = np.random.default_rng(seed)
    crew, job = random_crew(draw, 4, regions=2), random_job(draw, 4, batch=8)
    found = deepened(crew, job, explain=False)
    assert found is not None
    assert found.step_s <= 1.05 * min(step_s(crew, job, *each) for each in all_placements(crew, job))


def test_what_fits_one_peer_over_slow_links_is_data_parallel_or_alone_and_runs() -> None:
    found = deepened(island_crew([4]), even_job(gradient_bytes=1e6, out_bytes=1e9))
    assert found is not None
    assert len(found.stages) == 1
    assert found.runs
    assert found.plan_only == ""
    assert len(found.stages[0].machines) == 4


def test_what_fits_no_single_peer_is_a_plan_only_and_says_why() -> None:
    job = even_job(12, state_bytes=10e9)
    found = deepened(island_crew([4]), job)
    assert found is not None
    assert not found.runs
    assert "stages" in found.plan_only
    assert fits(island_crew([4]), job, found)


def test_what_fits_nowhere_gets_no_placement() -> None:
    heavy = even_job(state_bytes=1e15)
    for solver in (deepened, islanded, by_speed, balanced, fenced):
        assert solver(island_crew([2, 2]), heavy) is None


def test_memory_is_named_where_more_of_it_would_be_faster() -> None:
    tight = deepened(island_crew([4], memory_bytes=5e9), even_job(12))
    roomy = deepened(island_crew([4]), even_job(12))
    assert tight is not None
    assert roomy is not None
    assert tight.binds == "memory"
    assert roomy.binds != "memory"
    assert roomy.step_s < tight.step_s


def test_a_far_region_is_left_out_while_reaching_it_costs_more_than_it_computes() -> None:
    job = even_job(8, gradient_bytes=4e8, out_bytes=4e7)
    slow = deepened(island_crew([3, 3], across=(0.1, 1e6)), job, explain=False)
    fast = deepened(island_crew([3, 3], across=(0.0005, 25e9 / 8)), job, explain=False)
    assert slow is not None
    assert fast is not None
    assert len({name[0] for stage in slow.stages for name in stage.machines}) == 1
    assert len(slow.idle) >= 3
    assert fast.idle == ()


def test_another_prediction_may_choose_another_depth() -> None:
    def dear_depth(pipeline: Pipeline) -> float:
        return in_turn(pipeline) + 1e6 * len(pipeline.compute_s)

    def dear_sync(pipeline: Pipeline) -> float:
        return in_turn(pipeline) + 1e6 * pipeline.sync_s

    shallow, deep = (deepened(island_crew([4]), even_job(), each, explain=False) for each in (dear_depth, dear_sync))
    assert shallow is not None
    assert deep is not None
    assert len(shallow.stages) == 1
    assert all(len(stage.machines) == 1 for stage in deep.stages)


def test_a_stage_sends_after_it_computes_or_while_it_does() -> None:
    pipeline = Pipeline(compute_s=(1.0, 2.0), send_s=(0.5,), latency_s=(0.1,), sync_s=3.0, micro_batches=4)
    assert in_turn(pipeline) == (1 + 2 * 0.5) + 2 + 3 * 2 + 3
    assert at_once(pipeline) == 1 + 2 + 2 * 0.5 + 3 * 2 + 3


def holmes() -> Job:
    """GPT of 3.6 G parameters: 30 layers 3,072 wide, sequences of 2,048."""
    wide, tokens = 3072, 2048
    weights = 12 * wide**2
    return even_job(
        30,
        128,
        flop=3 * (24 * wide**2 + 4 * tokens * wide) * tokens,
        state_bytes=16 * weights,
        gradient_bytes=2 * weights,
        held_bytes=34 * tokens * wide,
        out_bytes=2 * tokens * wide,
    )


def test_replicas_of_a_stage_never_leave_their_island() -> None:
    for sizes in ([3, 2], [2, 2, 3]):
        found = islanded(island_crew(sizes), holmes(), at_once)
        assert found is not None
        assert all(len({name[0] for name in stage.machines}) == 1 for stage in found.stages)


def test_islands_pay_against_replicas_across_and_come_near_one_fast_network() -> None:
    crew, fast = island_crew([4, 4]), island_crew([4, 4], across=(0.0005, 25e9 / 8))
    found, near = islanded(crew, holmes(), at_once), deepened(fast, holmes(), at_once, explain=False)
    across = [_across(crew, stages) for stages in (1, 2, 4)]
    assert found is not None
    assert near is not None
    assert found.step_s <= 1.25 * near.step_s
    assert 1.5 * found.step_s <= min(across)


def _across(crew: Crew, stages: int) -> float:
    """What a step takes where each stage has as many replicas on either island."""
    groups = [[*range(stage, 4, stages), *range(4 + stage, 8, stages)] for stage in range(stages)]
    found = laid(crew, holmes(), aligned(crew, holmes(), groups), at_once)
    assert found is not None
    return found.step_s


def test_a_slower_island_has_fewer_layers_and_stages_take_as_long() -> None:
    found = by_speed(island_crew([4, 4], speeds=[1.5e14, 1e14]), holmes(), predict=at_once)
    assert found is not None
    layers = {name[0]: stage.end - stage.first for stage in found.stages for name in stage.machines}
    assert layers["b"] / layers["a"] == pytest.approx(1 / 1.5, rel=0.1)
    times = [(stage.end - stage.first) / {"a": 1.5, "b": 1.0}[stage.machines[0][0]] for stage in found.stages]
    assert max(times) <= 1.1 * min(times)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_a_placement_of_many_never_asks_for_more_memory(seed: int) -> None:
    draw = np.random.default_rng(seed)
    crew = random_crew(draw, int(draw.integers(8, 60)), regions=int(draw.integers(2, 6)))
    job = random_job(draw, int(draw.integers(4, 40)), batch=int(draw.integers(1, 300)))
    size = 10 ** draw.uniform(-1, 2)
    job = replace(job, layers=tuple(replace(layer, state_bytes=layer.state_bytes * size) for layer in job.layers))
    for found in (deepened(crew, job), islanded(crew, job), balanced(crew, job), fenced(crew, job)):
        if found is not None:
            assert fits(crew, job, found)
            assert covers(job, replace(found, micro_batches=max(found.micro_batches, 1)))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("solver", [deepened, islanded, balanced, fenced])
@pytest.mark.parametrize("homes", [True, False])
def test_a_thousand_peers_are_placed_in_under_a_minute(
    solver: Callable[[Crew, Job], Placement | None], homes: bool
) -> None:
    draw = np.random.default_rng(0)
    crew = home_crew(1000) if homes else random_crew(draw, 1000, regions=12)
    job = even_job(48, 1024, state_bytes=4e9) if homes else random_job(draw, 48, batch=1024)
    began_s = process_time()
    found = solver(crew, job)
    assert process_time() - began_s < 60
    assert found is not None
    assert fits(crew, job, found)


@pytest.mark.long
def test_of_many_homes_those_with_slow_lines_are_left_out() -> None:
    crew, job = home_crew(100), even_job(24, 256, state_bytes=1e8)
    found = deepened(crew, job, explain=False)
    everybody = laid(crew, job, [list(range(100))], in_turn)
    assert found is not None
    assert everybody is not None
    assert 0 < len(found.idle) < 100
    assert 3 * found.step_s < everybody.step_s
