"""A placement: which layers and which machines each stage has, what a step of it takes, and what binds it.

Whoever made it, a placement is judged the same way (`judged`), from the times of its parts:

    compute    of a stage: its slowest replica's, for one micro-batch, forward and backward
    send       from a stage to the next: the slowest of its pipelines' links, one direction
    sync       of a stage: every replica tells every other its part of the gradients and hears the sum, all at once

and a function of these (`Predict`) that says how they add up; the default is the one of MLTC and Sailor. Stages hold
what 1F1B holds: the i-th of P keeps at most P - i micro-batches. What does not fit in memory is no placement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from msgspec import Struct

from atoll.plan.cost.pipeline.closed import chain_s
from atoll.plan.place.crew import Crew, Floats, Job

Part = tuple[int, int, tuple[int, ...]]
"""A stage by numbers: its first layer, the one after its last, and its replicas' places in the crew."""
PLAN_ONLY = "it has {stages} stages, and Atoll trains models that fit one peer"
Binds = Literal["compute", "link", "sync", "memory"]


class Pipeline(Struct, frozen=True, kw_only=True):
    """The times that a step is made of."""

    compute_s: tuple[float, ...]
    send_s: tuple[float, ...]
    """From each stage to the next, one direction: one fewer."""
    latency_s: tuple[float, ...]
    """The part of it that keeps no line busy."""
    sync_s: float
    micro_batches: int


Predict = Callable[[Pipeline], float]


class Stage(Struct, frozen=True, kw_only=True):
    """A run of layers on some machines; the r-th of each stage are the r-th pipeline."""

    first: int
    end: int
    machines: tuple[str, ...]


class Placement(Struct, frozen=True, kw_only=True):
    """Stages and their machines, and what is predicted of them."""

    solver: str
    stages: tuple[Stage, ...]
    micro_batch: int
    """Sequences."""
    micro_batches: int
    """Of each pipeline, in a step."""
    step_s: float
    bottleneck_s: float
    """The slowest part of all that happens for one micro-batch."""
    binds: Binds
    where: str
    """Which part binds, in words."""
    idle: tuple[str, ...] = ()
    """Machines that have nothing to do."""

    @property
    def runs(self) -> bool:
        """Whether the engine can run it as it is."""
        return len(self.stages) == 1

    @property
    def plan_only(self) -> str:
        """Why the engine cannot; empty where it can."""
        return "" if self.runs else PLAN_ONLY.format(stages=len(self.stages))


def in_turn(pipeline: Pipeline) -> float:
    """Return the step time where a stage computes and sends one after the other (MLTC, Sailor)."""
    both_ways_s = [2 * send_s for send_s in (*pipeline.send_s, 0.0)]
    return chain_s(pipeline.compute_s, both_ways_s, pipeline.micro_batches, pipeline.sync_s)


def at_once(pipeline: Pipeline) -> float:
    """Return the step time where sending hides behind computing (FusionAI)."""
    through_s = sum(pipeline.compute_s) + 2 * sum(pipeline.send_s)
    slowest_s = max(*pipeline.compute_s, *pipeline.send_s, 0.0)
    return through_s + (pipeline.micro_batches - 1) * slowest_s + pipeline.sync_s


def need_bytes(job: Job, first: int, end: int, micro_batch: int, held: int) -> float:
    """Return what a stage needs in memory while it holds so many micro-batches and works on one of them."""
    layers = job.layers[first:end]
    kept = sum(layer.state_bytes + layer.held_bytes * micro_batch * held for layer in layers)
    return kept + micro_batch * max(layer.working_bytes for layer in layers)


def in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """Return how many micro-batches a stage holds at most (1F1B)."""
    return min(micro_batches, stages - stage)


