"""What contributions to several open rounds left out: which of them count is known later, one by one.

All of it is in our residual, so that the next contribution has it too. What each left there is on disk by itself,
`left/V`, before anybody hears of that contribution. Where one turns out not to count, its part is taken out again.
After a crash we begin with what goes with the newest checkpoint, and the parts of those that count come in. They add up
because nothing of the residual fades.

What was sent is beside what was left. Who crashed contributes the same bytes again: others, made of another residual,
would leave something else, and nobody could say which of the two counted.
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
    name = _name(announced, member.me)
    saved = await member.job(lambda: _saved(_Kept(residual.read() - before, chunks), name), vectors=3)
    await member.store.keep_left(announced.key.version, saved)


async def made_before(member: Member, announced: OpenRound) -> dict[int, memoryview] | None:
    """Return our contribution to a round as an earlier life made it, with what it left in our residual; None: none."""
    residual, version = member.private.residual, announced.key.version
    if residual is None or member.channel_of(version).room == 1:
        return None
    kept = await _kept(member, version, _name(announced, member.me))
    if kept is None:
        return None
    await member.job(lambda: _add_to(residual, kept.left, np.add))
    return dict(kept.chunks)


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
    counted = await member.job(lambda: residual.read().copy())
    for version in pending:
        kept = await _kept(member, version)
        if kept is not None:
            await member.job(partial(np.subtract, counted, kept.left, out=counted))
    return counted


async def _add(member: Member, version: int, add: np.ufunc) -> bool:
    residual = member.private.residual
    if residual is None:
        return True
    kept = await _kept(member, version)
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


async def _kept(member: Member, version: int, name: bytes | None = None) -> _Kept | None:
    """Return what is kept of a contribution, perhaps only of one to a round in these words; None: it is not known."""
    saved = await member.store.left(version)
    kept = await member.job(lambda: _opened(saved, name)) if saved is not None else None
    return kept if kept is not None and kept.left.size == member.engine.size else None


def _name(announced: OpenRound, me: bytes) -> bytes:
    """Return what a contribution is to, and made of: a round that is given up may be announced with other leases."""
    return msgspec.json.encode([announced.key, announced.start, announced.base, announced.lease_of(me)])


def _saved(kept: _Kept, name: bytes) -> bytes:
    chunks = [kept.chunks[index] for index in range(len(kept.chunks))]
    tensors: dict[str, NDArray[Any]] = {
        "left": kept.left,
        "sent": np.frombuffer(b"".join(chunks), np.uint8),
        "sizes": np.array([len(chunk) for chunk in chunks], np.int64),
        "name": np.frombuffer(name, np.uint8),
    }
    return save(tensors | {"digest": _digest(tensors)})


def _opened(saved: bytes, name: bytes | None) -> _Kept | None:
    try:
        tensors = load(saved)
        digest = tensors.pop("digest")
        if _digest(tensors).tobytes() != digest.tobytes() or name not in (None, tensors["name"].tobytes()):
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
