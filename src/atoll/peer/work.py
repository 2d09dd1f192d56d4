"""The main line of a peer: be on the newest anchor, work on the lease (`train`), contribute, apply, keep, again.

Where the peer is behind, it catches up: from its own disk, then from other peers' results or by downloading a snapshot
of the state, whichever is fewer bytes. Where the recipe lets it, it goes on with the next round's lease while it waits.

Where the recipe lets work outlast a round, a peer that is not done when one is committed keeps its lease: it takes the
result in as far as it must, works on, and contributes to whichever round is open when it is done.

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
from atoll.peer.private import Private, goes_on
from atoll.peer.results import Result
from atoll.peer.store import Store
from atoll.peer.train import (
    Contribution,
    contribution_of,
    free_steps,
    late_contribution,
    reconcile,
    spent,
    stint_of,
    take_in_missed,
    train,
)
from atoll.spec.recipe import (
    Auto,
    Block,
    Channel,
    Delay,
    Feedback,
    Forget,
    Grad,
    Growing,
    OneRound,
    Params,
    Significance,
    Threshold,
)
from atoll.swarm import lease
from atoll.swarm.log import ALL, CIRCLES, ClosedRound, Key, OpenRound
from atoll.sync.codec import check, decoded, encode, seed_of
from atoll.sync.feedback import encode_fed_back
from atoll.sync.frequencies import Frequencies
from atoll.sync.merge import Anchor, Pushes, advance, approach, finish, meet
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
    if stint.own is not None:
        await _contribute_again(member, announced, stint, stint.own)
        return
    contribution = await _trained(member, announced, stint)
    if contribution is None:
        return
    encoded = _encoded(member, announced, contribution)
    grid = member.grid_of(announced.key)
    vectors = 3 * min(grid.size, ENCODE_ELEMENTS) / member.engine.size
    chunks = await member.job(lambda: next(encoded), vectors)
    while member.private.moves and len(chunks) < grid.chunks:
        chunks |= await member.job(lambda: next(encoded), vectors)  # what is left with us is known when all is encoded
    if goes_on(member.channel_of(announced.key.version)):
        await _part_ways(member, announced, chunks)
    else:
        member.private.local = None  # from here on the anchor is waited for
    version = announced.key.version
    outlasts = (announced.ahead or announced.carry) and _leaves_a_trace(member)
    if outlasts or not version % _checkpoint_every(member, version):
        # Before anybody hears of it: who crashes after the commit must find the state that goes with it.
        await _keep_private(member, version)
    member.own = own = Own(announced.key, member.next_serial(), chunks)
    stint.own = own if announced.carry else None
    member.contributed_s = member.now_s()
    member.changes.notify()
    while member.own is own and len(own.chunks) < grid.chunks:
        own.chunks |= await member.job(lambda: next(encoded), vectors)
        own.encoded.notify()
    if announced.ahead and member.own is own:
        member.ahead = stint_of(member, _next_key(member, announced.key), announced.ahead_of(member.me))
        member.ahead.base = announced.key.version


async def _contribute_again(member: Member, announced: OpenRound, stint: Stint, made: Own) -> None:
    """Contribute what was late for an earlier round: as it is, or where this one is about another part, that part."""
    serial, chunks = made.serial, made.chunks
    if len(member.units) > 1:
        encoded = _encoded(member, announced, late_contribution(member, stint))
        grid, chunks, serial = member.grid_of(announced.key), {}, member.next_serial()
        while len(chunks) < grid.chunks:
            chunks |= await member.job(lambda: next(encoded), 3 * grid.size / member.engine.size)
    if not await member.store.has_private(announced.key.version) and member.ahead is None:
        await _keep_private(member, announced.key.version)
    member.own = stint.own = Own(announced.key, serial, chunks)
    member.changes.notify()


def _next_key(member: Member, key: Key) -> Key:
    """Return the key of the round after one."""
    return replace(key, version=key.version + 1, unit=member.channel.when.unit(key.version + 1))


def _encoded(member: Member, announced: OpenRound, contribution: Contribution) -> Iterator[dict[int, memoryview]]:
    """Return a contribution encoded, some chunks at a time: the first of each owner's come first.

    A value that is not finite never leaves, and what left before it does not count: only whole contributions do.
    """
    version = announced.key.version
    channel, unit, residual = member.channel_of(version), member.unit_of(version), member.private.residual
    what, kept = channel.what, channel.kept
    grid, frequencies = unit.grid, member.frequencies(version)
    whole = None if frequencies is None else frequencies.of(contribution(0, grid.size))
    large = _large(member, version)

    def encoded(index: int) -> memoryview:
        first, end = grid.bounds(index)
        values = contribution(first, end) if whole is None else whole[first:end]
        if not np.isfinite(values).all():
            raise LocalError(
                f"training diverged in round {announced.key.version}: some values are not finite",
                hint="lower the learning rate or clip gradients (recipe.work.inner.lr, recipe.work.clip)",
            )
        seed, least = seed_of(announced.key.version, index, member.me), large(first, end)
        match what.residual:
            case Forget():
                return encode(kept, values, seed, least)
            case Feedback(decay=decay):
                assert residual is not None, "who feeds back keeps what is left out"
                left_out = unit.take(residual, first, end)
                data = encode_fed_back(what.codec, values, left_out, decay, seed, least)
                unit.put(residual, left_out, first)
                return data

    every = -(-grid.chunks // len(announced.members))
    order = iter([index for at in range(every) for index in range(at, grid.chunks, every)])
    few = max(1, ENCODE_ELEMENTS // grid.chunk)
    while some := {index: encoded(index) for index in islice(order, few)}:
        yield some


def _large(member: Member, version: int) -> Callable[[int, int], float | Vector | None]:
    """Return how large elements of a contribution must be to be sent; None: their codec does not ask."""
    codec, unit, weights = member.channel_of(version).what.codec, member.unit_of(version), member.anchor.weights
    match codec:
        case Threshold(least=least, scaled=scaled):
            factor = _factor(member, version) if scaled else 1.0
            return lambda first, end: least * factor
        case Significance(least=least):
            part = np.float32(least / math.sqrt(version))
            return lambda first, end: np.abs(unit.take(weights, first, end)) * part
        case _:
            return lambda first, end: None


def _factor(member: Member, version: int) -> float:
    """Return the schedule's factor at the beginning of a round."""
    return rate(member.run.recipe.work.schedule, member.steps_before(version), spent(member, version))