def micro_batches(job: Job, width: int, micro_batch: int) -> int:
    """Return how many micro-batches each of so many pipelines takes in a step."""
    return -(-job.batch // (width * micro_batch))


def fits(crew: Crew, job: Job, parts: Sequence[Part], micro_batch: int) -> bool:
    """Return whether every machine has the memory for its stage."""
    count = micro_batches(job, len(parts[0][2]), micro_batch)
    return all(
        need_bytes(job, first, end, micro_batch, in_flight(stage, len(parts), count))
        <= min(crew.peers[place].memory_bytes for place in places)
        for stage, (first, end, places) in enumerate(parts)
    )


def pipeline_of(crew: Crew, job: Job, parts: Sequence[Part], micro_batch: int) -> Pipeline:
    """Return the times of some stages."""
    sends = [_send_s(crew, job, one, other, micro_batch) for one, other in pairwise(parts)]
    return Pipeline(
        compute_s=tuple(_compute_s(crew, job, part, micro_batch) for part in parts),
        send_s=tuple(send_s for send_s, _ in sends),
        latency_s=tuple(latency_s for _, latency_s in sends),
        sync_s=max(_sync_s(crew, job, part) for part in parts),
        micro_batches=micro_batches(job, len(parts[0][2]), micro_batch),
    )


def judged(
    crew: Crew, job: Job, parts: Sequence[Part], micro_batch: int, solver: str, predict: Predict = in_turn
) -> Placement:
    """Return some stages as a placement; they fit, cover the chain, and have as many replicas each."""
    assert fits(crew, job, parts, micro_batch), "a stage does not fit its machines"
    assert [part[0] for part in parts] == [0, *(part[1] for part in parts[:-1])] and parts[-1][1] == len(job.layers)
    assert len({len(part[2]) for part in parts}) == 1
    pipeline = pipeline_of(crew, job, parts, micro_batch)
    names = [peer.name for peer in crew.peers]
    used = {place for _, _, places in parts for place in places}
    bottleneck_s, binds, where = _slowest(pipeline)
    return Placement(
        solver=solver,
        stages=tuple(
            Stage(first=first, end=end, machines=tuple(names[place] for place in places))
            for first, end, places in parts
        ),
        micro_batch=micro_batch,
        micro_batches=pipeline.micro_batches,
        step_s=predict(pipeline),
        bottleneck_s=bottleneck_s,
        binds=binds,
        where=where,
        idle=tuple(name for place, name in enumerate(names) if place not in used),
    )


def _slowest(pipeline: Pipeline) -> tuple[float, Binds, str]:
    """Return the part of a micro-batch's time that is longest, sync among them, shared by all."""
    stage = int(np.argmax(pipeline.compute_s))
    found: list[tuple[float, Binds, str]] = [(pipeline.compute_s[stage], "compute", f"stage {stage}")]
    if pipeline.send_s:
        at = int(np.argmax(pipeline.send_s))
        found.append((pipeline.send_s[at], "link", f"from stage {at} to stage {at + 1}"))
    found.append((pipeline.sync_s / pipeline.micro_batches, "sync", "between replicas"))
    return max(found, key=lambda each: each[0])


def _compute_s(crew: Crew, job: Job, part: Part, micro_batch: int) -> float:
    first, end, places = part
    flop = sum(layer.flop for layer in job.layers[first:end])
    return flop * micro_batch / min(crew.peers[place].flop_s for place in places)


def _send_s(crew: Crew, job: Job, part: Part, after: Part, micro_batch: int) -> tuple[float, float]:
    """Return how long the slowest pipeline's link takes, and which part of that is latency."""
    size_bytes = job.layers[part[1] - 1].out_bytes * micro_batch
    latency_s = crew.links.latency_s[part[2], after[2]]
    times_s = latency_s + size_bytes / crew.links.bytes_s[part[2], after[2]]
    slowest = times_s.argmax()
    return float(times_s[slowest]), float(latency_s[slowest])


def _sync_s(crew: Crew, job: Job, part: Part) -> float:
    first, end, places = part
    return sync_s(crew, places, sum(layer.gradient_bytes for layer in job.layers[first:end]))


def sync_s(crew: Crew, places: Sequence[int], size_bytes: float) -> float:
    """Return how long replicas need to add up so many bytes: each owns a part, and all talk at once."""
    if len(places) < 2:
        return 0.0
    links = crew.links.among(places)
    apart: Floats = ~np.eye(len(places), dtype=bool)
    line_s = np.where(apart, size_bytes / len(places) / links.bytes_s, 0.0).sum(axis=1)
    return 2 * float((line_s + np.where(apart, links.latency_s, 0.0).max(axis=1)).max())
