"""The main line of a peer: be on the newest anchor, work on the lease, contribute, apply, keep, again.

Training comes in slices of about a second, so that the peer can stop between them and everything else on
the machine keeps breathing. Where the peer is behind, it catches up: from its own disk, then from
other peers' results, then by downloading the whole state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import numpy as np

from atoll import journal as events
from atoll.errors import LocalError, PeerError, PeerLost
from atoll.model.compute import Cost, Engine, Step, Trained, Vector
from atoll.net.transport import Traffic
from atoll.peer.box import Box
from atoll.peer.fetch import fetch_result, fetch_state
from atoll.peer.member import Member, Own
from atoll.peer.store import Result, Store
from atoll.spec.recipe import Delta, Grad
from atoll.swarm import lease
from atoll.swarm.log import RoundAnnounced, RoundCommitted
from atoll.sync.codec import decode, encode
from atoll.sync.merge import Anchor, advance
from atoll.sync.schedule import rate

SLICE_S = 1.0
"""Work between two looks at the desk takes about this long."""
REPLAY_MAX = 2
"""Rounds that are replayed from results; from further behind the whole state is fetched."""
RETRY_S = 2.0
FEW_STEPS = 10
"""A round of fewer steps is checkpointed only now and then."""
CHECKPOINT_EVERY_FEW = 50
EVALUATE_SAMPLES = 16
"""Held-out samples per slice."""


async def work(member: Member, *, evaluates: bool) -> None:
    """Take part in rounds until the run is finished and its last anchor is ours."""
    await member.changes.until(lambda: member.history.next_index > 0)
    if member.anchor.version >= member.history.version:
        stand(member)
    if evaluates and member.run.upkeep.evaluate_every and member.anchor.version == 0:
        await evaluate(member, member.run.upkeep.evaluate_samples)
    while True:
        await member.changes.until(lambda: _something_to_do(member))
        if member.anchor.version < member.history.version:
            await catch_up(member)
        elif (announced := _to_do(member)) is not None:
            await _take_part(member, announced)
        else:
            break
        if evaluates and _evaluation_due(member):
            await evaluate(member, member.run.upkeep.evaluate_samples)
    if evaluates:
        await evaluate(member, member.engine.held_out())


def _something_to_do(member: Member) -> bool:
    behind = member.anchor.version < member.history.version
    return behind or member.history.finished or _to_do(member) is not None


def stand(member: Member) -> None:
    """Let the broker know which anchor we hold."""
    member.ready = True
    member.changes.notify()


def _to_do(member: Member) -> RoundAnnounced | None:
    """Return the open round if it still wants our work."""
    announced = member.is_member()
    if announced is None or announced.key.version != member.anchor.version + 1:
        return None
    done = member.own is not None and member.own.key == announced.key
    return None if done else announced


# one round


async def _take_part(member: Member, announced: RoundAnnounced) -> None:
    """Work through our lease and contribute; then apply what was committed."""
    if announced.base != member.digest:
        await _heal(member, announced)
        return
    contribution = await _train(member, announced)
    if contribution is not None:
        codec = member.channel.what.codec
        grid = member.grid

        def cut(vector: Vector = contribution) -> list[bytes]:
            if not np.isfinite(vector).all():
                raise LocalError(
                    f"training diverged in round {announced.key.version}: some values are not finite",
                    hint="lower the learning rate or clip gradients (recipe.work.inner.lr, recipe.work.clip)",
                )
            return [encode(codec, vector[slice(*grid.bounds(i))]) for i in range(grid.chunks)]

        chunks = await member.job(cut)
        if not announced.key.version % _checkpoint_every(member):
            # Before anybody hears of it: who crashes after the commit must find the state that goes with it.
            await member.store.keep_private(announced.key.version, await member.job(member.engine.private))
        member.own = Own(announced.key, member.next_serial(), chunks)
        member.changes.notify()
    await member.changes.until(lambda: member.history.open != announced)


async def _train(member: Member, announced: RoundAnnounced) -> Vector | None:
    """Return our contribution, or None when the round was over before we finished."""
    engine, loop = member.engine, asyncio.get_running_loop()
    steps = _steps(member, announced)
    await member.job(lambda: engine.assign(member.anchor.weights))
    gradient: Vector | None = None
    done, slice_steps, tokens = 0, 1, 0
    while done < len(steps):
        if member.history.open != announced:
            return None
        part = steps[done : done + slice_steps]
        began_s = loop.time()
        trained, gradient = await _slice(member, part, gradient)
        took_s = loop.time() - began_s
        done += len(part)
        tokens += trained.tokens
        slice_steps = max(1, min(2 * slice_steps, round(slice_steps * SLICE_S / max(took_s, 1e-3))))
        member.box.journal.write(
            events.WorkProgressed(
                channel=announced.key.channel,
                version=announced.key.version,
                steps=done,
                steps_of=len(steps),
                loss=trained.loss_sum / trained.steps,
                tokens=trained.tokens,
                took_s=took_s,
            )
        )
    if gradient is not None:
        return gradient / np.float32(len(steps))
    return await member.job(lambda: member.anchor.weights - engine.weights(), vectors=2)


async def _slice(member: Member, steps: Sequence[Step], before: Vector | None) -> tuple[Trained, Vector | None]:
    """Work through some steps; gradients add up one by one, so that the sum does not depend on how work was sliced."""
    engine = member.engine
    cost = engine.cost(sum(len(step.samples) for step in steps))
    match member.channel.what:
        case Delta():
            return await member.box.compute.run(lambda: engine.train(steps), cost), None
        case Grad():
            return await member.box.compute.run(lambda: _add_gradients(engine, steps, before), cost)


def _add_gradients(engine: Engine, steps: Sequence[Step], total: Vector | None) -> tuple[Trained, Vector | None]:
    parts = []
    for step in steps:
        trained, gradient = engine.gradient([step])
        total = gradient if total is None else total + gradient
        parts.append(trained)
    return Trained(
        steps=len(parts),
        samples=sum(t.samples for t in parts),
        tokens=sum(t.tokens for t in parts),
        loss_sum=sum(t.loss_sum for t in parts),
    ), total


def _steps(member: Member, announced: RoundAnnounced) -> list[Step]:
    """Return the local steps of our lease, with the learning-rate factor of each."""
    own = announced.leases[announced.members.index(member.me)]
    samples = list(lease.positions(own))
    batch = member.run.recipe.work.batch
    count = len(samples) // batch
    schedule = member.run.recipe.work.schedule
    version = announced.key.version
    first = (version - 1) * member.channel.when.steps
    begun, ended = spent(member, version), spent(member, version + 1)
    return [
        Step(
            samples=tuple(samples[i * batch : (i + 1) * batch]),
            rate=rate(schedule, first + i, begun + (ended - begun) * i / count),
        )
        for i in range(count)
    ]


def spent(member: Member, version: int) -> float:
    """Return the share of the budget that is used when round `version` begins."""
    budget = member.run.budget
    if budget.rounds:
        return (version - 1) / budget.rounds
    past = member.past.get(version)
    if past is not None:
        samples = past.samples_before
    else:
        before = member.past[version - 1]
        samples = before.samples_before + before.round_samples
    return samples * member.engine.tokens_per_sample / budget.tokens


# applying results


async def catch_up(member: Member) -> None:
    """Move one or more versions towards the newest committed one."""
    behind = member.history.version - member.anchor.version
    version = member.anchor.version + 1
    committed = member.past[version].committed
    assert committed is not None
    result = await _own_result(member, committed)
    try:
        if result is None and behind > REPLAY_MAX:
            await _download(member)
            return
        fetched = result is None
        if result is None:
            result = await fetch_result(member, committed)
    except PeerError as error:
        await _try_otherwise(member, error)
        return
    await _apply(member, committed, result, fetched=fetched)


async def _own_result(member: Member, committed: RoundCommitted) -> Result | None:
    """Return the committed result if we hold it, in memory or on disk."""
    if member.held is not None and member.held.root() == committed.result:
        return member.held
    result = await member.store.result(committed.key.version)
    return result if result is not None and result.root() == committed.result else None


async def _apply(member: Member, committed: RoundCommitted, result: Result, *, fetched: bool) -> None:
    """Step the anchor by a committed result, exactly as every other member does."""
    channel, grid, anchor = member.channel, member.grid, member.anchor
    version = committed.key.version
    factor = 1.0
    if channel.merge.scheduled:
        schedule = member.run.recipe.work.schedule
        factor = rate(schedule, (version - 1) * channel.when.steps, spent(member, version))

    def job() -> tuple[Anchor, str]:
        spans = [grid.bounds(i) for i in range(grid.chunks)]
        codec = channel.what.codec
        merged = np.concatenate([decode(codec, c, b - a) for c, (a, b) in zip(result.chunks, spans, strict=True)])
        stepped = advance(channel.merge.outer, anchor, merged, factor)
        return stepped, stepped.digest()

    member.anchor, member.digest = await member.job(job, vectors=4)
    if fetched:
        await member.store.keep_result(version, result)
    key = committed.key
    own = member.own
    if own is not None and own.key == key:
        if member.me not in committed.contributors:
            _note_dropped(member, committed)
        member.own = None
    elif await member.store.has_private(version):  # we did the work of this round before a crash
        await recall(member.box, member.store, member.engine, version)
    member.held = None
    member.box.journal.write(
        events.RoundApplied(channel=key.channel, version=version, anchor=member.digest, fetched=fetched)
    )
    _count_traffic(member)
    await _checkpoint(member)
    stand(member)


def _note_dropped(member: Member, committed: RoundCommitted) -> None:
    key = committed.key
    samples = member.run.recipe.work.batch * member.channel.when.steps
    member.box.journal.write(events.ContributionDropped(channel=key.channel, version=key.version, samples=samples))


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
        await member.store.keep_private(version, await member.job(member.engine.private))
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
    return every or (1 if member.channel.when.steps >= FEW_STEPS else CHECKPOINT_EVERY_FEW)


async def recall(box: Box, store: Store, engine: Engine, version: int) -> None:
    """Take the inner optimizer state after a round's work back; where that cannot be, say that it starts from zero."""
    private = await store.private(version)
    why = f"none was saved with version {version}"
    if private is not None:
        try:
            await box.compute.run(lambda: engine.restore(private), Cost(moved_bytes=8.0 * engine.size))
            return
        except LocalError as error:
            why = f"private/{version}.safetensors: {error}"
    box.journal.write(events.PrivateStateReset(why=why))


