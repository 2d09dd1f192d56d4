"""What goes from whom to whom in one round, chunk by chunk: parts to owners, sums between them, results to all.

Lengths are the codecs' own and routes those that the exchange asks of `swarm.routes`, so that neither is said twice:
`traffic` makes kinds of rounds and means of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from atoll.plan.lines import Line
from atoll.spec.axes.codec import Codec, Fp32
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


class Lengths(Struct, frozen=True):
    """What each chunk is on the wire: in a member's contribution, as a sum, in a result."""

    part: dict[bytes, list[int]]
    sum: list[int]
    result: list[int]


def lengths_of(channel: Channel, grid: Grid, members: Sequence[bytes]) -> Lengths:
    """Return how long every chunk is in each form that a channel sends."""
    counts = [end - first for first, end in map(grid.bounds, range(grid.chunks))]
    what = channel.what
    summed = what.codec if isinstance(channel.whom.route, Carried) else Fp32()
    known: dict[Codec, list[int]] = {}
    for form in (what.codec, summed, what.merged(), *channel.forms.values()):
        by_count = {count: wire_bytes(form, count) for count in set(counts)}
        known[form] = [by_count[count] for count in counts]
    parts = {member: known[channel.codec_of(member)] for member in members}
    return Lengths(parts, known[summed], known[what.merged()])


def transfers(layout: Layout, lengths: Lengths, members: Sequence[bytes], part: float) -> list[Moves]:
    """Return everything that goes over a line in a round: from whom, to whom, how much on average.

    Only this part of the members contributes, each as often as any other; a group in which nobody does sends no sum.
    """
    groups = min(1.0, part * len(members) / len(layout.groups))
    parts, sums, returns = flows_of(layout, lengths, members)
    found: list[Moves] = [(sender, receiver, round(part * size_bytes)) for sender, receiver, size_bytes in parts]
    found += [(sender, receiver, round(groups * size_bytes)) for sender, receiver, size_bytes in sums]
    return found + returns


def flows_of(layout: Layout, lengths: Lengths, members: Sequence[bytes]) -> tuple[list[Flow], list[Flow], list[Flow]]:
    """Return what goes over lines where everybody contributes: parts to owners, sums between them, results."""
    parts = [
        (member, owner, size_bytes)
        for owner in layout.owners
        for member, size_bytes in _brought(layout, lengths, owner, members)
        if member != owner
    ]
    sums = [
        (owner, root, sum(lengths.sum[index] for _, index in units))
        for owner in layout.owners
        for root, units in layout.sums(owner).items()
    ]
    returns = [
        (owner, to, sum(lengths.result[index] for _, index in cells))
        for owner in layout.owners
        for to, cells in layout.returns(owner).items()
    ]
    return parts, sums, returns


def _brought(layout: Layout, lengths: Lengths, owner: bytes, members: Sequence[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield what every member brings an owner; who gives to the same groups in the same form is counted once."""
    known: dict[tuple[frozenset[int], int], int] = {}
    for member in members:
        each = lengths.part[member]
        alike = layout.gives(member), id(each)
        if alike not in known:
            known[alike] = sum(each[index] for index in layout.parts(owner, member))
        yield member, known[alike]


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