async def _part_ways(member: Member, announced: OpenRound, chunks: dict[int, memoryview]) -> None:
    """Fix where our next steps start from, now that our contribution is made: we do not wait for what becomes of it."""
    private, grid, engine = member.private, member.grid_of(announced.key), member.engine
    channel = member.channel_of(announced.key.version)
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
    stint = _under_way(member)
    if stint is None or (stint.key, stint.lease) != (announced.key, own):
        await _take_back(member, "the work on this lease begins anew")
        stint = stint_of(member, announced.key, own)
        stint.base = member.anchor.version
        if _leaves_a_trace(member) and not await member.store.has_private(stint.base):
            await _keep_private(member, stint.base)
    elif member.begun is None:
        member.ahead = None
    member.begun = stint
    if _leaves_a_trace(member):
        await member.store.keep_only_private(stint.base)
    ranges = [(r.first, r.count) for r in own]
    member.box.journal.write(
        events.LeaseTaken(channel=announced.key.channel, version=announced.key.version, ranges=ranges)
    )
    return stint


def _under_way(member: Member) -> Stint | None:
    """Return the work that can go on in the next round: what was begun ahead of it, or carried into it."""
    if member.begun is None:
        return member.ahead
    return member.begun if member.begun.carried else None


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
    private = await member.store.private(begun.base)
    if private is None:
        raise LocalError(
            f"private/{begun.base}.safetensors is gone: work that did not count cannot be taken back",
            hint="start again: the inner optimizer then begins from zero",
        )
    await member.box.compute.run(partial(member.private.restore, private), member.private.cost)
    if begun.base < member.anchor.version:
        member.private.start_anew()  # the anchor has moved on from where our weights were then
    member.box.journal.write(events.InnerStateRestored(channel=begun.key.channel, version=begun.key.version, why=why))


async def _trained(member: Member, announced: OpenRound, stint: Stint) -> Contribution | None:
    """Return our contribution, or None when the round was over before we finished."""

    def wanted() -> bool:
        return member.history.open == announced

    if not await train(member, stint, free_steps(member, stint), wanted):
        return None
    if not stint.reconciled:
        await reconcile(member, stint)
    if not await train(member, stint, len(stint.steps), wanted) or (announced.carry and not wanted()):
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
    channel, unit, anchor = member.channel_of(version), member.unit_of(version), member.anchor
    layout = member.engine.layout
    assert len(result.chunks) == unit.grid.chunks, "a result is checked before it is applied"
    factor = _factor(member, version) if channel.merge.scheduled else 1.0
    step, asked = _step_of(member, committed, factor), isinstance(member.run.recipe.work.quota, Growing)
    given, frequencies = await _given(member, key), member.frequencies(version)

    await _remember_start(member, committed)

    def job() -> tuple[Anchor, str, float, float]:
        before = anchor.weights.copy() if asked else None
        stepped = _stepped(channel, unit, anchor, result, step, frequencies)
        finish(channel.merge.outer, stepped, layout, factor)
        apart = _apart(channel, unit, result, given) if given is not None else 0.0
        return stepped, stepped.digest(), _distance(before, stepped.weights) if before is not None else 0.0, apart

    member.anchor, member.digest, member.moved, apart = await member.aside(job, vectors=4)
    if fetched:
        await member.store.keep_result(version, result)
    _time_exchange(member, committed)
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


def _time_exchange(member: Member, committed: ClosedRound) -> None:
    """Note how long it took from our contribution to the anchor that it is in, for who turns knobs by it."""
    ours = member.own is not None and member.own.key == committed.key and member.me in committed.contributors
    asked = ours and isinstance(member.run.recipe.control, Auto)
    member.exchange_s = member.now_s() - member.contributed_s if asked else 0.0


