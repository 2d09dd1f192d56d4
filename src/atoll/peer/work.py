"""The main line of a peer: be on the newest anchor, work on the lease (`train`), contribute, apply, keep, again.

Where the peer is behind, it catches up: from its own disk, then from other peers' results or by downloading a snapshot
of the state, whichever is fewer bytes. Where the recipe lets it, it goes on with the next round's lease while it waits.

Work and lease are one: where a round is given up or committed without us, the lease goes back, and with it
everything our work left. The inner optimizer is put back to what it was before. That state is read from disk,
`private/V`, where it mostly is already because it is saved with checkpoints; a copy in memory would cost a large
model as much as its optimizer, all the time, for something that seldom happens.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import numpy as np
from msgspec.structs import replace

from atoll import journal as events
from atoll.errors import LocalError, PeerError, PeerLost, PeerRefused
from atoll.model.compute import Cost, Vector
from atoll.net.transport import Traffic
from atoll.peer.box import Box
from atoll.peer.fetch import fetch_result, fetch_state, result_bytes, state_bytes
from atoll.peer.member import Member, Own, Stint
from atoll.peer.private import Private
from atoll.peer.results import Result
from atoll.peer.store import Store
from atoll.peer.train import Contribution, contribution_of, free_steps, reconcile, spent, stint_of, train
from atoll.spec.recipe import Block, Channel, Delay, Feedback, Forget, Grad, Growing, OneRound, Params
from atoll.swarm import lease
from atoll.swarm.log import ALL, CIRCLES, ClosedRound, Key, OpenRound
from atoll.sync.codec import check, decoded, encode, seed_of
from atoll.sync.feedback import encode_fed_back
from atoll.sync.merge import Anchor, advance, approach, finish, meet
from atoll.sync.schedule import rate
from atoll.sync.units import Unit

RETRY_S = 2.0
NEAR = 2
"""Versions behind the newest with which a joiner stands: it is counted in, and gets the rest before it works."""
FEW_STEPS = 10
"""A round of fewer steps is checkpointed only now and then."""
CHECKPOINT_EVERY_FEW = 50
ENCODE_ELEMENTS = 2**22
"""So many are encoded at once."""
STEP_ELEMENTS = 2**16
"""Of the anchor so much is stepped at once: what a processor keeps near."""
EVALUATE_SAMPLES = 16
"""Held-out samples per slice."""


async def work(member: Member) -> None:
    """Take part in rounds until the run is finished and its last anchor is ours; the broker looks at the model too."""
    await member.changes.until(lambda: member.history.next_index > 0)
    if member.anchor.version >= member.history.version:
        stand(member)
    if _is_broker(member) and member.run.upkeep.evaluate_every and member.anchor.version == 0:
        await evaluate(member, member.run.upkeep.evaluate_samples)
    while True:
        await _meanwhile(member, lambda: _something_to_do(member))
        if member.anchor.version < member.history.version:
            await catch_up(member)
        elif (announced := _to_do(member)) is not None:
            await _take_part(member, announced)
        else:
            break
        if _is_broker(member) and _evaluation_due(member):
            await evaluate(member, member.run.upkeep.evaluate_samples)
    if _is_broker(member):
        await evaluate(member, member.engine.held_out())


def _is_broker(member: Member) -> bool:
    return member.broker == member.me


def _something_to_do(member: Member) -> bool:
    behind = member.anchor.version < member.history.version
    return behind or member.history.finished or _to_do(member) is not None


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


def _to_do(member: Member) -> OpenRound | None:
    """Return the open round if it still wants our work."""
    announced = member.is_member()
    if announced is None or announced.key.version != member.anchor.version + 1:
        return None
    done = member.own is not None and member.own.key == announced.key
    return None if done else announced


# one round


async def _take_part(member: Member, announced: OpenRound) -> None:
    """Work through our lease and contribute; then apply what was committed."""
    if announced.base and announced.base != member.digest:
        await _heal(member, announced)
        return
    stint = await _begin(member, announced)
    await _contribute(member, announced, stint)
    # A round that is given up may be announced again in the same words: then only our contribution is gone.
    await _meanwhile(member, lambda: member.history.open != announced or member.own is None)
    if member.history.version < announced.key.version:
        await _take_back(member, "the round was given up")


async def _meanwhile(member: Member, claim: Callable[[], object]) -> None:
    """Wait until something is true; go on with what is ours of the next round, as far as that goes without it."""
    if member.ahead is not None:
        await train(member, member.ahead, free_steps(member, member.ahead), lambda: not claim())
    await member.changes.until(claim)


async def _contribute(member: Member, announced: OpenRound, stint: Stint) -> None:
    """Make our contribution, unless the round is over before: others get the first of it while the rest is encoded."""
    contribution = await _trained(member, announced, stint)
    if contribution is None:
        return
    encoded = _encoded(member, announced, contribution)
    grid = member.grid_of(announced.key)
    vectors = 3 * min(grid.size, ENCODE_ELEMENTS) / member.engine.size
    chunks = await member.job(lambda: next(encoded), vectors)
    while member.private.moves and len(chunks) < grid.chunks:
        chunks |= await member.job(lambda: next(encoded), vectors)  # what is left with us is known when all is encoded
    if member.private.goes_on:
        await _part_ways(member, announced, chunks)
    if (announced.ahead and _leaves_a_trace(member)) or not announced.key.version % _checkpoint_every(member):
        # Before anybody hears of it: who crashes after the commit must find the state that goes with it.
        await _keep_private(member, announced.key.version)
    member.own = own = Own(announced.key, member.next_serial(), chunks)
    member.changes.notify()
    while member.own is own and len(own.chunks) < grid.chunks:
        own.chunks |= await member.job(lambda: next(encoded), vectors)
        own.encoded.notify()
    if announced.ahead and member.own is own:
        version = announced.key.version + 1
        key = replace(announced.key, version=version, unit=member.channel.when.unit(version))
        member.ahead = stint_of(member, key, announced.ahead_of(member.me))


def _encoded(member: Member, announced: OpenRound, contribution: Contribution) -> Iterator[dict[int, memoryview]]:
    """Return a contribution encoded, some chunks at a time: the first of each owner's come first.

    A value that is not finite never leaves, and what left before it does not count: only whole contributions do.
    """
    what, unit, residual = member.channel.what, member.unit_of(announced.key.version), member.private.residual
    grid, kept = unit.grid, member.channel.kept

    def encoded(index: int) -> memoryview:
        first, end = grid.bounds(index)
        values = contribution(first, end)
        if not np.isfinite(values).all():
            raise LocalError(
                f"training diverged in round {announced.key.version}: some values are not finite",
                hint="lower the learning rate or clip gradients (recipe.work.inner.lr, recipe.work.clip)",
            )
        seed = seed_of(announced.key.version, index, member.me)
        match what.residual:
            case Forget():
                return encode(kept, values, seed)
            case Feedback(decay=decay):
                assert residual is not None, "who feeds back keeps what is left out"
                left_out = unit.take(residual, first, end)
                data = encode_fed_back(what.codec, values, left_out, decay, seed)
                unit.put(residual, left_out, first)
                return data

    every = -(-grid.chunks // len(announced.members))
    order = iter([index for at in range(every) for index in range(at, grid.chunks, every)])
    few = max(1, ENCODE_ELEMENTS // grid.chunk)
    while some := {index: encoded(index) for index in islice(order, few)}:
        yield some


async def _part_ways(member: Member, announced: OpenRound, chunks: dict[int, memoryview]) -> None:
    """Fix where our next steps start from, now that our contribution is made: we do not wait for what becomes of it."""
    private, channel, grid, engine = member.private, member.channel, member.grid_of(announced.key), member.engine
    share, share_before = 1 / len(announced.members), _share_of_last(member)

    def led() -> Vector:
        local, lead = member.anchor.weights.copy(), private.lead
        if lead is None:
            return local
        for index, chunk in chunks.items():
            first, end = grid.bounds(index)
            fresh = decoded(channel.kept, chunk, end - first)
            local[first:end] += lead.step(first, end, fresh, share, share_before)
        return local

    match channel.overlap:
        case Block() | Delay():
            private.local = await member.job(engine.weights)
        case OneRound():
            private.local = await member.job(led, vectors=1 if private.lead is None else 8)


def _share_of_last(member: Member) -> float:
    """Return which part of the newest mean our own contribution is."""
    past = member.past.get(member.anchor.version)
    closed = past.committed if past is not None else None
    return 1 / len(closed.contributors) if closed is not None and member.me in closed.contributors else 0.0


async def _begin(member: Member, announced: OpenRound) -> Stint:
    """Take our lease: from here on our private state moves, so what it is now must be on disk."""
    own = announced.lease_of(member.me)
    ahead = member.ahead
    if ahead is None or (ahead.key, ahead.lease) != (announced.key, own) or member.begun is not None:
        await _take_back(member, "the work on this lease begins anew")
        ahead = stint_of(member, announced.key, own)
        if _leaves_a_trace(member) and not await member.store.has_private(member.anchor.version):
            await _keep_private(member, member.anchor.version)
            await member.store.keep_only_private(member.anchor.version)
    elif _leaves_a_trace(member):
        await member.store.keep_only_private(member.anchor.version)
    member.begun, member.ahead = ahead, None
    ranges = [(r.first, r.count) for r in own]
    member.box.journal.write(
        events.LeaseTaken(channel=announced.key.channel, version=announced.key.version, ranges=ranges)
    )
    return member.begun


def _leaves_a_trace(member: Member) -> bool:
    """Return whether work moves our private state; gradients that are sent whole do not."""
    return not isinstance(member.channel.what, Grad) or member.private.moves


async def _keep_private(member: Member, version: int) -> None:
    await member.store.keep_private(version, await member.box.compute.run(member.private.save, member.private.cost))


async def _take_back(member: Member, why: str) -> None:
    """Put our private state where it was before work that does not count; nothing to do where none was begun."""
    begun = member.begun if member.begun is not None else member.ahead
    member.begun = member.ahead = None
    if begun is None:
        return
    if not _leaves_a_trace(member):
        member.private.start_anew()
        return
    version = begun.key.version - 1
    private = await member.store.private(version)
    if private is None:
        raise LocalError(
            f"private/{version}.safetensors is gone: work that did not count cannot be taken back",
            hint="start again: the inner optimizer then begins from zero",
        )
    await member.box.compute.run(partial(member.private.restore, private), member.private.cost)
    member.box.journal.write(events.InnerStateRestored(channel=begun.key.channel, version=begun.key.version, why=why))


async def _trained(member: Member, announced: OpenRound, stint: Stint) -> Contribution | None:
    """Return our contribution, or None when the round was over before we finished."""

    def wanted() -> bool:
        return member.history.open == announced

    if not await train(member, stint, free_steps(member, stint), wanted):
        return None
    if not stint.reconciled:
        await reconcile(member, stint)
    if not await train(member, stint, len(stint.steps), wanted):
        return None
    return contribution_of(member, stint)


# applying results


async def catch_up(member: Member) -> None:
    """Move one or more versions towards the newest committed one."""
    _note_behind(member)
    committed = member.past[member.anchor.version + 1].committed
    assert committed is not None
    if not committed.result:
        await _go_on(member, committed)
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
                await _pass_over(member, committed, f"what its circle made is gone: {error}")
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
    if any((past := member.past.get(version)) is None or past.of_all for version in versions):
        return False
    return member.anchor.version == 0 or len(versions) > NEAR


async def _pass_over(member: Member, committed: ClosedRound, why: str) -> None:
    """Take the version without a change of weights."""
    key, anchor = committed.key, member.anchor
    member.anchor = Anchor(key.version, anchor.weights, anchor.outer)
    member.digest = await member.aside(member.anchor.digest)
    await _settle(member, committed)
    member.held, member.spare = None, {}
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
    if member.held is not None and member.held.root() == committed.result:
        return member.held
    if len(member.spare) == member.grid_of(committed.key).chunks:  # the last came, and the commit before all was down
        spare = [member.spare[index] for index in sorted(member.spare)]
        whole = Result(tuple([each.digest for each in spare]), tuple([each.data for each in spare]))
        if whole.root() == committed.result:
            await member.store.keep_result(committed.key.version, whole)
            return whole
    result = await member.store.result(committed.key.version)
    return result if result is not None and result.root() == committed.result else None


async def _apply(member: Member, committed: ClosedRound, result: Result, *, fetched: bool) -> None:
    """Step the anchor by a committed result, exactly as every other member does that it is for."""
    key, version = committed.key, committed.key.version
    channel, unit, anchor, layout = member.channel, member.unit_of(version), member.anchor, member.engine.layout
    assert len(result.chunks) == unit.grid.chunks, "a result is checked before it is applied"
    factor = 1.0
    if channel.merge.scheduled:
        schedule = member.run.recipe.work.schedule
        factor = rate(schedule, (version - 1) * channel.when.round_steps, spent(member, version))
    step, asked = _step_of(member, key, factor), isinstance(member.run.recipe.work.quota, Growing)
    given = await _given(member, key)

    def job() -> tuple[Anchor, str, float, float]:
        before = anchor.weights.copy() if asked else None
        stepped = _stepped(channel, unit, anchor, result, step)
        finish(channel.merge.outer, stepped, layout, factor)
        apart = _apart(channel, unit, result, given) if given is not None else 0.0
        return stepped, stepped.digest(), _distance(before, stepped.weights) if before is not None else 0.0, apart

    member.anchor, member.digest, member.moved, apart = await member.aside(job, vectors=4)
    if fetched:
        await member.store.keep_result(version, result)
    _keep_left_out(member, committed, result)
    await _settle(member, committed)
    member.held, member.spare = None, {}
    member.box.journal.write(
        events.RoundApplied(
            channel=key.channel,
            version=version,
            anchor=member.digest,
            fetched=fetched,
            circle=committed.result if key.scope == CIRCLES else "",
            apart=apart,
        )
    )
    _count_traffic(member)
    await _checkpoint(member)
    _stand_if_near(member)


def _distance(before: Vector, after: Vector) -> float:
    """Return how far weights moved, as a part of their length."""
    before -= after
    return float(np.linalg.norm(before) / max(float(np.linalg.norm(after)), 1e-30))


Take = Callable[[Anchor, Vector], object]
"""Moves some elements of an anchor by those of a result."""


def _step_of(member: Member, key: Key, factor: float) -> Take:
    """Return what a round's result does to the anchor."""
    channel = member.channel
    if key.scope == ALL and not channel.common:
        return meet
    take = approach if isinstance(channel.what, Params) else advance
    return lambda anchor, merged: take(channel.merge.outer, anchor, merged, factor)


