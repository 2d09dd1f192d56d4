"""The broker's office: carries out what `swarm.broker` decides, and nothing else.

It keeps the log (each record is on disk before anybody hears of it), one session per member, and a
clock tick a second. Whether this peer holds the office is the council's matter; today it is the
organiser's.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from atoll import journal as events
from atoll.errors import PeerError, PeerLost
from atoll.net.identity import short
from atoll.net.ticket import ADDRESSES_MAX, is_address
from atoll.net.transport import PeerId, Stream
from atoll.net.wire import Wire
from atoll.peer.box import Box
from atoll.peer.links import hear, say
from atoll.peer.store import Store
from atoll.spec.run import PROTOCOL, Run
from atoll.swarm import broker as decisions
from atoll.swarm.log import Entry, History, Member, apply
from atoll.swarm.messages import Append, FromBroker, FromMember, Hello, Refused
from atoll.swarm.state import Arrived, Catch, Gone, Heard, Logged, Note, Said, Tell, Tick, Write

MemberTalk: Wire[FromMember] = Wire(FromMember)
TICK_S = 1.0
OUTBOX_MAX = 4096
"""Messages waiting for a member that does not read; one more and its session ends."""
HEARD_MAX = 1024
"""Messages heard and not yet decided on; beyond that members are not listened to."""
CATCH_UP_ENTRIES = 256
NAME_CHARS_MAX = 256
"""It goes into the log, and so to everybody."""
LINGER_S = 20.0
"""After the farewell, how long members may take to close their streams."""


@dataclass(eq=False)
class _Session:
    """One member's open control stream."""

    peer: PeerId
    outbox: asyncio.Queue[FromBroker] = field(default_factory=lambda: asyncio.Queue(OUTBOX_MAX))


class Office:
    """The broker at work."""

    def __init__(self, box: Box, store: Store, run: Run, run_id: str, tokens_per_sample: int, log: list[Entry]) -> None:
        self._box = box
        self._store = store
        self._run_id = run_id
        self._log = log
        self._sessions: dict[PeerId, _Session] = {}
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._room = asyncio.Semaphore(HEARD_MAX)
        self._finished_s: float | None = None
        self._told_s: float | None = None
        history = History()
        for entry in log:
            history = apply(history, entry)
        now_s = asyncio.get_running_loop().time()
        self.broker = decisions.take_office(box.transport.id, run, tokens_per_sample, history, now_s)

    async def run(self) -> None:
        """Hear, decide, act; until the run is over and the members have gone."""
        async with asyncio.TaskGroup() as tasks:
            ticking = tasks.create_task(self._tick())
            while not self._may_close():
                heard = await self._heard.get()
                if isinstance(heard, Said):
                    self._room.release()
                await self._handle(heard)
            ticking.cancel()

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
        for action in actions:
            match action:
                case Write(record=record):
                    entry = Entry(len(self._log), record)
                    await self._store.append([entry], durable=True)
                    self._log.append(entry)
                    await self._handle(Logged(entry))
                case Tell(peer=peer, message=message):
                    self._tell(PeerId(peer), message)
                case Catch(peer=peer, next_index=next_index):
                    for first in range(next_index, len(self._log), CATCH_UP_ENTRIES):
                        self._tell(PeerId(peer), Append(tuple(self._log[first : first + CATCH_UP_ENTRIES])))
                case Note(event=event):
                    self._box.journal.write(event)

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
        hello = await hear(stream, MemberTalk)
        if not isinstance(hello, Hello):
            raise PeerError("a control stream must begin with a greeting")
        _check_greeting(hello)
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
            while True:
                said = Said(peer, await hear(stream, MemberTalk))
                await self._room.acquire()  # who talks faster than we decide has to wait
                self._heard.put_nowait(said)
        except PeerLost as lost:
            why = str(lost)
        finally:
            self._drop(session, why)
            writing.cancel()
            await asyncio.wait([writing])

    def _objection(self, hello: Hello) -> Refused | None:
        if hello.protocol != PROTOCOL:
            why = f"you speak protocol {hello.protocol}, this run speaks {PROTOCOL}"
            return Refused(why, "install the same version of Atoll as the organiser")
        if hello.run != self._run_id:
            return Refused(f"this is run {self._run_id}, not {hello.run}", "ask the organiser for a new ticket")
        if hello.next_index > len(self._log):
            why = "you know more of the log than the organiser does"
            return Refused(why, "the organiser's disk is older than yours: have it restored, or start a new run")
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
