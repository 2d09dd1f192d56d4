"""Getting committed results and whole states from other peers, and serving them.

A transfer is an offer (version and chunk digests) followed by chunks; each chunk is checked as it arrives
and kept, so that when a donor vanishes the next one goes on where it stopped. Plain data only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3

from atoll import journal as events
from atoll.errors import LocalError, PeerError, PeerLost, PeerRefused
from atoll.net.identity import short
from atoll.net.transport import PeerId, Stream
from atoll.peer.links import hear, say, within
from atoll.peer.member import Member
from atoll.peer.messages import Chunk, Declined, FetchResult, FetchState, FetchTalk, Offer
from atoll.peer.store import Result, anchor_from_bytes, anchor_to_bytes
from atoll.swarm.log import RoundCommitted, result_root
from atoll.swarm.state import admits
from atoll.sync.codec import element_bytes
from atoll.sync.merge import Anchor

PIECE_BYTES = 2**20


async def serve_fetch(member: Member, peer: PeerId, stream: Stream) -> None:
    """Answer one request for a result or for the state."""
    asked = await hear(stream, FetchTalk)
    if not admits(member.run, peer, member.broker):
        await say(stream, Declined("this run is for listed peers only"))
        return
    match asked:
        case FetchResult(key=key, start=start):
            result = await member.store.result(key.version)
            if result is None:
                await say(stream, Declined("I do not keep that result"))
                return
            await _send(member, stream, Offer(key.version, result.digests), list(result.chunks), start)
        case FetchState(version=version, start=start):
            if member.anchor.version < version or not member.ready:
                await say(stream, Declined(f"I am at version {member.anchor.version}"))
                return
            anchor = member.anchor
            pieces, digests = await member.job(lambda: _pieces(anchor), vectors=4)
            await _send(member, stream, Offer(anchor.version, digests), pieces, start)
        case _:
            raise PeerError("a fetch must begin with what is wanted")


def _pieces(anchor: Anchor) -> tuple[list[bytes], tuple[bytes, ...]]:
    """Return an anchor in pieces, and their digests."""
    data = anchor_to_bytes(anchor)
    pieces = [data[i : i + PIECE_BYTES] for i in range(0, len(data), PIECE_BYTES)]
    return pieces, tuple([blake3(piece).digest() for piece in pieces])


async def _send(member: Member, stream: Stream, offer: Offer, chunks: list[bytes], start: int) -> None:
    await say(stream, offer)
    for index in range(max(0, start), len(chunks)):
        await within(member.silence_s_max, say(stream, Chunk(index, chunks[index])))


async def fetch_result(member: Member, committed: RoundCommitted) -> Result:
    """Return a committed round's result from whoever holds it; raises `PeerError` when nobody can send it."""
    got: list[bytes] = []
    problems: list[str] = []
    for donor in _donors(member, committed.contributors):
        try:
            async with member.links.talk(donor, "fetch") as stream:
                await say(stream, FetchResult(committed.key, len(got)))
                offer = await _offer(stream, member.silence_s_max)
                if result_root(offer.digests) != committed.result:
                    raise PeerError("the offered result is not the committed one")
                await _receive(stream, offer, got, member.silence_s_max)
            return _fitting(member, Result(offer.digests, tuple(got)))
        except PeerError as error:
            problems.append(_blame(member, donor, error))
    raise PeerLost("; ".join(problems) or "there is nobody else")


def _fitting(member: Member, result: Result) -> Result:
    """Return the result if its chunks are those of our grid."""
    grid, codec = member.grid, member.channel.what.codec
    spans = [grid.bounds(i) for i in range(grid.chunks)]
    if [len(c) for c in result.chunks] != [(end - first) * element_bytes(codec) for first, end in spans]:
        raise PeerError("the committed result does not fit this model")
    return result


async def fetch_state(member: Member) -> tuple[Anchor, int, list[str]]:
    """Return a newer anchor, its size in bytes and who sent it; raises `PeerError` when nobody can."""
    problems: list[str] = []
    partial = _Partial()
    for donor in _donors(member, ()):
        try:
            await _fetch_pieces(member, donor, partial)
            data = b"".join(partial.pieces)
            return await _checked(member, data), len(data), partial.donors
        except PeerError as error:
            problems.append(_blame(member, donor, error))
    raise PeerLost("; ".join(problems) or "there is nobody else")


