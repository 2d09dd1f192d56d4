"""A member's place in a ring: it adds what is its own to the sums that come by, and passes them on.

    sum so far  ->  decoded  ->  + own values  ->  encoded again  ->  to the next
                                               ->  (at the chunk's root) divided, encoded once, returned to all

The codec acts at every hop, so what is rounded is the sum, and a member's own values go in as they are. A sum names the
contributions in it, in order; nothing is made before it is settled who they are. What was made for an earlier plan and
has the right name is not made again. Jobs run off the loop, many chunks at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from blake3 import blake3
from msgspec import Struct

from atoll import journal as events
from atoll.model.compute import Vector
from atoll.net.identity import short
from atoll.net.transport import PeerId
from atoll.peer.member import Member, Own, Reduction, Sum, plan_id
from atoll.peer.reduce import BATCH_BYTES, OnPlan, keep_result, weights_of
from atoll.swarm.layout import Settled
from atoll.swarm.log import OpenRound
from atoll.swarm.messages import Contribution, Plan, Reduced, Spoiled
from atoll.sync.codec import decoded, encode, seed_of
from atoll.sync.merge import add_up, mean


class Hop(Struct, frozen=True):
    """What a member does with one chunk."""

    index: int
    of: bytes
    """What it is called with the member's own values in it."""
    before: bytes
    """What the sum is called that must be here first; empty: the member is the first."""
    count: int
    """Contributions in it, with the member's own."""
    ends: bool
    """The member is the chunk's root."""


