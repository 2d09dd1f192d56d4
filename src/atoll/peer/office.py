"""The broker's office: carries out what `swarm.broker` decides, and nothing else.

It has one session per member and a clock tick a second. What it writes goes to the council, and comes back
when it is committed. Whether this peer holds the office is the council's matter too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from atoll import journal as events
from atoll.errors import PeerError, PeerLost
from atoll.net.identity import short
from atoll.net.ticket import ADDRESSES_MAX, is_address
from atoll.net.transport import PeerId, Stream
from atoll.net.wire import Wire
from atoll.peer.links import cancelled, hear, say, within
from atoll.peer.member import Member as Desk
from atoll.peer.member import unless
from atoll.spec.run import PROTOCOL
from atoll.swarm import broker as decisions
from atoll.swarm.log import Entry, Member, Record
from atoll.swarm.messages import Append, FromBroker, FromMember, Hello, Redirect, Refused
from atoll.swarm.raft import Raft
from atoll.swarm.state import Action, Arrived, Catch, Gone, Heard, Logged, Note, Said, Tell, Tick, Wake, Write

MemberTalk: Wire[FromMember] = Wire(FromMember)
TICK_S = 1.0
OUTBOX_MAX = 4096
"""Messages waiting for a member that does not read; one more and its session ends."""
HEARD_MAX = 1024
"""Messages heard and not yet decided on; beyond that members are not listened to."""
CATCH_UP_ENTRIES = 256
NAME_CHARS_MAX = 256
"""It goes into the log, and so to everybody."""
GREETING_S_MAX = 30.0
"""How long a visitor may take to introduce itself."""
LINGER_S = 20.0
"""After the farewell, how long members may take to close their streams."""


@dataclass(eq=False)
class _Session:
    """One member's open control stream."""

    peer: PeerId
    outbox: asyncio.Queue[FromBroker] = field(default_factory=lambda: asyncio.Queue(OUTBOX_MAX))


class Scribe(Protocol):
    """Whoever gets records into the log: the council."""

    raft: Raft

    async def propose(self, record: Record) -> None: ...


