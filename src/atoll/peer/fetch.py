"""Getting committed results and whole states from other peers, and serving them.

A state comes as a snapshot: a checkpoint's file, the same bytes at everybody who has it, in pieces that are named by
their digests. So a joiner draws from many donors at once, keeps what came across a crash, and passes it on to
other joiners before it has all of it. First it asks who has what, and takes the snapshot that costs least: the
bytes that are missing, and the results since, divided by those who can send them. A state that is not the one the
log names for its version is refused. A result comes the same way, by the root that was committed. Plain data only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial as partial_of

import numpy as np
from msgspec import Struct

from atoll import journal as events
from atoll.errors import LocalError, PeerError, PeerLost, PeerRefused
from atoll.net.identity import short
from atoll.net.ticket import ADDRESSES_MAX, is_address
from atoll.net.transport import PeerId, Stream
from atoll.peer.gather import Errand, Source, blame, gather, serve
from atoll.peer.home import named_base, usable
from atoll.peer.links import cancelled, hear, say, within
from atoll.peer.member import Member
from atoll.peer.messages import (
    Declined,
    Fellow,
    FetchMessage,
    FetchPieces,
    FetchResult,
    FetchState,
    FetchTalk,
    Offer,
    Snapshot,
    Snapshots,
)
from atoll.peer.pieces import Haul, Listing
from atoll.peer.results import Result
from atoll.peer.store import HEADER_BYTES_MAX, Partial, Store, read_anchor
from atoll.spec.axes.control import Nobody
from atoll.spec.turns import shares
from atoll.swarm.log import ClosedRound, Key, result_root
from atoll.swarm.state import admits
from atoll.sync.codec import wire_bytes
from atoll.sync.merge import BASIS, Anchor
from atoll.units import say_bytes

ASKED_MAX = 32
"""Peers that are asked what they have."""
ANSWER_S = 2.0
"""How long the others are waited for once somebody offered something."""
ANSWER_S_MAX = 60.0
SNAPSHOTS_MAX = 8
"""Snapshots one peer may offer."""
FELLOWS_MAX = 8
"""Others who draw the same snapshot that a donor names."""
LISTED_MAX = 2
"""How many of its own a donor reads through for somebody who asks; those read through before are offered too."""
JUDGE_S = 60.0
"""A rate measured over less time says nothing about what can be reached."""


# serving


async def serve_fetch(member: Member, peer: PeerId, stream: Stream) -> None:
    """Answer one request for a result or for the state."""
    asked = await hear(stream, FetchTalk)
    if not admits(member.run, peer, member.broker):
        await say(stream, Declined("this run is for listed peers only"))
        return
    match asked:
        case FetchState(version=version):
            await say(stream, Snapshots(await _on_offer(member, version)))
        case FetchPieces() as pieces:
            await _serve_snapshot(member, peer, stream, pieces)
        case FetchResult(key=key, root=root):
            chunks = await member.store.result_chunks(key.version)
            if chunks is None or result_root(chunks.digests) != root:
                await say(stream, Declined("I do not keep that result"))
            else:
                await serve(member, stream, _Whole(chunks.digests, chunks.piece), [])
        case _:
            raise PeerError("a fetch must begin with what is wanted")


async def _on_offer(member: Member, newer_than: int) -> tuple[Snapshot, ...]:
    """Return the snapshots that we have; where none is near enough to the present one is made."""
    store, anchor = member.store, member.anchor
    kept = [version for version in await store.snapshots() if version > newer_than]
    newest = kept[-1] if kept else -1
    between = anchor.version - newest
    far = newest < 0 or between * result_bytes(member) > state_bytes(member) or (between and not member.channel.common)
    if far and member.ready and member.at_home and anchor.version > newer_than:
        kept.append(await _keep_present(member))
    found = []
    for version in kept:
        if version in kept[-LISTED_MAX:] or store.is_listed(version):
            listing = await store.listing(version)
            if listing is not None:
                found.append(_entry(listing, whole=True))
    if store.partial is not None and store.partial.listing.version > newer_than:
        found.append(_entry(store.partial.listing, whole=False))
    return tuple(found[-SNAPSHOTS_MAX:])


async def _keep_present(member: Member) -> int:
    """Save the anchor for others to read and return its version; one that is stepped meanwhile is tried again."""
    while not await member.store.keep_snapshot(present := member.anchor, member.digest):
        await member.changes.until(partial_of(_is_not, member, present))
    return present.version


def _is_not(member: Member, anchor: Anchor) -> bool:
    return member.anchor is not anchor


def _entry(listing: Listing, *, whole: bool) -> Snapshot:
    return Snapshot(listing.version, listing.state, listing.size_bytes, listing.root(), whole)


async def _serve_snapshot(member: Member, peer: PeerId, stream: Stream, asked: FetchPieces) -> None:
    store, partial = member.store, member.store.partial
    version, root = asked.version, asked.root
    if not _are_addresses(asked.addresses):
        raise PeerError("too many addresses, or something that is none")
    source: Source | None = None
    watchers: list[Callable[[], None]] = []
    if partial is not None and partial.listing.root() == root:
        member.downloads.fellows[peer] = None
        source, watchers = _Growing(store, partial), partial.watchers
    elif (listing := await store.listing(version)) is not None and listing.root() == root:
        source = _Whole(listing.digests, partial_of(store.piece, listing))
    if source is None:
        await say(stream, Declined("I do not have that snapshot"))
        return
    readers = member.downloads.readers.setdefault(root, {})
    fellows = tuple([Fellow(p, there) for p, there in readers.items() if p != peer][-FELLOWS_MAX:])
    readers[peer] = asked.addresses
    try:
        with store.reading(version):
            await serve(member, stream, source, watchers, fellows)
    finally:
        readers.pop(peer, None)
        if not readers:
            member.downloads.readers.pop(root, None)


def _are_addresses(addresses: tuple[str, ...]) -> bool:
    return len(addresses) <= ADDRESSES_MAX and all(is_address(address) for address in addresses)


class _Whole:
    """Something that is all here."""

    def __init__(self, digests: tuple[bytes, ...], piece: Callable[[int], Awaitable[bytes | None]]) -> None:
        self.digests = digests
        self._piece = piece

    def here(self) -> dict[int, None] | None:
        return None

    async def piece(self, index: int) -> bytes | None:
        return await self._piece(index)


class _Growing:
    """A snapshot that is still on its way here, and may be whole before we have served it."""

    def __init__(self, store: Store, partial: Partial) -> None:
        self.digests = partial.listing.digests
        self._store = store
        self._partial = partial

    def here(self) -> dict[int, None] | None:
        return self._partial.have

    async def piece(self, index: int) -> bytes | None:
        return await self._store.piece(self._partial.listing, index)


# a result


async def fetch_result(member: Member, committed: ClosedRound) -> Result:
    """Return a committed round's result from those who hold it; raises `PeerError` when nobody can send it.

    Chunks that owners returned to us before the commit need not come again.
    """
    chunks: dict[int, memoryview] = {}
    kept: list[Offer] = []

    def check(offer: Offer) -> None:
        if result_root(offer.digests) != committed.result:
            raise PeerError("the offered result is not the committed one")

    async def open_(offer: Offer) -> Haul:
        kept.append(offer)
        desk = member.desk_over(committed.key)
        spare = {each.digest: each.data for each in (desk.incoming if desk is not None else {}).values()}
        chunks.update({index: spare[digest] for index, digest in enumerate(offer.digests) if digest in spare})
        return Haul(len(offer.digests), member.box.random, chunks, member.me)

    async def put(index: int, data: memoryview) -> None:
        chunks[index] = data

    errand = Errand(member, FetchResult(committed.key, committed.result), check, open_, put)
    donors = _donors(member, committed.contributors)
    await _gather(errand, lambda: donors)
    result = Result(kept[0].digests, tuple(chunks[index] for index in range(len(chunks))))
    return _fitting(member, committed.key, result)


def _fitting(member: Member, key: Key, result: Result) -> Result:
    """Return the result if its chunks are those of its round's grid."""
    grid, codec = member.grid_of(key), member.channel_of(key.version).what.merged()
    spans = [grid.bounds(i) for i in range(grid.chunks)]
    if [len(c) for c in result.chunks] != [wire_bytes(codec, end - first) for first, end in spans]:
        raise PeerError("the committed result does not fit this model")
    return result


