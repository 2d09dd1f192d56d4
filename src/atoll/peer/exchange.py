"""The exchange of one round, as contributor, as owner and as holder.

    deliver    own contribution, to every owner of the plan the chunks it owns and lacks
    own_shard  reduce each chunk as soon as it is here from everybody hoped for, and return it to all members at once
    hold       put the result on disk as it comes, and say so when it is whole

Where sums are carried nothing is delivered: they go their way once it is settled whose (`carry`); so do results, back.

Each is a task for every round that may be open at once: a lane.

So sending and receiving overlap, and nobody waits for the last contribution to see the first chunk. What is returned
before the round is settled is speculative: each chunk names the set of contributions in it, the settled set's alone
count, and a chunk that was reduced for another set is reduced and returned again. What others send is checked before
it is kept: the right peer, the right plan, the right chunk, the right length, the right digest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import inf
from typing import Any, Generic, TypeVar

from blake3 import blake3

from atoll import journal as events
from atoll.errors import PeerError
from atoll.net.identity import short
from atoll.net.transport import ConnectFailed, ConnLost, PeerId, Stream, StreamReset
from atoll.net.wire import Wire
from atoll.peer.carry import Carrier
from atoll.peer.desk import Changes, Desk, Own, Owned, Reduction, Sum, plan_id
from atoll.peer.links import both, hear, say, together, within
from atoll.peer.member import Member, unless
from atoll.peer.messages import (
    Accepted,
    Chunk,
    Declined,
    Done,
    Got,
    Kept,
    Missing,
    PartHead,
    PartTalk,
    ResultHead,
    ResultTalk,
    Returned,
    SumHead,
    Summed,
    SumsKept,
    Superseded,
)
from atoll.peer.reduce import Bench, early_s, keep_result
from atoll.peer.results import WRITE_BYTES, Draft, Result
from atoll.peer.stripes import STRIPES_MAX, stripe, stripes_to
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.control import Match
from atoll.swarm.log import Key
from atoll.swarm.messages import Contributed, Contribution, Holding, Plan, Spoiled, Stuck
from atoll.swarm.routes.layout import Cell
from atoll.sync.codec import BadChunk, check, decoded, encode, length_of, seed_of

M = TypeVar("M")
T = TypeVar("T")
U = TypeVar("U", bound=Hashable)
Bring = Callable[[str, PeerId, Callable[[], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]
"""Brings a peer something, which is called so in the journal, by sending it as often as need be."""
SERIALS_MAX = 3
"""Contributions of one peer to one round that an owner keeps: it may restart that often."""
RECEIPT_BYTES = 128 * 1024
"""A receiver says that often how much it got."""
TRIES = 3
"""How often a contributor tries to reach an owner that the broker takes for alive."""
VISIT_S_MAX = 5.0
"""How long an owner that we cannot reach may take to reach us."""
RETURN_S = 1.0
RETURN_S_MAX = 15.0
"""Between two attempts to return results to a member that cannot be reached."""


async def for_each_plan(
    member: Member,
    lane: int,
    ready: Callable[[Desk], Plan | None],
    work: Callable[[Desk, Plan], Coroutine[Any, Any, None]],
) -> None:
    """Do `work` for every plan of a lane's open round that `ready` lets through; a newer plan cancels it."""

    def due() -> tuple[Desk, Plan] | None:
        desk = member.in_lane(lane)
        plan = ready(desk) if desk is not None else None
        return (desk, plan) if desk is not None and plan is not None else None

    while True:
        found = await member.changes.until(due)
        assert found is not None
        await unless(work(*found), _outdated(member, *found))


async def _outdated(member: Member, desk: Desk, plan: Plan) -> None:
    await member.changes.until(lambda: not desk.follows(plan))


