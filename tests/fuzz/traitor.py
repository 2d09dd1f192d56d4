"""A member that lies: it is on the roster, may own shards, and answers every conversation with anything at all.

It greets the broker as an honest peer would, so its lies get past every door that asks who is speaking. It says
nothing in the council: a vote is given by those who run the protocol, and lies there are no bad input but treason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from atoll.errors import PeerLost
from atoll.net.transport import Conn, Stream
from atoll.sim.network import SimTransport
from atoll.sim.scenario import World
from tests.fuzz.intruder import Intruder
from tests.peer.stranger import Spy

ANSWERS_MAX = 4
BACK_S = 5.0
"""How long it stays away after it was shown the door."""


class Traitor(Spy):
    """One lying member."""

    def __init__(self, world: World, door: SimTransport, seed: int, lie: Callable[[str], bytes] | None = None) -> None:
        super().__init__(world, door)
        self.sessions = 0
        self.lies = 0
        self._rng = Random(f"traitor {seed}")
        self._mouth = Intruder(world, door, seed, self.connected)
        self._next_lie = lie or self._mouth.lie
        self._listening: list[asyncio.Task[None]] = []

    async def betray(self, until: int) -> None:
        """Be a member, again and again, until somebody holds this version."""
        async with asyncio.TaskGroup() as tasks:
            answering = tasks.create_task(self._accept())
            intruding = tasks.create_task(self._mouth.intrude(pause_s=0.5, until=until))
            while not self._late(until):
                try:
                    await self._serve(until)
                except PeerLost:
                    self._conns.clear()
                await asyncio.sleep(self._rng.uniform(0.0, BACK_S))
            await intruding
            answering.cancel()
        for listening in self._listening:
            listening.cancel()
        await self.leave()
        await self._mouth.leave()

    def _late(self, until: int) -> bool:
        return max(host.version for host in self.world.hosts) >= until

    async def _serve(self, until: int) -> None:
        """Join with the anchor that everybody knows, then lie to the broker until it has enough."""
        holder = max(self.world.hosts, key=lambda host: host.version)
        self.victim = self.world.hosts[self.world.leader()].peer
        try:
            await self.join(holder.anchor, version=holder.version)
        except AssertionError:
            return  # no welcome: another peer is the broker by now
        self.sessions += 1
        listening = asyncio.ensure_future(self.until(lambda: False))
        try:
            while not self._late(until) and not listening.done():
                await asyncio.sleep(self._rng.expovariate(1.0))
                await self.control.send(self._lie("control"))
        finally:
            listening.cancel()
            await asyncio.wait([listening])
            self.control.reset()

    def _lie(self, tag: str) -> bytes:
        self.lies += 1
        return self._next_lie(tag)

    def connected(self, conn: Conn) -> None:
        """Answer what the other side opens on a connection, whoever made it."""
        self._listening.append(asyncio.ensure_future(self._listen(conn)))

    async def _accept(self) -> None:
        while True:
            self.connected(await self.door.accept())

    async def _listen(self, conn: Conn) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    tag, stream = await conn.accept()
                    if tag != "council":
                        tasks.create_task(self._answer(tag, stream))
        except* PeerLost:
            pass

    async def _answer(self, tag: str, stream: Stream) -> None:
        """Hear somebody out, a little, and say something."""
        try:
            async with asyncio.timeout(30.0):
                for _ in range(self._rng.randint(0, ANSWERS_MAX)):
                    await stream.recv()
                    await stream.send(self._lie(tag))
                if self._rng.random() < 0.5:
                    await stream.finish()
        except (TimeoutError, PeerLost):
            pass
        finally:
            stream.reset()
