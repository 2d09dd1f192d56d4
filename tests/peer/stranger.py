"""A peer that means no good: it opens any stream, says any bytes, and can even get itself counted in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from atoll.errors import PeerLost
from atoll.net.identity import Identity, short
from atoll.net.transport import Conn, PeerId, Stream, Traffic
from atoll.net.wire import Wire, encode
from atoll.peer.follow import BrokerTalk
from atoll.peer.links import TRAFFIC
from atoll.peer.messages import Accepted, Missing, PartHead, PartTalk
from atoll.sim.network import SimTransport
from atoll.sim.retell import Announced, announcements
from atoll.sim.scenario import World
from atoll.spec.run import PROTOCOL, identity
from atoll.swarm.log import Entry
from atoll.swarm.messages import Append, FromBroker, Hello, Plan, Standing, Welcome
from atoll.swarm.routes.shares import chunks_of

STRANGER = Identity.from_seed(b"\xff" * 32).peer
WHO = short(STRANGER)


class Stranger:
    """One connection to one victim, from somebody who has the ticket but no manners."""

    def __init__(self, world: World, door: SimTransport, victim: int = 0) -> None:
        self.world = world
        self.door = door
        self.victim: PeerId = world.hosts[victim].peer
        self.run_id = identity(world.scenario.run)
        self._conns: dict[PeerId, Conn] = {}

    async def open(self, tag: str, to: bytes | None = None) -> Stream:
        """Open a stream with any tag to the victim, or to another peer."""
        peer = PeerId(to) if to is not None else self.victim
        if peer not in self._conns:
            self._conns[peer] = await self.door.connect(peer, [self.world.network.address(peer)])
            self.connected(self._conns[peer])
        return await self._conns[peer].open(tag, TRAFFIC.get(tag, Traffic.CONTROL))

    def connected(self, conn: Conn) -> None:
        """Hear of a connection that we made."""

    async def send(self, tag: str, *messages: bytes | Struct, to: bytes | None = None) -> bool:
        """Say some messages on a new stream; return whether the victim then gave the stream up."""
        stream = await self.open(tag, to)
        try:
            for message in messages:
                await stream.send(message if isinstance(message, bytes) else encode(message))
            await stream.recv()
        except PeerLost:
            return True
        finally:
            stream.reset()
        return False

    async def ask(self, tag: str, message: Struct, wire: Wire[object], to: bytes | None = None) -> object:
        """Return the answer to one message."""
        stream = await self.open(tag, to)
        try:
            await stream.send(encode(message))
            return wire.decode(await stream.recv())
        finally:
            stream.reset()

    async def leave(self) -> None:
        """Hang up on everybody."""
        for conn in self._conns.values():
            await conn.close("bye")


class Spy(Stranger):
    """A stranger that joins as a member would, and then follows the log and the plans.

    As an owner it takes parts (and forgets them), so that rounds get as far as they would with an honest member.
    """

    control: Stream
    log: list[Entry]
    plan: Plan | None
    _taking: Sequence[asyncio.Task[None]] = ()

    async def join(self, anchor: str, *, version: int = 0) -> None:
        """Get on the roster; `anchor` is the digest we claim to hold of `version`."""
        self.log, self.plan = [], None
        self.control = await self.open("control")
        await self.say(Hello(self.run_id, PROTOCOL, 0, 0, tuple(self.door.addresses()), "spy"))
        welcome = BrokerTalk.decode(await self.control.recv())
        assert isinstance(welcome, Welcome)
        await self.say(Standing(version, anchor))

    def take_parts(self) -> None:
        """Accept whatever parts others bring, on their connections and on ours, from now on."""
        taking = [self._take_parts(), *(self._take_from(conn) for conn in self._conns.values())]
        self._taking = [asyncio.ensure_future(each) for each in taking]

    def connected(self, conn: Conn) -> None:
        if self._taking:
            self._taking = [*self._taking, asyncio.ensure_future(self._take_from(conn))]

    async def _take_parts(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._take_from(await self.door.accept()))

    async def _take_from(self, conn: Conn) -> None:
        try:
            while True:
                tag, stream = await conn.accept()
                if tag == "part":
                    await self._take_part(stream)
        except PeerLost:
            return

    async def _take_part(self, stream: Stream) -> None:
        head = PartTalk.decode(await stream.recv())
        assert isinstance(head, PartHead)
        assert self.plan is not None
        wanted = tuple(chunks_of(self.plan.shards, STRANGER))
        await stream.send(encode(Missing(wanted)))
        for _ in wanted:
            await stream.recv()
        await stream.send(encode(Accepted()))

    async def leave(self) -> None:
        for task in self._taking:
            task.cancel()
        self._taking = []
        await super().leave()

    async def say(self, message: Struct) -> None:
        await self.control.send(encode(message))

    async def until(self, claim: Callable[[], object]) -> None:
        """Listen to the broker until something is so."""
        while not claim():
            self._take(BrokerTalk.decode(await self.control.recv()))

    def _take(self, message: FromBroker) -> None:
        match message:
            case Append(entries=entries):
                self.log += entries
            case Plan() as plan:
                self.plan = plan
            case _:
                pass

    async def counted_in(self) -> tuple[Announced, Plan]:
        """Wait until a round that we are a member of is announced and planned."""
        await self.until(lambda: self.plan is not None and self._announced() is not None)
        announced = self._announced()
        assert announced is not None
        assert self.plan is not None
        return announced, self.plan

    def _announced(self) -> Announced | None:
        rounds = reversed(announcements(self.log))
        return next((r for r in rounds if STRANGER in r.members and self._planned(r)), None)

    def _planned(self, announced: Announced) -> bool:
        return self.plan is not None and self.plan.key.version == announced.version
