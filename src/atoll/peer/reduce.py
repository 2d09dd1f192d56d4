"""An owner's bench: it makes sums and means of chunks as soon as everything for them is here.

    parts of a group's members  ->  sum and weight  ->  (at the chunk's root) mean of all groups, encoded

Where there is one group the two are one job, and there may be other rules than a mean (`sync.combine`). A rule that
looks at whole tensors needs all chunks of all contributions first: they are measured as they come, then combined. What
to make is decided by looking at the chunks that something came of; what was made before and is still right, also for an
earlier plan, is not made again. Jobs run off the loop, many chunks at a time. Everything made names the set of
contributions in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

import numpy as np
from blake3 import blake3

from atoll import journal as events
from atoll.model.compute import Vector
from atoll.net.identity import short
from atoll.net.transport import PeerId
from atoll.peer.desk import Desk, Reduction, Sum, plan_id
from atoll.peer.inputs import seen_inputs
from atoll.peer.lengths import Lengths, lengths_of
from atoll.peer.member import Member
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.merge import MeanPresent
from atoll.spec.axes.what import ByInputs, Feedback, Hold
from atoll.swarm.log import OpenRound
from atoll.swarm.messages import Contribution, Plan, Reduced, Spoiled, set_id, whole_id
from atoll.swarm.routes.circles import pulled
from atoll.swarm.routes.layout import Cell
from atoll.sync.by_inputs import Seen
from atoll.sync.codec import BadChunk, decode, encode, seed_of, sent
from atoll.sync.combine import combined
from atoll.sync.feedback import encode_fed_back
from atoll.sync.merge import add_up, mean

EARLY_S = 30.0
EARLY_TRIPS = 20
"""Something may arrive before the log or plan it belongs to by so many round trips to the broker, or by what a busy
machine takes, whichever is longer."""
BATCH_BYTES = 32 * 2**20
"""Parts that one job goes through: long enough to be worth a job, short enough for others to get a turn."""
NOBODY = set_id(())

Target = tuple[Contribution, ...]
"""A set of contributions in canonical order."""


def early_s(member: Member) -> float:
    """Return how long something may arrive before the log or plan it belongs to."""
    trip_s = member.links.round_trip_s(member.broker) or 0.0
    return min(max(EARLY_S, EARLY_TRIPS * trip_s), max(EARLY_S, member.run.upkeep.patience_s_max))


class OnPlan:
    """What whoever makes something of a plan's contributions has at hand."""

    def __init__(self, member: Member, desk: Desk, plan: Plan) -> None:
        self._member = member
        self._desk = desk
        self._plan = plan
        self._announced = desk.announced
        self._layout = member.layout(plan)
        self._owned = member.owning(desk)
        self._grid = member.grid_of(plan.key)
        self._channel = member.channel_of(plan.key.version)