async def _agreed_plan(
    member: Member, stream: Stream, head: PartHead | SumHead | ResultHead
) -> tuple[Desk, Plan] | None:
    """Return our present plan and its desk if a stream is about it; otherwise say so there, and return None.

    What is on its way is waited for a little.
    """

    def over() -> bool:
        desk = member.desk_of(head.key)
        newer = desk is not None and desk.plan is not None and _number(desk.plan) > (head.epoch, head.attempt)
        return newer or member.history.version >= head.key.version

    def agreed() -> Desk | None:
        desk = member.desk_of(head.key)
        same = desk is not None and desk.plan is not None and _number(desk.plan) == (head.epoch, head.attempt)
        return desk if same else None

    try:
        async with asyncio.timeout(early_s(member)):
            await member.changes.until(lambda: agreed() or over())
    except TimeoutError:
        await say(stream, Declined("that plan is not known"))
        return None
    desk = agreed()
    if desk is not None and desk.plan is not None:
        return desk, desk.plan
    await say(stream, Superseded())
    return None


def _number(plan: Plan) -> tuple[int, int]:
    return plan.epoch, plan.attempt


# as contributor


async def deliver(member: Member, lane: int = 0) -> None:
    """Bring own contribution to every owner of each plan, and report that."""
    done: list[tuple[Key, int, int, int]] = []

    def ready(desk: Desk) -> Plan | None:
        plan, own = desk.plan, desk.giving
        if plan is None or own is None or (*plan_id(plan), own.serial) in done:
            return None
        if plan.carried and member.me not in plan.owners:
            return None  # sums go their way without us
        # Settled without us we are too late; settled on what we sent before a crash, that is with the owners.
        return plan if plan.settled is None or desk.settled(member.me) == own.serial else None

    async def work(desk: Desk, plan: Plan) -> None:
        own = desk.giving
        assert own is not None
        done[:] = [*done[-8:], (*plan_id(plan), own.serial)]
        began_s = asyncio.get_running_loop().time()
        sizes: Sequence[int | None] = ()
        if plan.carried:
            await own.encoded.until(lambda: len(own.chunks) == member.grid_of(own.key).chunks)
        else:
            owners = member.layout(plan).owners_for(member.me)
            sizes = await asyncio.gather(*(_bring(member, desk, plan, own, PeerId(owner)) for owner in owners))
        if all(size is not None for size in sizes):
            if own is desk.lent:
                member.report(Contributed(*plan_id(plan), own.serial, lent=True))
                return
            took_s = asyncio.get_running_loop().time() - began_s
            asked = isinstance(member.run.recipe.control, Match)
            member.report(Contributed(*plan_id(plan), own.serial, took_s if asked else 0.0))
            member.box.journal.write(
                events.ContributionSent(
                    channel=plan.key.channel,
                    version=plan.key.version,
                    attempt=plan.attempt,
                    sent_bytes=sum(size for size in sizes if size),
                    took_s=took_s,
                )
            )

    await for_each_plan(member, lane, ready, work)


async def lend(member: Member, lane: int = 0) -> None:
    """Where a round ends before our work is done, have our weights as they are ready for it."""

    def ready(desk: Desk) -> Plan | None:
        plan = desk.plan
        if plan is None or plan.closing is not True or plan.settled is not None:
            return None
        return plan if desk.giving is None and member.me in desk.announced.members else None

    async def work(desk: Desk, plan: Plan) -> None:
        codec, grid = member.channel.what.codec, member.grid_of(plan.key)
        async with member.stepping:
            anchor = member.anchor

            def encoded() -> dict[int, memoryview]:
                weights = anchor.weights.copy()  # which is stepped while this is on its way
                runs = [slice(*grid.bounds(index)) for index in range(grid.chunks)]
                return {
                    index: encode(codec, weights[run], seed_of(plan.key.version, index, member.me))
                    for index, run in enumerate(runs)
                }

            chunks = await member.aside(encoded)
        desk.lent = Own(plan.key, member.next_serial(), chunks)
        member.box.journal.write(
            events.WeightsLent(channel=plan.key.channel, version=plan.key.version, of=anchor.version)
        )
        member.changes.notify()

    await for_each_plan(member, lane, ready, work)


async def _bring(member: Member, desk: Desk, plan: Plan, own: Own, owner: PeerId) -> int | None:
    """Send an owner its part; return the bytes sent, or None when there is a newer plan or, reported, no way."""
    if owner == member.me:
        await _keep_own(member, desk, own, member.layout(plan).parts(owner, member.me))
        return 0
    return await _reach(member, plan, "part", owner, partial(_send_parts, member, plan, own, owner))


