"""Who owns what: shares of the chunk grid from measured rates, and who takes over from an owner that is gone.

With N contributions of B bytes each, a member that owns the share s of the grid sends the rest of its contribution
to the other owners and its reduced share to everybody else, and receives as much:

    (1 - s) B + (N - 1) s B  =  B (1 + s (N - 2))

A peer with rate r needs B (1 + s (N - 2)) / r, and a round takes as long as the slowest. So time is filled like
water: all who own something finish together, and who needs longer for its own contribution alone owns nothing.
Everything here is a pure function; whole chunks come last, by largest remainder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

GROUP_MEMBERS_MAX = 64
"""Members of one all-to-all exchange."""


class Shard(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A run of chunks and the peer that reduces it for a group."""

    owner: bytes
    first: int
    count: int
    group: int = 0

    @property
    def chunks(self) -> range:
        return range(self.first, self.first + self.count)


class Bulk(Struct, frozen=True):
    """What one contribution is on the wire: so many chunks of at most so many bytes."""

    chunks: int = 1
    chunk_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        return self.chunks * self.chunk_bytes


WHOLE = Bulk()
"""One chunk of unknown size."""
Shards = tuple[Shard, ...]


# groups


def groups_needed(members: int, group_members_max: int = GROUP_MEMBERS_MAX) -> int:
    """Return into how many groups so many members are cut."""
    return max(1, -(-members // group_members_max))


def group_slices(members: Sequence[bytes], groups: int) -> tuple[tuple[bytes, ...], ...]:
    """Return the members cut into consecutive groups whose sizes differ by one at most."""
    bounds = [len(members) * number // groups for number in range(groups + 1)]
    return tuple(tuple(members[first:end]) for first, end in pairwise(bounds))


def numbered(regions: Sequence[object]) -> tuple[int, ...]:
    """Return the region of each with regions numbered in the order in which they first come up."""
    numbers: dict[object, int] = {}
    return tuple(numbers.setdefault(region, len(numbers)) for region in regions)


def by_region(members: Sequence[bytes], regions: Sequence[int]) -> tuple[tuple[bytes, ...], ...]:
    """Return the members of each region, in canonical order; all together where there are none."""
    if not regions:
        return (tuple(members),)
    pairs = list(zip(members, regions, strict=True))
    return tuple(tuple(peer for peer, region in pairs if region == number) for number in range(1 + max(regions)))


# looking at shards


def owners_of(shards: Iterable[Shard]) -> tuple[bytes, ...]:
    """Return everybody who owns something, in the order of the shards."""
    return tuple(dict.fromkeys(shard.owner for shard in shards))


def chunks_of(shards: Iterable[Shard], owner: bytes) -> list[int]:
    """Return the chunks of a peer's shards, in the order of the shards."""
    return [index for shard in shards if shard.owner == owner for index in shard.chunks]


def covers(shards: Sequence[Shard], chunks: int, runs: Sequence[range] = ()) -> bool:
    """Return whether every chunk has exactly one owner in every group, and groups are numbered from 0.

    Where each group is about a run of chunks of its own, these are given.
    """
    groups = {shard.group for shard in shards}
    wanted = {number: run for number, run in enumerate(runs or [range(chunks)] * len(groups)) if run}
    if not shards or groups != wanted.keys() or any(shard.count < 1 for shard in shards):
        return False
    return all(_tiles([s for s in shards if s.group == group], run) for group, run in wanted.items())


def _tiles(shards: list[Shard], run: range) -> bool:
    at = run.start
    for shard in sorted(shards, key=lambda shard: shard.first):
        if shard.first != at:
            return False
        at += shard.count
    return at == run.stop


# cutting


def cut(chunks: int, owners: Sequence[bytes], shares: Sequence[float], group: int = 0, first: int = 0) -> Shards:
    """Return a run of whole chunks for each owner, by largest remainder; whose share rounds to nothing has none."""
    shards, end = [], first + chunks
    for owner, count in zip(owners, _whole(chunks, shares), strict=True):
        if count:
            shards.append(Shard(owner, first, count, group))
            first += count
    assert first == end
    return tuple(shards)


def _whole(chunks: int, shares: Sequence[float]) -> list[int]:
    """Return whole numbers that add up to `chunks`, as near to the shares as can be."""
    total = sum(shares)
    exact = [chunks * share / total for share in shares]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: chunks - sum(counts)]:
        counts[i] += 1
    return counts


def take_over(
    shards: Shards, gone: Collection[bytes], heirs: Sequence[bytes], speeds: Mapping[bytes, float] | None = None
) -> Shards:
    """Return the shards with those of peers that are gone spread over the heirs, by speed; the others stay put."""
    orphans = [shard for shard in shards if shard.owner in gone]
    weights = [(speeds or {}).get(heir, 0.0) or 1.0 for heir in heirs]
    if not speeds or not all(speeds.get(heir) for heir in heirs):
        weights = [1.0] * len(heirs)
    counts = _whole(sum(shard.count for shard in orphans), weights)
    kept = [shard for shard in shards if shard.owner not in gone]
    return _joined(kept + _deal(orphans, heirs, counts))


def _deal(orphans: Iterable[Shard], heirs: Sequence[bytes], counts: list[int]) -> list[Shard]:
    """Cut the orphaned runs where one heir's number of chunks is full and the next one's begins."""
    dealt: list[Shard] = []
    left, heir = list(counts), 0
    for orphan in orphans:
        first, end = orphan.first, orphan.first + orphan.count
        while first < end:
            while not left[heir]:
                heir += 1
            count = min(left[heir], end - first)
            dealt.append(Shard(heirs[heir], first, count, orphan.group))
            left[heir] -= count
            first += count
    return dealt


def _joined(shards: Iterable[Shard]) -> Shards:
    """Return shards in order, those that touch and have one owner joined."""
    joined: list[Shard] = []
    for shard in sorted(shards, key=lambda shard: (shard.group, shard.first)):
        last = joined[-1] if joined else None
        if last and (last.owner, last.group, last.first + last.count) == (shard.owner, shard.group, shard.first):
            joined[-1] = replace(last, count=last.count + shard.count)
        else:
            joined.append(shard)
    return tuple(joined)


# solving


def solve(rates: Sequence[float], contributors: float, caps: Sequence[float] | None = None) -> list[float]:
    """Return the share of each member that makes the slowest one's time the least; rates in any unit, all positive.

    `caps` are the largest shares that members have memory for. Where they leave part of the grid to nobody, they are
    passed over in proportion: somebody has to hold it.
    """
    caps = [1.0] * len(rates) if caps is None else list(caps)
    if sum(caps) <= 1.0:
        return [cap / sum(caps) for cap in caps] if sum(caps) else [1.0 / len(caps)] * len(caps)
    if contributors <= 2:  # what a member sends does not depend on its share
        return _fill([(0.0, 1.0)] * len(rates), caps)
    return _fill([(1.0 / rate, (contributors - 2) / rate) for rate in rates], caps)


def _fill(costs: Sequence[tuple[float, float]], caps: Sequence[float]) -> list[float]:
    """Return shares that add up to 1 with the largest time (base + slope * share) as small as can be.

    The shares within a time are a rising line with a bend wherever a member begins to own or is full; the time at
    which they reach 1 lies between two bends, where it is found by proportion.
    """

    def within(time: float) -> list[float]:
        return [min(max((time - base) / slope, 0.0), cap) for (base, slope), cap in zip(costs, caps, strict=True)]

    ends = [(base, base + slope * cap) for (base, slope), cap in zip(costs, caps, strict=True)]
    bends = sorted({bend for both in ends for bend in both})
    for low, high in pairwise(bends):
        before, after = sum(within(low)), sum(within(high))
        if after >= 1.0:
            time = low + (high - low) * (1.0 - before) / (after - before)
            return within(time)
    return within(bends[-1])


def slowest(rates: Sequence[float], shares: Sequence[float], contributors: float) -> float:
    """Return the longest time a member needs to send (or receive) its part, for contributions of size 1."""
    return max((1 + share * max(contributors - 2, 0)) / rate for rate, share in zip(rates, shares, strict=True))


def fill_in(rates: Sequence[float]) -> list[float]:
    """Return the rates with the unknown ones (0) taken for the median of the known; all alike if none is known."""
    known = [rate for rate in rates if rate > 0]
    typical = median(known) if known else 1.0
    return [rate if rate > 0 else typical for rate in rates]


# memory


def peak_bytes(
    contribution_bytes: float, share: float, contributors: int, *, groups: int = 1, sum_bytes: float = 0.0
) -> float:
    """Return what the exchange holds in memory at its peak at a member that owns `share` of its group's grid.

    Its own contribution, kept until commit; of everybody else's in its group the chunks of its share, kept until
    commit for another set of contributors; and the whole result, of which its own share is the reduced one. With G
    groups also its group's sums (fp32, S bytes for the whole grid), and as a root those of the others:

        B + (N - 1) s B + B         and with G > 1   + s S + s S (G - 1) / G

    A contribution that is computed anew while the old one is kept comes on top, for its maker's part of the share;
    who gathers everything has the share 1. What is on its way in messages and in the transport's buffers comes on top
    too: a few megabytes, whatever the model (`python -m bench.memory` holds real peers against this formula).
    """
    between = share * sum_bytes * (1 + (groups - 1) / groups) if groups > 1 else 0.0
    return contribution_bytes * (2 + share * (contributors - 1)) + between


def cap_of(memory_bytes: float, contribution_bytes: float, contributors: int) -> float:
    """Return the largest share whose `peak_bytes` a memory has room for; 0 bytes: nobody set a limit."""
    if not memory_bytes or contributors < 2 or not contribution_bytes:
        return 1.0
    return min(1.0, max(0.0, (memory_bytes / contribution_bytes - 2) / (contributors - 1)))