class Office:
    """The broker at work, for as long as this peer leads."""

    def __init__(self, member: Desk, scribe: Scribe, term: int) -> None:
        self._member = member
        self._box = member.box
        self._scribe = scribe
        self._sessions: dict[PeerId, _Session] = {}
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._room = asyncio.Semaphore(HEARD_MAX)
        self._closed = asyncio.Event()
        self._finished_s: float | None = None
        self._told_s: float | None = None
        now_s = asyncio.get_running_loop().time()
        self.broker, self._first = decisions.take_office(
            member.me,
            term,
            member.run,
            member.engine.tokens_per_sample,
            member.history,
            now_s,
            cold=not member.followed,
            bulks=member.bulks,
            whole=member.whole,
            rungs=member.rungs,
            plans=tuple(desk.plan for desk in member.desks.values() if desk.plan is not None),
        )

    def logged(self, entry: Entry) -> None:
        """Hear that an entry is committed."""
        self._heard.put_nowait(Logged(entry))

    async def run(self) -> None:
        """Hear, decide, act; until the run is over and the members have gone."""
        try:
            async with asyncio.TaskGroup() as tasks:
                ticking = tasks.create_task(self._tick())
                await self._carry_out(self._first)
                while not self._may_close():
                    heard = await self._heard.get()
                    if isinstance(heard, Said):
                        self._room.release()
                    await self._handle(heard)
                ticking.cancel()
        finally:
            self._closed.set()

    def _may_close(self) -> bool:
        """Return whether nobody needs us any more: all are gone, or had their time to go or to fetch the result."""
        now_s = asyncio.get_running_loop().time()
        if not self.broker.history.finished:
            return False
        self._finished_s = self._finished_s or now_s
        others = [p for p in self._sessions if p != self._box.transport.id]
        if self.broker.told:
            self._told_s = self._told_s or now_s
            return not others or now_s - self._told_s > LINGER_S
        return now_s - self._finished_s > self.broker.run.upkeep.patience_s_max

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._heard.put_nowait(Tick())

    async def _handle(self, heard: Heard) -> None:
        self.broker, actions = decisions.step(self.broker, heard, asyncio.get_running_loop().time())
        await self._carry_out(actions)

    async def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Write(record=record):
                    await self._scribe.propose(record)
                case Tell(peer=peer, message=message):
                    self._tell(PeerId(peer), message)
                case Catch(peer=peer, next_index=next_index):
                    # What is committed but not yet decided on here follows by itself.
                    end = self.broker.history.next_index
                    for first in range(next_index, end, CATCH_UP_ENTRIES):
                        entries = self._scribe.raft.log.slice(first, min(end, first + CATCH_UP_ENTRIES))
                        self._tell(PeerId(peer), Append(entries))
                case Note(event=event):
                    self._box.journal.write(event)
                case Wake(at_s=at_s):
                    asyncio.get_running_loop().call_at(at_s, self._heard.put_nowait, Tick())

    def _tell(self, peer: PeerId, message: FromBroker) -> None:
        session = self._sessions.get(peer)
        if session is None:
            return
        if session.outbox.full():
            self._drop(session, "it does not read what we send")
        else:
            session.outbox.put_nowait(message)

    def _drop(self, session: _Session, why: str) -> None:
        """End a session that is still the member's present one."""
        if self._sessions.get(session.peer) is session:
            del self._sessions[session.peer]
            self._heard.put_nowait(Gone(session.peer, why))

    async def attend(self, peer: PeerId, stream: Stream) -> None:
        """Serve one member's control stream from its greeting to its end."""
        hello = await within(GREETING_S_MAX, hear(stream, MemberTalk))
        if not isinstance(hello, Hello):
            raise PeerError("a control stream must begin with a greeting")
        _check_greeting(hello)
        if hello.epoch > self.broker.term:  # it has followed a broker that came after us
            await say(stream, Redirect(b"", ()))
            return
        refusal = self._objection(hello)
        if refusal is not None:
            self._box.journal.write(events.JoinRefused(who=short(peer), why=refusal.why))
            await say(stream, refusal)
            return
        session = _Session(peer)
        self._sessions[peer] = session
        self._heard.put_nowait(Arrived(Member(peer, hello.addresses, hello.name), hello.next_index))
        writing = asyncio.ensure_future(self._write(session, stream))
        why = "it closed the stream"
        try:
            await unless(self._listen(peer, stream), self._closed.wait())
        except PeerLost as lost:
            why = str(lost)
        finally:
            self._drop(session, why)
            await cancelled(writing)

    async def _listen(self, peer: PeerId, stream: Stream) -> None:
        while True:
            said = Said(peer, await hear(stream, MemberTalk))
            await self._room.acquire()  # who talks faster than we decide has to wait
            self._heard.put_nowait(said)

    def _objection(self, hello: Hello) -> Refused | None:
        if hello.protocol != PROTOCOL:
            why = f"you speak protocol {hello.protocol}, this run speaks {PROTOCOL}"
            return Refused(why, "install the same version of Atoll as the organiser")
        if hello.run != self._member.run_id:
            return Refused(f"this is run {self._member.run_id}, not {hello.run}", "ask the organiser for a new ticket")
        if hello.next_index > len(self._scribe.raft.log):
            why = "you know more of the log than the council does"
            return Refused(why, "the council's disks are older than yours: have them restored, or start a new run")
        return None

    async def _write(self, session: _Session, stream: Stream) -> None:
        try:
            while True:
                await say(stream, await session.outbox.get())
        except PeerLost as lost:
            self._drop(session, str(lost))


def _check_greeting(hello: Hello) -> None:
    """Refuse what nobody honest would say of itself."""
    if len(hello.addresses) > ADDRESSES_MAX or not all(is_address(address) for address in hello.addresses):
        raise PeerError("a greeting with too many addresses, or with something that is none")
    if len(hello.name) > NAME_CHARS_MAX:
        raise PeerError("a greeting with too long a name")
    if hello.next_index < 0:
        raise PeerError("a greeting from before the log began")
