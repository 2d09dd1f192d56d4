"""Clusters and shares as the engine forms them (Ravnest): its own functions are asked, so there is no second opinion.

Each cluster is a whole model, cut by memory among its members, who stand in the order of a short way. Wherever any
cluster has a cut, another segment begins; of a segment every cluster has one owner, and the owners add it up in a ring,
all rings at once. As stages are told the segments: one machine may own several that follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from atoll.plan.place.crew import Crew, Floats, Job
from atoll.plan.place.placement import (
    Binds,
    Part,
    Pipeline,
    Placement,
    Predict,
    Stage,
    at_once,
    fits,
    micro_batches,
    pipeline_of,
)
from atoll.swarm.routes.clusters import clusters_of
from atoll.swarm.routes.shares import cap_of, cut, solve


def shared(rates: Sequence[float], memory_bytes: Sequence[float], contribution_bytes: float) -> list[float]:
    """Return the share of each member that makes a round shortest, as the engine gives them; 0 bytes: no limit."""
    caps = [cap_of(memory, contribution_bytes, len(rates)) for memory in memory_bytes]
    return solve(rates, len(rates), caps)


def clustered(crew: Crew, job: Job, clusters: int, predict: Predict = at_once) -> Placement | None:
    """Return so many clusters of near members, each a pipeline of its own; None: one cannot hold the chain."""
    trips_s: Floats = 2 * crew.links.transfer_s(0.0)
    groups = clusters_of(trips_s.tolist(), clusters)
    rows = [_by_memory(crew, job, group) for group in groups]
    of_cluster = Job(layers=job.layers, batch=-(-job.batch // len(groups)))
    if not all(fits(crew, of_cluster, row, 1) for row in rows):
        return None
    pipelines = [pipeline_of(crew, of_cluster, row, 1) for row in rows]
    segments, used = _segments(rows), {part[2][0] for row in rows for part in row}
    ring_s = _rings_s(crew, job, segments)
    slowest_s, binds, where = _slowest(pipelines, ring_s, crew, rows)
    return Placement(
        solver="clusters",
        stages=tuple(
            Stage(first=first, end=end, machines=tuple(crew.peers[place].name for place in owners))
            for first, end, owners in segments
        ),
        micro_batch=1,
        micro_batches=micro_batches(of_cluster, 1, 1),
        step_s=max(map(predict, pipelines)) + ring_s,
        bottleneck_s=slowest_s,
        binds=binds,
        where=where,
        idle=tuple(peer.name for place, peer in enumerate(crew.peers) if place not in used),
    )


def _by_memory(crew: Crew, job: Job, group: Sequence[int]) -> list[Part]:
    """Return the layers of each member in proportion to its memory; who comes to none has nothing to do."""
    names = [place.to_bytes(4, "big") for place in group]
    memories = [crew.peers[place].memory_bytes for place in group]
    return [
        (shard.first, shard.first + shard.count, (int.from_bytes(shard.owner, "big"),))
        for shard in cut(len(job.layers), names, memories)
    ]


def _segments(rows: Sequence[Sequence[Part]]) -> list[Part]:
    """Return the runs of layers that have the same owners everywhere, with the owner in each cluster."""
    starts = sorted({at for row in rows for first, end, _ in row for at in (first, end)})
    return [
        (first, end, tuple(part[2][0] for row in rows for part in row if part[0] <= first < part[1]))
        for first, end in pairwise(starts)
    ]


def _rings_s(crew: Crew, job: Job, segments: Sequence[Part]) -> float:
    """Return how long the rings take, all at once: a link that several use carries the bytes of all."""
    links, carried, latest_s = crew.links, dict[tuple[int, int], float](), 0.0
    for first, end, owners in segments:
        hops = [(owners[at - 1], owner) for at, owner in enumerate(owners)] if len(owners) > 1 else []
        size_bytes = sum(layer.gradient_bytes for layer in job.layers[first:end])
        latest_s = max(latest_s, 2 * sum(float(links.latency_s[hop]) for hop in hops))
        for hop in hops:
            carried[hop] = carried.get(hop, 0.0) + 2 * (len(owners) - 1) / len(owners) * size_bytes
    return latest_s + max((size / float(links.bytes_s[hop]) for hop, size in carried.items()), default=0.0)


def _slowest(
    pipelines: Sequence[Pipeline], ring_s: float, crew: Crew, rows: Sequence[Sequence[Part]]
) -> tuple[float, Binds, str]:
    """Return the longest of what happens for one micro-batch, rings among them, shared by all."""
    found: list[tuple[float, Binds, str]] = [(ring_s / pipelines[0].micro_batches, "sync", "between clusters")]
    for pipeline, row in zip(pipelines, rows, strict=True):
        for compute_s, part in zip(pipeline.compute_s, row, strict=True):
            found.append((compute_s, "compute", crew.peers[part[2][0]].name))
        for send_s, part in zip(pipeline.send_s, row, strict=False):
            found.append((send_s, "link", f"from {crew.peers[part[2][0]].name} to the next"))
    return max(found, key=lambda each: each[0])
