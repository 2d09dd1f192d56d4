"""What goes from whom to whom in one round: parts to owners, sums between them, results to all.

Lengths are the codecs' own, and routes are made by who makes them for the exchange, `swarm.routes`. The exchange asks a
layout chunk by chunk; here runs of chunks are counted, all of which but the last are equally long, so that a trillion
parameters take no longer than a million. The tests hold both ways to each other. `traffic` makes kinds of rounds and
means of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from atoll.plan.lines import Line
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.whom import AllGather, Carried, Regions, Ring, Rings, Star, Trees
from atoll.spec.recipe import Channel
from atoll.swarm.routes.circles import Circle
from atoll.swarm.routes.clusters import rings_of
from atoll.swarm.routes.grow import Cargo, Links, grown
from atoll.swarm.routes.layout import Layout
from atoll.swarm.routes.shares import Shard, Shards, by_region, cut, group_slices, groups_needed, numbered, solve
from atoll.swarm.routes.tree import Tree
from atoll.sync.codec import wire_bytes
from atoll.sync.grid import Grid

Flow = tuple[bytes, bytes, int]
Moves = tuple[bytes, bytes, float]
"""From whom, to whom, how many bytes."""


class Form(Struct, frozen=True):
    """What a grid's chunks are on the wire in one form: all alike, but for the last of each vector."""

    grid: Grid
    chunk_bytes: int
    last_bytes: int

    def of(self, chunks: range) -> int:
        """Return how long some chunks are together."""
        each = self.grid.each
        lasts = sum(end - 1 in chunks for end in range(each, self.grid.chunks + 1, each))
        return (len(chunks) - lasts) * self.chunk_bytes + lasts * self.last_bytes


class Lengths(Struct, frozen=True):
    """What chunks are on the wire: in a member's contribution, as a sum, in a result."""

    part: dict[bytes, Form]
    sum: Form
    result: Form


def lengths_of(channel: Channel, grid: Grid, members: Sequence[bytes]) -> Lengths:
    """Return how long chunks are in each form that a channel sends."""
    first, end = grid.bounds(grid.chunks - 1)
    what = channel.what
    summed = what.codec if isinstance(channel.whom.route, Carried) else Fp32()
    known = {
        codec: Form(grid, wire_bytes(codec, grid.chunk), wire_bytes(codec, end - first))
        for codec in (what.codec, summed, what.merged(), *channel.forms.values())
    }
    parts = {member: known[channel.codec_of(member)] for member in members}
    return Lengths(parts, known[summed], known[what.merged()])


def transfers(layout: Layout, lengths: Lengths, members: Sequence[bytes], part: float) -> list[Moves]:
    """Return everything that goes over a line in a round: from whom, to whom, how much on average.

    Only this part of the members contributes, each as often as any other; a group in which nobody does sends no sum.
    """
    groups = min(1.0, part * len(members) / len(layout.groups))
    parts, sums, returns = flows_of(layout, lengths)
    found: list[Moves] = [(sender, receiver, round(part * size_bytes)) for sender, receiver, size_bytes in parts]
    found += [(sender, receiver, round(groups * size_bytes)) for sender, receiver, size_bytes in sums]
    return found + returns


def flows_of(layout: Layout, lengths: Lengths) -> tuple[list[Flow], list[Flow], list[Flow]]:
    """Return what goes over lines where everybody contributes: parts to owners, sums between them, results."""
    if layout.carriers:
        return [], *_carried(layout, lengths)
    sums, passed = _between(layout, lengths) if layout.joined else ([], [])
    return list(_brought(layout, lengths)), sums, [*_returned(layout, lengths), *passed]


def _brought(layout: Layout, lengths: Lengths) -> Iterator[Flow]:
    """Yield what members bring to who owns something for their group."""
    for shard in layout.shards:
        forms = {form: form.of(shard.chunks) for form in set(lengths.part.values())}
        for member in layout.groups[0 if layout.gather else shard.group]:
            if member != shard.owner:
                yield member, shard.owner, forms[lengths.part[member]]


def _between(layout: Layout, lengths: Lengths) -> tuple[list[Flow], list[Flow]]:
    """Return the sums that owners send to the roots of their chunks in other groups, and what comes back."""
    sums: list[Flow] = []
    results: list[Flow] = []
    for root, owner in _overlapping(layout.shards):
        if chunks := _rooted(root, owner, len(layout.groups)):
            sums.append((owner.owner, root.owner, lengths.sum.of(chunks)))
            results.append((root.owner, owner.owner, lengths.result.of(chunks)))
    return sums, results


