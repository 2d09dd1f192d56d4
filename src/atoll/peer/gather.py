"""Pieces on streams: one side gathers them from many donors at once, the other serves them.

    asker                               donor
    FetchPieces or FetchResult    ->
                                  <-    Offer: digests, and what is here
    Want 7 3 12                   ->
                                  <-    Chunk 7, Chunk 3, Have 40 41, Chunk 12
    Cancel 12                     ->    (somebody else was faster)

Which piece to ask whom for is decided in `pieces`; here are the tasks that carry it out. Every piece is checked as
it comes. Who sends a wrong one is named in the journal and not asked again; who vanishes or declines is no wrongdoer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from blake3 import blake3

from atoll import journal as events
from atoll.errors import PeerError, PeerLost, PeerRefused
from atoll.net.identity import short
from atoll.net.transport import Malformed, PeerId, Stream
from atoll.peer.desk import Changes
from atoll.peer.links import cancelled, hear, say, within
from atoll.peer.member import Member
from atoll.peer.messages import Cancel, Chunk, Declined, Fellow, FetchPieces, FetchResult, FetchTalk, Have, Offer, Want
from atoll.peer.pieces import WINDOW_MAX, Haul
from atoll.swarm.bits import bits_of, places_of

DONORS_MAX = 16
"""Donors one download draws from at once."""
PIECES_PER_DONOR = 4
"""Fewer donors than that are asked for something small."""
TICK_S = 1.0
"""How often a donor that owes something is looked at, if nothing moves."""
LOOK_S = 2.0
LOOK_S_MIN = 0.1
"""How often new donors are looked for: seldom, and at first often, for those who begin with us."""
ASK_AGAIN_S = 5.0
"""How long a donor that could not help is left alone."""
STALL_S = 30.0
"""How long pieces that nobody has are waited for."""
OWED_MAX = 2 * WINDOW_MAX
"""Pieces an asker may want at once."""


class Source(Protocol):
    """What a donor serves."""

    @property
    def digests(self) -> tuple[bytes, ...]: ...

    def here(self) -> dict[int, None] | None:
        """Return the pieces that are here in the order in which they came; None: all."""

    async def piece(self, index: int) -> bytes | None: ...


# the donor's side


@dataclass
class _Caller:
    """What somebody who draws from us wants."""

    count: int
    wanted: dict[int, None] = field(default_factory=dict)
    told: int = 0
    """How many of the pieces that are here it has heard of."""
    over: PeerError | None = None
    changes: Changes = field(default_factory=Changes)

    async def listen(self, stream: Stream) -> None:
        """Take in what is wanted, until the other side ends it or does something wrong."""
        try:
            while True:
                match await hear(stream, FetchTalk):
                    case Want(pieces=pieces):
                        self.wanted.update(dict.fromkeys(pieces))
                        if len(self.wanted) > OWED_MAX or not all(0 <= index < self.count for index in pieces):
                            raise PeerError("it wants pieces that do not exist, or too many at once")
                    case Cancel(pieces=pieces):
                        for index in pieces:
                            self.wanted.pop(index, None)
                    case _:
                        raise PeerError("pieces must be wanted or called off, nothing else")
                self.changes.notify()
        except PeerError as error:
            self.over = error
            self.changes.notify()


async def serve(
    member: Member,
    stream: Stream,
    source: Source,
    watchers: list[Callable[[], None]],
    fellows: tuple[Fellow, ...] = (),
) -> None:
    """Send pieces as they are wanted, and say what more there is, until the other side has had enough."""
    here = source.here()
    caller = _Caller(len(source.digests))
    listening = asyncio.ensure_future(caller.listen(stream))
    watchers.append(caller.changes.notify)
    try:
        bits = b"" if here is None else bits_of(here, caller.count)
        await say(stream, Offer(source.digests, bits, fellows))
        caller.told = caller.count if here is None else len(here)
        while await caller.changes.until(lambda: caller.over or caller.wanted or _news(source, caller.told)):
            if caller.over is not None:
                raise caller.over
            if news := _news(source, caller.told):
                await say(stream, Have(news))
                caller.told += len(news)
            elif not await _send_next(member, stream, source, caller):
                return
    finally:
        watchers.remove(caller.changes.notify)
        await cancelled(listening)


def _news(source: Source, told: int) -> tuple[int, ...]:
    """Return what has come since we last said what is here."""
    here = source.here()
    if here is None or told >= len(here):
        return ()  # what is whole now was told piece by piece before it was
    return tuple(islice(here, told, None))


async def _send_next(member: Member, stream: Stream, source: Source, caller: _Caller) -> bool:
    """Send what was wanted first; return whether it was here, and sound."""
    index = next(iter(caller.wanted))
    piece = await source.piece(index)
    if piece is None or blake3(piece).digest() != source.digests[index]:  # our disk's fault is not to look like a lie
        await say(stream, Declined(f"piece {index} is not here any more, or damaged"))
        return False
    if caller.wanted.pop(index, index) is None:  # still wanted
        await within(member.silence_s_max, say(stream, Chunk(index, memoryview(piece))))
    return True


# the asker's side


class Errand:
    """One download: what is asked for, what came, from whom, and where the pieces go."""

    def __init__(
        self,
        member: Member,
        ask: FetchPieces | FetchResult,
        check: Callable[[Offer], None],
        open_: Callable[[Offer], Awaitable[Haul]],
        put: Callable[[int, memoryview], Awaitable[None]],
    ) -> None:
        """`check` raises `PeerError` for a wrong offer; `open_` is called with the first right one."""
        self.member = member
        self.ask = ask
        self.haul: Haul | None = None
        self.digests: tuple[bytes, ...] = ()
        self.got_bytes = 0
        self.problems: dict[PeerId, str] = {}
        self.changes = Changes()
        self.moves = 0
        self.ended = 0
        """How often we stopped drawing from somebody."""
        self._check = check
        self._open = open_
        self._put = put
        self._opening = asyncio.Lock()

    @property
    def complete(self) -> bool:
        return self.haul is not None and self.haul.complete

    def notify(self) -> None:
        """Say that something moved."""
        self.moves += 1
        self.changes.notify()

    async def wait(self, limit_s: float, claim: Callable[[], bool]) -> None:
        """Wait until something is so, but not for longer than the limit."""
        try:
            async with asyncio.timeout(limit_s):
                await self.changes.until(claim)
        except TimeoutError:
            pass

    async def accept(self, offer: Offer) -> Haul:
        """Return the books, opened with the first offer."""
        self._check(offer)
        async with self._opening:
            if self.haul is None:
                self.haul = await self._open(offer)
                self.digests = offer.digests
        return self.haul

    async def take(self, haul: Haul, donor: PeerId, chunk: Chunk) -> None:
        """Keep a piece if it is one we wait for and what it claims to be."""
        if not haul.expects(donor, chunk.index):
            raise PeerError(f"piece {chunk.index} was not asked for")
        if blake3(chunk.data).digest() != self.digests[chunk.index]:
            raise PeerError(f"piece {chunk.index} does not match its digest")
        self.got_bytes += len(chunk.data)
        if chunk.index not in haul.have:
            await self._put(chunk.index, chunk.data)
        haul.got(donor, chunk.index, _now_s())

    def donors_max(self) -> int:
        """Return how many donors are worth asking at once."""
        pieces = DONORS_MAX * PIECES_PER_DONOR if self.haul is None else self.haul.count
        return max(2, min(DONORS_MAX, pieces // PIECES_PER_DONOR))


async def gather(errand: Errand, likely: Callable[[], Sequence[PeerId]], look: Callable[[], None]) -> None:
    """Draw from donors until all is here; raises `PeerLost` when nobody is left who could help.

    `likely` returns whom to ask, best first; `look` is called now and then. Cancelled: pieces that came are kept.
    """
    running: dict[PeerId, asyncio.Task[None]] = {}
    asked_s: dict[PeerId, float] = {}
    began_s = hope_s = _now_s()
    async with asyncio.TaskGroup() as tasks:
        while not errand.complete:
            running = {donor: task for donor, task in running.items() if not task.done()}
            for donor in _idle(errand, likely(), running, asked_s):
                asked_s[donor] = _now_s()
                running[donor] = tasks.create_task(_draw(errand, donor))
            if _hopes(errand, likely()):
                hope_s = _now_s()
            if not running or _now_s() - hope_s > STALL_S:
                break
            await errand.wait(min(LOOK_S, LOOK_S_MIN + (_now_s() - began_s) / 4), _ended(errand))
            look()
        for task in running.values():
            task.cancel()
    if not errand.complete:
        raise PeerLost("; ".join(errand.problems.values()) or "there is nobody else")


def _hopes(errand: Errand, likely: Sequence[PeerId]) -> bool:
    """Return whether somebody has all that is lacking, or may: who declined or could not be reached is asked again."""
    if errand.haul is not None:
        return not errand.haul.hopeless()
    return any(donor not in errand.problems and donor not in errand.member.downloads.distrusted for donor in likely)


def _idle(
    errand: Errand, likely: Sequence[PeerId], running: dict[PeerId, asyncio.Task[None]], asked_s: dict[PeerId, float]
) -> list[PeerId]:
    """Return whom to begin to draw from now."""
    now_s, distrusted = _now_s(), errand.member.downloads.distrusted
    free = (
        donor
        for donor in likely
        if donor not in running and donor not in distrusted and now_s >= asked_s.get(donor, -ASK_AGAIN_S) + ASK_AGAIN_S
    )
    return list(islice(free, max(0, errand.donors_max() - len(running))))


def _ended(errand: Errand) -> Callable[[], bool]:
    """Return the claim that all is here, or that we stopped drawing from somebody."""
    seen = errand.ended
    return lambda: errand.complete or errand.ended != seen


def _moved(errand: Errand) -> Callable[[], bool]:
    """Return the claim that something has moved since now."""
    seen = errand.moves
    return lambda: errand.moves != seen


async def _draw(errand: Errand, donor: PeerId) -> None:
    """Get from one donor what it is asked for; whatever it does wrong stays here."""
    member = errand.member
    try:
        async with member.links.talk(donor, "fetch") as stream:
            await say(stream, errand.ask)
            offer = await offered(stream, member.silence_s_max)
            haul = await errand.accept(offer)
            haul.join(donor, places_of(offer.here, haul.count) if offer.here else None)
            try:
                await _draw_from(errand, haul, donor, stream)
            finally:
                haul.leave(donor)
    except PeerError as error:
        errand.problems[donor] = blame(member, donor, error)
    finally:
        errand.ended += 1
        errand.notify()


async def _draw_from(errand: Errand, haul: Haul, donor: PeerId, stream: Stream) -> None:
    listening = asyncio.ensure_future(_listen(errand, haul, donor, stream))
    limit_s = errand.member.silence_s_max
    try:
        while not haul.complete:
            wants, off = haul.turn(donor, _now_s())
            if off:
                await say(stream, Cancel(tuple(off)))
            if wants:
                await say(stream, Want(tuple(wants)))
            await errand.wait(min(TICK_S, limit_s), _moved(errand))
            if listening.done():
                listening.result()
            if haul.silent_s(donor, _now_s()) > limit_s:
                raise PeerLost(f"nothing moved for {limit_s:.0f} s")
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def _listen(errand: Errand, haul: Haul, donor: PeerId, stream: Stream) -> None:
    """Take in what a donor sends, until something is wrong with it."""
    try:
        while True:
            match await hear(stream, FetchTalk):
                case Chunk() as chunk:
                    await errand.take(haul, donor, chunk)
                case Have(pieces=pieces):
                    if not all(0 <= index < haul.count for index in pieces):
                        raise PeerError("it says it has pieces that do not exist")
                    haul.grow(donor, pieces)
                case Declined(why=why):
                    raise PeerRefused(why)
                case _:
                    raise PeerError("a piece was expected")
            errand.notify()
    finally:
        errand.notify()


async def offered(stream: Stream, limit_s: float) -> Offer:
    """Return what a donor offers; raises `PeerRefused` when it declines."""
    match await within(limit_s, hear(stream, FetchTalk)):
        case Offer() as offer:
            return offer
        case Declined(why=why):
            raise PeerRefused(why)
        case _:
            raise PeerError("an offer was expected")


def blame(member: Member, donor: PeerId, error: PeerError) -> str:
    """Lay what a donor did wrong at its door; that it is gone, or does not have it, is no wrong. Return it in words."""
    if not isinstance(error, PeerLost | PeerRefused):
        member.downloads.distrusted[donor] = str(error)
        if not isinstance(error, Malformed):  # that is in the journal already: `links.talk`
            member.box.journal.write(events.MessageRefused(who=short(donor), why=f"fetch: {error}"))
    return f"{short(donor)}: {error}"


def _now_s() -> float:
    return asyncio.get_running_loop().time()
