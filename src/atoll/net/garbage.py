"""Garbage is collected on the event loop's own thread while connections may be open, and on no other.

iroh calls Python from threads of its own, at times with a connection locked, and Python's collector runs in whichever
thread happens to allocate. If it ran in such a call and found a forgotten stream of that connection, to free it would
be to wait for a lock that its own thread holds: for ever, and with it everybody who touches the connection. So
collection is off for as long as anybody asks for that, and a task of the loop sees to it, at the interpreter's own
thresholds.
"""

from __future__ import annotations

import asyncio
import gc

LOOK_S = 0.25
"""Between two looks at how much there is."""

_sweepers: set[asyncio.Task[None]] = set()


def start_sweeping() -> asyncio.Task[None]:
    """Have garbage collected by a task of this loop, and nowhere else, until the task is cancelled."""
    gc.disable()
    sweeper = asyncio.create_task(_sweep())
    _sweepers.add(sweeper)
    sweeper.add_done_callback(_end)
    return sweeper


def _end(sweeper: asyncio.Task[None]) -> None:
    _sweepers.discard(sweeper)
    if not _sweepers:
        gc.enable()


async def _sweep() -> None:
    """Collect the oldest generation that is due, again and again."""
    while True:
        await asyncio.sleep(LOOK_S)
        limits = zip(gc.get_count(), gc.get_threshold(), strict=True)
        due = [generation for generation, (count, limit) in enumerate(limits) if count > limit]
        if due:
            gc.collect(due[-1])
