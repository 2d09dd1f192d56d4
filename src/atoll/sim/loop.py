"""Virtual time: an asyncio event loop whose clock jumps to the next timer, and processes that can die in it.

Tasks, futures, queues, timeouts and task groups are the stock ones, so peer code runs unmodified and an hour
costs only its callbacks. Two things differ from a real loop. Everything is ordered by (time, sequence), and
tasks and futures hash by a counter instead of by address, so a run is a pure function of its seed. And code
runs inside an `Incarnation`, one life of one simulated process: crashing it means "never run again". Its
coroutines are kept, unfinished, until the loop closes, because cancelling or collecting them would run their
`finally` blocks, which is exactly what a power cut does not do.

    ready ──> run ──> ready ...       nothing ready: jump to the next timer
                └──> held             of a paused process until it resumes, of a dead one for ever
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import math
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar, TypeVarTuple

T = TypeVar("T")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")

TASKS_SHOWN_MAX = 20
CLOSE_ATTEMPTS_MAX = 50
"""How often a buried coroutine may answer its end with another `await`."""


class SimulationFailed(AssertionError):
    """The simulated program broke a promise; the text says where everybody waited."""


class Deadlock(SimulationFailed):
    """Nothing is ready, no timer is set, and the main task is not done."""


class Livelock(SimulationFailed):
    """More callbacks ran than the budget allows."""


class Stalled(SimulationFailed):
    """Time passed, heartbeats went on, and nobody reported progress for too long."""


class OutOfTime(SimulationFailed):
    """The main task was not done at the end of the virtual time it was given."""


class NotSimulated(RuntimeError):
    """Simulated code reached for a thread, a socket, a process or a signal."""


class WorldEnded(RuntimeError):
    """The loop is closing: nothing that still runs may touch the simulated world."""


class Task(asyncio.Task[T]):
    """A task whose hash is a counter, so that sets of tasks iterate in the same order in every process."""

    home: Incarnation | None

    def __hash__(self) -> int:
        return _number(self)


class Future(asyncio.Future[T]):
    """A future whose hash is a counter."""

    def __hash__(self) -> int:
        return _number(self)


def _number(awaitable: Any) -> int:
    """Return the awaitable's number, given when it is first hashed (that moment is deterministic too)."""
    try:
        return int(awaitable.number)
    except AttributeError:
        awaitable.number = next(awaitable.get_loop().numbers)
        return int(awaitable.number)


def _prepare(
    handle: Any,
    callback: Callable[..., object],
    args: Sequence[Any],
    loop: asyncio.AbstractEventLoop,
    context: contextvars.Context | None,
) -> None:
    """Fill a handle in as asyncio does, without asking for debug mode: there are millions of them."""
    handle._context = contextvars.copy_context() if context is None else context
    handle._loop = loop
    handle._callback = callback
    handle._args = args
    handle._cancelled = False
    handle._repr = None
    handle._source_traceback = None