def _last_round(member: Member) -> bool:
    budget = member.run.budget
    if budget.rounds:
        return member.anchor.version >= budget.rounds
    return member.history.samples * member.engine.tokens_per_sample >= budget.tokens


# getting state from others


async def _heal(member: Member, announced: RoundAnnounced) -> None:
    """Replace an anchor that differs from the one the log names."""
    member.box.journal.write(
        events.StateHealed(version=member.anchor.version, had=member.digest, wanted=announced.base)
    )
    try:
        await _download(member)
    except PeerError as error:
        member.box.journal.write(events.CatchUpFailed(version=member.anchor.version, why=str(error)))
        await asyncio.sleep(RETRY_S)


async def _try_otherwise(member: Member, error: PeerError) -> None:
    """After a vain attempt to catch up, wait a little and try for the whole state; raises when the run is over."""
    member.box.journal.write(events.CatchUpFailed(version=member.history.version, why=str(error)))
    await asyncio.sleep(RETRY_S)
    try:
        await _download(member)
    except PeerError as again:
        if member.history.finished:
            raise PeerLost(
                f"the run ended before this machine had its result: {again}",
                hint="the result is with the organiser; ask for the exported model",
            ) from again


async def _download(member: Member) -> None:
    """Fetch the whole anchor from whoever has it."""
    began_s = asyncio.get_running_loop().time()
    anchor, size_bytes, donors = await fetch_state(member)
    member.anchor = anchor
    member.digest = await member.job(anchor.digest)
    member.own, member.held = None, None
    took_s = asyncio.get_running_loop().time() - began_s
    member.box.journal.write(
        events.StateFetched(version=anchor.version, size_bytes=size_bytes, donors=donors, took_s=took_s)
    )
    member.box.journal.write(
        events.RoundApplied(
            channel=next(iter(member.run.recipe.channel)), version=anchor.version, anchor=member.digest, fetched=True
        )
    )
    await member.store.keep_private(anchor.version, await member.job(member.engine.private))
    await member.store.keep_checkpoint(anchor)
    stand(member)


# looking at the model


def _evaluation_due(member: Member) -> bool:
    every = member.run.upkeep.evaluate_every
    version = member.anchor.version
    return bool(every) and version % every == 0 and version > 0 and member.own is None and not member.history.finished


async def evaluate(member: Member, samples: int) -> None:
    """Journal the anchor's held-out loss."""
    engine = member.engine
    samples = min(samples, engine.held_out())
    await member.job(lambda: engine.assign(member.anchor.weights))
    loss, tokens = 0.0, 0
    for first in range(0, samples, EVALUATE_SAMPLES):
        count = min(EVALUATE_SAMPLES, samples - first)
        look = partial(engine.evaluate, first, count)
        part, counted = await member.box.compute.run(look, Cost(flop=engine.cost(count).flop / 3))
        loss, tokens = loss + part, tokens + counted
    if tokens:
        member.box.journal.write(events.Evaluated(version=member.anchor.version, loss=loss / tokens, tokens=tokens))