async def _reach(
    member: Member, plan: Plan, what: str, owner: PeerId, send: Callable[[], Coroutine[Any, Any, T]]
) -> T | None:
    """Send an owner what only it is to get, and return what that brings; None: there is, as reported, no way."""
    try:
        if member.links.unreachable(owner) and not plan.carried:  # where there is somebody else to own it
            raise ConnectFailed("it could not be reached a moment ago")
        for _ in range(TRIES - 1):
            try:
                return await send()
            except (ConnectFailed, ConnLost, StreamReset) as lost:
                # A link may break and be made again; and behind a NAT an owner can call us where we cannot call it.
                if isinstance(lost, ConnectFailed) and not await member.links.visited(owner, VISIT_S_MAX):
                    raise
        return await send()
    except PeerError as error:
        member.box.journal.write(events.PeerLost(who=short(owner), why=f"{what}: {error}"))
        member.report(Stuck(*plan_id(plan), owner, owner not in member.links.met))
        return None


async def _send_parts(member: Member, plan: Plan, own: Own, owner: PeerId) -> int | None:
    """Send an owner the chunks it lacks; return the bytes sent, or None when there is a newer plan."""
    of = stripes_to(member.links, owner, len(member.layout(plan).parts(owner, member.me)))
    sizes = await together(*(_send_part(member, plan, own, owner, number, of) for number in range(of)))
    return None if None in sizes else sum(size for size in sizes if size)


async def _send_part(member: Member, plan: Plan, own: Own, owner: PeerId, number: int, of: int) -> int | None:
    """Send those of them that go over one of several streams."""
    async with member.links.talk(owner, "part") as stream:
        await say(stream, PartHead(*plan_id(plan), own.serial, number, of))
        answer = await within(member.silence_s_max, hear(stream, PartTalk))
        if isinstance(answer, Superseded):
            return None
        if not isinstance(answer, Missing) or not _within(
            answer.chunks, stripe(member.layout(plan).parts(owner, member.me), number, of)
        ):
            raise PeerError(answer.why if isinstance(answer, Declined) else "the owner wants what it does not own")
        chunks, sent = answer.chunks, Sent(member, owner)

        async def send() -> None:
            for index in chunks:
                await sent.say(stream, Chunk(index, await _sent_form(member, own, index)))

        told = _until_told(member, stream, PartTalk, member.silence_s_max, sent)
        last = await (both(told, send()) if chunks else told)
        if not isinstance(last, Accepted):
            raise PeerError("the owner did not accept it")
    return sent.size_bytes


async def _until_told(member: Member, stream: Stream, wire: Wire[M], limit_s: float | None, sent: Sent) -> M:
    """Return the first thing the other side says that is not how much it got; that goes into our rate."""
    got = 0
    while isinstance(said := await within(limit_s, hear(stream, wire)), Got):
        if said.size_bytes < 0 or got + said.size_bytes > sent.size_bytes:
            raise PeerError("it got more than we sent")
        got += said.size_bytes
        member.links.moved(sent.peer, said.size_bytes, member.now_s())
    if isinstance(said, Accepted) and sent.size_bytes > got:
        member.links.moved(sent.peer, sent.size_bytes - got, member.now_s())
    return said


@dataclass
class Sent:
    """What was sent on a stream."""

    member: Member
    peer: PeerId
    size_bytes: int = 0

    async def say(self, stream: Stream, message: Chunk | Returned | Summed) -> None:
        self.member.links.begin(self.peer, len(message.data), self.member.now_s())
        self.size_bytes += len(message.data)
        await within(self.member.silence_s_max, say(stream, message))