class _Handle(asyncio.Handle):
    """A callback to run."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None = None,
    ) -> None:
        _prepare(self, callback, args, loop, context)


class _Timer(asyncio.TimerHandle):
    """A callback for later."""

    __slots__ = ()

    def __init__(
        self,
        when_s: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None = None,
    ) -> None:
        _prepare(self, callback, args, loop, context)
        self._when = when_s
        self._scheduled = False


_home: contextvars.ContextVar[Incarnation] = contextvars.ContextVar("incarnation")


class Incarnation:
    """One life of one simulated process: whatever starts inside it lives, sleeps and dies with it."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.running = True
        """False while paused and after the crash."""
        self._loop = loop
        self._held: list[Any] = []
        self._at_crash: list[Callable[[], None]] = []
        self._at_pause: list[Callable[[], None]] = []
        self._at_resume: list[Callable[[], None]] = []
        loop.incarnations.append(self)

    def start(self, main: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task of this process; all it starts or schedules belongs to the process as well."""
        assert self.alive, f"{self.name} has crashed"
        context = contextvars.Context()
        context.run(_home.set, self)
        return self._loop.create_task(main, name=name or self.name, context=context)

    def crash(self) -> None:
        """Never run again: no callback, no timer, no `finally` block."""
        if self.alive:
            self.alive = self.running = False
            _call_all(self._at_crash)

    def pause(self) -> None:
        """Stop as a suspended process does: timers that come due are run late, after `resume`."""
        if self.running:
            self.running = False
            _call_all(self._at_pause)

    def resume(self) -> None:
        """Go on after a pause."""
        if self.alive and not self.running:
            self.running = True
            held, self._held = self._held, []
            self._loop.requeue(held)
            _call_all(self._at_resume)

    def watch(
        self,
        *,
        crash: Callable[[], None] | None = None,
        pause: Callable[[], None] | None = None,
        resume: Callable[[], None] | None = None,
    ) -> None:
        """Call these when it happens: how the network and the disk learn of a process's fate."""
        for listeners, listener in ((self._at_crash, crash), (self._at_pause, pause), (self._at_resume, resume)):
            if listener is not None:
                listeners.append(listener)

    def guard(self, edge: Callable[P, object]) -> Callable[P, None]:
        """Return `edge` as a call that does nothing once the process is dead (a journal's sink, for example)."""

        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            if self.alive:
                edge(*args, **kwargs)

        return guarded


def _call_all(listeners: list[Callable[[], None]]) -> None:
    for listener in listeners:
        listener()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time. Use `run`, or as a context manager around `run_until_complete`."""

    def __init__(self) -> None:
        super().__init__()
        self.set_debug(False)
        self.numbers = itertools.count(1)
        self.incarnations: list[Incarnation] = []
        self.callbacks = 0
        """How many callbacks have come to their turn."""
        self.complaints: list[str] = []
        """What asyncio would have logged, such as a task's exception that nobody looked at."""
        self.over = False
        self._world = contextvars.Context()
        self._now_s = 0.0
        self._queue: deque[Any] = deque()
        self._timers: list[tuple[float, int, Any]] = []
        self._timer_numbers = itertools.count()
        self._timers_cancelled = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_prune_at = 1024
        self._limit_s = math.inf
        self._progress_s_max = math.inf
        self._progressed_s = 0.0
        self._callbacks_max: float = math.inf
        self._census_from: float = math.inf
        self._census: Counter[str] = Counter()

    def run(
        self,
        main: Coroutine[Any, Any, T],
        *,
        limit_s: float = math.inf,
        event_budget: float = math.inf,
        progress_s_max: float = math.inf,
    ) -> T:
        """Return what `main` returns, then close; every limit that is passed raises `SimulationFailed`."""
        self._limit_s = limit_s
        self._callbacks_max = event_budget
        self._census_from = 0.9 * event_budget
        self._progress_s_max = progress_s_max
        with self:
            return self.run_until_complete(main)

    def __enter__(self) -> VirtualLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def incarnation(self, name: str) -> Incarnation:
        """Return a new process that nothing runs in yet."""
        return Incarnation(self, name)

    def progress(self) -> None:
        """Say that the run moved forward; the watchdog starts anew."""
        self._progressed_s = self._now_s

    def check_open(self) -> None:
        """Raise when the simulated world has ended: its edges call this before they change anything."""
        if self.over:
            raise WorldEnded("the simulation is over")

    # time and order

    def time(self) -> float:
        return self._now_s

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        if not self.over:
            self._queue.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedule from this same thread: the simulated world has no other."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _Timer(when, callback, args, self, context)
        if not self.over:
            handle._scheduled = True
            heapq.heappush(self._timers, (when, next(self._timer_numbers), handle))
        return handle

    def call_in_world_at(self, when_s: float, callback: Callable[[*Ts], object], *args: *Ts) -> asyncio.TimerHandle:
        """Schedule something that belongs to no process, such as a message on the wire: no crash stops it."""
        return self.call_at(when_s, callback, *args, context=self._world)

    def requeue(self, handles: list[Any]) -> None:
        """Make held callbacks ready again, in the order in which they came due."""
        self._queue.extend(handles)

    def create_future(self) -> asyncio.Future[Any]:
        return Future(loop=self)

    def create_task(  # type: ignore[override]  # the stock signature differs from version to version
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        task: Task[T] = Task(coro, loop=self, name=name or "task", context=context, **options)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # what is left at the end gets buried
        task.home = _home.get(None) if context is None else context.get(_home)
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_prune_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks_prune_at = 1024 + 2 * len(self._tasks)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    # the heart

    def _run_once(self) -> None:
        """Run callbacks until somebody stops the loop: one long turn, since nothing from outside can come between."""
        queue, next_handle = self._queue, self._queue.popleft
        while not self._stopping:  # type: ignore[attr-defined]
            if not queue:
                self._advance()
            census = self._census if self.callbacks >= self._census_from else None
            self.callbacks += len(queue)
            for _ in range(len(queue)):
                handle = next_handle()
                context = handle._context
                home = context.get(_home)
                if handle._cancelled:
                    continue
                if home is not None and not home.running:
                    home._held.append(handle)
                    continue
                if census is not None:
                    census[_name(handle)] += 1
                # Not Handle._run: that logs an exception of a callback, here it ends the simulation.
                context.run(handle._callback, *handle._args)
            if self.callbacks > self._callbacks_max:
                raise Livelock(self._livelock_text())

    def _advance(self) -> None:
        """Jump to the next timer of somebody alive, and make ready all that is due then."""
        self._drop_idle_timers()
        if not self._timers:
            raise Deadlock(f"deadlock at {self._now_s:.6f} s: nothing is ready and no timer is set\n{self._waits()}")
        self._now_s = max(self._now_s, self._timers[0][0])
        if self._now_s > self._limit_s:
            raise OutOfTime(f"not done after {self._limit_s} virtual seconds\n{self._waits()}")
        if self._now_s - self._progressed_s > self._progress_s_max:
            raise Stalled(f"no progress since {self._progressed_s:.3f} s, now {self._now_s:.3f} s\n{self._waits()}")
        while self._timers and self._timers[0][0] <= self._now_s:
            handle = heapq.heappop(self._timers)[2]
            handle._scheduled = False
            self._timers_cancelled -= handle._cancelled
            self._queue.append(handle)

    def _drop_idle_timers(self) -> None:
        """Take cancelled and dead timers off the front, so that the clock does not move for their sake."""
        if self._timers_cancelled > 1000 and 2 * self._timers_cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2]._cancelled]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0
        while self._timers:
            handle = self._timers[0][2]
            home = handle._context.get(_home)
            if handle._cancelled:
                self._timers_cancelled -= 1
            elif home is not None and not home.alive:
                home._held.append(handle)
            else:
                return
            handle._scheduled = False
            heapq.heappop(self._timers)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle._scheduled:  # type: ignore[attr-defined]
            self._timers_cancelled += 1

    # telling what went wrong

    def _livelock_text(self) -> str:
        ran = "\n".join(f"  {count:8d} x {name}" for name, count in self._census.most_common(TASKS_SHOWN_MAX))
        return f"more than {self._callbacks_max:.0f} callbacks by {self._now_s:.6f} s; of late mostly\n{ran}"

    def _waits(self) -> str:
        """Return where every living task waits, one line each."""
        lines = [_where(task) for task in self._tasks if not task.done() and _lives(task)]
        more = [f"  and {len(lines) - TASKS_SHOWN_MAX} more"] if len(lines) > TASKS_SHOWN_MAX else []
        paused = [f"  {life.name} is paused" for life in self.incarnations if life.alive and not life.running]
        return "\n".join(lines[:TASKS_SHOWN_MAX] + more + paused)

    # the end

    def close(self) -> None:
        """Bury what never finished, in silence, and close."""
        if self.is_closed():
            return
        for incarnation in self.incarnations:
            incarnation.alive = incarnation.running = False
        self.over = True
        self._bury()
        self._queue.clear()
        self._timers.clear()
        self.incarnations.clear()
        super().close()

    def _bury(self) -> None:
        """End all coroutines now, where it can be done quietly, and not when the collector meets them."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for task in self._tasks:  # grows while it is walked: a dying coroutine may start another task
                    if not task.done():
                        _end(task.get_coro())
                self._tasks.clear()
                for incarnation in self.incarnations:
                    incarnation._held.clear()
        finally:
            asyncio._set_running_loop(running)
            sys.unraisablehook = hook


def _end(coro: Any) -> None:
    """Close a coroutine whatever its `finally` blocks do about it."""
    for _ in range(CLOSE_ATTEMPTS_MAX):
        try:
            coro.close()
        except BaseException:  # whatever a dead process still wants to raise has no hearer
            continue
        return


def _lives(task: asyncio.Task[Any]) -> bool:
    home = task.home if isinstance(task, Task) else None
    return home is None or home.alive


def _name(handle: Any) -> str:
    """Return what a callback is, for people: of a task's step, the coroutine."""
    owner = getattr(handle._callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{owner.get_name()}: {getattr(owner.get_coro(), '__qualname__', owner)}"
    return str(getattr(handle._callback, "__qualname__", handle._callback))


def _where(task: asyncio.Task[Any]) -> str:
    """Return one line that follows a task's awaits down to the innermost."""
    steps = []
    coro: Any = task.get_coro()
    while getattr(coro, "cr_frame", None) is not None:
        code = coro.cr_frame.f_code
        steps.append(f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{coro.cr_frame.f_lineno})")
        coro = coro.cr_await
    return f"  {task.get_name()} waits in " + " > ".join(steps)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: VirtualLoop, *args: object, **kwargs: object) -> NoReturn:
        for arg in args:
            if asyncio.iscoroutine(arg):
                arg.close()
        raise NotSimulated(f"{name} does not exist in virtual time: use an opening of the box")

    return refuse


for _method in (
    "run_in_executor", "set_default_executor", "getaddrinfo", "getnameinfo",
    "add_reader", "remove_reader", "add_writer", "remove_writer",
    "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_connect",
    "sock_accept", "sock_sendfile", "sendfile", "start_tls",
    "create_connection", "create_server", "create_unix_connection", "create_unix_server", "create_datagram_endpoint",
    "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe", "subprocess_shell", "subprocess_exec",
    "add_signal_handler", "remove_signal_handler",
):  # fmt: skip
    setattr(VirtualLoop, _method, _refusal(_method))
