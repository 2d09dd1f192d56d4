"""What contributions to several open rounds left out: which of them count is known later, one by one.

All of it is in our residual, so that the next contribution has it too. What each left there is on disk by itself,
`left/V`, before anybody hears of that contribution. Where one turns out not to count, its part is taken out again.
After a crash we begin with what goes with the newest checkpoint, and the parts of those that count come in. They add up
because nothing of the residual fades.

What was sent is beside what was left. Who crashed contributes the same bytes again: others, made of another residual,
would leave something else, and nobody could say which of the two counted. Each try at a round has a file of its own:
who crashed may have lost the end of its log too, and work for a try that was given up long ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from atoll import journal as events
from atoll.model.compute import Vector
from atoll.model.held import Held
from atoll.peer.member import Member
from atoll.swarm import lease
from atoll.swarm.log import ClosedRound, OpenRound


async def before_it(member: Member, version: int) -> Vector | None:
    """Return the residual as it is before a contribution; None: nothing of that is to be told apart."""
    residual = member.private.residual
    if residual is None or member.channel_of(version).room == 1:
        return None
    return await member.job(lambda: residual.read().copy())


async def keep_left(member: Member, announced: OpenRound, before: Vector, chunks: Mapping[int, memoryview]) -> None:
    """Save what a contribution has just left, given what there was before it, and the contribution itself."""
    residual = member.private.residual
    assert residual is not None, "who feeds back keeps what is left out"
    saved = await member.job(lambda: _saved(_Kept(residual.read() - before, chunks)), vectors=3)
    await member.store.keep_left(announced.key.version, _name(announced, member.me), saved)


async def made_before(member: Member, announced: OpenRound) -> dict[int, memoryview] | None:
    """Return our contribution to a round as an earlier life made it, with what it left in our residual; None: none."""
    residual, version = member.private.residual, announced.key.version
    if residual is None or member.channel_of(version).room == 1:
        return None
    kept = await _kept(member, announced)
    if kept is None:
        return None
    await member.job(lambda: _add_to(residual, kept.left, np.add))
    return dict(kept.chunks)


async def take_out(member: Member, announced: OpenRound) -> bool:
    """Take what a contribution left out of our residual; return whether we know what that is."""
    return await _add(member, announced, np.subtract)


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
    if desk is not None and gave and not counts:
        known = await take_out(member, desk.announced)
    elif counts and not gave and key.version > member.inner:  # by an earlier life of ours
        known = desk is not None and await _add(member, desk.announced, np.add)
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
    for announced in list(member.given_up):
        await take_out(member, announced)
        member.given_up.remove(announced)


async def counted_residual(member: Member) -> Vector | None:
    """Return the residual without what contributions left that may not count; None: all of it goes with our anchor."""
    desks = (*member.desks.values(), *member.closed.values())
    gave = [desk.announced for desk in desks if desk.own is not None and desk.key.version > member.anchor.version]
    pending = [*(each for each in gave if member.channel_of(each.key.version).room > 1), *member.given_up]
    residual = member.private.residual
    if residual is None or not pending:
        return None
    counted = await member.job(lambda: residual.read().copy())
    for announced in pending:
        kept = await _kept(member, announced)
        if kept is not None:
            await member.job(partial(np.subtract, counted, kept.left, out=counted))
    return counted


async def _add(member: Member, announced: OpenRound, add: np.ufunc) -> bool:
    residual = member.private.residual
    if residual is None:
        return True
    kept = await _kept(member, announced)
    if kept is not None:
        await member.job(lambda: _add_to(residual, kept.left, add))
    return kept is not None


def _add_to(residual: Held, left: Vector, add: np.ufunc) -> None:
    values = residual.write()
    add(values, left, out=values)


# the file


class _Kept(NamedTuple):
    left: Vector
    chunks: Mapping[int, memoryview]


async def _kept(member: Member, announced: OpenRound) -> _Kept | None:
    """Return what is kept of our contribution to a round; None: it is not known."""
    saved = await member.store.left(announced.key.version, _name(announced, member.me))
    kept = await member.job(lambda: _opened(saved)) if saved is not None else None
    return kept if kept is not None and kept.left.size == member.engine.size else None


def _name(announced: OpenRound, me: bytes) -> str:
    """Return the name of what a contribution is to, and made of."""
    words = msgspec.json.encode([announced.key, announced.start, announced.base, announced.lease_of(me)])
    return blake3(words).hexdigest(length=8)


def _saved(kept: _Kept) -> bytes:
    chunks = [kept.chunks[index] for index in range(len(kept.chunks))]
    tensors: dict[str, NDArray[Any]] = {
        "left": kept.left,
        "sent": np.frombuffer(b"".join(chunks), np.uint8),
        "sizes": np.array([len(chunk) for chunk in chunks], np.int64),
    }
    return save(tensors | {"digest": _digest(tensors)})


def _opened(saved: bytes) -> _Kept | None:
    try:
        tensors = load(saved)
        digest = tensors.pop("digest")
        if _digest(tensors).tobytes() != digest.tobytes():
            return None
    except (SafetensorError, KeyError):
        return None
    sent, ends = memoryview(tensors["sent"].tobytes()), np.cumsum(tensors["sizes"])
    starts = (ends - tensors["sizes"]).tolist()
    chunks = {index: sent[first:end] for index, (first, end) in enumerate(zip(starts, ends.tolist(), strict=True))}
    return _Kept(tensors["left"], chunks)


def _digest(tensors: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    hasher = blake3()
    for name in sorted(tensors):
        hasher.update(tensors[name].view(np.uint8).data)
    return np.frombuffer(hasher.digest(), np.uint8)
