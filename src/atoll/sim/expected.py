"""What anchors must be, worked out from a log alone: the counting model tells by how much each sample moves them.

This says a second time, plainly, what contributions are, how they are added up and what arrives of them. It calls the
code it judges only to step the outer optimizer at its scheduled rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from atoll.model.compute import Vector
from atoll.net.identity import short
from atoll.sim.compute import MARKS, UNIT, CountingEngine, delta_of, first_weights
from atoll.sim.lives import Lives
from atoll.sim.polar import apart, together
from atoll.sim.retell import Committed, commits, settings
from atoll.spec.axes.codec import Bf16, Codec, Fp16, Fp32, Int8
from atoll.spec.axes.merge import Trimmed
from atoll.spec.axes.pace import Blend, Delay, Overlap
from atoll.spec.axes.what import Delta, Params
from atoll.spec.knobs import turned
from atoll.spec.recipe import Channel
from atoll.spec.run import Run
from atoll.spec.schedule import rate
from atoll.spec.turns import rarest
from atoll.swarm.log import Entry
from atoll.sync.grid import grid_of
from atoll.sync.merge import Anchor, Pushes, advance, approach, finish, outer_names
from atoll.sync.units import Tensor, directed, whole

Channels = dict[int, Channel]
"""The channel as its knobs stand, by the first round of which that holds."""


def channels_of(run: Run, entries: list[Entry]) -> Channels:
    """Return the channel throughout a run."""
    return {0: rarest(run.recipe)} | {v: turned(run.recipe, k) for v, k in settings(entries).items()}


def channel_at(channels: Channels, version: int) -> Channel:
    """Return the channel of one round."""
    return channels[max(first for first in channels if first <= version)].in_round(version)


def anchors(
    run: Run, size: int, entries: list[Entry], honest_until: float, lives: Lives | None = None
) -> dict[int, Anchor]:
    """Return the anchor of every version up to `honest_until`, from leases and contributors alone.

    Where marks are part of lengths it takes their lives too.
    """
    channels = channels_of(run, entries)
    weights = first_weights(run.seeds.data, size)
    anchor = Anchor(0, weights, {name: np.zeros_like(weights) for name in outer_names(channels[0].merge.outer)})
    by_version, before = {0: anchor}, 0
    for committed in commits(entries):
        if anchor.version >= honest_until:
            break
        channel = channel_at(channels, anchor.version + 1)
        merged = merged_of(run, channels, anchor, committed, lives or {})
        factor = factor_of(run, channels, anchor.version + 1)
        pushes = Pushes(len(committed.contributors), before)
        before += len(committed.contributors)
        step = approach if isinstance(channel.what, Params) else advance
        anchor = step(channel.merge.outer, anchor.copy(), merged, factor, pushes)
        finish(channel.merge.outer, anchor, CountingEngine(seed=run.seeds.data, size=size).layout, factor)
        by_version[anchor.version] = anchor
    return by_version


def merged_of(run: Run, channels: Channels, anchor: Anchor, committed: Committed, lives: Lives) -> Vector:
    """Return what a round's contributors make together."""
    channel, before = channel_at(channels, anchor.version + 1), channel_at(channels, anchor.version)
    given = {}
    for peer in committed.contributors:
        life = lives.get((short(peer), committed.version), 0)
        given[peer] = contribution(run, before, anchor, committed.announced.leases[peer], life)
    size = len(anchor.weights)
    layout = CountingEngine(seed=run.seeds.data, size=size).layout
    return combined_in(channel, committed, given, directed(whole(size, Fp32()), layout))


def combined_in(channel: Channel, committed: Committed, given: Mapping[bytes, Vector], tensors: list[Tensor]) -> Vector:
    """Return what some contributions come to, by directions and lengths of these tensors where a channel takes them."""
    if not channel.polar:
        return combined(channel, committed, given)
    spread = {peer: apart(tensors, values) for peer, values in given.items()}
    return together(tensors, combined(channel, committed, spread))


def combined(channel: Channel, committed: Committed, given: Mapping[bytes, Vector]) -> Vector:
    """Return what some contributions come to: group by group, each in the order of the announcement."""
    if committed.ring or committed.trees:
        return _carried(channel, committed, given)
    leases, members = committed.announced.leases, committed.announced.members
    if isinstance(channel.merge.combine, Trimmed):
        there = [peer for peer in members if peer in given]
        came = [sent(channel.codec_of(peer), given[peer]) for peer in there]
        weighs = np.array([weight_of(channel, leases[peer]) for peer in there], np.float32)
        return sent(channel.what.merged(), _middle(channel.merge.combine, came, weighs))
    total, weight = np.zeros(_size(given), np.float32), 0.0
    for group in _groups(channel, committed):
        part = np.zeros_like(total)
        for peer in (p for p in group if p in given):
            counts = weight_of(channel, leases[peer])
            part = part + sent(channel.codec_of(peer), given[peer]) * np.float32(counts)
            weight += counts
        total = total + part
    return sent(channel.what.merged(), total / np.float32(weight))


