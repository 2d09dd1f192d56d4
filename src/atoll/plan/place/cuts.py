"""Layers for stages whose machines and order are fixed: every stage has some, and the slowest is as fast as can be.

A stage is as slow as its slowest replica and has the memory of its smallest; the i-th of P holds P - i micro-batches.
What counts is computing and sending one after the other, which is no less than either. The cuts are exact for that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.plan.place.crew import Crew, Floats, Job
from atoll.plan.place.placement import Part, in_flight
from atoll.plan.place.spans import handed_of, need_of, work_of

Groups = Sequence[Sequence[int]]


def cut_stages(crew: Crew, job: Job, groups: Groups, micro_batch: int, count: int) -> list[Part] | None:
    """Return the stages with the layers that suit them best, for so many micro-batches; None: they do not fit."""
    if len(groups) > len(job.layers):
        return None
    work, handed_bytes = work_of(job, micro_batch), handed_of(job, micro_batch)
    done_s = np.full(len(job.layers) + 1, np.inf)
    done_s[0], trail = 0.0, []
    for stage, group in enumerate(groups):
        busy_s = work / min(crew.peers[place].flop_s for place in group)
        if stage + 1 < len(groups):
            busy_s += 2 * _send_s(crew, group, groups[stage + 1], handed_bytes)
        need = need_of(job, micro_batch, in_flight(stage, len(groups), count))
        busy_s[need > min(crew.peers[place].memory_bytes for place in group)] = np.inf
        ways = np.maximum(done_s[:, None], busy_s)
        best = ways.argmin(axis=0)
        done_s = ways[best, np.arange(len(best))]
        if np.isinf(done_s.min()):
            return None
        trail.append(best)
    return _traced(trail, groups) if np.isfinite(done_s[-1]) else None


def _send_s(crew: Crew, here: Sequence[int], there: Sequence[int], sizes_bytes: Floats) -> Floats:
    """Return how long the slowest pipeline needs to hand on, after each number of layers."""
    latency_s, bytes_s = crew.links.latency_s[here, there], crew.links.bytes_s[here, there]
    found: Floats = (latency_s[:, None] + sizes_bytes / bytes_s[:, None]).max(axis=0)
    return found


def _traced(trail: Sequence[Floats], groups: Groups) -> list[Part]:
    end, parts = len(trail[0]) - 1, []
    for begins, group in zip(reversed(trail), reversed(list(groups)), strict=True):
        first = int(begins[end])
        parts.append((first, end, tuple(group)))
        end = first
    return parts[::-1]