class Bench(OnPlan):
    """One owner's work on one plan."""

    def __init__(self, member: Member, desk: Desk, plan: Plan) -> None:
        super().__init__(member, desk, plan)
        self._units = self._layout.units(member.me)
        self._roots = self._layout.roots(member.me)
        self._results = sorted(self._layout.results(member.me))
        self._mine = list(dict.fromkeys(index for _, index in self._units))
        self._groups = list(dict.fromkeys(group for group, _ in self._units))
        self._alone = not self._layout.joined
        self._lengths = lengths_of(self._channel, member.unit_of(plan.key.version), member.engine.layout)
        self._polar = member.polar(plan.key.version)
        assert self._lengths is None or len(self._mine) == self._grid.chunks, "who looks at tensors has all of them"
        self._bad: list[Contribution] = []
        self._seen: Seen | None = None

    async def run(self) -> None:
        """Make what can be made, for who is hoped for and then for the settled set; report when that is done."""
        desk, owned = self._desk, self._owned
        look: dict[int, None] = dict.fromkeys(self._mine)
        while (present := desk.plan) is not None and desk.follows(self._plan):
            look |= owned.touched
            owned.touched.clear()
            worked = await self._work(present, look)
            if not worked and self._finished(present):
                return
            if not worked:
                await self._something_new(present)
            if desk.plan is not present:
                look = dict.fromkeys(self._mine)

    async def _work(self, present: Plan, look: dict[int, None]) -> bool:
        """Make what is due among some chunks, a batch at a time; leave in `look` what has to be looked at again."""
        member = self._member
        parts = max(len(group) for group in self._layout.groups)
        batch_max = max(1, BATCH_BYTES // (parts * member.bulk_of(self._plan.key).chunk_bytes))
        if self._lengths is not None:
            due = self._unmeasured(self._lengths, self._due_sums(present, look))
            look.clear()
            if due or not self._lengths.begun:
                await self._measure_all(self._lengths, due, present, batch_max)
                return bool(due)
            look |= dict.fromkeys(self._mine)  # what becomes of one depends on all
        sums = self._due_sums(present, look)
        if self._lengths is not None:
            sums = [each for each in sums if self._lengths.complete(set_id(each[1]))]
        means = [] if sums or self._alone else self._due_means(present, look)
        if (sums or means) and await self._looked():
            return True  # and meanwhile something else may be due
        look.clear()
        while sums and self._desk.plan is present:
            look |= dict.fromkeys(index for (_, index), _ in sums[:batch_max])
            await self._make_sums(sums[:batch_max])
            del sums[:batch_max]
        while means and self._desk.plan is present:
            await self._make_means(means[:batch_max])
            del means[:batch_max]
        return bool(look) or self._desk.plan is not present

    def _finished(self, present: Plan) -> bool:
        """Return whether nothing will be made again, after saying so: all is made for the settled set."""
        if present.settled is None:
            return False
        owned, settled, layout = self._owned, present.settled, self._layout
        of = {group: layout.set_of(settled, (group, 0)) for group, _ in self._results}
        given = [unit for unit in self._results if of[unit[0]] != NOBODY]
        if not all(unit in owned.reduced and owned.reduced[unit].of == of[unit[0]] for unit in given):
            return False
        made = [unit for unit in self._roots if of[unit[0]] != NOBODY]
        if made and not layout.gather:
            digests = tuple(owned.reduced[unit].digest for unit in made)
            self._member.report(Reduced(*plan_id(self._plan), digests))
        owned.finished = plan_id(self._plan)
        owned.returned.notify()
        owned.summed.notify()
        return True

    async def _something_new(self, present: Plan) -> None:
        """Wait for another chunk or another word about the plan; a part that was claimed to be here is reported.

        Before the round is settled there is nothing to blame anybody for.
        """
        member, owned = self._member, self._owned
        lacking = {
            contribution: sum(
                index not in owned.parts.get(contribution, {})
                for index in self._layout.parts(member.me, contribution.peer)
            )
            for contribution in chain(*(self._layout.sets(present.settled).within if present.settled else ()))
        }
        size_bytes = sum(lacking.values()) * member.bulk_of(self._plan.key).chunk_bytes
        wire_s = 4 * size_bytes / (member.links.line.down.rate_bytes_s() or size_bytes or 1)
        try:
            async with asyncio.timeout(early_s(member) + wire_s if size_bytes else None):
                await owned.arrived.until(lambda: owned.touched or self._desk.plan is not present)
        except TimeoutError:
            for contribution, count in lacking.items():
                if count:
                    member.report(Spoiled(present.key, contribution.peer, "it never arrived"))

    # sums

    def _due_sums(self, present: Plan, look: dict[int, None]) -> list[tuple[Cell, Target]]:
        """Return which sums can be made for a set that they were not made for yet, and for which."""
        due = []
        absent = frozenset(present.absent)
        hoped = {group: [p for p in self._layout.groups[group] if p not in absent] for group in self._groups}
        settled = self._layout.sets(present.settled).within if present.settled is not None else None
        for group, index in self._units:
            if index not in look or index not in self._owned.counts:
                continue
            target = self._target(settled[group] if settled is not None else None, hoped[group], index)
            if target and not any(c in self._bad for c in target) and self._made(group, index) != set_id(target):
                due.append(((group, index), target))
        return due

    def _made(self, group: int, index: int) -> bytes | None:
        """Return the set that a chunk was last summed up for."""
        if self._alone:
            reduced = self._owned.reduced.get((group, index))
            return reduced.of if reduced is not None else None
        made = self._owned.sums.get((group, index))
        return made.of if made is not None else None

    def _target(self, settled: Target | None, hoped: Sequence[bytes], index: int) -> Target | None:
        """Return the contributions to sum up, if all of them are here: of each peer the newest."""
        owned = self._owned
        if settled is not None:
            return settled if all(index in owned.parts.get(c, ()) for c in settled) else None
        if owned.counts[index] < len(hoped):
            return None
        newest: dict[bytes, int] = {}
        for contribution, held in owned.parts.items():
            if index in held:
                newest[contribution.peer] = max(contribution.serial, newest.get(contribution.peer, 0))
        return tuple(Contribution(p, newest[p]) for p in hoped) if all(p in newest for p in hoped) else None

    def _unmeasured(self, lengths: Lengths, sums: list[tuple[Cell, Target]]) -> list[tuple[Cell, Target]]:
        """Return those of some sums whose chunks are not measured for their set yet."""
        return [((group, index), target) for (group, index), target in sums if not lengths.knows(index, set_id(target))]

    async def _measure_all(
        self, lengths: Lengths, due: list[tuple[Cell, Target]], present: Plan, batch_max: int
    ) -> None:
        while due and self._desk.plan is present:
            await self._measure(lengths, due[:batch_max])
            due = due[batch_max:]

    async def _measure(self, lengths: Lengths, batch: list[tuple[Cell, Target]]) -> None:
        """Measure chunks, each for its set, in one job; a contribution that cannot be used is reported."""
        member, owned, grid = self._member, self._owned, self._grid
        parts = [[owned.parts[c][index] for c in target] for (_, index), target in batch]

        def job() -> _Unusable | None:
            for ((_, index), target), held in zip(batch, parts, strict=True):
                try:
                    lengths.measure(index, set_id(target), self._decoded(index, held, target))
                except _Unusable as error:
                    return error
            return None

        blamed = await member.aside(job, vectors=sum(len(held) for held in parts) / grid.chunks)
        if blamed is not None:
            self._blame(blamed)

    async def _make_sums(self, batch: list[tuple[Cell, Target]]) -> None:
        """Sum chunks up, each for its set, in one job; a contribution that cannot be used is reported."""
        member, owned, grid = self._member, self._owned, self._grid
        # Taken now: while the job runs on its own thread, the desk may change.
        parts = [[owned.parts[c][index] for c in target] for (_, index), target in batch]
        weights = [weights_of(member, self._announced, target) for _, target in batch]

        def job() -> tuple[list[tuple[Cell, Sum | Reduction]], _Unusable | None]:
            made: list[tuple[Cell, Sum | Reduction]] = []
            for (unit, target), held, weighed in zip(batch, parts, weights, strict=True):
                try:
                    values = self._decoded(unit[1], held, target)
                    if self._alone:
                        merged = _usable(self._combined(unit[1], target, held, values, weighed), target, values, 1)
                        made.append((unit, self._reduction(set_id(target), unit[1], merged)))
                    else:
                        total = _usable(add_up(values, weighed), target, values, len(self._layout.groups))
                        made.append((unit, Sum(set_id(target), sum(weighed), encode(Fp32(), total))))
                except _Unusable as error:
                    return made, error
            return made, None

        made, blamed = await member.aside(job, vectors=sum(len(held) for held in parts) / grid.chunks)
        if blamed is not None:
            self._blame(blamed)
        if not self._desk.follows(self._plan):
            return
        for unit, each in made:
            if isinstance(each, Reduction):
                keep_result(member, self._desk, self._plan, unit, each)
            else:
                owned.sums[unit] = each
                owned.sum_order.append(unit)
        owned.summed.notify()

    async def _looked(self) -> bool:
        """See what rounding goes by, and return whether that was still to be done: by now our own work mostly is."""
        if self._seen is not None or not isinstance(self._channel.what.rounding, ByInputs):
            return False
        self._seen = await seen_inputs(self._member, self._announced, self._mine, self._channel.what.rounding)
        return True

    def _decoded(self, index: int, held: list[memoryview], target: Target) -> list[Vector]:
        """Return one chunk of some contributions, each in the form its maker has; raises `_Unusable`."""
        first, end = self._grid.bounds(index)
        values = []
        for contribution, data in zip(target, held, strict=True):
            try:
                values.append(decode(self._channel.codec_of(contribution.peer), data, end - first))
                if self._polar is not None:
                    self._polar.check(index, values[-1])
            except BadChunk as error:
                raise _Unusable(contribution, str(error)) from error
        return values

    def _combined(
        self, index: int, target: Target, held: list[memoryview], values: list[Vector], weights: list[float]
    ) -> Vector:
        """Return what the contributions to a chunk make together."""
        if self._lengths is not None:
            return self._lengths.combined(index, set_id(target), values, weights)
        combine, codec = self._channel.merge.combine, self._channel.what.codec
        counts = isinstance(combine, MeanPresent)  # of what is sparse, which has one form
        return combined(
            combine, values, weights, [sent(codec, data, values[0].size) for data in held] if counts else ()
        )

    def _blame(self, error: _Unusable) -> None:
        self._bad.append(error.contribution)
        self._owned.bad[error.contribution] = None
        who = short(PeerId(error.contribution.peer))
        self._member.box.journal.write(events.MessageRefused(who=who, why=str(error)))
        self._member.report(Spoiled(self._plan.key, error.contribution.peer, str(error)))

    def _reduction(self, of: bytes, index: int, merged: Vector) -> Reduction:
        """Return a chunk of the result as it travels, with what was left out before and so that nothing is lost now."""
        what, seed, left = self._channel.what, self._seed(index), None
        if isinstance(what.owners, Feedback):
            before = self._member.left_out.get((self._plan.key.unit, index))
            left = np.zeros_like(merged) if before is None else before.copy()
            seen = self._seen
            rounded = None if seen is None else lambda wanted: seen.rounded(index, wanted)
            data = encode_fed_back(what.merged(), merged, left, what.owners.decay, seed, rounded=rounded)
            if isinstance(what.residual, Hold) and what.residual.shared:  # so much of it is held by who made them
                kept = 0.0 if before is None else np.float32(what.owners.decay) * before
                left -= np.float32(what.residual.shared) * (left - kept)
        else:
            data = encode(what.merged(), merged, seed)
        return Reduction(of, blake3(data).digest(), data, left)

    def _seed(self, index: int) -> int:
        """Return what chance depends on in a chunk of the result: whoever makes it makes the same."""
        return seed_of(self._plan.key.version, index)

    # means

    def _due_means(self, present: Plan, look: dict[int, None]) -> list[tuple[int, bytes, list[Sum]]]:
        """Return the chunks whose groups' sums are all here, for which set, and those sums, if that is not made yet."""
        due = []
        for unit in self._roots:
            index = unit[1]
            of, sums = self._sums_of(present, index) if index in look else (b"", [])
            reduced = self._owned.reduced.get(unit)
            if sums and (reduced is None or reduced.of != of):
                due.append((index, of, sums))
        return due

    def _sums_of(self, present: Plan, index: int) -> tuple[bytes, list[Sum]]:
        """Return the name of the set and the sums of all groups that have any; nothing while one is missing."""
        names, there = [], []
        for group, peers in enumerate(self._layout.groups):
            made = self._owned.sums.get((group, index))
            if present.settled is not None:
                wanted = self._layout.sets(present.settled).names[group]
                if wanted != NOBODY and (made is None or made.of != wanted):
                    return b"", []
            else:
                wanted = NOBODY if all(p in present.absent for p in peers) else made.of if made is not None else b""
            if not wanted:
                return b"", []
            names.append(wanted)
            if wanted != NOBODY and made is not None:
                there.append(made)
        return whole_id(names), there

    async def _make_means(self, batch: list[tuple[int, bytes, list[Sum]]]) -> None:
        """Make the results of some chunks from the sums of the groups, in one job."""
        member, grid = self._member, self._grid

        def job() -> list[tuple[int, Reduction]]:
            made = []
            for index, of, sums in batch:
                totals = [np.frombuffer(each.data, "<f4").astype(np.float32, copy=False) for each in sums]
                made.append((index, self._reduction(of, index, mean(totals, sum(each.weight for each in sums)))))
            return made

        made = await member.aside(job, vectors=sum(len(sums) for _, _, sums in batch) / grid.chunks)
        if self._desk.follows(self._plan):
            for index, reduction in made:
                keep_result(member, self._desk, self._plan, (0, index), reduction)


def keep_result(member: Member, desk: Desk, plan: Plan, unit: Cell, reduction: Reduction) -> None:
    """Take in a chunk of a result: as an owner to pass it on, as a member to apply it."""
    layout, index = member.layout(plan), unit[1]
    if unit in layout.results(member.me):
        owned = member.owning(desk)
        owned.reduced[unit] = reduction
        owned.order.append(unit)
        owned.touched[index] = None
        owned.arrived.notify()
        owned.returned.notify()
    if layout.takes(member.me, unit[0]) if layout.circles else member.me in desk.announced.members:
        if not desk.incoming:
            member.changes.notify()
        place = index - layout.first_for(member.me)
        desk.incoming[place] = reduction
        desk.fresh[place] = None
        desk.came.notify()


class _Unusable(Exception):
    """A contribution that cannot be used, whoever looks at it."""

    def __init__(self, contribution: Contribution, why: str) -> None:
        super().__init__(why)
        self.contribution = contribution


def _usable(made: Vector, target: Target, values: list[Vector], times: int) -> Vector:
    """Return what was made of some values, if so many times of it can be added up; raises `_Unusable`."""
    limit = float(np.finfo(np.float32).max) / times
    if not (float(made.max()) <= limit and float(made.min()) >= -limit):
        largest = max(range(len(values)), key=lambda i: float(np.abs(values[i]).max()))
        raise _Unusable(target[largest], "its values are too large to be averaged")
    return made


def weights_of(member: Member, announced: OpenRound, target: Target) -> list[float]:
    """Return each contribution's weight, in canonical order."""
    mesh = member.channel.mesh
    if mesh is not None and announced.best:
        return pulled(mesh.pull, announced.best, [c.peer for c in target])
    match member.channel_of(announced.key.version).merge.combine.weights:
        case "uniform":
            return [1.0] * len(target)
        case "samples":
            quotas = dict(zip(announced.members, announced.quotas, strict=True))
            return [float(quotas[c.peer]) for c in target]
        case "tokens^2/steps":  # with a sample for a unit: samples, times samples per step
            batch = member.run.recipe.work.batch
            worked = dict(zip(announced.members, announced.worked, strict=True))
            return [float(worked[c.peer] * batch) for c in target]
        case "mass":
            return [announced.masses.get(c.peer, 1.0) for c in target]