async def _given(member: Member, key: Key) -> Vector | None:
    """Return the weights that we gave to a round, where each has its own and they are at hand."""
    ours = member.own is not None and member.own.key == key
    if member.channel.common or not ours or not member.sends_weights(key):
        return None
    return await member.job(member.engine.weights)


def _apart(channel: Channel, unit: Unit, result: Result, given: Vector) -> float:
    """Return how far weights are from merged ones, as a part of their length."""
    merged = np.empty(unit.grid.size, np.float32)
    for index, chunk in enumerate(result.chunks):
        first, end = unit.grid.bounds(index)
        merged[first:end] = decoded(channel.what.merged(), chunk, end - first)
    return _distance(unit.take(given).copy(), merged)


def _stepped(channel: Channel, unit: Unit, anchor: Anchor, result: Result, step: Take) -> Anchor:
    """Return the next anchor, in the memory of the one given: all of a result is checked before any of it counts."""
    codec = channel.what.merged()
    bounds = [unit.grid.bounds(index) for index in range(unit.grid.chunks)]
    for chunk, (first, end) in zip(result.chunks, bounds, strict=True):
        check(codec, chunk, end - first)
    for chunk, (first, end) in zip(result.chunks, bounds, strict=True):
        merged = decoded(codec, chunk, end - first)
        for at, run in unit.runs(first, end):
            for start in range(run.start, run.stop, STEP_ELEMENTS):
                stop = min(start + STEP_ELEMENTS, run.stop)
                part = merged[at + start - run.start : at + stop - run.start]
                step(anchor.part(start, stop), part)
    return Anchor(anchor.version + 1, anchor.weights, anchor.outer)


