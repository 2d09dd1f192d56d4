"""Bytes and times of what groups of devices exchange, for one round among n of x bytes each.

    all-reduce     2 (n - 1) / n x sent by each: a ring in 2 (n - 1) steps of x / n, a butterfly in two
    sharded server the same bytes: everybody owns a part
    all-gather     (n - 1) x: where contributions cannot be summed on the way
    tree           x up and x down at every level, and f x into whoever merges f of them
    islands        all-reduce inside, then of the island's part between (HSDP: of the shard each member holds)
    FSDP           3 (n - 1) / n x a step: weights gathered twice, gradients scattered once
    tensor         four all-reduces of the boundary a layer: 8 (t - 1) / t b s h e sent
    context        ring: keys and values of the others' tokens go by; Ulysses: four all-to-alls of one's own

Times are of lines that are all alike; of unequal ones the slowest is taken, for a ring waits for it in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from atoll.plan.cost.flops import Number

# bytes


def boundary_bytes(sequences: Number, context: Number, hidden: Number, element_bytes: float = 2.0) -> Number:
    """Return what crosses between two stages, of one micro-batch in one direction."""
    return sequences * context * hidden * element_bytes


def pipeline_bytes(boundary: Number, stages: int, micro_batches: int) -> Number:
    """Return what all boundaries of a pipeline carry in a step, both ways."""
    return 2.0 * (stages - 1) * micro_batches * boundary


def all_reduce_bytes(size_bytes: Number, members: Number) -> Number:
    """Return what each member sends in a ring, a butterfly of equal shares, or to servers that are the members."""
    return 2.0 * (members - 1.0) / members * size_bytes


def butterfly_bytes(size_bytes: Number, members: Number, share: Number) -> Number:
    """Return what a member sends that owns a share of the vector: its contribution, and results to the others."""
    return size_bytes * (1.0 + (members - 2.0) * share)


def all_gather_bytes(size_bytes: Number, members: Number) -> Number:
    """Return what each sends when everybody needs what everybody has."""
    return (members - 1.0) * size_bytes


def grid_bytes(size_bytes: Number, side: int, dimensions: int) -> Number:
    """Return what each sends in a grid of side^dimensions that averages along one dimension after the other."""
    return dimensions * all_reduce_bytes(size_bytes, float(side))


def fsdp_bytes(size_bytes: Number, members: Number) -> Number:
    """Return what each rank sends in a step of fully sharded data parallelism."""
    return 3.0 * (members - 1.0) / members * size_bytes


def hsdp_bytes(size_bytes: Number, inside: int, islands: int) -> tuple[Number, Number]:
    """Return what each rank sends inside its island, and between islands for the shard that it holds."""
    return fsdp_bytes(size_bytes, float(inside)), all_reduce_bytes(size_bytes / inside, float(islands))


def tensor_bytes(boundary: Number, width: int) -> Number:
    """Return what each rank of tensor parallelism sends for one layer and micro-batch, both ways."""
    return 4.0 * all_reduce_bytes(boundary, float(width))


def ring_context_bytes(kv_boundary: Number, parts: int) -> Number:
    """Return what each rank sends of keys and values in one layer's forward pass; on the way back twice that."""
    return (parts - 1) * 2.0 * kv_boundary / parts


def ulysses_bytes(boundary: Number, parts: int) -> Number:
    """Return what leaves each rank in one attention's forward pass: four all-to-alls of its own tokens."""
    return 4.0 * boundary / parts * (parts - 1) / parts


# times


def ring_s(size_bytes: Number, members: Number, latency_s: Number, rate_bytes_s: Number) -> Number:
    """Return how long a ring all-reduce takes: 2 (n - 1) steps of an n-th part, each over the slowest line."""
    return 2.0 * (members - 1.0) * (latency_s + size_bytes / members / rate_bytes_s)


def ring_over_s(size_bytes: float, members: int, hop_s: Callable[[float], float]) -> float:
    """Return the same where a hop's time is any function of its bytes, such as a measured curve."""
    return 2 * (members - 1) * hop_s(size_bytes / members) if members > 1 else 0.0


def bucketed_ring_s(size_bytes: float, bucket_bytes: float, members: int, hop_s: Callable[[float], float]) -> float:
    """Return a ring all-reduce in buckets, one after the other, as gradients are sent while others are made."""
    whole, rest = divmod(size_bytes, bucket_bytes)
    last = ring_over_s(rest, members, hop_s) if rest else 0.0
    return whole * ring_over_s(bucket_bytes, members, hop_s) + last


def butterfly_s(size_bytes: Number, members: Number, latency_s: Number, rate_bytes_s: Number) -> Number:
    """Return how long all parts to their owners and all results back take: the same bytes, two delays."""
    return 2.0 * latency_s + all_reduce_bytes(size_bytes, members) / rate_bytes_s


def all_gather_s(size_bytes: Number, members: Number, latency_s: Number, rate_bytes_s: Number) -> Number:
    """Return how long it takes until everybody has what everybody sent."""
    return latency_s + all_gather_bytes(size_bytes, members) / rate_bytes_s


def tree_s(
    size_bytes: Number,
    members: Number,
    fan_in: Number,
    latency_s: Number,
    up_bytes_s: Number,
    down_bytes_s: Number,
) -> Number:
    """Return the time up a tree in which everybody merges `fan_in` below it, and down again, level by level."""
    up_s = np.maximum(size_bytes / up_bytes_s, fan_in * size_bytes / down_bytes_s)
    down_s = np.maximum(fan_in * size_bytes / up_bytes_s, size_bytes / down_bytes_s)
    return tree_levels(members, fan_in) * (up_s + down_s + 2 * latency_s)


def tree_levels(members: Number, fan_in: Number) -> Number:
    """Return how many levels of merging there are above so many leaves."""
    return np.ceil(np.log(members) / np.log(fan_in) - 1e-9)


def islands_s(
    size_bytes: Number,
    inside: Number,
    islands: Number,
    near: tuple[float, float],
    far: tuple[float, float],
) -> Number:
    """Return a hierarchical all-reduce: scatter inside, an all-reduce of each part between, gather inside.

    `near` and `far` are (latency_s, rate_bytes_s) of one member's line inside its island and between islands.
    """
    return ring_s(size_bytes, inside, *near) + ring_s(size_bytes / inside, islands, *far)


def slowest_ring_s(size_bytes: float, lines: Sequence[tuple[float, float]]) -> float:
    """Return a ring over lines (latency_s, rate_bytes_s) in their order: every step takes as long as the slowest."""
    members = len(lines)
    if members < 2:
        return 0.0
    step_s = max(latency_s + size_bytes / members / rate for latency_s, rate in lines)
    return 2 * (members - 1) * step_s