async def _gather(errand: Errand, likely: Callable[[], Sequence[PeerId]]) -> None:
    """Draw from donors, and measure how fast it goes."""
    member = errand.member
    began_s = _now_s()

    def look() -> None:
        took_s = _now_s() - began_s
        if took_s >= JUDGE_S or errand.complete:
            member.downloads.rate_bytes_s = errand.got_bytes / max(took_s, 1e-9)
            tell_if_too_slow(member)

    await gather(errand, likely, look)
    look()


# the state


class Fetched(Struct, frozen=True):
    """A downloaded state: the anchor, its file, what it was made of, and who sent it."""

    anchor: Anchor
    digest: str
    data: bytes
    listing: Listing
    donors: list[str]


async def fetch_state(
    member: Member, *, newer_than: int, bytes_max: float = math.inf, strange: bool = False
) -> Fetched:
    """Return a newer anchor than that version; raises `PeerError` when nobody can send one.

    A `strange` one may be of another region, where these hold states of their own.

    With `bytes_max` it raises `PeerRefused` where that, and the results since, are more bytes. What came is kept when
    this fails or is cancelled, and the next attempt goes on from there.
    """
    offers = await _ask_around(member, newer_than, strange=strange)
    mine = await member.store.resume_partial()
    chosen = _choose(member, offers, mine)
    if _to_fetch_bytes(member, chosen, mine) > bytes_max:
        raise PeerRefused("the results of the rounds since are fewer bytes than the state")
    partials: list[Partial] = []

    def check(offer: Offer) -> None:
        if not _listing(chosen, offer).fits() or _listing(chosen, offer).root() != chosen.root:
            raise PeerError("the offered pieces are not those of the snapshot")
        _meet(member, offer.fellows)

    async def open_(offer: Offer) -> Haul:
        partials.append(await member.store.begin_partial(_listing(chosen, offer)))
        return Haul(len(offer.digests), member.box.random, partials[0].have, member.me)

    async def put(index: int, data: memoryview) -> None:
        await partials[0].put(index, data)

    addresses = tuple(member.links.transport.addresses())[:ADDRESSES_MAX]
    errand = Errand(member, FetchPieces(chosen.version, chosen.root, addresses), check, open_, put)
    await _gather(errand, lambda: _sources(member, offers, chosen))
    assert errand.haul is not None
    data = await partials[0].whole()
    try:
        anchor, digest = await _checked(member, data, chosen)
    except PeerError as error:
        await member.store.drop_partial()
        for donor, snapshots in offers.items():
            if any(offered.root == chosen.root and offered.whole for offered in snapshots):
                blame(member, donor, error)
        raise
    return Fetched(anchor, digest, data, partials[0].listing, [short(donor) for donor in errand.haul.donors])


