"""Where tensor work runs in the real world: one thread beside the event loop.

Jobs run one at a time, in the order they were handed over, so an engine needs no locks; torch releases
the interpreter while it computes, so heartbeats go on. A job cannot be stopped in the middle: a cancelled
caller goes on at once, a job that had not begun is passed over, and the result of one that had is dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from atoll.errors import LocalError
from atoll.model.compute import Cost

T = TypeVar("T")


@dataclass
class _Job:
    """Something to do, and who waits for it."""

    work: Callable[[], Any] | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return what the work gave or raised; whatever that is belongs to the caller, who waits for it."""
        assert self.work is not None, "a job is done once"
        try:
            return self.work(), None
        except BaseException as error:
            return None, error
        finally:
            self.work = None  # it may hold a model's worth of memory: let go before the caller goes on


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
        self._jobs.put(_Job(job, loop, future))
        return await future

    async def close(self) -> None:
        """End the thread after the job it is in; jobs that have not begun raise `LocalError`."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _carry_out(job, closed=self._closed)
            del job  # also one that was passed over, and what came of it: let go before waiting


def _carry_out(job: _Job, closed: bool) -> None:
    if job.future.cancelled():
        return
    result, error = (None, LocalError("compute is closed", hint="this peer is stopping")) if closed else job.outcome()
    try:
        job.loop.call_soon_threadsafe(_settle, job.future, result, error)
    except RuntimeError:
        pass  # the loop is gone, and with it whoever asked


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError(f"a job raised {error!r}"))  # a future cannot carry StopIteration
    else:
        future.set_exception(error)
