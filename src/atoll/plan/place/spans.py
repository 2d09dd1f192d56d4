"""Tables that every cut of a chain is made from: what layers from each to each come to, and what handing on costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from atoll.plan.place.crew import Crew, Floats, Job


def between(amounts: Sequence[float]) -> Floats:
    """Return the sum from each layer to before each later one; infinite where there is none between."""
    sums = np.concatenate([[0.0], np.cumsum(amounts)])
    at = np.arange(len(sums))
    return np.where(at[None, :] > at[:, None], sums[None, :] - sums[:, None], np.inf)


def most(amounts: Sequence[float]) -> Floats:
    """Return the largest from each layer to before each later one; nothing where there is none between."""
    count = len(amounts)
    found = np.zeros((count + 1, count + 1))
    for first in range(count):
        found[first, first + 1 :] = np.maximum.accumulate(amounts[first:])
    return found


class _Tables(NamedTuple):
    """From each layer to each: work, state, what is held of a sequence and what computing one takes."""

    flop: Floats
    state: Floats
    held: Floats
    working: Floats


@lru_cache(maxsize=8)
def _tables(job: Job) -> _Tables:
    flop, state, held, working = zip(
        *((layer.flop, layer.state_bytes, layer.held_bytes, layer.working_bytes) for layer in job.layers), strict=True
    )
    return _Tables(between(flop), between(state), between(held), most(working))


def work_of(job: Job, sequences: float) -> Floats:
    """Return the work of layers from each to each, for so many sequences."""
    return _tables(job).flop * sequences


def need_of(job: Job, micro_batch: int, held: int) -> Floats:
    """Return the bytes that layers from each to each need, with so many micro-batches held and one of them at work."""
    tables = _tables(job)
    return tables.state + micro_batch * (held * tables.held + tables.working)


def handed_of(job: Job, sequences: float) -> Floats:
    """Return the bytes that are handed on after each number of layers."""
    return np.array([0.0, *(layer.out_bytes * sequences for layer in job.layers)])


def spans_of(crew: Crew, job: Job, micro_batch: int, held: int) -> Floats:
    """Return for every peer how long layers from each to each take; for ever where it has not the memory."""
    flop_s = np.array([peer.flop_s for peer in crew.peers])
    memory_bytes = np.array([peer.memory_bytes for peer in crew.peers])
    need = need_of(job, micro_batch, held)
    return np.where(need <= memory_bytes[:, None, None], work_of(job, micro_batch) / flop_s[:, None, None], np.inf)


def hops_of(crew: Crew, job: Job, micro_batch: int) -> Floats:
    """Return how long handing on takes from any peer to any other, after each number of layers."""
    return crew.links.latency_s[:, :, None] + handed_of(job, micro_batch) / crew.links.bytes_s[:, :, None]