@dataclass
class _Partial:
    """What has arrived of a state so far, and from whom."""

    offer: Offer | None = None
    pieces: list[bytes] = field(default_factory=list)
    donors: list[str] = field(default_factory=list)


async def _fetch_pieces(member: Member, donor: PeerId, partial: _Partial) -> None:
    """Get what is still missing from one donor; start over when it offers another state than the one begun."""
    while True:
        async with member.links.talk(donor, "fetch") as stream:
            await say(stream, FetchState(member.history.version, len(partial.pieces)))
            offer = await _offer(stream, member.silence_s_max)
            if len(offer.digests) > _pieces_max(member):
                raise PeerError(f"an offer of {len(offer.digests)} pieces is larger than the state")
            if partial.offer is None or offer == partial.offer:
                partial.offer = offer
                partial.donors.append(short(donor))
                await _receive(stream, offer, partial.pieces, member.silence_s_max)
                return
        partial.offer, partial.pieces, partial.donors = None, [], []


def _pieces_max(member: Member) -> int:
    """Return in how many pieces a state comes, with room for its header."""
    size_bytes = sum(vector.nbytes for vector in member.anchor.vectors().values())
    return 2 + size_bytes // PIECE_BYTES


async def _checked(member: Member, data: bytes) -> Anchor:
    """Return the anchor in downloaded bytes, refusing one that does not fit the model or the log."""
    try:
        anchor = await member.job(lambda: anchor_from_bytes(data, "downloaded state"), vectors=3)
    except LocalError as error:
        raise PeerError(error.what) from error
    if _form(anchor) != _form(member.anchor):
        raise PeerError("the downloaded state does not fit this model")
    if anchor.version > member.history.version:
        raise PeerLost(f"the downloaded state is of version {anchor.version}, which our log does not have yet")
    if not await member.job(lambda: all(np.isfinite(v).all() for v in anchor.vectors().values())):
        raise PeerError("the downloaded state holds values that are not finite")
    following = member.past.get(anchor.version + 1)
    if following is not None and following.base != await member.job(anchor.digest):
        raise PeerError("the downloaded state is not the one the log names")
    return anchor


def _form(anchor: Anchor) -> dict[str, tuple[object, ...]]:
    return {name: (vector.shape, vector.dtype) for name, vector in anchor.vectors().items()}


def _blame(member: Member, donor: PeerId, error: PeerError) -> str:
    """Lay what a donor did wrong at its door; that it is gone, or does not have it, is no wrong. Return it in words."""
    if not isinstance(error, PeerLost | PeerRefused):
        member.box.journal.write(events.MessageRefused(who=short(donor), why=f"fetch: {error}"))
    return f"{short(donor)}: {error}"


async def _offer(stream: Stream, limit_s: float) -> Offer:
    match await within(limit_s, hear(stream, FetchTalk)):
        case Offer() as offer:
            return offer
        case Declined(why=why):
            raise PeerRefused(why)
        case _:
            raise PeerError("an offer was expected")


async def _receive(stream: Stream, offer: Offer, got: list[bytes], limit_s: float) -> None:
    """Add the missing chunks to `got`, each checked."""
    while len(got) < len(offer.digests):
        chunk = await within(limit_s, hear(stream, FetchTalk))
        if not isinstance(chunk, Chunk) or chunk.index != len(got):
            raise PeerError(f"chunk {len(got)} was expected")
        if blake3(chunk.data).digest() != offer.digests[chunk.index]:
            raise PeerError(f"chunk {chunk.index} does not match its digest")
        got.append(chunk.data)


def _donors(member: Member, first: tuple[bytes, ...]) -> list[PeerId]:
    """Return whom to ask: the likeliest first, each group in random order so that load spreads."""
    likely = [PeerId(p) for p in first if p != member.me]
    rest = [PeerId(p) for p in sorted(member.history.members) if p != member.me and p not in first]
    member.box.random.shuffle(likely)
    member.box.random.shuffle(rest)
    donors = likely + rest
    if member.broker not in donors and member.broker != member.me:
        donors.append(member.broker)
    return donors