def _meet(member: Member, fellows: tuple[Fellow, ...]) -> None:
    """Remember others who are getting what we are getting; a donor may name a few."""
    if len(fellows) > FELLOWS_MAX or not all(len(f.peer) == 32 and _are_addresses(f.addresses) for f in fellows):
        raise PeerError("it names too many fellows, or some that are none")
    for fellow in fellows:
        peer = PeerId(fellow.peer)
        if peer != member.me:
            member.links.contacts.setdefault(peer, fellow.addresses)
            member.downloads.fellows[peer] = None


def _listing(chosen: Snapshot, offer: Offer) -> Listing:
    return Listing(chosen.version, chosen.state, chosen.size_bytes, offer.digests)


async def _ask_around(member: Member, newer_than: int, *, strange: bool) -> dict[PeerId, tuple[Snapshot, ...]]:
    """Return who offers which snapshots; who is silent is not waited for long once another has answered."""
    offers: dict[PeerId, tuple[Snapshot, ...]] = {}
    problems: list[str] = []

    async def ask(donor: PeerId) -> None:
        try:
            async with member.links.talk(donor, "fetch") as stream:
                await say(stream, FetchState(newer_than))
                answer = await within(ANSWER_S_MAX, hear(stream, FetchTalk))
                new = _acceptable(member, answer, newer_than)
                offers[donor] = tuple([each for each in new if strange or usable(member, donor, each)])
        except PeerError as error:
            problems.append(blame(member, donor, error))

    donors = [donor for donor in _donors(member, ()) if donor not in member.downloads.distrusted]
    waiting = [asyncio.ensure_future(ask(donor)) for donor in donors[:ASKED_MAX]]
    try:
        deadline_s = _now_s() + ANSWER_S_MAX
        while not all(task.done() for task in waiting) and _now_s() < deadline_s:
            pending = [task for task in waiting if not task.done()]
            await asyncio.wait(pending, timeout=deadline_s - _now_s(), return_when=asyncio.FIRST_COMPLETED)
            if any(offered.whole for snapshots in offers.values() for offered in snapshots):
                deadline_s = min(deadline_s, _now_s() + ANSWER_S)
    finally:
        await cancelled(*waiting)
    for task in waiting:
        if not task.cancelled():
            task.result()
    if not any(offered.whole for snapshots in offers.values() for offered in snapshots):
        raise PeerLost("; ".join(problems) or "nobody has a newer state")
    return offers