class _Receipts:
    """Tells a sender what arrived, every so many bytes; of sums that are carried, each: they come one by one."""

    def __init__(self, member: Member, stream: Stream, *, each: bool = False) -> None:
        self._least_bytes = 1 if each else RECEIPT_BYTES
        self._member = member
        self._stream = stream
        self._owed = 0

    def expect(self) -> None:
        """Note that the sender was told to begin."""
        self._member.links.line.down.begin(self._member.now_s())

    async def took(self, size_bytes: int) -> None:
        """Note that a chunk is here."""
        self._member.links.line.down.moved(size_bytes, self._member.now_s())
        self._owed += size_bytes
        if self._owed >= self._least_bytes:
            owed, self._owed = self._owed, 0
            await say(self._stream, Got(owed))


def _within(asked: Sequence[int], wanted: Iterable[int]) -> bool:
    """Return whether every chunk asked for is one that may be, and none is asked for twice."""
    return len(set(asked)) == len(asked) and set(asked) <= set(wanted)


async def _keep_own(member: Member, desk: Desk, own: Own, wanted: Iterable[int]) -> None:
    """Put our own contribution where those of others go, without a copy."""
    contribution = Contribution(member.me, own.serial)
    owned = member.owning(desk)
    held = _held_parts(desk, owned, contribution)
    for index in wanted:
        if index not in held:
            owned.keep(contribution, index, await _sent_form(member, own, index))


async def _sent_form(member: Member, own: Own, index: int) -> memoryview:
    """Return a chunk of our contribution as it is sent, which is how we keep it, but where it was to go round."""
    data, channel = await own.chunk(index), member.channel_of(own.key.version)
    kept, codec = channel.kept_by(member.me), channel.codec_of(member.me)
    if kept == codec:
        return data
    grid = member.grid_of(own.key)
    first, end = grid.bounds(index)
    seed = seed_of(own.key.version, index, member.me)
    return await member.aside(lambda: encode(codec, decoded(kept, data, end - first), seed), vectors=2 / grid.chunks)


# as owner: parts come in


async def take_part(member: Member, peer: PeerId, stream: Stream) -> None:
    """Receive another peer's part of its contribution to the open round: what we own and do not have yet."""
    head = await hear(stream, PartTalk)
    if isinstance(head, SumHead):
        await _take_sums(member, peer, stream, head)
        return
    if not isinstance(head, PartHead):
        raise PeerError("a part must begin with its head")
    if not await _may_contribute(member, peer, head.key):
        await say(stream, Declined("that round is not open, or you are not in it"))
        return
    agreed = await _agreed_plan(member, stream, head)
    if agreed is None:
        return
    desk, plan = agreed
    if head.serial < 0 or not 0 <= head.stripe < head.stripes <= STRIPES_MAX:
        raise PeerError("a contribution with an impossible number")
    owned = member.owning(desk)
    contribution = Contribution(peer, head.serial)
    held = _held_parts(desk, owned, contribution)
    due = stripe(member.layout(plan).parts(member.me, peer), head.stripe, head.stripes)
    missing = [index for index in due if index not in held]
    await say(stream, Missing(tuple(missing)))
    receipts = _Receipts(member, stream)
    receipts.expect()
    for index in missing:
        chunk = await hear(stream, PartTalk)
        if not isinstance(chunk, Chunk) or chunk.index != index or not _is_whole(member, peer, plan, chunk):
            raise PeerError(f"chunk {index} was announced, something else came")
        if contribution not in owned.parts:
            raise PeerError("a contribution was forgotten for newer ones of the same peer")
        owned.keep(contribution, index, chunk.data)
        await receipts.took(len(chunk.data))
    await say(stream, Accepted())


async def _may_contribute(member: Member, peer: PeerId, key: Key) -> bool:
    """Return whether a peer is in an open round, waiting a little for a log that is on its way."""

    def known() -> bool:
        return member.history.version >= key.version or member.desk_of(key) is not None

    try:
        async with asyncio.timeout(early_s(member)):
            await member.changes.until(known)
    except TimeoutError:
        return False
    desk = member.desk_of(key)
    return desk is not None and peer in desk.announced.members


def _held_parts(desk: Desk, owned: Owned, contribution: Contribution) -> dict[int, memoryview]:
    """Return the chunks held of a contribution, making room by forgetting the peer's oldest."""
    known = [c for c in owned.parts if c.peer == contribution.peer]
    if contribution not in known and len(known) >= SERIALS_MAX:
        settled = desk.settled(contribution.peer)
        owned.forget(min((c for c in known if c.serial != settled), key=lambda c: c.serial))
    return owned.parts.setdefault(contribution, {})


