"""The exchange of one round, as contributor, as owner and as holder.

    deliver   own contribution to every owner of the plan
    own       reduce our shard once the plan is settled, in canonical order, and return it to all members
    hold      put the whole result on disk and say so

Each is a loop over the desk; a new plan cancels what the old one had started. What others send is checked
before it is kept: the right peer, the right round, the right chunk, the right length, the right digest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
from blake3 import blake3

from atoll import journal as events
from atoll.errors import PeerError
from atoll.net.identity import short
from atoll.net.transport import PeerId, Stream
from atoll.peer.links import hear, say, within
from atoll.peer.member import Member, Own, plan_id, unless
from atoll.peer.messages import Accepted, Chunk, Declined, Missing, PartHead, PartTalk, ResultHead, ResultTalk
from atoll.peer.store import Result
from atoll.swarm import lease
from atoll.swarm.log import Key, RoundAnnounced
from atoll.swarm.messages import Contributed, Contribution, Holding, Plan, Reduced, Spoiled, Stuck
from atoll.sync.codec import BadChunk, decode, element_bytes, encode
from atoll.sync.grid import Shard
from atoll.sync.merge import combine

EARLY_S_MAX = 30.0
"""How long something may arrive before the log or plan it belongs to."""
SERIALS_MAX = 3
"""Contributions of one peer to one round that an owner keeps: it may restart that often."""


async def for_each_plan(
    member: Member, ready: Callable[[], Plan | None], work: Callable[[Plan], Coroutine[Any, Any, None]]
) -> None:
    """Do `work` for every plan that `ready` lets through; a newer plan cancels it."""
    while True:
        plan = await member.changes.until(ready)
        assert plan is not None
        await unless(work(plan), _outdated(member, plan))


async def _outdated(member: Member, plan: Plan) -> None:
    await member.changes.until(lambda: not _current(member, plan))


def _current(member: Member, plan: Plan) -> bool:
    return member.plan is not None and plan_id(member.plan) == plan_id(plan)


# as contributor


async def deliver(member: Member) -> None:
    """Bring own contribution to every owner of each plan, and report that."""
    done: list[tuple[Key, int, int, int]] = []

    def ready() -> Plan | None:
        plan, own = member.plan, member.own
        if plan is None or own is None or plan.key != own.key or (*plan_id(plan), own.serial) in done:
            return None
        return plan

    async def work(plan: Plan) -> None:
        own = member.own
        assert own is not None
        done[:] = [*done[-8:], (*plan_id(plan), own.serial)]
        began_s = asyncio.get_running_loop().time()
        sizes = await asyncio.gather(*(_bring(member, plan, own, shard) for shard in member.shards(plan)))
        if all(size is not None for size in sizes):
            member.report(Contributed(*plan_id(plan), own.serial))
            took_s = asyncio.get_running_loop().time() - began_s
            member.box.journal.write(
                events.ContributionSent(
                    channel=plan.key.channel,
                    version=plan.key.version,
                    attempt=plan.attempt,
                    sent_bytes=sum(size for size in sizes if size),
                    took_s=took_s,
                )
            )

    await for_each_plan(member, ready, work)


async def _bring(member: Member, plan: Plan, own: Own, shard: Shard) -> int | None:
    """Send an owner its part; return the bytes sent, or None (and report) when it cannot be reached."""
    owner = PeerId(shard.owner)
    try:
        async with member.links.talk(owner, "part") as stream:
            await say(stream, PartHead(own.key, own.serial, shard.first, shard.count))
            answer = await within(member.silence_s_max, hear(stream, PartTalk))
            if not isinstance(answer, Missing) or any(index not in shard.chunks for index in answer.chunks):
                raise PeerError(answer.why if isinstance(answer, Declined) else "the owner wants what it does not own")
            for index in answer.chunks:
                await within(member.silence_s_max, say(stream, Chunk(index, own.chunks[index])))
            accepted = await within(member.silence_s_max, hear(stream, PartTalk))
            if not isinstance(accepted, Accepted):
                raise PeerError("the owner did not accept it")
        return 0 if owner == member.me else sum(len(own.chunks[index]) for index in answer.chunks)
    except PeerError as error:
        member.box.journal.write(events.PeerLost(who=short(owner), why=f"part: {error}"))
        member.report(Stuck(*plan_id(plan), owner))
        return None


# as owner


async def take_part(member: Member, peer: PeerId, stream: Stream) -> None:
    """Receive another peer's part of its contribution to the open round."""
    head = await hear(stream, PartTalk)
    if not isinstance(head, PartHead):
        raise PeerError("a part must begin with its head")
    announced = await _round_of(member, head.key)
    if announced is None or peer not in announced.members:
        await say(stream, Declined("that round is not open, or you are not in it"))
        return
    if head.first < 0 or head.count < 1 or head.first + head.count > member.grid.chunks:
        raise PeerError(f"a part of chunks {head.first}+{head.count} lies outside the grid")
    held = _held_parts(member, head.key, Contribution(peer, head.serial))
    missing = [i for i in range(head.first, head.first + head.count) if i not in held]
    await say(stream, Missing(tuple(missing)))
    for index in missing:
        chunk = await hear(stream, PartTalk)
        if not isinstance(chunk, Chunk) or chunk.index != index or len(chunk.data) != _chunk_bytes(member, index):
            raise PeerError(f"chunk {index} was announced, something else came")
        held[index] = chunk.data
    member.changes.notify()
    await say(stream, Accepted())