async def _remember_start(member: Member, committed: ClosedRound) -> None:
    """Keep where our work started from, if it goes on while the anchor moves: our contribution is the way from there.

    Of a model that is exchanged in parts each is taken in as it comes instead, and starts anew from there.
    """
    stint = member.begun if member.begun is not None else member.ahead
    if stint is None or member.me not in committed.carried or goes_on(member.channel):
        return
    if stint.started and stint.own is None and stint.start is None:
        stint.start = await member.job(member.anchor.weights.copy)


def _distance(before: Vector, after: Vector) -> float:
    """Return how far weights moved, as a part of their length."""
    before -= after
    return float(np.linalg.norm(before) / max(float(np.linalg.norm(after)), 1e-30))


Take = Callable[[Anchor, Vector], object]
"""Moves some elements of an anchor by those of a result."""


def _step_of(member: Member, committed: ClosedRound, factor: float) -> Take:
    """Return what a round's result does to the anchor."""
    key, channel = committed.key, member.channel_of(committed.key.version)
    if key.scope == ALL and not channel.common:
        return meet
    take = approach if isinstance(channel.what, Params) else advance
    pushes = Pushes(len(committed.contributors), committed.pushes)
    return lambda anchor, merged: take(channel.merge.outer, anchor, merged, factor, pushes)


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


def _stepped(
    channel: Channel, unit: Unit, anchor: Anchor, result: Result, step: Take, frequencies: Frequencies | None
) -> Anchor:
    """Return the next anchor, in the memory of the one given: all of a result is checked before any of it counts."""
    codec = channel.what.merged()
    bounds = [unit.grid.bounds(index) for index in range(unit.grid.chunks)]
    for chunk, (first, end) in zip(result.chunks, bounds, strict=True):
        check(codec, chunk, end - first)
    merged: Iterator[tuple[int, Vector]]
    pairs = zip(result.chunks, bounds, strict=True)
    merged = ((first, decoded(codec, chunk, end - first)) for chunk, (first, end) in pairs)
    if frequencies is not None:  # a tile may lie in two chunks: all of them first
        merged = iter([(0, frequencies.back(np.concatenate([values for _, values in merged])))])
    for first, values in merged:
        for at, run in unit.runs(first, first + values.size):
            for start in range(run.start, run.stop, STEP_ELEMENTS):
                stop = min(start + STEP_ELEMENTS, run.stop)
                part = values[at + start - run.start : at + stop - run.start]
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
    if begun is not None and member.me in committed.carried:
        await _carry(member, begun)
    elif member.me not in committed.contributors:
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
        member.begun = member.ahead = None
        await recall(member.box, store, member.private, version)
    else:
        await _take_back(member, "it counts as done before a crash, of which nothing was kept")
        member.private.forget()  # what was kept of it went out with that work
        if member.private.residual is not None:
            member.box.journal.write(events.ResidualLost(version=version))
    member.inner = max(member.inner, version)


async def _carry(member: Member, stint: Stint) -> None:
    """Let work outlast a round that was committed without it."""
    version, store = stint.key.version, member.store
    if stint.own is None:
        if version > member.inner:
            await store.drop_private(version)  # what an earlier life left, whose contribution did not come in time
        if not stint.reconciled:
            await reconcile(member, stint)
        working: Stint | None = stint
        member.begun, member.ahead = None, stint
    else:
        await store.move_private(version, version + 1)
        working = member.ahead
        if working is not None:
            working.key, working.base = _next_key(member, working.key), version + 1
    await take_in_missed(member, version, under_way=working is not None and working.started)
    stint.carried = stint.reconciled = True
    stint.key = _next_key(member, stint.key)
    member.box.journal.write(
        events.LeaseCarried(channel=stint.key.channel, version=version, steps=stint.done, steps_of=len(stint.steps))
    )


async def _settle_begun(member: Member) -> None:
    """Before another state takes the place of ours: let what became of our work be known, or take it back."""
    past = member.past.get(member.begun.key.version) if member.begun is not None else None
    if past is not None and past.committed is not None and member.me not in past.committed.carried:
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
    if version % _checkpoint_every(member, version) and not _last_round(member):
        return
    began_s = asyncio.get_running_loop().time()
    stint = member.begun if member.begun is not None else member.ahead
    if stint is not None and stint.base < version:
        await _keep_base(member, stint, version)
    elif not await member.store.has_private(version):
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


async def _keep_base(member: Member, stint: Stint, version: int) -> None:
    """Save the private state from before work that is not counted yet as the one that goes with a version."""
    saved = await member.store.private(stint.base)
    if saved is not None:
        kept = await member.box.compute.run(partial(member.private.from_anchor, saved), member.private.cost)
        await member.store.keep_private(version, kept)
        stint.base = version


def _checkpoint_every(member: Member, version: int) -> int:
    every = member.run.upkeep.checkpoint_every
    return every or (1 if member.channel_of(version).when.round_steps >= FEW_STEPS else CHECKPOINT_EVERY_FEW)


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
    stints = (stint for stint in (member.begun, member.ahead) if stint is not None)
    under_way = any(stint.started and stint.own is None for stint in stints)
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
