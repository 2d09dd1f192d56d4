"""Modelled computers, and the model that only counts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from atoll.errors import LocalError
from atoll.model.compute import Compute, Cost, Engine, Step
from atoll.sim.compute import MARKS, UNIT, CountingEngine, Device, SimCompute, delta_of, first_weights
from atoll.sim.cores import Cores
from atoll.sim.flows import Fluid
from atoll.sim.loop import VirtualLoop

DEVICE = Device(flop_s=100.0, efficiency=0.5, memory_bytes_s=10.0)


def _run(work: Coroutine[Any, Any, None]) -> float:
    loop = VirtualLoop()

    async def main() -> float:
        await work
        return loop.time()

    return loop.run(main())


def test_a_job_takes_the_longer_of_its_work_and_its_memory() -> None:
    compute = SimCompute(DEVICE)
    assert compute.took_s(Cost(flop=100.0)) == 2.0
    assert compute.took_s(Cost(flop=100.0, moved_bytes=50.0)) == 5.0


@pytest.mark.parametrize("counted", [False, True])
def test_a_device_that_slows_down_and_recovers_does_so_in_the_middle_of_a_job(counted: bool) -> None:
    """Two seconds of work: one at full speed, three in which a third of the other is done, and the rest at once."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        compute = SimCompute(DEVICE, cores=Cores(Fluid(loop), 1.0) if counted else None)
        loop.call_at(1.0, compute.slow_down, 9.0)
        loop.call_at(4.0, compute.slow_down, 1.0)
        await compute.run(lambda: None, Cost(flop=100.0))
        assert loop.time() == pytest.approx(4.0 + 2 / 3)
        compute.slow_down(3.0)
        await compute.run(lambda: None, Cost(flop=100.0))

    assert _run(main()) == pytest.approx(10.0 + 2 / 3)


