"""What anchors must be, worked out from a log alone: the counting model tells by how much each sample moves them.

This says a second time, plainly, what contributions are, how they are added up and what arrives of them. It calls the
code it judges only to step the outer optimizer at its scheduled rate.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from atoll.model.compute import Vector
from atoll.sim.compute import CountingEngine, delta_of, first_weights
from atoll.sim.retell import Committed, commits
from atoll.spec.recipe import (
    Blend,
    Butterfly,
    Codec,
    Delay,
    Delta,
    Fp16,
    Fp32,
    Int8,
    Overlap,
    Params,
)
from atoll.spec.run import Run
from atoll.swarm.log import Entry
from atoll.sync.grid import grid_of
from atoll.sync.merge import Anchor, advance, approach, finish, outer_names
from atoll.sync.schedule import rate


def anchors(run: Run, size: int, entries: list[Entry], honest_until: float) -> dict[int, Anchor]:
    """Return the anchor of every version up to `honest_until`, from leases and contributors alone."""
    channel = next(iter(run.recipe.channel.values()))
    weights = first_weights(run.seeds.data, size)
    anchor = Anchor(0, weights, {name: np.zeros_like(weights) for name in outer_names(channel.merge.outer)})
    by_version = {0: anchor}
    for committed in commits(entries):
        if anchor.version >= honest_until:
            break
        merged = merged_of(run, anchor, committed)
        factor = factor_of(run, anchor.version + 1)
        if isinstance(channel.what, Params):
            approach(channel.merge.outer, anchor := replace(anchor.copy(), version=anchor.version + 1), merged, factor)
        else:
            anchor = advance(channel.merge.outer, anchor.copy(), merged, factor)
        finish(channel.merge.outer, anchor, CountingEngine(seed=run.seeds.data, size=size).layout, factor)
        by_version[anchor.version] = anchor
    return by_version


def merged_of(run: Run, anchor: Anchor, committed: Committed) -> Vector:
    """Return what a round's contributors make together: group by group, each in the order of the announcement."""
    if committed.ring:
        return _gone_round(run, anchor, committed)
    channel = next(iter(run.recipe.channel.values()))
    route, codec = channel.whom.route, channel.what.codec
    leases, members = committed.announced.leases, committed.announced.members
    groups = -(-len(members) // route.group) if isinstance(route, Butterfly) else 1
    bounds = [len(members) * group // groups for group in range(groups + 1)]
    total, weight = np.zeros_like(anchor.weights), 0.0
    for first, end in pairwise(bounds):
        part = np.zeros_like(anchor.weights)
        for peer in (p for p in members[first:end] if p in committed.contributors):
            weighs = 1.0 if channel.merge.combine.weights == "uniform" else float(len(leases[peer]))
            part = part + sent(codec, contribution(run, anchor, leases[peer])) * np.float32(weighs)
            weight += weighs
        total = total + part
    return sent(codec, total / np.float32(weight))


def _gone_round(run: Run, anchor: Anchor, committed: Committed) -> Vector:
    """Return what comes of sums that go round: of each chunk it ends at another member, and every hop rounds it."""
    channel = next(iter(run.recipe.channel.values()))
    codec, ring, leases = channel.what.codec, committed.ring, committed.announced.leases
    weighs = {peer: 1.0 if channel.merge.combine.weights == "uniform" else float(len(leases[peer])) for peer in ring}
    own = {peer: contribution(run, anchor, leases[peer]) * np.float32(weighs[peer]) for peer in ring}
    merged = np.empty_like(anchor.weights)
    grid = grid_of(len(merged), codec)
    for index in range(grid.chunks):
        part = slice(*grid.bounds(index))
        total = np.zeros_like(merged[part])
        for step in range(1, len(ring) + 1):
            total = _chunk_sent(codec, total) + own[ring[(index + step) % len(ring)]][part]
        merged[part] = _chunk_sent(codec, total / np.float32(sum(weighs.values())))
    return merged


def contribution(run: Run, anchor: Anchor, positions: list[int]) -> Vector:
    """Return what a member contributes that trains on some samples from an anchor."""
    channel = next(iter(run.recipe.channel.values()))
    batch = run.recipe.work.batch
    if isinstance(channel.what, Params):
        return trained(run, anchor, positions)
    if isinstance(channel.what, Delta):
        lost = _lost_steps(channel.overlap) * batch if anchor.version else 0
        return anchor.weights - trained(run, anchor, positions[lost:])
    total = np.zeros_like(anchor.weights)
    for first in range(0, len(positions), batch):
        moved = delta_of(run.seeds.data, len(anchor.weights), positions[first : first + batch])
        total = total + moved / np.float32(batch)
    return total / np.float32(len(positions) // batch)


def trained(run: Run, anchor: Anchor, positions: list[int]) -> Vector:
    """Return the weights of a member that trained on some samples from an anchor."""
    return anchor.weights - delta_of(run.seeds.data, len(anchor.weights), positions)


def _lost_steps(overlap: Overlap) -> int:
    """Return how many steps of a lease an anchor takes the place of that comes after them."""
    return overlap.steps if isinstance(overlap, Delay) and overlap.reconcile == Blend() else 0


def sent(codec: Codec, values: Vector) -> Vector:
    """Return what arrives of some values, which travel in 32, 16 or 8 bits."""
    match codec:
        case Fp32():
            return values
        case Fp16():
            return values.astype(np.float16).astype(np.float32)
        case Int8():
            grid = grid_of(len(values), codec)
            return np.concatenate([_chunk_sent(codec, values[slice(*grid.bounds(i))]) for i in range(grid.chunks)])
        case _:
            raise AssertionError("no log tells what arrives of values in this codec")


def _chunk_sent(codec: Codec, chunk: Vector) -> Vector:
    """Return what arrives of a single chunk."""
    if not isinstance(codec, Int8):
        return sent(codec, chunk)
    blocks = [chunk[at : at + codec.block] for at in range(0, len(chunk), codec.block)]
    return np.concatenate([_in_whole_steps(each) for each in blocks])


def _in_whole_steps(block: Vector) -> Vector:
    step = np.abs(block).max() / np.float32(127)
    return np.rint(block * (1 / step)) * step if step >= 2.0**-120 else np.zeros_like(block)


def factor_of(run: Run, version: int) -> float:
    """Return the factor on the outer rate in a run whose budget is in rounds."""
    channel = next(iter(run.recipe.channel.values()))
    if not channel.merge.scheduled:
        return 1.0
    return rate(run.recipe.work.schedule, (version - 1) * channel.when.round_steps, (version - 1) / run.budget.rounds)
