"""Where tensor work runs in the real world: one thread beside the event loop.

Jobs run one at a time, in the order they were handed over, so an engine needs no locks; torch releases
the interpreter while it computes, so heartbeats go on. A job cannot be stopped in the middle: a cancelled
caller goes on at once, a job that had not begun is passed over, and the result of one that had is dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from atoll.errors import LocalError
from atoll.model.compute import Cost

T = TypeVar("T")
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class WorkerThread:
    """`Compute` on one worker thread."""

    def __init__(self, name: str = "atoll-compute") -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        # A daemon, so that a job of a minute does not hold up the end of a process that was told to stop.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, job: Callable[[], T], cost: Cost) -> T:
        """Run `job` on the thread and return its result; cancelled: it may still finish, unheard."""
        if self._closed:
            raise LocalError("compute is closed", hint="this peer is stopping")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((job, loop, future))
        return await future

    async def close(self) -> None:
        """End the thread after the job it is in; jobs that have not begun raise `LocalError`."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            _carry_out(*entry, closed=self._closed)
            del entry  # a job may hold a model's worth of memory: let go before waiting


def _carry_out(
    job: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], closed: bool
) -> None:
    if future.cancelled():
        return
    result, error = (None, LocalError("compute is closed", hint="this peer is stopping")) if closed else _outcome(job)
    try:
        loop.call_soon_threadsafe(_settle, future, result, error)
    except RuntimeError:
        pass  # the loop is gone, and with it whoever asked


def _outcome(job: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Return what a job gave or raised; whatever that is belongs to the caller, who waits for it."""
    try:
        return job(), None
    except BaseException as error:
        return None, error


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError(f"a job raised {error!r}"))  # a future cannot carry StopIteration
    else:
        future.set_exception(error)
