"""The main line of a peer: be on the newest anchor (`apply`), work on the lease (`train`), contribute, again.

Where the recipe lets it, it goes on with the next round's lease while it waits; what becomes of work that does not
count, or not yet, is in `settle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from atoll import journal as events
from atoll.model.compute import Cost, Vector
from atoll.model.moments import weights_in
from atoll.peer.apply import catch_up, checkpoint_every, heal, stand
from atoll.peer.desk import Desk, Own
from atoll.peer.encode import ENCODE_ELEMENTS, encoded_of
from atoll.peer.factored import factored
from atoll.peer.home import comes_home, look
from atoll.peer.left import before_it, keep_left, made_before, take_given_up, take_out
from atoll.peer.member import Member, Stint
from atoll.peer.mesh import Filled, meshed
from atoll.peer.private import goes_on
from atoll.peer.settle import keep_private, leaves_a_trace, next_key, take_back
from atoll.peer.shared import keep_given
from atoll.peer.train import (
    Contribution,
    contribution_of,
    free_steps,
    joined,
    late_contribution,
    reconcile,
    stint_of,
    told_by,
    train,
    weights_of_anchor,
)
from atoll.spec.axes.pace import Block, Delay, OneRound, RoundsLate, StandIn
from atoll.swarm.log import OpenRound
from atoll.sync.codec import decoded

EVALUATE_SAMPLES = 16
"""Held-out samples per slice."""


async def work(member: Member) -> None:
    """Take part in rounds until the run is finished and its last anchor is ours; the broker looks at the model too."""
    await member.changes.until(lambda: member.history.next_index > 0)
    look(member)
    if member.anchor.version >= member.history.version:
        stand(member)
    if _is_broker(member) and member.run.upkeep.evaluate_every and member.anchor.version == 0:
        await evaluate(member, member.run.upkeep.evaluate_samples)
    while True:
        await _meanwhile(member, lambda: _something_to_do(member))
        await take_given_up(member)
        if (before := member.anchor.version) < member.history.version:
            await catch_up(member)
            if _is_broker(member) and member.anchor.version > before and _evaluation_due(member):
                await evaluate(member, member.run.upkeep.evaluate_samples)
        elif (desk := _to_do(member)) is not None:
            await _take_part(member, desk)
        else:
            break
    if _is_broker(member):
        await evaluate(member, member.engine.held_out())


def _is_broker(member: Member) -> bool:
    return member.broker == member.me


def _something_to_do(member: Member) -> bool:
    behind = member.anchor.version < member.history.version
    return behind or member.history.finished or _to_do(member) is not None


def _to_do(member: Member) -> Desk | None:
    """Return the desk of the first open round that still wants our work."""
    return next((desk for desk in member.desks.values() if member.wants_work(desk)), None)


# one round


async def _take_part(member: Member, desk: Desk) -> None:
    """Work through our lease and contribute; then apply what was committed."""
    announced = desk.announced
    if not await _starts_right(member, announced):
        await heal(member, announced)
        return
    if member.channel_of(announced.key.version).room > 1:
        await _contribute(member, desk, _begin_apart(member, desk))
        return
    stint = await _begin(member, announced)
    await (_contribute if announced.tells is None else _tell)(member, desk, stint)
    # A round that is given up may be announced again in the same words: then it has another desk.
    await _meanwhile(member, lambda: member.desks.get(announced.key.version) is not desk)
    if member.history.version < announced.key.version:
        await take_back(member, "the round was given up")


async def _starts_right(member: Member, announced: OpenRound) -> bool:
    """Return whether the anchor that a round starts from is what we have, or had when it was the newest."""
    if announced.start == member.anchor.version:
        return await comes_home(member, announced)
    return member.digests.get(announced.start, announced.base) == announced.base


async def _meanwhile(member: Member, claim: Callable[[], object]) -> None:
    """Wait until something is true; go on with what is ours of the next round, as far as that goes without it."""
    for stint in list(member.ahead):
        await train(member, stint, free_steps(member, stint), lambda: not claim())
    await member.changes.until(claim)


async def _contribute(member: Member, desk: Desk, stint: Stint) -> None:
    """Make our contribution, unless the round is over before: others get the first of it while the rest is encoded."""
    announced = desk.announced
    if stint.own is not None:
        await _contribute_again(member, desk, stint, stint.own)
        return
    if (again := await made_before(member, announced)) is not None:
        if not await _was_given_up(member, desk):
            desk.own = Own(announced.key, member.next_serial(), again, member.now_s())
            member.changes.notify()
        return
    contribution = await _trained(member, desk, stint)
    if contribution is None:
        return
    grid, filled, version = member.given_grid(announced), Filled(), announced.key.version
    before = await before_it(member, version)
    encoded = _form_of(member, announced, contribution, filled)
    vectors = 3 * min(grid.size, ENCODE_ELEMENTS) / member.engine.size
    chunks = await member.job(lambda: next(encoded), vectors)
    while (member.private.moves or member.channel.mesh is not None) and len(chunks) < grid.chunks:
        chunks |= await member.job(lambda: next(encoded), vectors)  # what is left with us is known when all is encoded
    if filled:
        event = events.LinksFilled(channel=announced.key.channel, version=version, parts=filled)
        member.box.journal.write(event)
    parts = goes_on(member.channel_of(version))
    if before is not None:
        await keep_left(member, announced, before, chunks)
        if await _was_given_up(member, desk):
            return
    elif parts:
        await _part_ways(member, announced, chunks)
    else:
        member.private.local = None  # from here on the anchor is waited for
    if member.private.shared:
        await keep_given(member, announced, chunks)
    outlasts = (parts or announced.ahead or announced.carry) and leaves_a_trace(member)
    if before is None and (outlasts or not version % checkpoint_every(member, version)):
        # Before anybody hears of it: who crashes after the commit must find the state that goes with it.
        await keep_private(member, version)
    desk.own = own = Own(announced.key, member.next_serial(), chunks, member.now_s())
    stint.own = own if announced.carry else None
    member.changes.notify()
    while desk.own is own and len(own.chunks) < grid.chunks:
        own.chunks |= await member.job(lambda: next(encoded), vectors)
        own.encoded.notify()
    if announced.ahead and desk.own is own:
        await _look_ahead(member, announced)


async def _was_given_up(member: Member, desk: Desk) -> bool:
    """Return whether one of several rounds was given up while our contribution was made: then it leaves nothing."""
    version = desk.key.version
    over = desk not in (member.desks.get(version), member.closed.get(version))
    if over:
        await take_out(member, desk.announced)
    return over


async def _tell(member: Member, desk: Desk, stint: Stint) -> None:
    """Tell what our region has come to, if it is to; what it is about is crossing while we work on."""
    announced = desk.announced

    def wanted() -> bool:
        return member.desks.get(announced.key.version) is desk

    if stint.own is not None and not await member.store.has_private(announced.key.version):
        await keep_private(member, announced.key.version)
    own = None
    if any(member.me in group for group in announced.telling()):
        grid, chunks = member.grid_of(announced.key), dict[int, memoryview]()
        encoded = encoded_of(member, announced, told_by(member))
        while len(chunks) < grid.chunks:
            chunks |= await member.job(lambda: next(encoded), 3 * grid.size / member.engine.size)
        desk.own = own = Own(announced.key, member.next_serial(), chunks)
        member.changes.notify()
    if stint.own is None:
        stint.reconciled = True
        await train(member, stint, len(stint.steps), wanted)
    await member.changes.until(lambda: not wanted() or desk.own is not own)


async def _look_ahead(member: Member, announced: OpenRound) -> None:
    """Take the leases to go on with: what was begun of them stays, if it is still ours."""
    several = isinstance(member.channel_of(announced.key.version).overlap, RoundsLate)
    start = await member.job(member.anchor.weights.copy) if several else None
    begun, member.ahead, key = member.ahead, [], announced.key
    for place, own in enumerate(announced.ahead_of(member.me)):
        key = next_key(member, key)
        stint = begun[place] if place < len(begun) else None
        if stint is None or (stint.key, stint.lease) != (key, own):
            del begun[place:]
            stint = stint_of(member, key, own)
            stint.start = start
        stint.base = key.version - 1
        member.ahead.append(stint)


async def _contribute_again(member: Member, desk: Desk, stint: Stint, made: Own) -> None:
    """Contribute what was late for an earlier round: as it is, or made anew for another part or another circle."""
    announced, serial, chunks = desk.announced, made.serial, made.chunks
    if member.in_parts or stint.trained is not None:
        late = joined(member, stint) if stint.trained is not None else late_contribution(member, stint)
        encoded = encoded_of(member, announced, late)
        grid, chunks, serial = member.grid_of(announced.key), {}, member.next_serial()
        while len(chunks) < grid.chunks:
            chunks |= await member.job(lambda: next(encoded), 3 * grid.size / member.engine.size)
    if not await member.store.has_private(announced.key.version) and not member.ahead:
        await keep_private(member, announced.key.version)
    desk.own = stint.own = Own(announced.key, serial, chunks)
    member.changes.notify()


def _form_of(
    member: Member, announced: OpenRound, contribution: Contribution, filled: Filled
) -> Iterator[dict[int, memoryview]]:
    """Return a contribution as it travels, some chunks at a time."""
    if member.channel.mesh is not None and not announced.holds:
        return meshed(member, announced, contribution, filled)
    return (encoded_of if member.factors is None else factored)(member, announced, contribution)


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
            fresh = decoded(channel.kept_by(member.me), chunk, end - first)
            local[first:end] += lead.step(first, end, fresh, share, share_before)
        return local

    match channel.overlap:
        case Block() | Delay():
            private.local = await member.job(engine.weights)
        case RoundsLate():
            pass  # each gradient is of an anchor of its own
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
    if stint is None or (stint.key.version, stint.lease) != (announced.key.version, own):
        await take_back(member, "the work on this lease begins anew")
        stint = stint_of(member, announced.key, own)
        stint.base = member.anchor.version
        if leaves_a_trace(member) and not await member.store.has_private(stint.base):
            await keep_private(member, stint.base)
    elif member.begun is None:
        member.ahead = member.ahead[1:]
    member.begun, stint.key = stint, announced.key  # whose scope nobody knew before
    if leaves_a_trace(member):
        await member.store.keep_only_private(stint.base)
    _say_taken(member, announced)
    return stint


def _begin_apart(member: Member, desk: Desk) -> Stint:
    """Take our lease of one of several open rounds, or go on with it; nothing of what it leaves is our own."""
    announced, begun = desk.announced, member.begun
    own = announced.lease_of(member.me)
    if begun is not None and begun.key == announced.key:
        return begun
    member.begun = stint = stint_of(member, announced.key, own)
    stint.of, stint.base, stint.reconciled = announced.start, announced.key.version, True
    _say_taken(member, announced)
    return stint


def _say_taken(member: Member, announced: OpenRound) -> None:
    key, ranges = announced.key, [(r.first, r.count) for r in announced.lease_of(member.me)]
    own = member.private.local is not None
    member.box.journal.write(events.LeaseTaken(channel=key.channel, version=key.version, ranges=ranges, own=own))


def _under_way(member: Member) -> Stint | None:
    """Return the work that can go on in the next round: what was begun ahead of it, or carried into it."""
    if member.begun is None:
        return next(iter(member.ahead), None)
    return member.begun if member.begun.carried else None


async def _trained(member: Member, desk: Desk, stint: Stint) -> Contribution | None:
    """Return our contribution, or None when the round was over before we finished, or there is a newer anchor first."""
    announced = desk.announced

    def wanted() -> bool:
        behind = stint.of is not None and member.anchor.version < member.history.version
        return member.desks.get(announced.key.version) is desk and not behind

    if announced.holds and member.factors is None:
        return weights_of_anchor(member, announced.key.version)
    if not await train(member, stint, free_steps(member, stint), wanted):
        return None
    if not stint.reconciled:
        await reconcile(member, stint)
    if not await train(member, stint, len(stint.steps), wanted) or (announced.carry and not wanted()):
        return None
    if isinstance(member.channel.late, StandIn):
        stint.trained = await member.job(member.engine.weights)
    return contribution_of(member, stint, announced.masses.get(member.me, 1.0))


# looking at the model


def _evaluation_due(member: Member) -> bool:
    every = member.run.upkeep.evaluate_every
    version = member.anchor.version
    return bool(every) and version % every == 0 and not member.history.finished


async def evaluate(member: Member, samples: int) -> None:
    """Journal the anchor's held-out loss."""
    engine = member.engine
    samples = min(samples, engine.held_out())
    under_way = any(stint.started and stint.own is None for stint in member.stints)
    model = weights_in(engine.layout)
    weights = await member.job(lambda: engine.weights(0, model)) if under_way else None
    await member.job(lambda: engine.assign(member.anchor.weights[:model]))
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
