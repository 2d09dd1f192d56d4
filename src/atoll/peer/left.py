"""What contributions to several open rounds left out: which of them count is known later, one by one.

All of it is in our residual, so that the next contribution has it too. What each left there is on disk by itself,
`left/V`, before anybody hears of that contribution. Where one turns out not to count, its part is taken out again.
After a crash we begin with what goes with the newest checkpoint, and the parts of those that count come in. They add up
because nothing of the residual fades.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from atoll import journal as events
from atoll.model.compute import Vector
from atoll.peer.member import Member
from atoll.swarm import lease
from atoll.swarm.log import ClosedRound


async def before_it(member: Member, version: int) -> Vector | None:
    """Return the residual as it is before a contribution; None: nothing of that is to be told apart."""
    residual = member.private.residual
    if residual is None or member.channel_of(version).room == 1:
        return None
    return await member.job(residual.copy)


async def keep_left(member: Member, version: int, before: Vector) -> None:
    """Save what a contribution has just left, given what there was before it."""
    residual = member.private.residual
    assert residual is not None, "who feeds back keeps what is left out"
    await member.store.keep_left(version, await member.job(lambda: _saved(residual - before)))


async def take_out(member: Member, version: int) -> bool:
    """Take what a contribution left out of our residual; return whether we know what that is."""
    return await _add(member, version, np.subtract)


async def settle_apart(member: Member, committed: ClosedRound) -> None:
    """Let what became of one of several contributions under way be known: what it left stays with us if it counts."""
    key, desk = committed.key, member.desk_over(committed.key)
    begun = member.begun is not None and member.begun.key == key
    if begun:
        member.begun = None
    gave = desk is not None and desk.own is not None
    counts = member.me in committed.contributors
    if desk is not None and (begun or gave) and not counts:
        size = lease.size(desk.announced.lease_of(member.me))
        member.box.journal.write(events.ContributionDropped(channel=key.channel, version=key.version, samples=size))
    known = True
    if gave and not counts:
        known = await take_out(member, key.version)
    elif counts and not gave and key.version > member.inner:  # by an earlier life of ours
        known = await _add(member, key.version, np.add)
    if not known:
        member.box.journal.write(events.ResidualLost(version=key.version))
    member.inner = max(member.inner, key.version)


async def settle_until(member: Member, version: int) -> None:
    """Likewise for all rounds up to a version that we come to in another way than by their results."""
    for each in range(member.anchor.version + 1, version + 1):
        past = member.past.get(each)
        if past is not None and past.committed is not None and member.channel_of(each).room > 1:
            await settle_apart(member, past.committed)


async def take_given_up(member: Member) -> None:
    """Take out what contributions left whose rounds were given up."""
    for version in list(member.given_up):
        await take_out(member, version)
        member.given_up.remove(version)


async def counted_residual(member: Member) -> Vector | None:
    """Return the residual without what contributions left that may not count; None: all of it goes with our anchor."""
    desks = (*member.desks.values(), *member.closed.values())
    gave = [desk.key.version for desk in desks if desk.own is not None and desk.key.version > member.anchor.version]
    pending = [*(version for version in gave if member.channel_of(version).room > 1), *member.given_up]
    residual = member.private.residual
    if residual is None or not pending:
        return None
    counted = await member.job(residual.copy)
    for version in pending:
        left = await _left(member, version)
        if left is not None:
            await member.job(partial(np.subtract, counted, left, out=counted))
    return counted


async def _add(member: Member, version: int, add: np.ufunc) -> bool:
    residual = member.private.residual
    if residual is None:
        return True
    left = await _left(member, version)
    if left is not None:
        await member.job(lambda: add(residual, left, out=residual))
    return left is not None


async def _left(member: Member, version: int) -> Vector | None:
    """Return what a contribution left; None: it is not known any more."""
    saved = await member.store.left(version)
    left = await member.job(lambda: _opened(saved)) if saved is not None else None
    return left if left is not None and left.size == member.engine.size else None


def _saved(left: Vector) -> bytes:
    return save({"left": left, "digest": _digest(left)})


def _opened(saved: bytes) -> Vector | None:
    try:
        tensors = load(saved)
        left, digest = tensors["left"], tensors["digest"]
    except (SafetensorError, KeyError):
        return None
    return left if left.dtype == np.float32 and _digest(left).tobytes() == digest.tobytes() else None


def _digest(left: Vector) -> NDArray[np.uint8]:
    return np.frombuffer(blake3(left.view(np.uint8).data).digest(), np.uint8)