def _is_whole(member: Member, peer: PeerId, plan: Plan, chunk: Chunk) -> bool:
    """Return whether a chunk of a peer's contribution is as long as it must be; what is in it is looked at later."""
    first, end = member.grid_of(plan.key).bounds(chunk.index)  # of copies all are alike
    return len(chunk.data) == length_of(member.channel_of(plan.key.version).codec_of(peer), chunk.data, end - first)


# as owner: results and sums go out


async def own_shard(member: Member, lane: int = 0) -> None:
    """Reduce our chunks of every plan and return them to all members."""
    done: list[tuple[Key, int, int]] = []

    def ready(desk: Desk) -> Plan | None:
        plan = desk.plan
        if plan is None or plan_id(plan) in done:
            return None
        return plan if member.me in member.layout(plan).owners else None

    async def work(desk: Desk, plan: Plan) -> None:
        done[:] = [*done[-8:], plan_id(plan)]
        layout, owned = member.layout(plan), member.owning(desk)
        # Where a sum that is carried does not get on all ends, so that must be known soon; groups are planned anew when
        # one is missed.
        bring: Bring = partial(_reach, member, plan) if plan.carried else partial(_persist, member)
        sides = [(Carrier if plan.carried else Bench)(member, desk, plan).run()]
        for peer, results in layout.returns(member.me).items():
            of = stripes_to(member.links, PeerId(peer), len(results))
            for number in range(of):
                some = {unit for unit in results if unit[1] % of == number}
                send = partial(_send_results, member, plan, owned, some, PeerId(peer))
                sides.append(_persist(member, "result", PeerId(peer), send))
        for peer, units in layout.sums(member.me).items():
            of = stripes_to(member.links, PeerId(peer), len(units))
            for number in range(of):
                those = [unit for unit in units if unit[1] % of == number]
                send = partial(_send_sums, member, plan, owned, those, PeerId(peer))
                sides.append(bring("sums", PeerId(peer), send))
        # When the round is over this is cancelled. A `TaskGroup` then keeps what it was cancelled with, and that keeps
        # this frame: nobody but the collector would free what we own.
        await together(*sides)

    await for_each_plan(member, lane, ready, work)


