"""While a transport is open, forgotten objects die on the loop's thread, whichever thread made the garbage."""

from __future__ import annotations

import asyncio
import gc
import threading

from atoll.net.garbage import LOOK_S, start_sweeping

CYCLES = 20_000
"""Far more than the collector lets lie in one generation."""


class Cycle:
    """Garbage that only the collector finds, and that says where it dies."""

    def __init__(self, died_on: list[int]) -> None:
        self.itself = self
        self.died_on = died_on

    def __del__(self) -> None:
        self.died_on.append(threading.get_ident())


async def litter(died_on: list[int]) -> None:
    """Make garbage on another thread, and wait until the loop has had time to sweep."""
    thread = threading.Thread(target=lambda: [Cycle(died_on) for _ in range(CYCLES)] and None)
    thread.start()
    await asyncio.get_running_loop().run_in_executor(None, thread.join)
    await asyncio.sleep(3 * LOOK_S)


def test_garbage_of_any_thread_is_collected_by_the_loop() -> None:
    died_on: list[int] = []

    async def scene() -> None:
        sweeper = start_sweeping()
        await litter(died_on)
        sweeper.cancel()

    asyncio.run(scene())
    assert len(died_on) > CYCLES // 2
    assert set(died_on) == {threading.get_ident()}


def test_the_collector_runs_by_itself_again_when_the_last_sweeper_has_gone() -> None:
    async def scene() -> None:
        first, second = start_sweeping(), start_sweeping()
        assert not gc.isenabled()
        first.cancel()
        await asyncio.wait([first])
        assert not gc.isenabled()
        second.cancel()
        await asyncio.wait([second])
        assert gc.isenabled()

    asyncio.run(scene())