async def _round_of(member: Member, key: Key) -> RoundAnnounced | None:
    """Return the open round `key`, waiting a little for a log that is on its way."""

    def known() -> bool:
        announced = member.history.open
        return member.history.version >= key.version or (announced is not None and announced.key == key)

    try:
        async with asyncio.timeout(EARLY_S_MAX):
            await member.changes.until(known)
    except TimeoutError:
        return None
    announced = member.history.open
    return announced if announced is not None and announced.key == key else None


def _held_parts(member: Member, key: Key, contribution: Contribution) -> dict[int, bytes]:
    """Return the chunks held of a contribution, making room by forgetting the peer's oldest."""
    known = [c for k, c in member.parts if k == key and c.peer == contribution.peer]
    settled = (member.plan.settled if member.plan is not None else None) or ()
    if contribution not in known and len(known) >= SERIALS_MAX:
        oldest = min((c for c in known if c not in settled), key=lambda c: c.serial)
        del member.parts[key, oldest]
    return member.parts.setdefault((key, contribution), {})


def _chunk_bytes(member: Member, index: int) -> int:
    first, end = member.grid.bounds(index)
    return (end - first) * element_bytes(member.channel.what.codec)


async def own_shard(member: Member) -> None:
    """Reduce our shard for every settled plan and return it to all members."""
    done: list[tuple[Key, int, int]] = []

    def ready() -> Plan | None:
        plan = member.plan
        if plan is None or plan.settled is None or member.me not in plan.owners or plan_id(plan) in done:
            return None
        return plan

    async def work(plan: Plan) -> None:
        done[:] = [*done[-8:], plan_id(plan)]
        announced = member.history.open
        shard = next((s for s in member.shards(plan) if s.owner == member.me), None)
        if announced is None:
            return
        if shard is None:  # fewer chunks than owners: nothing fell to us
            member.report(Reduced(*plan_id(plan), ()))
            return
        if not await _all_arrive(member, plan, shard):
            return
        reduced = await _reduce(member, plan, announced, shard)
        if reduced is None:
            return
        digests = await member.job(lambda: tuple([blake3(data).digest() for data in reduced]))
        _keep_chunks(member, shard.first, digests, reduced)
        member.report(Reduced(*plan_id(plan), digests))
        others = [PeerId(p) for p in announced.members if p != member.me]
        await asyncio.gather(*(_return(member, plan, shard, digests, reduced, peer) for peer in others))

    await for_each_plan(member, ready, work)


async def _all_arrive(member: Member, plan: Plan, shard: Shard) -> bool:
    """Return whether every settled part is here; one that was claimed to be and is not is reported."""
    try:
        async with asyncio.timeout(EARLY_S_MAX):
            await member.changes.until(lambda: not _lacking(member, plan, shard))
    except TimeoutError:
        for contribution in _lacking(member, plan, shard):
            member.report(Spoiled(plan.key, contribution.peer, "it never arrived"))
        return False
    return True


def _lacking(member: Member, plan: Plan, shard: Shard) -> list[Contribution]:
    """Return the settled contributions of which we do not have all our chunks."""
    held = {c: member.parts.get((plan.key, c), {}) for c in plan.settled or ()}
    return [c for c, chunks in held.items() if any(index not in chunks for index in shard.chunks)]


async def _reduce(member: Member, plan: Plan, announced: RoundAnnounced, shard: Shard) -> list[bytes] | None:
    """Return our shard's encoded mean, or None after reporting a contribution that cannot be used."""
    assert plan.settled is not None
    settled, codec = plan.settled, member.channel.what.codec
    weights = _weights(member, plan, announced)
    # Taken now: while the job runs on its own thread, the desk may change.
    held = {c: dict(member.parts[plan.key, c]) for c in settled}

    def job() -> list[bytes] | Spoiled:
        reduced = []
        for index in shard.chunks:
            first, end = member.grid.bounds(index)
            parts = []
            for contribution in settled:
                try:
                    parts.append(decode(codec, held[contribution][index], end - first))
                except BadChunk as error:
                    return Spoiled(plan.key, contribution.peer, str(error))
            merged = combine(parts, weights)
            if not np.isfinite(merged).all():
                largest = max(range(len(parts)), key=lambda i: float(np.abs(parts[i]).max()))
                return Spoiled(plan.key, settled[largest].peer, "its values are too large to be averaged")
            reduced.append(encode(codec, merged))
        return reduced

    outcome = await member.job(job, vectors=len(weights) * shard.count / member.grid.chunks)
    if isinstance(outcome, Spoiled):
        member.box.journal.write(events.MessageRefused(who=short(PeerId(outcome.peer)), why=outcome.why))
        member.report(outcome)
        return None
    return outcome


