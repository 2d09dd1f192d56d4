"""Many cases on all cores: play, and of what breaks find the least that still breaks.

Each case is a pure function of its data, so they are dealt out to processes and come back in any order; what is
reported is put in order again. A process that dies takes its case with it, and that is said.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from msgspec import Struct

from atoll.sim.case import Case, Verdict, play
from atoll.sim.skies import case_of, family_of

T = TypeVar("T")
R = TypeVar("R")


class Tally(Struct, frozen=True, kw_only=True):
    """What a family's cases showed together."""

    family: str
    seeds: int
    broken: int
    stormy_rounds: float
    """Rounds committed while faults were on, on average."""
    calm_s: float
    """The longest it took to come to peace."""
    calm_s_max: float
    """The bound on that."""


def cores() -> int:
    """Return how many processes are worth starting."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(work: Callable[[T], R], items: Sequence[T], processes: int = 0) -> Generator[R]:
    """Yield what `work` makes of each item, in order, on so many processes (0: one per core).

    Closed or interrupted before the end, it ends the processes where they are.
    """
    count = min(processes or cores(), len(items))
    if count <= 1:
        yield from map(work, items)
        return
    # Not fork: a forked child inherits locks of threads it does not have.
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        try:
            with _deaf():
                coming = [pool.submit(work, item) for item in items]
            for each in coming:
                yield each.result()
        except BaseException:
            for child in multiprocessing.active_children():
                if child not in others:
                    child.terminate()  # it would play its case to the end
            raise


@contextmanager
def _deaf() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: whoever started them hears it and ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows: they hear it too
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def judge(cases: Sequence[Case], processes: int = 0) -> Generator[Verdict]:
    """Yield the verdict of each case, in order."""
    return spread(play, cases, processes)


def tallies(verdicts: Sequence[Verdict]) -> list[Tally]:
    """Return what each family showed, in order of their names."""
    counts = Counter(verdict.family for verdict in verdicts)
    table = []
    for family in sorted(counts):
        own = [verdict for verdict in verdicts if verdict.family == family]
        table.append(
            Tally(
                family=family,
                seeds=len(own),
                broken=sum(bool(verdict.broken) for verdict in own),
                stormy_rounds=sum(verdict.stormy_rounds for verdict in own) / len(own),
                calm_s=max(verdict.calm_s for verdict in own),
                calm_s_max=max(verdict.calm_s_max for verdict in own),
            )
        )
    return table


def text(table: Sequence[Tally]) -> str:
    """Return the table for people."""
    wide = max([6, *(len(row.family) for row in table)])
    lines = [f"{'family':{wide}}  {'seeds':>6}  {'broken':>6}  {'rounds in storm':>15}  {'calm':>7}  {'at most':>7}"]
    lines += [
        f"{row.family:{wide}}  {row.seeds:6d}  {row.broken:6d}  {row.stormy_rounds:15.1f}  "
        f"{row.calm_s:5.0f} s  {row.calm_s_max:5.0f} s"
        for row in table
    ]
    return "\n".join(lines)


class Job(Struct, frozen=True):
    """One seed of a family."""

    family: str
    seed: int


def play_job(job: Job) -> Verdict:
    """Return the verdict of one seed: for a process of its own, which makes the case itself."""
    return play(case_of(job.family, job.seed))


def jobs_of(first: int, last: int, family: str = "") -> list[Job]:
    """Return the seeds from `first` up to before `last`, of one family or spread over all."""
    return [Job(family or family_of(seed), seed) for seed in range(first, last)]