def _keep_left_out(member: Member, committed: ClosedRound, result: Result) -> None:
    """As an owner, keep what was left out of the chunks that were committed; what another made has ours no more."""
    unit, lost = committed.key.unit, 0
    for index, digest in enumerate(result.digests):
        made = member.made.get(index)
        if made is not None and made.digest == digest and made.left is not None:
            member.left_out[unit, index] = made.left
        elif member.left_out.pop((unit, index), None) is not None:
            lost += 1
    member.made = {}
    if lost:
        member.box.journal.write(events.ResidualLost(version=committed.key.version, chunks=lost))


async def _settle(member: Member, committed: ClosedRound) -> None:
    """Let the inner optimizer be what goes with a committed version: with our work if it counts, without if not."""
    version, store = committed.key.version, member.store
    begun = next((s for s in (member.begun, member.ahead) if s is not None and s.key == committed.key), None)
    finished = member.own is not None and member.own.key == committed.key
    member.own = None
    if member.me not in committed.contributors:
        if begun is not None:
            member.box.journal.write(
                events.ContributionDropped(channel=begun.key.channel, version=version, samples=lease.size(begun.lease))
            )
            await _take_back(member, "the round was committed without it")
        member.private.start_anew()  # what our weights came from is not where the others are now
        if version > member.inner:
            await store.drop_private(version)  # what the work that does not count would have left
    elif begun is not None and finished:
        member.begun = None
    elif version > member.inner and await store.has_private(version):  # we did this work before a crash
        member.begun = None
        await recall(member.box, store, member.private, version)
    else:
        await _take_back(member, "it counts as done before a crash, of which nothing was kept")
        member.private.forget()  # what was kept of it went out with that work
        if member.private.residual is not None:
            member.box.journal.write(events.ResidualLost(version=version))
    member.inner = max(member.inner, version)