def _acceptable(member: Member, answer: FetchMessage, newer_than: int) -> tuple[Snapshot, ...]:
    """Return what of a peer's offers could be used; raises `PeerError` for an offer that cannot be true."""
    match answer:
        case Snapshots(snapshots=snapshots) if len(snapshots) <= SNAPSHOTS_MAX:
            pass
        case Declined(why=why):
            raise PeerRefused(why)
        case _:
            raise PeerError("a list of snapshots was expected")
    for offered in snapshots:
        if not 0 < offered.size_bytes <= state_bytes(member) + HEADER_BYTES_MAX:
            raise PeerError(f"a snapshot of {say_bytes(offered.size_bytes)} cannot be one of this state")
        named = named_base(member, offered.version)
        if named and named != offered.state and member.channel.regional is None:
            raise PeerError(f"the offered state of version {offered.version} is not the one the log names")
    return tuple([s for s in snapshots if newer_than < s.version <= member.history.version])


def _choose(member: Member, offers: dict[PeerId, tuple[Snapshot, ...]], mine: Partial | None) -> Snapshot:
    """Return the snapshot that brings us to the newest version soonest; one that the log names is worth more."""
    holders: dict[str, list[Snapshot]] = {}
    for snapshots in offers.values():
        for offered in snapshots:
            if offered.whole:
                holders.setdefault(offered.root, []).append(offered)

    def cost(root: str) -> tuple[float, str]:
        offered = holders[root][0]
        again = 0 if offered.version + 1 in member.past else offered.size_bytes  # nobody vouches for it
        return (_to_fetch_bytes(member, offered, mine) + again) / len(holders[root]), root

    return holders[min(holders, key=cost)][0]


def _to_fetch_bytes(member: Member, offered: Snapshot, mine: Partial | None) -> float:
    """Return the bytes between us and the newest version by way of a snapshot."""
    missing = float(offered.size_bytes)
    if mine is not None and mine.listing.root() == offered.root:
        missing *= 1 - len(mine.have) / len(mine.listing.digests)
    return missing + (member.history.version - offered.version) * result_bytes(member)


def _sources(member: Member, offers: dict[PeerId, tuple[Snapshot, ...]], chosen: Snapshot) -> list[PeerId]:
    """Return whom to draw a snapshot from: who offered all of it, who offered a part, who may have one by now."""
    ranked: dict[PeerId, None] = {}
    for whole in (True, False):
        for donor, snapshots in offers.items():
            if any(s.root == chosen.root and s.whole == whole for s in snapshots):
                ranked[donor] = None
    fellows = [peer for peer in member.downloads.fellows if peer not in ranked]
    # Who did not answer yet, or had nothing at all to offer: perhaps a joiner like us, which began just now.
    others = [peer for peer in _donors(member, (), shuffled=False)[:ASKED_MAX] if not offers.get(peer)]
    return list(ranked | dict.fromkeys(fellows) | dict.fromkeys(others))


