"""A member's place on the ways of sums: it adds what is its own to those that come by, and passes them on.

    sums from below  ->  decoded  ->  + own values  ->  encoded again  ->  to the one above
                                                    ->  (at the chunk's root) divided, encoded once, returned

In a ring one comes from below, in a tree none or several, which are added in the order of their places. Results that
come down to us are passed on to those below. The codec acts at every hop, so what is rounded is the sum, and a member's
own values go in as they are. A sum names the contributions in it, in order; nothing is made before it is settled who
they are. What was made for an earlier plan and has the right name is not made again. Jobs run off the loop, many chunks
at a time.
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
from atoll.peer.desk import Desk, Own, Reduction, Sum, plan_id
from atoll.peer.member import Member
from atoll.peer.reduce import BATCH_BYTES, OnPlan, keep_result, weights_of
from atoll.swarm.messages import Contribution, Plan, Reduced, Spoiled
from atoll.swarm.routes.layout import Cell, Settled
from atoll.sync.codec import decoded, encode, seed_of
from atoll.sync.merge import add_up, mean


class Hop(Struct, frozen=True):
    """What a member does with one chunk."""

    index: int
    of: bytes
    """What it is called with the member's own values in it."""
    before: tuple[tuple[int, bytes], ...]
    """Whose sums must be here first, and what they are called; none: the member has nobody below it."""
    count: int
    """Contributions in it, with the member's own."""
    ends: bool
    """The member is the chunk's root."""


class Carrier(OnPlan):
    """One member's work on one plan."""

    def __init__(self, member: Member, desk: Desk, plan: Plan) -> None:
        super().__init__(member, desk, plan)
        self._place = self._layout.carriers.index(member.me)
        self._codec = self._channel.what.codec
        self._limit = float(np.finfo(np.float32).max) / len(self._layout.carriers)
        """What a contribution's values may be at most, so that all together are finite."""

    async def run(self) -> None:
        """Once it is settled who is in, add own values to all sums that come; then pass on results that come back."""
        member, owned = self._member, self._owned
        settled, own = await owned.arrived.until(self._settled), self._desk.own
        assert settled is not None, "which is what was waited for"
        if own is None or own.serial != self._desk.settled(member.me):
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
        self._report()
        await self._all_back(settled)
        self._finish()

    def _settled(self) -> Settled | None:
        present = self._desk.plan
        return present.settled if present is not None and self._desk.follows(self._plan) else None

    def _hops(self, settled: Settled) -> dict[int, Hop]:
        """Return what is not made yet: what needs nobody else first, then what comes soon."""
        name, place = self._layout.set_of(settled, (0, 0)), self._place
        hops = []
        for way in self._layout.ways:
            names, ends = self._layout.sums_along(settled, way), way.root == place
            before = tuple((below, names[below]) for below in way.below[place])
            of = name if ends else names[place]
            hops += [Hop(index, of, before, way.counts[place], ends) for index in way.chunks]
        return {hop.index: hop for hop in sorted(hops, key=lambda hop: hop.count) if not self._is_made(hop)}

    def _is_made(self, hop: Hop) -> bool:
        owned = self._owned
        made = owned.reduced.get((0, hop.index)) if hop.ends else owned.sums.get((self._place, hop.index))
        return made is not None and made.of == hop.of

    def _is_due(self, hop: Hop) -> bool:
        sums = self._owned.sums
        came = [(sums.get((place, hop.index)), of) for place, of in hop.before]
        return all(each is not None and each.of == of for each, of in came)

    def _came(self, hop: Hop) -> list[Sum]:
        """Return what came of a chunk from those below us, once it is due."""
        return [self._owned.sums[place, hop.index] for place, _ in hop.before]

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
                total = add_up(parts, [*[1.0] * len(before), weight])
                if not _within(total, hop.count * self._limit):
                    return made, self._culprit(hop, parts)
                made.append((hop, self._form(hop, total, sum(each.weight for each in before) + weight)))
            return made, None

        made, culprit = await member.aside(job, vectors=3 * len(batch) / self._grid.chunks)
        if culprit is not None:
            self._blame(culprit)
        if culprit is not None or self._settled() is None:
            return False
        for hop, each in made:
            self._keep(hop, each)
        member.carried(self._desk, self._plan, len(made))
        return True

    def _parts(self, hop: Hop, values: memoryview, before: list[Sum]) -> list[Vector]:
        """Return what is to be added up: the sums that came, and our own values."""
        first, end = self._grid.bounds(hop.index)
        own = decoded(self._channel.kept_by(self._member.me), values, end - first)
        return [*(decoded(self._codec, each.data, end - first) for each in before), own]

    def _form(self, hop: Hop, total: Vector, weight: float) -> Sum | Reduction:
        """Return a sum as it travels: to the next, or as a result."""
        version = self._plan.key.version
        if not hop.ends:
            return Sum(hop.of, weight, encode(self._codec, total, seed_of(version, hop.index, self._member.me)))
        data = encode(self._channel.what.merged(), mean([total], weight), seed_of(version, hop.index))
        return Reduction(hop.of, blake3(data).digest(), data)

    def _keep(self, hop: Hop, made: Sum | Reduction) -> None:
        if isinstance(made, Reduction):
            keep_result(self._member, self._desk, self._plan, (0, hop.index), made)
        else:
            self._owned.sums[self._place, hop.index] = made
            self._owned.sum_order.append((self._place, hop.index))
            self._owned.summed.notify()

    def _culprit(self, hop: Hop, parts: list[Vector]) -> PeerId:
        """Return whose values are too large: those that came, or our own."""
        counts = self._layout.way_of[hop.index].counts
        for (place, _), values in zip(hop.before, parts, strict=False):
            if not _within(values, counts[place] * self._limit):
                return PeerId(self._layout.carriers[place])
        return self._member.me

    def _blame(self, culprit: PeerId) -> None:
        why = "its values are too large to be averaged"
        self._member.box.journal.write(events.MessageRefused(who=short(culprit), why=why))
        self._member.report(Spoiled(self._plan.key, culprit, why))

    def _report(self) -> None:
        """Say what became of the chunks whose root we are."""
        roots = self._layout.roots(self._member.me)
        if roots:
            digests = tuple(self._owned.reduced[unit].digest for unit in roots)
            self._member.report(Reduced(*plan_id(self._plan), digests))

    async def _all_back(self, settled: Settled) -> None:
        """Return when all results are here that we pass on."""
        owned, of = self._owned, self._layout.set_of(settled, (0, 0))
        look: Iterable[Cell] = self._layout.results(self._member.me)
        lacking = set(look)
        while True:
            lacking -= {unit for unit in look if unit in owned.reduced and owned.reduced[unit].of == of}
            if not lacking:
                return
            look = [(0, index) for index in await owned.arrived.until(lambda: owned.touched)]
            owned.touched.clear()

    def _finish(self) -> None:
        """Let who waits for more of ours know that there is no more."""
        owned = self._owned
        owned.finished = plan_id(self._plan)
        owned.returned.notify()
        owned.summed.notify()


def _within(values: Vector, limit: float) -> bool:
    return float(values.max()) <= limit and float(values.min()) >= -limit
