"""The worker thread keeps what `Compute` promises."""

from __future__ import annotations

import asyncio
import threading
import weakref
from functools import partial

import pytest

from atoll.errors import LocalError
from atoll.model.compute import Compute, Cost
from atoll.model.worker import WorkerThread

FREE = Cost()


def test_jobs_run_in_order_on_one_other_thread_and_the_loop_goes_on() -> None:
    async def story() -> None:
        compute: Compute = WorkerThread()
        seen: list[int] = []
        gate = threading.Event()

        def job(number: int) -> int:
            gate.wait(10)
            seen.append(number)
            return threading.get_ident()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(compute.run(lambda n=n: job(n), FREE)) for n in range(5)]  # type: ignore[misc]
            await asyncio.sleep(0)  # every task has handed its job over, and this loop is still alive
            gate.set()
        assert seen == [0, 1, 2, 3, 4]
        idents = {task.result() for task in tasks}
        assert len(idents) == 1
        assert threading.get_ident() not in idents
        await compute.close()

    asyncio.run(story())


def test_exceptions_reach_the_caller_and_the_thread_lives_on() -> None:
    def fail() -> None:
        raise LocalError("no", hint="none")

    def stop() -> None:
        raise StopIteration

    async def story() -> None:
        compute = WorkerThread()
        with pytest.raises(LocalError, match="no"):
            await compute.run(fail, FREE)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await compute.run(stop, FREE)
        assert await compute.run(lambda: 3, FREE) == 3
        await compute.close()

    asyncio.run(story())


def test_a_cancelled_caller_goes_on_at_once_and_unbegun_jobs_are_passed_over() -> None:
    async def story() -> None:
        compute = WorkerThread()
        begun, gate = threading.Event(), threading.Event()
        ran: list[str] = []

        def hold() -> None:
            begun.set()
            gate.wait(10)
            ran.append("held")

        first = asyncio.create_task(compute.run(hold, FREE))
        second = asyncio.create_task(compute.run(lambda: ran.append("second"), FREE))
        await asyncio.to_thread(begun.wait, 10)
        for task in (first, second):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert ran == []
        gate.set()
        assert await compute.run(lambda: "next", FREE) == "next"
        assert ran == ["held"]
        await compute.close()

    asyncio.run(story())


def test_closing_ends_the_thread_and_refuses_what_has_not_begun() -> None:
    async def story() -> None:
        compute = WorkerThread(name="closing-test")
        begun, gate = threading.Event(), threading.Event()

        def hold() -> str:
            begun.set()
            gate.wait(10)
            return "done"

        running = asyncio.create_task(compute.run(hold, FREE))
        waiting = asyncio.create_task(compute.run(lambda: "never", FREE))
        await asyncio.to_thread(begun.wait, 10)
        closing = asyncio.create_task(compute.close())
        await asyncio.sleep(0)
        gate.set()
        await closing
        assert await running == "done"
        with pytest.raises(LocalError, match="closed"):
            await waiting
        with pytest.raises(LocalError, match="closed"):
            await compute.run(lambda: None, FREE)
        await compute.close()
        assert "closing-test" not in [thread.name for thread in threading.enumerate()]

    asyncio.run(story())


def test_a_loop_that_is_gone_does_not_break_the_thread() -> None:
    gate = threading.Event()
    compute = WorkerThread()

    async def leave() -> None:
        task = asyncio.create_task(compute.run(lambda: gate.wait(10), FREE))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    gate.set()

    async def again() -> None:
        assert await compute.run(lambda: 1, FREE) == 1
        await compute.close()

    asyncio.run(again())


def test_a_job_is_let_go_of_before_its_caller_goes_on() -> None:
    class Large:
        """Something that must not outlive the job it was for."""

    async def story() -> None:
        compute = WorkerThread()
        for _ in range(50):
            large = Large()
            seen = weakref.ref(large)
            doing = compute.run(partial(repr, large), FREE)
            del large
            await doing
            assert seen() is None
        await compute.close()

    asyncio.run(story())