def _overlapping(shards: Sequence[Shard]) -> Iterator[tuple[Shard, Shard]]:
    """Yield shards of different groups that have chunks in common, either way round."""
    open_: list[Shard] = []
    for shard in sorted(shards, key=lambda shard: shard.first):
        open_ = [other for other in open_ if other.chunks.stop > shard.first]  # of each group one
        for other in open_:
            yield shard, other
            yield other, shard
        open_.append(shard)


def _rooted(root: Shard, owner: Shard, groups: int) -> range:
    """Return the chunks of an owner whose root another is: who owns them in the group whose turn they are."""
    first, end = max(root.first, owner.first), min(root.chunks.stop, owner.chunks.stop)
    return range(first + (root.group - first) % groups, end, groups)


def _returned(layout: Layout, lengths: Lengths) -> Iterator[Flow]:
    """Yield the results that owners return to who takes them; who gathers everything makes its own."""
    for shard in () if layout.gather else layout.shards:
        size_bytes = lengths.result.of(shard.chunks)
        yield from ((shard.owner, to, size_bytes) for to in layout.takers[shard.group] if to != shard.owner)


def _carried(layout: Layout, lengths: Lengths) -> tuple[list[Flow], list[Flow]]:
    """Return the sums that go up along ways, and results: down again, or from the root of a ring to all others."""
    sums: list[Flow] = []
    results: list[Flow] = []
    for way in layout.ways:
        sum_bytes, result_bytes = lengths.sum.of(way.chunks), lengths.result.of(way.chunks)
        for place, above in enumerate(way.up):
            one, giver = layout.carriers[place], layout.carriers[way.root if layout.ring else above]
            if place != above:
                sums.append((one, layout.carriers[above], sum_bytes))
                results.append((giver, one, result_bytes))
    return sums, results


def layout_of(channel: Channel, grid: Grid, known: Mapping[bytes, Line], circles: Sequence[Circle]) -> Layout:
    """Return who sends what to whom."""
    gather, ring = (isinstance(channel.whom.route, kind) for kind in (AllGather, Ring))
    shards, trees = _shards(channel, grid, known, circles), _trees(channel, grid, list(known.values()))
    regions = regions_of(channel, known)
    return Layout(shards, list(known), gather=gather, circles=circles, ring=ring, trees=trees, regions=regions)


def regions_of(channel: Channel, known: Mapping[bytes, Line]) -> tuple[int, ...]:
    """Return the region of each member, where that decides anything."""
    named = numbered([line.region for line in known.values()])
    return named if isinstance(channel.whom.route, Regions) else ()


def _trees(channel: Channel, grid: Grid, lines: Sequence[Line]) -> tuple[Tree, ...]:
    """Return the trees of members who have measured nothing of each other but what their lines carry."""
    alike = [[0.0] * len(lines) for _ in lines]
    match channel.whom.route:
        case Trees(roots=roots):
            byte_s = [[1 / min(_rate(one), _rate(other)) for other in lines] for one in lines]
            cargo = Cargo(grid.chunks, wire_bytes(channel.what.codec, grid.chunk))
            forest = grown(Links(byte_s, alike), cargo, roots)
        case Rings(clusters=clusters):
            forest = rings_of(alike, grid.chunks, clusters)
        case _:
            return ()
    return tuple(Tree(chunks, up) for chunks, up in forest)


def _shards(channel: Channel, grid: Grid, known: Mapping[bytes, Line], circles: Sequence[Circle]) -> Shards:
    """Return who owns what once everybody's line is known, as the broker shares it out."""
    route, members = channel.whom.route, list(known)
    if isinstance(route, AllGather):
        able = [peer for peer, line in known.items() if line.reached] or members
        return tuple(Shard(peer, 0, grid.chunks, group) for group, peer in enumerate(able))
    if isinstance(route, Star):  # who began the run leads, most likely
        return (Shard(members[0], 0, grid.chunks),)
    if isinstance(route, Carried):
        return tuple(Shard(peer, 0, grid.chunks, place) for place, peer in enumerate(members))
    groups = group_slices(members, groups_needed(len(members), channel.group_max(len(members))))
    if regions := regions_of(channel, known):
        groups = by_region(members, regions)
    among = circles or [Circle(tuple(group), tuple(group)) for group in groups]
    between = 0.0 if circles else 2 * (len(groups) - 1) / len(groups)
    shards: list[Shard] = []
    for number, circle in enumerate(among):
        owners = [peer for peer in circle.takers if known[peer].reached] or list(circle.takers)
        shares = solve([_rate(known[peer]) for peer in owners], len(circle.givers) + between)
        run = circle.chunks(grid.chunks)
        shards += cut(len(run), owners, shares, number, run.start)
    return tuple(shards)


def _rate(line: Line) -> float:
    """Return what decides a member's share: its slower direction, as both carry as much; equal where none is known."""
    return min(line.up_bytes_s, line.down_bytes_s) or 1.0
