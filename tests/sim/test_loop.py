"""The virtual loop: time, order, the ways to get stuck, and the ways to die."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator

import pytest

from atoll.sim.loop import Deadlock, Incarnation, Livelock, NotSimulated, OutOfTime, Stalled, VirtualLoop
from tests.sim.hashed import said_under_hash_seeds


def test_an_hour_of_sleep_costs_one_timer() -> None:
    loop = VirtualLoop()

    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert loop.run(main()) == 3600
    assert loop.callbacks < 10


def test_stock_asyncio_pieces_work_in_virtual_time() -> None:
    async def producer(queue: asyncio.Queue[int]) -> None:
        for number in range(5):
            await asyncio.sleep(1)
            await queue.put(number)

    async def main() -> tuple[list[int], float, bool]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[int] = asyncio.Queue(2)
        async with asyncio.TaskGroup() as group:
            group.create_task(producer(queue))
            got = [await queue.get() for _ in range(5)]
        try:
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
        except TimeoutError:
            return got, loop.time(), True
        return got, loop.time(), False

    assert VirtualLoop().run(main()) == ([0, 1, 2, 3, 4], 15.0, True)


def test_timers_of_one_instant_run_in_the_order_they_were_set() -> None:
    seen: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(100):
            loop.call_at(5.0, seen.append, number)
        await asyncio.sleep(6)

    VirtualLoop().run(main())
    assert seen == list(range(100))


def test_cancelled_timers_do_not_move_the_clock() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        for number in range(5000):
            loop.call_at(100.0 + number, print).cancel()
        await asyncio.sleep(1)
        return loop.time()

    assert VirtualLoop().run(main()) == 1.0


def test_a_deadlock_says_where_everybody_waits() -> None:
    async def wait_for_godot() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for_godot(), name="vladimir")

    with pytest.raises(Deadlock, match=r"vladimir waits in .*wait_for_godot.*Event.wait"):
        VirtualLoop().run(main())


def test_a_livelock_says_what_ran_most() -> None:
    async def spin() -> None:
        for _ in range(10**9):
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match=r"x .*spin"):
        VirtualLoop().run(spin(), event_budget=1000)


def test_heartbeats_do_not_hide_that_nothing_moves() -> None:
    async def beat() -> None:
        for _ in range(10**9):
            await asyncio.sleep(1)

    with pytest.raises(Stalled, match="no progress since 0"):
        VirtualLoop().run(beat(), progress_s_max=60)

    loop = VirtualLoop()

    async def work() -> None:
        for _ in range(10):
            await asyncio.sleep(50)
            loop.progress()

    loop.run(work(), progress_s_max=60)


def test_the_virtual_time_limit_holds() -> None:
    with pytest.raises(OutOfTime):
        VirtualLoop().run(asyncio.sleep(11), limit_s=10)


def test_the_real_world_is_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(NotSimulated):
            await asyncio.to_thread(print)
        with pytest.raises(NotSimulated):
            await asyncio.open_connection("localhost", 1)
        with pytest.raises(NotSimulated):
            await asyncio.create_subprocess_exec("true")
        with pytest.raises(NotSimulated):
            loop.add_signal_handler(1, print)

    VirtualLoop().run(main())


def test_a_callback_that_raises_ends_the_simulation() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        VirtualLoop().run(main())


class _Diary:
    """A process that writes down all it does, most of all what it does when it ends."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def life(self) -> None:
        try:
            async with asyncio.timeout(50), asyncio.TaskGroup() as group:
                group.create_task(self.work())
                group.create_task(self.beat())
        finally:
            self.lines.append("life ended")
            await asyncio.sleep(1)
            self.lines.append("life ended slowly")

    async def work(self) -> None:
        async for number in self.numbers():
            self.lines.append(f"work {number}")

    async def numbers(self) -> AsyncIterator[int]:
        try:
            for number in range(100):
                await asyncio.sleep(1)
                yield number
        finally:
            self.lines.append("numbers ended")

    async def beat(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2.5, self.lines.append, "timer")
        await asyncio.sleep(1000)


