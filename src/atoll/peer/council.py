"""This peer's seat in the council, or its place beside it: carries out what `swarm.raft` decides.

One inbox, handled in order: ticks, what council members say, what our broker proposes, what the broker we follow
told us. Votes and entries are on disk before anybody hears of them. Committed entries go to the desk, whoever we
are. When we lead, the broker's office opens here; when we do not, it closes, and its visitors are sent on.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from atoll.errors import PeerError, PeerLost
from atoll.net.transport import PeerId, Stream
from atoll.net.wire import Wire
from atoll.peer.links import cancelled, hear, say, within
from atoll.peer.member import Member
from atoll.peer.office import GREETING_S_MAX, MemberTalk, Office
from atoll.spec.run import canonical
from atoll.swarm.log import CouncilChanged, CouncilReformed, Entry, Record, SettingsChanged
from atoll.swarm.messages import Hail, Redirect
from atoll.swarm.raft import (
    TICK_S,
    Action,
    Commit,
    Follow,
    FromCouncil,
    Heard,
    Keep,
    Lead,
    Learned,
    Lost,
    Propose,
    Raft,
    Received,
    Reform,
    Save,
    Send,
    Tick,
    sound,
    step,
)
from atoll.swarm.state import Note

CouncilTalk: Wire[FromCouncil | Hail] = Wire(FromCouncil | Hail)
OUTBOX_MAX = 64
"""Messages waiting for one council member; older ones are dropped, for newer ones say more."""
INBOX_MAX = 1024
HAILED_MAX = 64
"""Members of the open round that a new broker looks up by itself: not all know yet that they have lost the old one."""


class Council:
    """One peer's log, and its part in agreeing on it."""

    def __init__(self, member: Member, raft: Raft) -> None:
        self.raft = raft
        self.office: Office | None = None
        self._member = member
        self._inbox: asyncio.Queue[Heard] = asyncio.Queue(INBOX_MAX)
        self._outboxes: dict[PeerId, asyncio.Queue[FromCouncil | Hail]] = {}
        self._unsynced = False
        self._tasks: asyncio.TaskGroup | None = None
        self._office_task: asyncio.Task[None] | None = None
        self._speakers: list[asyncio.Task[None]] = []

    # the running of it

    async def run(self) -> None:
        """Hear, decide, act; until the run is over for us and nobody needs our office."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            duties = [tasks.create_task(self._tick()), tasks.create_task(self._attend_inbox())]
            await self._member.changes.until(self._may_close)
            await self._close_office()
            for task in (*duties, *self._speakers):
                task.cancel()

    def _may_close(self) -> bool:
        """Return whether we were told to go, and no office is open or the open one is done."""
        done = self._office_task is None or self._office_task.done()
        return self._member.farewell and done

    async def _tick(self) -> None:
        """Let time pass for those who have a seat."""
        while True:
            await self._member.changes.until(lambda: self.raft.stands)
            await self._inbox.put(Tick())
            await asyncio.sleep(TICK_S)

    async def _attend_inbox(self) -> None:
        while True:
            await self._handle(await self._inbox.get())

    # what others tell us

    async def listen(self, peer: PeerId, stream: Stream) -> None:
        """Hear a council member out."""
        while True:
            message = await hear(stream, CouncilTalk)
            if not isinstance(message, Hail) and not sound(message):
                raise PeerError("a message that no council member would send")
            if not self._has_a_say(peer):
                # Whose log may lag, because no broker sends it, cannot know who was let in since.
                if self._member.attended and peer not in self._member.links.contacts:
                    raise PeerError("it has no seat in the council")
            elif isinstance(message, Hail):
                self._answer_hail(peer, message)
            else:
                await self._inbox.put(Received(peer, message))

    def _answer_hail(self, peer: PeerId, hail: Hail) -> None:
        """Try whoever says that it leads: what is true of it we shall see there."""
        if hail.epoch >= max(self.raft.term, self._member.history.epoch) and self.office is None:
            self._member.summon(peer)

    def _has_a_say(self, peer: PeerId) -> bool:
        """Return whether to listen to a peer: it has a seat, or had one as far as is final, or began the run.

        Who is about to lose its seat is needed until that is final: others may not know of it, and choose it. A member
        without a seat could have the log say anything; one whose seat we have not heard of yet is heard when we have
        (a majority of those that were there before knows of every seat that is final).
        """
        if not self.raft.council:  # we know nothing of the log yet, or lost it: whom our ticket names may teach us
            return peer in self._member.links.contacts
        return self.raft.log.seated(peer, self.raft.committed) or peer == self._member.history.organiser

    async def attend(self, peer: PeerId, stream: Stream) -> None:
        """Let a member into our office, or say where the broker is."""
        if self.office is not None:
            await self.office.attend(peer, stream)
            return
        await within(GREETING_S_MAX, hear(stream, MemberTalk))
        leader = self._leader()
        if leader in (self._member.me, peer):
            leader = PeerId(b"")
        await say(stream, Redirect(leader, self._member.links.contacts.get(leader, ())))

    def _leader(self) -> PeerId:
        """Return who leads, as far as we can tell from its own voice; empty: we do not hear anybody lead."""
        if self.raft.stands:
            return PeerId(self.raft.leader)
        return self._member.broker if self._member.attended else PeerId(b"")

    async def learn(self, entries: tuple[Entry, ...]) -> None:
        """Take in committed entries that the broker told us; raises `PeerError` for what does not add up."""
        fresh = tuple(e for e in entries if e.index >= self.raft.committed)
        self._member.check(fresh)
        if fresh:
            await self._inbox.put(Learned(fresh))
            await self._member.changes.until(lambda: self._member.history.next_index > fresh[-1].index)

    def lose(self, peer: PeerId) -> None:
        """Hear that the link to a peer broke."""
        if peer == self.raft.leader and not self._inbox.full():
            self._inbox.put_nowait(Lost(peer))

    async def adopt(self, entries: tuple[Entry, ...]) -> None:
        """Make our log that of a peer that knows more, before a re-forming; what is committed here is in both."""
        log = self.raft.log.with_(entries)
        await self._member.store.append(list(entries[self.raft.committed :]), durable=True)
        self.raft = replace(self.raft, log=log)

    async def reform(self, record: CouncilReformed, term: int) -> None:
        """Put a council that the organiser signed in place of the old one."""
        await self._inbox.put(Reform(record, term))

    # what we decide

    async def propose(self, record: Record) -> None:
        """Ask for a record in the log; the office hears of it when it is committed."""
        await self._inbox.put(Propose(record))

    async def _handle(self, heard: Heard) -> None:
        try:
            self.raft, actions = step(self.raft, heard, self._member.box.random.random())
        except PeerError as error:
            who = PeerId(heard.peer) if isinstance(heard, Received) else self._member.broker
            self._member.links.refuse(who, f"council: {error}")
            return
        for action in actions:
            await self._act(action)

    async def _act(self, action: Action) -> None:
        member = self._member
        match action:
            case Save(term=term, vote=vote):
                await member.store.keep_ballot(term, vote)
            case Keep(entries=entries):
                await member.store.append(list(entries), durable=False)
                self._unsynced = True
                if member.me in self.raft.council:
                    await self._sync()
            case Send(peer=peer, message=message):
                await self._sync()
                self._send(PeerId(peer), message)
            case Commit(entries=entries):
                for entry in entries:
                    member.learn(entry)
                    if self.office is not None:
                        self.office.logged(entry)
                member.changes.notify()
                if any(isinstance(entry.record, SettingsChanged) for entry in entries):
                    await member.store.keep_run(canonical(member.run))
            case Lead(term=term):
                await self._open_office(term)
            case Follow(leader=leader):
                await self._close_office()
                if leader:
                    member.summon(PeerId(leader))
                member.changes.notify()
            case Note(event=event):
                member.box.journal.write(event)

    async def _sync(self) -> None:
        """Have every entry we wrote on disk before we act on it."""
        if self._unsynced:
            await self._member.store.sync_log()
            self._unsynced = False

    async def _open_office(self, term: int) -> None:
        assert self._tasks is not None
        await self._close_office()
        member = self._member
        self.office = Office(member, self, term)
        self._office_task = self._tasks.create_task(self._run_office(self.office))
        member.broker = member.me
        member.changes.notify()
        linked = [peer for peer in member.links.contacts if member.links.linked(peer)]
        waiting = member.history.open.members[:HAILED_MAX] if member.history.open is not None else ()
        for peer in dict.fromkeys((*linked, *map(PeerId, waiting))):  # all the others will find us by themselves
            if peer != member.me:
                self._send(peer, Hail(term))

    async def _run_office(self, office: Office) -> None:
        await office.run()
        self._member.changes.notify()

    async def _close_office(self) -> None:
        """Send the office's visitors away; another broker takes over."""
        task, self._office_task, self.office = self._office_task, None, None
        if task is not None:
            await cancelled(task)

    def _send(self, peer: PeerId, message: FromCouncil | Hail) -> None:
        assert self._tasks is not None
        if peer not in self._outboxes:
            self._outboxes[peer] = asyncio.Queue(OUTBOX_MAX)
            self._speakers.append(self._tasks.create_task(self._speak(peer, self._outboxes[peer])))
        outbox = self._outboxes[peer]
        if outbox.full():
            outbox.get_nowait()
        outbox.put_nowait(message)

    async def _speak(self, peer: PeerId, outbox: asyncio.Queue[FromCouncil | Hail]) -> None:
        """Keep a stream to a council member as long as there is something to say.

        What fails on a stream that was open already, perhaps to an earlier life of the peer, is said anew on another.
        """
        message = await outbox.get()
        while True:
            said = 0
            try:
                async with self._member.links.talk(peer, "council") as stream:
                    while True:
                        await say(stream, message)
                        said += 1
                        message = await outbox.get()
            except PeerLost:
                if said:
                    continue
                self.lose(peer)
                while not outbox.empty():  # out of date by now
                    outbox.get_nowait()
                message = await outbox.get()


def founding(me: PeerId) -> Entry:
    """Return the first entry of a new log: its organiser alone is the council."""
    return Entry(0, CouncilChanged((me,)))