async def _persist(member: Member, what: str, peer: PeerId, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Send one peer what it is to get; where it cannot be reached, try again until the plan is over.

    Whatever a member has not got by the commit it fetches after it.
    """
    wait_s = RETURN_S
    while True:
        try:
            await send()
            return
        except PeerError as error:
            if wait_s == RETURN_S:
                member.box.journal.write(events.PeerLost(who=short(peer), why=f"{what}: {error}"))
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, RETURN_S_MAX)


async def _send_results(member: Member, plan: Plan, owned: Owned, units: set[Cell], peer: PeerId) -> None:
    """Send a peer reduced chunks as they are made, until all are of the settled set."""
    async with member.links.talk(peer, "result") as stream:
        await say(stream, ResultHead(*plan_id(plan)))
        answer = await within(member.silence_s_max, hear(stream, ResultTalk))
        if isinstance(answer, Superseded):
            return
        if not isinstance(answer, Kept):
            raise _refusal(answer)

        def message(unit: Cell) -> Returned:
            reduced = owned.reduced[unit]
            return Returned(unit[1], reduced.of, reduced.digest, reduced.data)

        kept = dict(answer.chunks)
        has = {unit: kept[unit[1]] for unit in units if unit[1] in kept}
        passing = Passing(peer, owned.order, units, has, owned.returned, message)
        await _pass_on(member, plan, owned, stream, ResultTalk, passing)


async def _send_sums(member: Member, plan: Plan, owned: Owned, units: list[Cell], peer: PeerId) -> None:
    """Send a root our group's sums, or who is above us ours, as they are made, until there are no more to make."""
    async with member.links.talk(peer, "part") as stream:
        await say(stream, SumHead(*plan_id(plan)))
        answer = await within(member.silence_s_max, hear(stream, PartTalk))
        if isinstance(answer, Superseded):
            return
        if not isinstance(answer, SumsKept):
            raise _refusal(answer)

        def message(unit: Cell) -> Summed:
            made = owned.sums[unit]
            return Summed(*unit, made.of, made.weight, made.data)

        has = {(group, index): of for group, index, of in answer.sums}
        passing = Passing(peer, owned.sum_order, set(units), has, owned.summed, message)
        await _pass_on(member, plan, owned, stream, PartTalk, passing)


def _refusal(answer: object) -> PeerError:
    return PeerError(answer.why if isinstance(answer, Declined) else "it answered with something else")


@dataclass
class Passing(Generic[U]):
    """What an owner makes one by one and passes on to one peer."""

    peer: PeerId
    order: Sequence[U]
    """What was made, as it was; what was made again is in it again."""
    wanted: set[U]
    has: dict[U, bytes]
    """Of which set of contributions the peer has it."""
    changed: Changes
    message: Callable[[U], Returned | Summed]


async def _pass_on(
    member: Member, plan: Plan, owned: Owned, stream: Stream, wire: Wire[Any], passing: Passing[U]
) -> None:
    """Send what a peer wants and does not have of its set, as it is made, until nothing more will be."""
    sent = Sent(member, passing.peer)

    def more(seen: int) -> bool:
        return seen < len(passing.order) or owned.finished == plan_id(plan)

    async def send() -> None:
        seen = 0
        while seen < len(passing.order) or owned.finished != plan_id(plan):
            for unit in passing.order[seen:]:
                seen += 1
                if unit in passing.wanted and passing.has.get(unit) != (message := passing.message(unit)).of:
                    passing.has[unit] = message.of
                    await sent.say(stream, message)
            await passing.changed.until(partial(more, seen))
        await say(stream, Done())

    await both(_until_told(member, stream, wire, None, sent), send())


async def _take_sums(member: Member, peer: PeerId, stream: Stream, head: SumHead) -> None:
    """Receive the sums of another group's owner, of chunks whose root we are, or of who is below us."""
    agreed = await _agreed_plan(member, stream, head)
    if agreed is None:
        return
    desk, plan = agreed
    theirs = set(member.layout(plan).sums(peer).get(member.me, ()))
    if not theirs:
        raise PeerError("sums came from a peer that has none for us under this plan")
    owned = member.owning(desk)
    await say(stream, SumsKept(tuple((*unit, kept.of) for unit, kept in sorted(owned.sums.items()) if unit in theirs)))
    receipts = _Receipts(member, stream, each=bool(plan.trees))
    codec = member.channel_of(plan.key.version).what.codec if plan.carried else Fp32()
    while not isinstance(summed := await hear(stream, PartTalk), Done):
        if not isinstance(summed, Summed) or (summed.group, summed.index) not in theirs:
            raise PeerError("a sum of its own group was to come, something else did")
        first, end = member.grid_of(plan.key).bounds(summed.index)
        try:
            check(codec, summed.data, end - first)  # of the right length, and finite
        except BadChunk as error:
            if plan.carried:  # where nobody else could bring it
                member.report(Spoiled(plan.key, peer, str(error)))
            raise
        if not 0 < summed.weight < inf:
            raise PeerError("a sum of an impossible weight")
        if not desk.follows(plan):
            await say(stream, Superseded())
            return
        owned.sums[summed.group, summed.index] = Sum(summed.of, summed.weight, summed.data)
        owned.touched[summed.index] = None
        owned.arrived.notify()
        await receipts.took(len(summed.data))
    await say(stream, Accepted())


# as holder


async def take_result(member: Member, peer: PeerId, stream: Stream) -> None:
    """Receive an owner's reduced chunks of the present plan, as long as it is the present one."""
    head = await hear(stream, ResultTalk)
    if not isinstance(head, ResultHead):
        raise PeerError("a result must begin with its head")
    agreed = await _agreed_plan(member, stream, head)
    if agreed is None:
        return
    desk, plan = agreed
    theirs = {index: (group, index) for group, index in member.layout(plan).returned(peer, member.me)}
    if not theirs:
        raise PeerError("a result came from a peer that owns nothing of this plan")
    await say(stream, Kept(tuple((index, kept.of) for index, kept in _kept(member, desk, plan) if index in theirs)))
    receipts = _Receipts(member, stream, each=bool(plan.trees))
    while not isinstance(returned := await hear(stream, ResultTalk), Done):
        if not isinstance(returned, Returned) or returned.index not in theirs:
            raise PeerError("a reduced chunk of its own was to come, something else did")
        _check_returned(member, plan, returned)
        if not desk.follows(plan):
            await say(stream, Superseded())
            return
        reduction = Reduction(returned.of, returned.digest, returned.data)
        keep_result(member, desk, plan, theirs[returned.index], reduction)
        await receipts.took(len(returned.data))
    await say(stream, Accepted())


def _kept(member: Member, desk: Desk, plan: Plan) -> list[tuple[int, Reduction]]:
    """Return the reduced chunks we have, as a member or to pass them on."""
    owned = desk.owned.reduced if desk.owned is not None else {}
    layout = member.layout(plan)
    passed = {} if layout.circles else {index: reduced for (_, index), reduced in owned.items()}
    first = layout.first_for(member.me)
    return sorted((passed | {first + place: reduced for place, reduced in desk.incoming.items()}).items())


def _check_returned(member: Member, plan: Plan, returned: Returned) -> None:
    """Refuse a chunk that is not what it claims to be, or that nobody could apply."""
    if blake3(returned.data).digest() != returned.digest:
        raise PeerError(f"chunk {returned.index} does not match its digest")
    first, end = member.grid_of(plan.key).bounds(returned.index)
    codec = member.channel_of(plan.key.version).what.merged()
    check(codec, returned.data, end - first)  # of the right length, and finite


async def hold(member: Member, lane: int = 0) -> None:
    """Put the result of each plan on disk as it comes, and say so once it is whole and of the settled set."""
    done: list[tuple[Key, int, int]] = []

    def ready(desk: Desk) -> Plan | None:
        plan = desk.plan
        return plan if plan is not None and desk.incoming and plan_id(plan) not in done else None

    async def work(desk: Desk, plan: Plan) -> None:
        draft = member.store.draft(plan.key.version)
        result = await _put_down(member, desk, plan, draft)
        await draft.close(result.digests)
        done[:] = [*done[-8:], plan_id(plan)]
        for earlier in [*member.closed.values()][: 1 - member.lanes or None]:
            earlier.held = None  # it is on disk
        desk.held = result
        member.report(Holding(*plan_id(plan), result.root()))

    await for_each_plan(member, lane, ready, work)


async def _put_down(member: Member, desk: Desk, plan: Plan, draft: Draft) -> Result:
    """Write chunks as they come, many at a time, until all are of the settled set; return what they are then."""
    down: dict[int, Reduction] = {}
    desk.fresh = dict.fromkeys(desk.incoming)  # what was written for an earlier plan is written again
    bulk = member.bulk_of(plan.key)
    few = max(1, WRITE_BYTES // bulk.chunk_bytes)

    def whole() -> bool:
        present = desk.plan
        if present is None or present.settled is None or len(down) < bulk.chunks or desk.fresh:
            return False
        of = member.layout(plan).set_for(present.settled, member.me)
        return all(each.of == of[index] for index, each in down.items())

    def due() -> bool:
        return len(desk.fresh) >= few or (len(desk.incoming) == bulk.chunks and bool(desk.fresh))

    while not whole():
        await desk.came.until(lambda: due() or whole())
        batch = {index: desk.incoming[index] for index in islice(desk.fresh, few)}
        for index in batch:
            del desk.fresh[index]
        down |= batch
        if plan.carried:
            member.carried(desk, plan, len(batch))
        await draft.add({index: each.data for index, each in batch.items()})
    kept = [down[index] for index in range(bulk.chunks)]
    return Result(tuple(each.digest for each in kept), tuple(each.data for each in kept))