def test_a_crash_runs_no_finally_block_and_no_timer() -> None:
    loop = VirtualLoop()
    diary = _Diary()

    async def main() -> list[str]:
        process = loop.incarnation("p1")
        process.start(diary.life())
        await asyncio.sleep(2.1)
        process.crash()
        await asyncio.sleep(200)
        gc.collect()
        await asyncio.sleep(200)
        return list(diary.lines)

    assert loop.run(main()) == ["work 0", "work 1"]
    gc.collect()  # pytest turns a complaint of a coroutine that dies here into a failure


def test_a_dead_process_does_not_keep_the_clock_or_hide_a_deadlock() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        process = loop.incarnation("p1")
        process.start(_Diary().life())
        await asyncio.sleep(2.1)
        process.crash()
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"deadlock at 2\.1"):
        loop.run(main())


def test_what_a_dead_process_starts_while_it_is_buried_goes_nowhere() -> None:
    loop = VirtualLoop()
    written: list[str] = []

    async def late(sink: list[str]) -> None:
        sink.append("ran")

    async def life(process: Incarnation) -> None:
        write = process.guard(written.append)
        write("alive")
        try:
            await asyncio.sleep(1000)
        finally:
            write("stopped")
            asyncio.get_running_loop().call_soon(written.append, "callback")
            await asyncio.gather(late(written), late(written))

    async def main() -> None:
        process = loop.incarnation("p1")
        process.start(life(process))
        await asyncio.sleep(1)
        process.crash()

    loop.run(main())
    gc.collect()
    assert written == ["alive"]


def test_a_paused_process_runs_late_but_misses_nothing() -> None:
    loop = VirtualLoop()
    times: list[float] = []

    async def life() -> None:
        for _ in range(4):
            await asyncio.sleep(1)
            times.append(loop.time())

    async def main() -> None:
        process = loop.incarnation("p1")
        process.start(life())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(10)
        process.resume()
        await asyncio.sleep(10)

    loop.run(main())
    assert times == [1.0, 11.5, 12.5, 13.5]


def test_children_belong_to_the_process_that_started_them() -> None:
    loop = VirtualLoop()
    seen: list[str] = []

    async def child() -> None:
        await asyncio.sleep(2)
        seen.append("child")

    async def life() -> None:
        task = asyncio.create_task(child())
        await task

    async def main() -> None:
        first, second = loop.incarnation("a"), loop.incarnation("b")
        first.start(life())
        survivor = second.start(life())
        await asyncio.sleep(1)
        first.crash()
        await survivor

    loop.run(main())
    assert seen == ["child"]


def test_listeners_hear_of_a_crash_once() -> None:
    loop = VirtualLoop()
    heard: list[str] = []
    process = loop.incarnation("a")
    process.watch(
        crash=lambda: heard.append("crash"), pause=lambda: heard.append("pause"), resume=lambda: heard.append("resume")
    )
    process.pause()
    process.resume()
    process.crash()
    process.crash()
    process.resume()
    loop.close()
    assert heard == ["pause", "resume", "crash"]


_ORDER = """
import asyncio, sys
from atoll.sim.loop import VirtualLoop
junk = [bytearray(int(sys.argv[1]) * 7 + n) for n in range(1000)]
order = []
async def doomed(n):
    try:
        await asyncio.sleep(100)
    except asyncio.CancelledError:
        order.append(n)
        raise
async def fail():
    await asyncio.sleep(1)
    raise ValueError
async def main():
    try:
        async with asyncio.TaskGroup() as group:
            for n in range(40):
                group.create_task(doomed(n))
            group.create_task(fail())
    except* ValueError:
        pass
    done, _ = await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0, n)) for n in range(40)])
    order.extend(task.result() for task in done)
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(40)]
    for n, future in enumerate(futures):
        future.set_result(n)
    done, _ = await asyncio.wait(futures)
    order.extend(future.result() for future in done)
VirtualLoop().run(main())
print(order)
"""


def test_aborts_and_waits_have_one_order_in_every_process() -> None:
    orders = said_under_hash_seeds(_ORDER)
    assert len(orders) == 1


def test_no_thread_is_started() -> None:
    before = threading.active_count()
    VirtualLoop().run(asyncio.sleep(1))
    assert threading.active_count() == before