class Carrier(OnPlan):
    """One member's work on one plan."""

    def __init__(self, member: Member, plan: Plan, announced: OpenRound) -> None:
        super().__init__(member, plan, announced)
        self._size = len(self._layout.ring)
        self._place = self._layout.ring.index(member.me)
        self._codec = self._channel.what.codec
        self._limit = float(np.finfo(np.float32).max) / self._size
        """What a contribution's values may be at most, so that all together are finite."""

    async def run(self) -> None:
        """Once the ring is settled, add own values to all sums that come; report when our results are made."""
        member, owned = self._member, self._owned
        settled, own = await owned.arrived.until(self._settled), member.own
        assert settled is not None, "which is what was waited for"
        if own is None or own.key != self._plan.key or own.serial != member.settled(member.me):
            member.report(Spoiled(self._plan.key, member.me, "it went with the life that made it"))
            return
        (weight,) = weights_of(member, self._announced, (Contribution(member.me, own.serial),))
        hops = self._hops(settled)
        look: Iterable[int] = tuple(hops)
        while hops:
            due = [hops[index] for index in look if index in hops and self._is_due(hops[index])]
            for batch in self._batches(due):
                if not await self._make(batch, own, weight):
                    return
                for hop in batch:
                    del hops[hop.index]
            if hops:
                look = tuple(await owned.arrived.until(lambda: owned.touched))
                owned.touched.clear()
        self._finish()

    def _settled(self) -> Settled | None:
        present = self._member.plan
        return present.settled if present is not None and plan_id(present) == plan_id(self._plan) else None

    def _hops(self, settled: Settled) -> dict[int, Hop]:
        """Return what is not made yet: what needs nobody else first, then what comes soon."""
        name = self._layout.set_of(settled, (0, 0))
        ways = [
            (self._layout.chain(root).index(self._member.me), self._layout.sums_along(settled, root))
            for root in range(self._size)
        ]
        hops = []
        for index in range(self._grid.chunks):
            at, along = ways[index % self._size]
            ends = at == self._size - 1
            hops.append(
                Hop(
                    index=index,
                    of=name if ends else along[at],
                    before=along[at - 1] if at else b"",
                    count=at + 1,
                    ends=ends,
                )
            )
        return {hop.index: hop for hop in sorted(hops, key=lambda hop: hop.count) if not self._is_made(hop)}

    def _is_made(self, hop: Hop) -> bool:
        owned = self._owned
        made = owned.reduced.get((0, hop.index)) if hop.ends else owned.sums.get((self._place, hop.index))
        return made is not None and made.of == hop.of

    def _is_due(self, hop: Hop) -> bool:
        before = self._came(hop)
        return not hop.before or (before is not None and before.of == hop.before)

    def _came(self, hop: Hop) -> Sum | None:
        """Return what came of a chunk from the one before us, if it needs anything."""
        return self._owned.sums.get(((self._place - 1) % self._size, hop.index)) if hop.before else None

    def _batches(self, due: list[Hop]) -> list[list[Hop]]:
        few = max(1, BATCH_BYTES // (8 * self._grid.chunk))
        return [due[first : first + few] for first in range(0, len(due), few)]

    async def _make(self, batch: list[Hop], own: Own, weight: float) -> bool:
        """Add our own to some sums, in one job; return whether there is a reason to go on."""
        member = self._member
        # Taken now: while the job runs on its own thread, the desk may change.
        given = [(hop, own.chunks[hop.index], self._came(hop)) for hop in batch]

        def job() -> tuple[list[tuple[Hop, Sum | Reduction]], PeerId | None]:
            made: list[tuple[Hop, Sum | Reduction]] = []
            for hop, values, before in given:
                parts = self._parts(hop, values, before)
                total = add_up(parts, [1.0, weight][-len(parts) :])
                if not _within(total, hop.count * self._limit):
                    return made, self._culprit(hop, parts)
                made.append((hop, self._form(hop, total, weight + (before.weight if before is not None else 0.0))))
            return made, None

        made, culprit = await member.aside(job, vectors=3 * len(batch) / self._grid.chunks)
        if culprit is not None:
            self._blame(culprit)
        if culprit is not None or self._settled() is None:
            return False
        for hop, each in made:
            self._keep(hop, each)
        return True

    def _parts(self, hop: Hop, values: memoryview, before: Sum | None) -> list[Vector]:
        """Return what is to be added up: the sum that came, if one was to come, and our own values."""
        first, end = self._grid.bounds(hop.index)
        own = decoded(self._member.channel.kept_by(self._member.me), values, end - first)
        return [own] if before is None else [decoded(self._codec, before.data, end - first), own]

    def _form(self, hop: Hop, total: Vector, weight: float) -> Sum | Reduction:
        """Return a sum as it travels: to the next, or as a result."""
        version = self._plan.key.version
        if not hop.ends:
            return Sum(hop.of, weight, encode(self._codec, total, seed_of(version, hop.index, self._member.me)))
        data = encode(self._member.channel.what.merged(), mean([total], weight), seed_of(version, hop.index))
        return Reduction(hop.of, blake3(data).digest(), data)

    def _keep(self, hop: Hop, made: Sum | Reduction) -> None:
        if isinstance(made, Reduction):
            keep_result(self._member, self._plan, self._announced, (0, hop.index), made)
        else:
            self._owned.sums[self._place, hop.index] = made
            self._owned.sum_order.append((self._place, hop.index))
            self._owned.summed.notify()

    def _culprit(self, hop: Hop, parts: list[Vector]) -> PeerId:
        """Return whose values are too large: those that came, or our own."""
        came = len(parts) == 2 and not _within(parts[0], (hop.count - 1) * self._limit)
        return PeerId(self._layout.ring[self._place - 1]) if came else self._member.me

    def _blame(self, culprit: PeerId) -> None:
        why = "its values are too large to be averaged"
        self._member.box.journal.write(events.MessageRefused(who=short(culprit), why=why))
        self._member.report(Spoiled(self._plan.key, culprit, why))

    def _finish(self) -> None:
        """Say that nothing more will be made, and what became of our results."""
        owned, roots = self._owned, self._layout.roots(self._member.me)
        if roots:
            digests = tuple(owned.reduced[unit].digest for unit in roots)
            self._member.report(Reduced(*plan_id(self._plan), digests))
        owned.finished = plan_id(self._plan)
        owned.returned.notify()
        owned.summed.notify()


def _within(values: Vector, limit: float) -> bool:
    return float(values.max()) <= limit and float(values.min()) >= -limit