def _groups(channel: Channel, committed: Committed) -> list[Sequence[bytes]]:
    """Return who adds up together: those of a region, or as many as may exchange directly."""
    members = committed.announced.members
    if committed.announced.regions:
        return [*committed.announced.groups]
    count = -(-len(members) // channel.group_max(len(members)))
    bounds = [len(members) * number // count for number in range(count + 1)]
    return [members[first:end] for first, end in pairwise(bounds)]


def _size(given: Mapping[bytes, Vector]) -> int:
    return len(next(iter(given.values())))


def weight_of(channel: Channel, lease: list[int]) -> float:
    """Return what a contribution counts for, up to a factor that is the same for all."""
    return 1.0 if channel.merge.combine.weights == "uniform" else float(len(lease))


def _middle(combine: Trimmed, came: list[Vector], weights: Vector) -> Vector:
    """Return the mean of what is left of each element when those at either end are gone, from the smallest on."""
    count = len(came)
    cut = min(math.ceil(count * combine.drop), (count - 1) // 2)
    total, weight = np.zeros_like(came[0]), np.zeros_like(came[0])
    for place in range(cut, count - cut):
        which = np.array(came).argsort(axis=0, kind="stable")[place]
        total = total + np.array(came)[which, np.arange(total.size)] * weights[which]
        weight = weight + weights[which]
    return total / weight


def _carried(channel: Channel, committed: Committed, given: Mapping[bytes, Vector]) -> Vector:
    """Return what comes of sums that are carried from member to member: each adds its own, and every hop rounds it."""
    codec, leases = channel.what.codec, committed.announced.leases
    weighs = {peer: weight_of(channel, leases[peer]) for peer in committed.contributors}
    own = {peer: given[peer] * np.float32(weighs[peer]) for peer in weighs}
    merged = np.empty(_size(given), np.float32)
    grid = grid_of(len(merged), codec)
    for index in range(grid.chunks):
        part, above = slice(*grid.bounds(index)), _above(committed, index)
        (root,) = [peer for peer in above if above[peer] == peer]
        total = _total(codec, above, {peer: each[part] for peer, each in own.items()}, root)
        merged[part] = _chunk_sent(codec, total / np.float32(sum(weighs.values())))
    return merged


def _total(codec: Codec, above: dict[bytes, bytes], own: dict[bytes, Vector], peer: bytes) -> Vector:
    """Return what a member passes on of a chunk: what comes from those below it, in canonical order, then its own."""
    total = np.zeros_like(own[peer])
    for other in sorted(above):
        if above[other] == peer != other:
            total = total + _chunk_sent(codec, _total(codec, above, own, other))
    return total + own[peer]


def _above(committed: Committed, index: int) -> dict[bytes, bytes]:
    """Return who passes the sum of a chunk on to whom; in a ring each to the next, and it ends at another each time."""
    ring = committed.ring
    if ring:
        root = ring[index % len(ring)]
        return {peer: ring[(at + 1) % len(ring)] if peer != root else root for at, peer in enumerate(ring)}
    for chunks, above in committed.trees:
        if index < chunks:
            return above
        index -= chunks
    raise AssertionError("the log names no tree for the last chunks")


def contribution(run: Run, channel: Channel, anchor: Anchor, positions: list[int], life: int = 0) -> Vector:
    """Return what a member contributes that trains on some samples from an anchor, which came by this channel."""
    batch = run.recipe.work.batch
    if isinstance(channel.what, Params):
        return trained(run, anchor, positions, life)
    if isinstance(channel.what, Delta):
        lost = _lost_steps(channel.overlap) * batch if anchor.version else 0
        return anchor.weights - trained(run, anchor, positions[lost:], life)
    total = np.zeros_like(anchor.weights)
    for first in range(0, len(positions), batch):
        moved = delta_of(run.seeds.data, len(anchor.weights), positions[first : first + batch])
        moved[MARKS] = batch * life * UNIT
        total = total + moved / np.float32(batch)
    return total / np.float32(len(positions) // batch)


def trained(run: Run, anchor: Anchor, positions: list[int], life: int = 0) -> Vector:
    """Return the weights of a member that trained on some samples from an anchor."""
    return moved_by(run, anchor.weights, positions, life)


def moved_by(run: Run, weights: Vector, positions: list[int], life: int = 0) -> Vector:
    """Return weights after training on some samples, with the mark of a life where it matters which one it was."""
    moves = delta_of(run.seeds.data, len(weights), positions)
    moves[MARKS] = life * UNIT
    return weights - moves


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
        case Bf16():
            bits = values.view(np.uint32)
            even = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
            return even.view(np.float32)
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


def factor_of(run: Run, channels: Channels, version: int) -> float:
    """Return the factor on the outer rate in a run whose budget is in rounds."""
    if not channels[0].merge.scheduled:
        return 1.0
    before = ((v, channel_at(channels, v)) for v in range(1, version))
    steps = sum(channel.when.round_steps for v, channel in before if not channel.holds(v))
    return rate(run.recipe.work.schedule, steps, (version - 1) / run.budget.rounds)