def test_jobs_run_at_their_virtual_start_one_after_the_other() -> None:
    started: list[tuple[str, float]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        compute: Compute = SimCompute(DEVICE)

        def job(name: str) -> str:
            started.append((name, loop.time()))
            return name

        async with asyncio.TaskGroup() as group:
            jobs = [group.create_task(compute.run(lambda name=name: job(name), Cost(flop=50.0))) for name in "abc"]  # type: ignore[misc]
        assert [task.result() for task in jobs] == ["a", "b", "c"]

    assert _run(main()) == 3.0
    assert started == [("a", 0.0), ("b", 1.0), ("c", 2.0)]


def test_a_cancelled_job_keeps_the_device_busy() -> None:
    async def main() -> None:
        compute = SimCompute(DEVICE)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await compute.run(lambda: None, Cost(flop=100.0))
        await compute.run(lambda: None, Cost(flop=50.0))

    assert _run(main()) == 3.0


def test_a_peer_killed_in_mid_job_never_sees_the_result() -> None:
    loop = VirtualLoop()
    seen: list[int] = []

    async def life() -> None:
        seen.append(await SimCompute(DEVICE).run(lambda: 1, Cost(flop=100.0)))

    async def main() -> None:
        process = loop.incarnation("p")
        process.start(life())
        await asyncio.sleep(1)
        process.crash()
        await asyncio.sleep(10)

    loop.run(main())
    assert seen == []


@settings(max_examples=50)
@given(some.lists(some.integers(0, 2**40), max_size=40), some.randoms(use_true_random=False))
def test_a_delta_does_not_depend_on_order_and_every_other_element_not_on_grouping(
    positions: list[int], rng: Any
) -> None:
    whole = delta_of(7, 33, positions)
    shuffled = positions.copy()
    rng.shuffle(shuffled)
    assert np.array_equal(whole, delta_of(7, 33, shuffled))
    cut = rng.randint(0, len(positions))
    parts = delta_of(7, 33, shuffled[cut:]) + delta_of(7, 33, shuffled[:cut])
    assert np.array_equal(whole[::2], parts[::2])
    assert whole[0] == -len(positions) * UNIT


def test_the_order_in_which_deltas_of_several_are_added_up_shows() -> None:
    one, other, third = (delta_of(7, 64, range(first, first + 8)) for first in (0, 8, 16))
    assert not np.array_equal((one + other) + third, one + (other + third))
    assert np.array_equal(((one + other) + third)[::2], (one + (other + third))[::2])


def test_every_sample_leaves_its_own_mark() -> None:
    deltas = {delta_of(1, 16, [position]).tobytes() for position in range(5000)}
    assert len(deltas) == 5000
    assert not np.array_equal(delta_of(1, 16, [3]), delta_of(2, 16, [3]))
    assert abs(float(delta_of(1, 16, range(5000))[1:].mean())) < 5000 * UNIT


def test_a_large_batch_is_the_sum_of_its_samples() -> None:
    positions = list(range(3000))
    apart = sum((delta_of(1, 64, [position]).astype(np.float64) for position in positions), np.zeros(64))
    assert np.array_equal(delta_of(1, 64, positions)[::2], apart[::2])
    assert np.allclose(delta_of(1, 64, positions), apart, atol=UNIT / 1000)


def test_training_lowers_the_weights_by_the_delta_of_its_samples() -> None:
    engine: Engine = CountingEngine(seed=5, size=32, tokens_per_sample=10)
    before = engine.weights()
    assert np.array_equal(before, first_weights(5, 32))
    steps = [Step(samples=(1, 2, 3)), Step(samples=(9,), rate=0.5)]
    trained = engine.train(steps)
    assert (trained.steps, trained.samples, trained.tokens) == (2, 4, 40)
    assert np.array_equal(engine.weights(), before - delta_of(5, 32, [1, 2, 3, 9]))
    held = engine.weights()
    held[:] = 0
    assert engine.weights().any(), "the caller's copy is its own"


def test_the_weights_do_not_tell_how_work_was_sliced() -> None:
    whole, sliced = CountingEngine(seed=5, size=32), CountingEngine(seed=5, size=32)
    for engine in (whole, sliced):
        engine.assign(np.linspace(-1, 1, 32, dtype=np.float32))
    steps = [Step(samples=(place, place + 100)) for place in range(9)]
    whole.train(steps)
    for first, end in ((0, 1), (1, 3), (3, 9)):
        sliced.train(steps[first:end])
    assert np.array_equal(whole.weights(), sliced.weights())


def test_what_is_trained_bears_the_mark_of_its_life() -> None:
    engine = CountingEngine(seed=5, size=192)
    before = engine.weights()
    engine.life = 3
    assert np.array_equal(engine.weights(), before)
    engine.train([Step(samples=(1, 2))])
    engine.train([Step(samples=(3, 4))])
    assert set((before - engine.weights())[MARKS].tolist()) == {3 * UNIT}
    _, mean = engine.gradient([Step(samples=(1, 2))])
    assert set(mean[MARKS].tolist()) == {3 * UNIT}


def test_a_gradient_changes_nothing_and_is_the_mean() -> None:
    engine = CountingEngine(seed=5, size=32)
    before = engine.weights()
    trained, mean = engine.gradient([Step(samples=(1, 2)), Step(samples=(3, 4))])
    assert np.array_equal(mean, delta_of(5, 32, [1, 2, 3, 4]) / 4)
    assert np.array_equal(before, engine.weights())
    assert trained.samples == 4
    assert mean.dtype == np.float32


def test_the_loss_falls_with_the_samples_in_the_weights() -> None:
    engine = CountingEngine(seed=5, held_out=10)
    first, tokens = engine.evaluate(0, 8)
    assert tokens == 8 * engine.tokens_per_sample
    engine.train([Step(samples=tuple(range(10_000)))])
    later, _ = engine.evaluate(0, 8)
    assert later < first
    other = CountingEngine(seed=5, held_out=10)
    other.assign(engine.weights())
    assert other.evaluate(0, 8) == (later, tokens)
    assert engine.evaluate(8, 100)[1] == 2 * engine.tokens_per_sample


def test_private_state_comes_back_and_another_models_is_refused() -> None:
    engine = CountingEngine(seed=5, size=32)
    engine.train([Step(samples=(1,))] * 3)
    again = CountingEngine(seed=5, size=32)
    again.restore(engine.private())
    assert again.steps == 3
    for wrong in (CountingEngine(seed=5, size=16), CountingEngine(seed=6, size=32)):
        with pytest.raises(LocalError):
            wrong.restore(engine.private())
    with pytest.raises(LocalError):
        again.restore(b"torn")
