"""From what was committed to the next anchor: apply results, or take another's state where that is fewer bytes.

Where the peer is behind, it catches up: from its own disk, then from other peers' results or by downloading a snapshot
of the state. Where each has a model of its own, it applies what its own circle made and passes over the rest.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from atoll import journal as events
from atoll.errors import PeerError, PeerLost, PeerRefused
from atoll.model.compute import Merged, Vector
from atoll.model.moments import weights_in
from atoll.net.transport import Traffic
from atoll.peer.back import Back, joined, way_back
from atoll.peer.fetch import fetch_result, fetch_state, result_bytes, state_bytes
from atoll.peer.home import brought, look, passed
from atoll.peer.member import Member
from atoll.peer.private import goes_on
from atoll.peer.results import Result
from atoll.peer.settle import keep_base, keep_private, settle, settle_begun
from atoll.peer.shared import hold_share
from atoll.peer.train import factor_of
from atoll.spec.axes.control import Nobody
from atoll.spec.axes.pace import StandIn
from atoll.spec.axes.what import Params
from atoll.spec.axes.when import Parts
from atoll.spec.axes.work import Growing
from atoll.spec.recipe import Channel
from atoll.spec.turns import starts_apart
from atoll.swarm.log import AHEAD_MAX, ALL, CIRCLES, ClosedRound, Key, OpenRound
from atoll.sync.above import hear
from atoll.sync.codec import check, decoded
from atoll.sync.merge import Anchor, Pushes, advance, approach, depart, finish, meet
from atoll.sync.overlap import blend
from atoll.sync.units import Places, Unit, length

RETRY_S = 2.0
NEAR = 2
"""Versions behind the newest with which a joiner stands: it is counted in, and gets the rest before it works."""
FEW_STEPS = 10
"""A round of fewer steps is checkpointed only now and then."""
CHECKPOINT_EVERY_FEW = 50
STEP_ELEMENTS = 2**16
"""Of the anchor so much is stepped at once: what a processor keeps near."""

Take = Callable[[Anchor, Vector], object]
"""Moves some elements of an anchor by those of a result."""


def stand(member: Member) -> None:
    """Let the broker know which anchor we hold."""
    member.ready = True
    member.changes.notify()


def _stand_if_near(member: Member) -> None:
    """Stand with a newer anchor; who joins must be near, lest a round wait long for what it still lacks.

    Whoever barely keeps pace with the rounds never gets quite to the newest version, until it is in one.
    """
    if member.ready or member.anchor.version >= member.history.version - NEAR:
        stand(member)


async def catch_up(member: Member) -> None:
    """Move one or more versions towards the newest committed one."""
    _note_behind(member)
    committed = member.past[member.anchor.version + 1].committed
    assert committed is not None
    if not committed.result:
        await _go_on(member, committed)
    elif not member.at_home and not committed.part:
        await _pass_over(member, committed, "we have yet to get what our region holds", lost=True)
    else:
        await _move(member, committed)
    _note_behind(member)
    if member.anchor.version >= member.history.version:
        await member.store.drop_partial()


async def _move(member: Member, committed: ClosedRound) -> None:
    """Get what is ours of a round and apply it; or the whole state, where that is less or there is no other way."""
    result = await _own_result(member, committed)
    fetched = result is None
    if result is None:
        lacking_bytes = _lacking_bytes(member)
        if lacking_bytes > state_bytes(member) and await _downloaded(member, bytes_max=lacking_bytes):
            return
        try:
            result = await fetch_result(member, committed)
        except PeerError as error:
            if committed.key.scope == CIRCLES:
                await _pass_over(member, committed, f"what its circle made is gone: {error}", lost=True)
            else:
                await _try_otherwise(member, error)
            return
    await _apply(member, committed, result, fetched=fetched)


async def _go_on(member: Member, committed: ClosedRound) -> None:
    """Be at the next version with what we have; who has been away for long takes the weights of another instead."""
    if _is_strange(member) and await _downloaded(member):
        return
    await _pass_over(member, committed, "we were in no circle of it, or nobody gave anything to ours")


def _is_strange(member: Member) -> bool:
    """Return whether our weights are so old, or those of the beginning, that others' would suffer from them.

    A round of all that is still to come puts everybody in the same place, wherever it was before.
    """
    versions = range(member.anchor.version + 1, member.history.version + 1)
    if member.channel.regional is not None:
        return not member.at_home and (member.anchor.version == 0 or len(versions) > NEAR)
    if any((past := member.past.get(version)) is None or past.of_all for version in versions):
        return False
    return member.anchor.version == 0 or len(versions) > NEAR


async def _pass_over(member: Member, committed: ClosedRound, why: str, *, lost: bool = False) -> None:
    """Take the version without a change of weights; where something is lost by that, we are not where our region is."""
    key = committed.key
    anchor = replace(member.anchor, version=key.version)
    digest = await member.aside(anchor.digest)  # before anybody hears of the version
    member.anchor, member.digest, member.moved = anchor, digest, 0.0
    passed(member, committed, lost=lost)
    await settle(member, committed)
    member.leave(key)
    member.box.journal.write(
        events.RoundPassedOver(channel=key.channel, version=key.version, anchor=member.digest, why=why)
    )
    await _checkpoint(member)
    _stand_if_near(member)


def _note_behind(member: Member) -> None:
    """Remember since when we are behind, to judge whether we ever catch up."""
    downloads = member.downloads
    if member.anchor.version >= member.history.version:
        downloads.began_s, downloads.told_slow = None, False
    elif downloads.began_s is None:
        downloads.began_s = asyncio.get_running_loop().time()
        downloads.began_version = member.history.version


def _lacking_bytes(member: Member) -> int:
    """Return the size of the results between us and the newest version."""
    return (member.history.version - member.anchor.version) * result_bytes(member)


async def _downloaded(member: Member, *, bytes_max: float = math.inf) -> bool:
    """Return whether a snapshot brought us nearer; where it did not, the journal says why."""
    try:
        await _download(member, newer_than=member.anchor.version, bytes_max=bytes_max)
        return True
    except PeerRefused:
        return False  # the results are fewer bytes after all
    except PeerError as error:
        member.box.journal.write(events.CatchUpFailed(version=member.history.version, why=str(error)))
        return False


async def _own_result(member: Member, committed: ClosedRound) -> Result | None:
    """Return the committed result if we hold it, in memory or on disk."""
    desk = member.desk_over(committed.key)
    if desk is not None and desk.held is not None and desk.held.root() == committed.result:
        return desk.held
    incoming = desk.incoming if desk is not None else {}
    if len(incoming) == member.grid_of(committed.key).chunks:  # the last came, and the commit before all was down
        spare = [incoming[index] for index in sorted(incoming)]
        whole = Result(tuple([each.digest for each in spare]), tuple([each.data for each in spare]))
        if whole.root() == committed.result:
            await member.store.keep_result(committed.key.version, whole)
            return whole
    result = await member.store.result(committed.key.version)
    return result if result is not None and result.root() == committed.result else None


# stepping the anchor


async def _apply(member: Member, committed: ClosedRound, result: Result, *, fetched: bool) -> None:
    """Step the anchor by a committed result, exactly as every other member does that it is for."""
    key, version = committed.key, committed.key.version
    channel, unit, anchor = member.channel_of(version), member.unit_of(version), member.anchor
    assert len(result.chunks) == unit.grid.chunks, "a result is checked before it is applied"
    asked = isinstance(member.run.recipe.work.quota, Growing)
    given, step, weights = await _given(member, key), _step_of(member, committed), member.sends_weights(key)

    await _remember_start(member, committed)
    await _keep_start(member)

    back = way_back(member, version)

    def came_to() -> Back:
        merged = _merged(channel, unit, result)
        return Back(merged) if back is None else back.of(merged)

    ready = await member.job(came_to, vectors=2) if back is not None and back.there else None

    def job() -> tuple[Anchor, str, float, float]:
        model = slice(weights_in(member.engine.layout))
        before = anchor.weights[model].copy() if asked else None
        start = None if weights else anchor.start
        apart = _apart(channel, unit, result, given, start, model) if given is not None else 0.0
        stepped = step(anchor, came_to() if ready is None else ready)
        moved = _distance(before, stepped.weights[model]) if before is not None else 0.0
        return stepped, stepped.digest(), moved, apart

    async with member.stepping:
        member.anchor, member.digest, member.moved, apart = await member.aside(job, vectors=4)
    passed(member, committed)
    if fetched:
        await member.store.keep_result(version, result)
    _time_exchange(member, committed)
    _keep_left_out(member, committed, result)
    await settle(member, committed)
    await hold_share(member, committed, result)
    member.leave(key)
    member.box.journal.write(
        events.RoundApplied(
            channel=key.channel,
            version=version,
            anchor=member.digest,
            fetched=fetched,
            circle=committed.result if key.scope == CIRCLES else "",
            apart=apart,
            astray=not member.at_home,
        )
    )
    _count_traffic(member)
    await _checkpoint(member)
    _stand_if_near(member)


def _time_exchange(member: Member, committed: ClosedRound) -> None:
    """Note how long it took from our contribution to the anchor that it is in, for who turns knobs by it."""
    desk = member.desk_over(committed.key)
    asked = member.me in committed.contributors and not isinstance(member.run.recipe.control, Nobody)
    member.exchange_s = member.now_s() - desk.own.made_s if asked and desk is not None and desk.own is not None else 0.0


async def _remember_start(member: Member, committed: ClosedRound) -> None:
    """Keep where our work started from, if it goes on while the anchor moves: our contribution is the way from there.

    Of a model that is exchanged in parts each is taken in as it comes instead, and starts anew from there.
    """
    stint = member.touched
    if stint is None or member.me not in committed.carried or goes_on(member.channel):
        return
    if member.holds(committed.key) and not committed.part:
        return  # it does not move, or before the work begins
    if isinstance(member.channel.late, StandIn):  # which needs only know what it will join
        stint.among = len(committed.contributors) + len(committed.lent) if stint.started else 0
        return
    if stint.started and stint.own is None and stint.start is None:
        stint.start = await member.job(member.anchor.weights.copy)


async def _keep_start(member: Member) -> None:
    """Keep the anchor that is about to be stepped, if an open round starts from it whose work has not begun."""
    begun = member.begun.key if member.begun is not None and member.begun.started else None
    waiting = [desk for desk in member.desks.values() if member.wants_work(desk) and desk.key != begun]
    wanted = {desk.announced.start for desk in waiting}
    member.starts = {version: weights for version, weights in member.starts.items() if version in wanted}
    if member.anchor.version in wanted:
        member.starts[member.anchor.version] = await member.job(member.anchor.weights.copy)
    member.digests = dict([*member.digests.items()][-AHEAD_MAX:]) | {member.anchor.version: member.digest}


def _distance(before: Vector, after: Vector) -> float:
    """Return how far weights moved, as a part of their length."""
    before -= after
    return float(np.linalg.norm(before) / max(float(np.linalg.norm(after)), 1e-30))


def _step_of(member: Member, committed: ClosedRound) -> Callable[[Anchor, Back], Anchor]:
    """Return what a round's result makes of the anchor, in whose memory the next one is."""
    version = committed.key.version
    channel, unit, layout = member.channel_of(version), member.unit_of(version), member.engine.layout
    factor = factor_of(member, version) if channel.merge.scheduled else 1.0
    take = _take_of(member, committed, factor)

    def stepped(anchor: Anchor, back: Back) -> Anchor:
        assert back.values is not None, "of values a result comes to some"
        _step(unit, anchor, back.values, take)
        after = replace(anchor, version=anchor.version + 1)
        finish(channel.merge.outer, after, layout, factor)
        return after

    def of_factors(anchor: Anchor, back: Back) -> Anchor:
        if back.values is None:
            return replace(anchor, version=version, basis=back.basis)
        counted = replace(anchor, version=anchor.version // channel.phases)  # an optimizer counts its steps by it
        return replace(stepped(counted, back), version=version, basis=back.basis)

    return stepped if member.factors is None else of_factors


def _take_of(member: Member, committed: ClosedRound, factor: float) -> Take:
    """Return what some elements of a result do to those of the anchor."""
    key, channel = committed.key, member.channel_of(committed.key.version)
    home, part, told = channel.regional, committed.part, Pushes(len(committed.contributors), committed.pushes)
    if home is not None and part:
        return lambda anchor, merged: hear(home, anchor, merged, told, part)
    if key.scope == ALL and not channel.common:
        return meet
    if committed.own:
        return lambda anchor, merged: blend(anchor.weights, merged, committed.own)
    take = approach if isinstance(channel.what, Params) else advance
    pushes = Pushes(len(committed.contributors), committed.pushes)

    def step(anchor: Anchor, merged: Vector) -> object:
        return take(channel.merge.outer, anchor, merged, factor, pushes)

    if starts_apart(member.run.recipe) and member.makes_model(committed.key.version):
        return lambda anchor, merged: depart(anchor, lambda start: step(start, merged))
    return step


async def _given(member: Member, key: Key) -> Vector | None:
    """Return the weights that we gave to a round, where each has its own and they are at hand.

    Where parts are averaged, rounds of the whole model tell how far apart those let them come.
    """
    unit = member.unit_of(key.version)
    plain = unit.grid.size == unit.size  # values, not factors or directions
    parts = member.in_parts or isinstance(member.channel_of(key.version).when, Parts)
    whole = parts and plain and unit.begins_with(weights_in(member.engine.layout))
    own = whole if member.channel.common else member.sends_weights(key)
    if not (member.gave(key) and own):
        return None
    still = member.holds(key)  # and no work was done for it
    return await member.job(member.anchor.weights.copy if still else member.engine.weights)


def _apart(channel: Channel, unit: Unit, result: Result, given: Vector, start: Vector | None, model: slice) -> float:
    """Return how far weights are from merged ones, as a part of their length; deltas are merged ones from a start."""
    merged = joined(_merged(channel, unit, result))
    merged = merged if start is None else unit.take(start) - merged
    return _distance(unit.take(given)[model].copy(), merged[model])


def _merged(channel: Channel, unit: Unit, result: Result) -> Merged:
    """Return a result chunk by chunk: all of it is checked before any of it counts."""
    codec = channel.what.merged()
    bounds = [unit.grid.bounds(index) for index in range(unit.grid.chunks)]
    for chunk, (first, end) in zip(result.chunks, bounds, strict=True):
        check(codec, chunk, end - first)
    pairs = zip(result.chunks, bounds, strict=True)
    return ((first, decoded(codec, chunk, end - first)) for chunk, (first, end) in pairs)


def _step(unit: Unit, anchor: Anchor, merged: Merged, take: Take) -> None:
    """Step what of the anchor a round was about, a little at a time."""
    for first, values in merged:
        for at, run in unit.runs(first, first + values.size):
            _step_at(anchor, run, values[at : at + length(run)], take)


def _step_at(anchor: Anchor, run: slice | Places, values: Vector, step: Take) -> None:
    """Step some elements of an anchor."""
    if isinstance(run, slice):
        for start in range(run.start, run.stop, STEP_ELEMENTS):
            stop = min(start + STEP_ELEMENTS, run.stop)
            step(anchor.part(start, stop), values[start - run.start : stop - run.start])
        return
    part = anchor.at(run)
    step(part, values)
    anchor.put(run, part)


def _keep_left_out(member: Member, committed: ClosedRound, result: Result) -> None:
    """As an owner, keep what was left out of the chunks that were committed; what another made has ours no more."""
    unit, lost, desk = committed.key.unit, 0, member.desk_over(committed.key)
    for index, digest in enumerate(result.digests):
        made = desk.made.get(index) if desk is not None else None
        if made is not None and made.digest == digest and made.left is not None:
            member.left_out[unit, index] = made.left
        elif member.left_out.pop((unit, index), None) is not None:
            lost += 1
    if lost:
        member.box.journal.write(events.ResidualLost(version=committed.key.version, chunks=lost))


def _count_traffic(member: Member) -> None:
    counts = member.links.transport.counts
    member.box.journal.write(
        events.TrafficCounted(
            sent_bytes=sum(counts.sent_bytes.values()),
            received_bytes=sum(counts.received_bytes.values()),
            round_sent_bytes=counts.sent_bytes[Traffic.ROUND],
        )
    )


# keeping it


async def _checkpoint(member: Member) -> None:
    """Save state if this version is due; of a region that is not ours nobody would take it for another's."""
    version = member.anchor.version
    if not member.at_home:
        return
    if version % checkpoint_every(member, version) and not _last_round(member):
        return
    began_s = asyncio.get_running_loop().time()
    stint = member.touched
    if stint is not None and stint.base < version:
        await keep_base(member, stint, version)
    elif not await member.store.has_private(version):
        await keep_private(member, version)
    size_bytes = await member.store.keep_checkpoint(member.anchor)
    member.box.journal.write(
        events.CheckpointSaved(
            version=version,
            path=f"checkpoint/{version}.safetensors",
            size_bytes=size_bytes,
            took_s=asyncio.get_running_loop().time() - began_s,
        )
    )


def checkpoint_every(member: Member, version: int) -> int:
    """Return after how many rounds state is saved, as the run asks or as long as the round's work is."""
    every = member.run.upkeep.checkpoint_every
    return every or (1 if member.steps_of(version) >= FEW_STEPS else CHECKPOINT_EVERY_FEW)


def _last_round(member: Member) -> bool:
    budget = member.run.budget
    if budget.rounds:
        return member.anchor.version >= budget.rounds
    return member.history.samples * member.engine.tokens_per_sample >= budget.tokens


# getting state from others


async def heal(member: Member, announced: OpenRound) -> None:
    """Replace an anchor that differs from the one the log names."""
    wanted = announced.base_of(member.me)
    member.box.journal.write(events.StateHealed(version=member.anchor.version, had=member.digest, wanted=wanted))
    newer_than = -1 if member.channel.regional is None else member.anchor.version - 1  # mates have it as it is now
    try:
        await _download(member, newer_than=newer_than, ours=True)
    except PeerError as error:
        member.box.journal.write(events.CatchUpFailed(version=member.anchor.version, why=str(error)))
        await asyncio.sleep(RETRY_S)


async def _try_otherwise(member: Member, error: PeerError) -> None:
    """After a vain attempt to catch up, wait a little and try for the whole state; raises when the run is over."""
    member.box.journal.write(events.CatchUpFailed(version=member.history.version, why=str(error)))
    await asyncio.sleep(RETRY_S)
    try:
        await _download(member, newer_than=member.anchor.version)
    except PeerError as again:
        if member.history.finished:
            raise PeerLost(
                f"the run ended before this machine had its result: {again}",
                hint="the result is with the organiser; ask for the exported model",
            ) from again


async def _download(member: Member, *, newer_than: int, bytes_max: float = math.inf, ours: bool = False) -> None:
    """Fetch a snapshot of the anchor from those who have it; of another region where nobody has one of ours.

    Unless it has to be `ours`.
    """
    began_s = asyncio.get_running_loop().time()
    strange = False
    try:
        fetched = await fetch_state(member, newer_than=newer_than, bytes_max=bytes_max)
    except PeerLost:
        strange = member.channel.regional is not None and not ours
        if not strange:
            raise
        fetched = await fetch_state(member, newer_than=newer_than, bytes_max=bytes_max, strange=True)
    await settle_begun(member, fetched.anchor.version)
    anchor, kept = brought(member, fetched.anchor)
    digest = await member.aside(anchor.digest) if kept else fetched.digest
    member.anchor, member.digest = anchor, digest
    look(member)
    member.at_home = member.at_home and (kept or not strange)
    later = {version: desk for version, desk in member.closed.items() if version > anchor.version}
    member.closed = {version: desk for version, desk in later.items() if member.channel_of(version).room > 1}
    member.starts.clear()
    member.digests.clear()
    took_s = asyncio.get_running_loop().time() - began_s
    member.box.journal.write(
        events.StateFetched(version=anchor.version, size_bytes=len(fetched.data), donors=fetched.donors, took_s=took_s)
    )
    member.box.journal.write(
        events.RoundApplied(
            channel=member.turn_of(anchor.version).name,
            version=anchor.version,
            anchor=member.digest,
            fetched=True,
            astray=not member.at_home,
        )
    )
    await keep_private(member, anchor.version)
    if kept or not (member.at_home or member.me not in member.history.homes.of):
        await member.store.drop_partial()
    else:
        await member.store.adopt(fetched.listing, fetched.data)
    member.inner = max(member.inner, anchor.version)
    _stand_if_near(member)
