"""Somebody with the run's ticket and no manners, who has heard everything and says anything, on every stream there is.

It knows the run's id, keys and rounds, so its lies look like the truth; it replays what honest peers said, out of order
and on streams where it does not belong; it spoils messages byte by byte and field by field, and sends some that are as
large as a message may be, or larger. No message class is named: what can be said is read off the protocols.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from atoll.errors import PeerError, PeerLost
from atoll.net.transport import MESSAGE_BYTES_MAX, Conn, PeerId, Stream, Traffic
from atoll.net.wire import WIRE_VERSION, Wire
from atoll.peer.links import TRAFFIC
from atoll.sim.network import SimTransport
from atoll.sim.points import Points
from atoll.sim.scenario import World
from atoll.spec.run import PROTOCOL, identity
from tests.fuzz.grow import Grower, Words, kinds_of, sealed, wires
from tests.fuzz.mutate import Mutator

HEARD_MAX = 200
MESSAGES_MAX = 6
PATIENCE_S = 2.0
"""How long it waits for a message to be taken, and for an answer that may never come."""
OVERSIZED = 0.1
"""Part of what is surely no message that is longer than a message may be."""
SURE_S = 60.0
"""How long it waits for a refusal that must come."""


class Swollen(Points):
    """Lets what its machine says grow, on the wire, beyond what any message may be."""

    def __init__(self) -> None:
        super().__init__()
        self.swells: list[bytes] = []
        """What is to grow, each once."""

    def said(self, what: str, message: bytes) -> bytes:
        if message not in self.swells:
            return super().said(what, message)
        self.swells.remove(message)
        return message + bytes(MESSAGE_BYTES_MAX + 1 - len(message))


class Intruder:
    """One stranger at work, on a connection of its own to each peer."""

    def __init__(
        self, world: World, door: SimTransport, seed: int, connected: Callable[[Conn], None] = lambda conn: None
    ) -> None:
        self.refused: Counter[PeerId] = Counter()
        """Conversations that each victim gave up after bytes that nobody could take for a message."""
        self.oversized: Counter[PeerId] = Counter()
        """Of these, those that were given up for a message longer than any may be."""
        self.conversations = 0
        self.said = 0
        self.said_bytes = 0
        self._world = world
        self._door = door
        self._connected = connected
        self._rng = Random(seed)
        self._mutator = Mutator(self._rng)
        self._conns: dict[PeerId, Conn] = {}
        self._wires: list[Wire[Any]] = list(wires().values())
        self._openings: dict[str, deque[bytes]] = {}
        self._heard: dict[str, deque[bytes]] = {}
        self._growers = [Grower(kinds_of(wire), self._rng, self._words()) for wire in self._wires]
        self._own = Swollen()
        world.network.watch(door.id, self._own)
        for host in world.hosts:
            points = Points()
            points.hear = self._hear
            world.network.watch(host.peer, points)

    def _words(self) -> Words:
        """Return what an honest peer of this run would speak of."""
        run, peers = self._world.scenario.run, [host.peer for host in self._world.hosts]
        channel = next(iter(run.recipe.channel))
        return Words(
            texts=(*[identity(run)] * 3, channel, channel, "all", "model", "f" * 64, "here:1", ""),
            blobs=(*map(bytes, peers), bytes(self._door.id), b"d" * 32, b"", b"\x00" * 256),
            numbers=(0, 1, 2, 3, 5, 8, *[PROTOCOL] * 4, 2**32 + 1, -1, 2**63 - 1),
        )

    def _hear(self, tag: str, message: bytes, opens: bool) -> None:
        for kept in (self._heard, self._openings) if opens else (self._heard,):
            kept.setdefault(tag, deque(maxlen=HEARD_MAX)).append(message)

    async def intrude(self, pause_s: float, until: int) -> None:
        """Have one conversation after the other, until somebody holds this version."""
        while max(host.version for host in self._world.hosts) < until:
            self.conversations += 1
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            victim = self._rng.choice(self._world.hosts).peer
            try:
                if self._rng.random() < 0.3:
                    await self._be_refused(victim)
                else:
                    await self._talk(victim)
            except PeerLost:
                self._conns.pop(victim, None)

    async def _open(self, victim: PeerId, tag: str) -> Stream:
        if victim not in self._conns:
            conn = self._conns[victim] = await self._door.connect(victim, [self._world.network.address(victim)])
            self._connected(conn)
        return await self._conns[victim].open(tag, TRAFFIC.get(tag, Traffic.CONTROL))

    async def _be_refused(self, victim: PeerId) -> None:
        """Say one thing that is surely no message, and wait until the stream is given up for it."""
        stream = await self._open(victim, self._rng.choice(list(TRAFFIC)))
        swells = self._rng.random() < OVERSIZED
        message = sealed(self._rng.choice(self._growers).grow()) if swells else self._nonsense()
        if swells:
            self._own.swells.append(message)
        try:
            await self._say(stream, message)
            async with asyncio.timeout(SURE_S):
                while True:
                    await stream.recv()
        except PeerLost:
            self.refused[victim] += 1
            self.oversized[victim] += swells
        finally:
            stream.reset()

    async def _talk(self, victim: PeerId) -> None:
        """Say a few things that may pass, and listen now and then."""
        tag = self._rng.choice([*TRAFFIC, *TRAFFIC, "gossip"])
        stream = await self._open(victim, tag)
        try:
            for number in range(self._rng.randint(1, MESSAGES_MAX)):
                async with asyncio.timeout(PATIENCE_S):
                    await self._say(stream, self._message(tag, opens=number == 0))
                    if self._rng.random() < 0.6:
                        await stream.recv()
        except (TimeoutError, PeerLost):
            pass  # most of what it says has no answer, and much of it nobody takes
        finally:
            stream.reset()

    async def _say(self, stream: Stream, message: bytes) -> None:
        await stream.send(message)
        self.said += 1
        self.said_bytes += len(message)

    def _message(self, tag: str, *, opens: bool) -> bytes:
        """Return the next thing to say: replayed, grown, or one of these spoiled; openings mostly as they should be."""
        rng = self._rng
        heard = (self._openings if opens else self._heard).get(tag)
        drawn = rng.random()
        if heard and drawn < (0.5 if opens else 0.3):
            return rng.choice(heard)
        if heard and drawn < 0.6:
            return self._mutator.spoil(heard)
        if heard and drawn < 0.7:
            tree = msgspec.msgpack.decode(rng.choice(heard)[1:])
            return sealed(self._mutator.spoil_tree(tree, [tree]))
        tree = self._grower(tag).grow()
        if drawn < 0.85:
            return sealed(tree)
        if drawn < 0.99:
            return sealed(self._mutator.spoil_tree(tree, [tree]))
        return bytes((WIRE_VERSION,)) + b"\x00" * (MESSAGE_BYTES_MAX - 1)

    def _grower(self, tag: str) -> Grower:
        """Return a grower of what is mostly said on a stream."""
        heard = self._heard.get(tag)
        if heard and self._rng.random() < 0.8:
            message = self._rng.choice(heard)
            fitting = [i for i, wire in enumerate(self._wires) if self._takes(wire, message)]
            return self._growers[self._rng.choice(fitting)]
        return self._rng.choice(self._growers)

    def lie(self, tag: str) -> bytes:
        """Return what to say in a conversation: well formed mostly."""
        if self._rng.random() < 0.15:
            return self._message(tag, opens=False)
        heard = self._heard.get(tag)
        if heard and self._rng.random() < 0.4:
            return self._rng.choice(heard)
        return sealed(self._grower(tag).grow())

    def _nonsense(self) -> bytes:
        """Return bytes that no protocol of ours takes for a message."""
        while True:
            message = self._mutator.spoil([sealed(self._rng.choice(self._growers).grow())])
            if not any(self._takes(wire, message) for wire in self._wires):
                return message

    @staticmethod
    def _takes(wire: Wire[Any], message: bytes) -> bool:
        try:
            wire.decode(message)
        except PeerError:
            return False
        return True

    async def leave(self) -> None:
        """Hang up on everybody."""
        for conn in self._conns.values():
            await conn.close("bye")