async def _settle_begun(member: Member) -> None:
    """Before another state takes the place of ours: let what became of our work be known, or take it back."""
    past = member.past.get(member.begun.key.version) if member.begun is not None else None
    if past is not None and past.committed is not None:
        await _settle(member, past.committed)
    await _take_back(member, "the state was downloaded instead")
    member.private.start_anew()


def _count_traffic(member: Member) -> None:
    counts = member.links.counts
    member.box.journal.write(
        events.TrafficCounted(
            sent_bytes=sum(counts.sent.values()),
            received_bytes=sum(counts.received.values()),
            round_sent_bytes=counts.sent[Traffic.ROUND],
        )
    )


async def _checkpoint(member: Member) -> None:
    """Save state if this version is due."""
    version = member.anchor.version
    if version % _checkpoint_every(member) and not _last_round(member):
        return
    began_s = asyncio.get_running_loop().time()
    if not await member.store.has_private(version):
        await _keep_private(member, version)
    size_bytes = await member.store.keep_checkpoint(member.anchor)
    member.box.journal.write(
        events.CheckpointSaved(
            version=version,
            path=f"checkpoint/{version}.safetensors",
            size_bytes=size_bytes,
            took_s=asyncio.get_running_loop().time() - began_s,
        )
    )


def _checkpoint_every(member: Member) -> int:
    every = member.run.upkeep.checkpoint_every
    return every or (1 if member.channel.when.round_steps >= FEW_STEPS else CHECKPOINT_EVERY_FEW)