def _weights(member: Member, plan: Plan, announced: RoundAnnounced) -> list[float]:
    """Return each contribution's weight, in canonical order."""
    assert plan.settled is not None
    if member.channel.merge.combine.weights == "uniform":
        return [1.0] * len(plan.settled)
    leases = dict(zip(announced.members, announced.leases, strict=True))
    return [float(lease.size(leases[c.peer])) for c in plan.settled]


async def _return(
    member: Member, plan: Plan, shard: Shard, digests: tuple[bytes, ...], chunks: list[bytes], peer: PeerId
) -> None:
    """Send one member our reduced shard; a member that cannot be reached fetches it after the commit."""
    try:
        async with member.links.talk(peer, "result") as stream:
            await say(stream, ResultHead(*plan_id(plan), shard.first, digests))
            for index, data in zip(shard.chunks, chunks, strict=True):
                await say(stream, Chunk(index, data))
            await hear(stream, ResultTalk)
    except PeerError as error:
        member.box.journal.write(events.PeerLost(who=short(peer), why=f"result: {error}"))


# as holder


async def take_result(member: Member, peer: PeerId, stream: Stream) -> None:
    """Receive an owner's reduced shard of the present plan."""
    head = await hear(stream, ResultTalk)
    if not isinstance(head, ResultHead):
        raise PeerError("a result must begin with its head")
    plan = await _plan_of(member, head)
    if plan is None:
        await say(stream, Declined("another plan holds"))
        return
    if not any(s.owner == peer and (s.first, s.count) == (head.first, len(head.digests)) for s in member.shards(plan)):
        raise PeerError("a result came from a peer that does not own that shard")
    chunks = []
    for offset, digest in enumerate(head.digests):
        chunk = await hear(stream, ResultTalk)
        if not isinstance(chunk, Chunk) or chunk.index != head.first + offset:
            raise PeerError(f"chunk {head.first + offset} was announced, something else came")
        if blake3(chunk.data).digest() != digest:
            raise PeerError(f"chunk {chunk.index} does not match its digest")
        first, end = member.grid.bounds(chunk.index)
        decode(member.channel.what.codec, chunk.data, end - first)  # of the right length, and finite
        chunks.append(chunk.data)
    if _current(member, plan):
        _keep_chunks(member, head.first, head.digests, chunks)
    await say(stream, Accepted())


async def _plan_of(member: Member, head: ResultHead) -> Plan | None:
    """Return the plan a result belongs to, waiting a little for one that is on its way; None: not ours any more."""
    wanted = (head.key, head.epoch, head.attempt)

    def known() -> bool:
        plan = member.plan
        return member.history.version >= head.key.version or (
            plan is not None and (plan.epoch, plan.attempt) >= (head.epoch, head.attempt) and plan.key == head.key
        )

    try:
        async with asyncio.timeout(EARLY_S_MAX):
            await member.changes.until(known)
    except TimeoutError:
        return None
    return member.plan if member.plan is not None and plan_id(member.plan) == wanted else None


def _keep_chunks(member: Member, first: int, digests: tuple[bytes, ...], chunks: list[bytes]) -> None:
    for offset, (digest, data) in enumerate(zip(digests, chunks, strict=True)):
        member.incoming[first + offset] = (digest, data)
    member.changes.notify()


async def hold(member: Member) -> None:
    """Put the result of each plan on disk once it is whole, and say so."""
    done: list[tuple[Key, int, int]] = []

    def ready() -> Plan | None:
        plan = member.plan
        whole = len(member.incoming) == member.grid.chunks
        return plan if plan is not None and whole and plan_id(plan) not in done else None

    async def work(plan: Plan) -> None:
        done[:] = [*done[-8:], plan_id(plan)]
        pairs = [member.incoming[i] for i in range(member.grid.chunks)]
        result = Result(tuple(d for d, _ in pairs), tuple(data for _, data in pairs))
        await member.store.keep_result(plan.key.version, result)
        member.held = result
        member.report(Holding(*plan_id(plan), result.root()))

    await for_each_plan(member, ready, work)