async def _checked(member: Member, data: bytes, chosen: Snapshot) -> tuple[Anchor, str]:
    """Return the anchor in downloaded bytes and its digest, refusing one that does not fit the model or the log."""

    def read() -> tuple[Anchor, str, bool]:
        anchor, digest = read_anchor(data, "downloaded state")
        return anchor, digest, all(np.isfinite(vector).all() for vector in anchor.vectors().values())

    try:
        anchor, digest, finite = await member.aside(read, vectors=4)
    except LocalError as error:
        raise PeerError(error.what) from error
    if anchor.version != chosen.version or _form(anchor) != _form_of(member, chosen.version):
        raise PeerError("the downloaded state does not fit this model")
    if not finite:
        raise PeerError("the downloaded state holds values that are not finite")
    named = named_base(member, anchor.version) if member.channel.regional is None else chosen.state
    if named and named != digest:
        raise PeerError("the downloaded state is not the one the log names")
    return anchor, digest


def _form(anchor: Anchor) -> dict[str, tuple[object, ...]]:
    return {name: (vector.shape, vector.dtype) for name, vector in anchor.vectors().items()}


def _form_of(member: Member, version: int) -> dict[str, tuple[object, ...]]:
    """Return the form of an anchor of this model: directions are of one side of a matrix or of the other."""
    form, factors = _form(member.anchor), member.factors
    if factors is None:
        return form
    size = factors.left_size if member.channel_of(version).holds(version) else factors.basis_size
    return form | {BASIS: ((size,), np.dtype(np.float32))}


def _donors(member: Member, first: tuple[bytes, ...], *, shuffled: bool = True) -> list[PeerId]:
    """Return whom to ask: the likeliest first, each group in random order so that load spreads."""
    likely = [PeerId(p) for p in first if p != member.me]
    known = {member.me, *first}
    rest = [PeerId(p) for p in sorted(member.history.members) if p not in known]
    if shuffled:
        member.box.random.shuffle(likely)
        member.box.random.shuffle(rest)
    donors = likely + rest
    if member.broker not in donors and member.broker != member.me:
        donors.append(member.broker)
    return donors


# how much, and whether it can be done


def result_bytes(member: Member) -> int:
    """Return about the size of one round's result."""
    recipe = member.run.recipe
    if not isinstance(recipe.control, Nobody):
        return wire_bytes(member.channel_of(member.history.version).what.merged(), member.engine.size)
    part = shares(recipe)
    mean = {
        name: sum(wire_bytes(recipe.channel[name].what.merged(), unit.grid.size) for unit in units) / len(units)
        for name, units in member.units.items()
    }
    return int(sum(part[name] * size_bytes for name, size_bytes in mean.items()))


def state_bytes(member: Member) -> int:
    """Return the size of the state without the header of its file; where it has two sizes in turn, the larger."""
    vectors = (vector for name, vector in member.anchor.vectors().items() if name != BASIS)
    basis = 0 if member.factors is None else max(member.factors.left_size, member.factors.basis_size)
    return sum(vector.nbytes for vector in vectors) + 4 * basis


def tell_if_too_slow(member: Member) -> None:
    """Say, once while we are behind, that more comes with every round than we can fetch in the time it takes."""
    downloads, version = member.downloads, member.history.version
    if downloads.began_s is None or version < downloads.began_version + 2 or downloads.told_slow:
        return
    round_s = (_now_s() - downloads.began_s) / (version - downloads.began_version)
    rate, result, state = downloads.rate_bytes_s, result_bytes(member), state_bytes(member)
    if rate <= 0 or result / rate < round_s:
        return
    downloads.told_slow = True
    why = (
        f"this machine receives {say_bytes(rate)} a second. The state has {say_bytes(state)}, which takes "
        f"{state / rate:.0f} s. Meanwhile the others finish a round every {round_s:.0f} s, and each adds a result of "
        f"{say_bytes(result)}, which takes {result / rate:.0f} s: it falls further behind. "
        f"At least {say_bytes(result / round_s)} a second are needed"
    )
    behind = version - member.anchor.version
    member.box.journal.write(events.CatchUpTooSlow(version=member.anchor.version, behind=behind, why=why))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