async def recall(box: Box, store: Store, private: Private, version: int) -> None:
    """Take the private state after a round's work back; where that cannot be, say that it starts from zero."""
    saved = await store.private(version)
    why = f"none was saved with version {version}"
    if saved is not None:
        try:
            await box.compute.run(partial(private.restore, saved), private.cost)
            return
        except LocalError as error:
            why = f"private/{version}.safetensors: {error}"
            await store.drop_private(version)
    private.forget()
    box.journal.write(events.PrivateStateReset(why=why))


def _last_round(member: Member) -> bool:
    budget = member.run.budget
    if budget.rounds:
        return member.anchor.version >= budget.rounds
    return member.history.samples * member.engine.tokens_per_sample >= budget.tokens


# getting state from others


async def _heal(member: Member, announced: OpenRound) -> None:
    """Replace an anchor that differs from the one the log names."""
    member.box.journal.write(
        events.StateHealed(version=member.anchor.version, had=member.digest, wanted=announced.base)
    )
    try:
        await _download(member, newer_than=-1)
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


async def _download(member: Member, *, newer_than: int, bytes_max: float = math.inf) -> None:
    """Fetch a snapshot of the anchor from those who have it."""
    began_s = asyncio.get_running_loop().time()
    fetched = await fetch_state(member, newer_than=newer_than, bytes_max=bytes_max)
    anchor = fetched.anchor
    await _settle_begun(member)
    member.anchor = anchor
    member.digest = fetched.digest
    member.own, member.held, member.spare = None, None, {}
    took_s = asyncio.get_running_loop().time() - began_s
    member.box.journal.write(
        events.StateFetched(version=anchor.version, size_bytes=len(fetched.data), donors=fetched.donors, took_s=took_s)
    )
    member.box.journal.write(
        events.RoundApplied(
            channel=next(iter(member.run.recipe.channel)), version=anchor.version, anchor=member.digest, fetched=True
        )
    )
    await _keep_private(member, anchor.version)
    await member.store.adopt(fetched.listing, fetched.data)
    member.inner = max(member.inner, anchor.version)
    _stand_if_near(member)


# looking at the model


def _evaluation_due(member: Member) -> bool:
    every = member.run.upkeep.evaluate_every
    version = member.anchor.version
    return bool(every) and version % every == 0 and version > 0 and member.own is None and not member.history.finished


async def evaluate(member: Member, samples: int) -> None:
    """Journal the anchor's held-out loss."""
    engine = member.engine
    samples = min(samples, engine.held_out())
    under_way = member.ahead is not None and member.ahead.done > 0
    weights = await member.job(engine.weights) if under_way else None
    await member.job(lambda: engine.assign(member.anchor.weights))
    loss, tokens = 0.0, 0
    for first in range(0, samples, EVALUATE_SAMPLES):
        count = min(EVALUATE_SAMPLES, samples - first)
        look = partial(engine.evaluate, first, count)
        part, counted = await member.box.compute.run(look, Cost(flop=engine.cost(count).flop / 3))
        loss, tokens = loss + part, tokens + counted
    if weights is not None:
        await member.job(lambda: engine.assign(weights))
    if tokens:
        member.box.journal.write(events.Evaluated(version=member.anchor.version, loss=loss / tokens, tokens=tokens))
