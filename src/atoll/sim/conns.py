"""Connections of the simulated network: what they carry, what loss leaves of them, and how they end.

What the real ones get wrong is kept on purpose: a close throws away what was not read, loss slows a whole connection,
and a crash, a cut or a pause is noticed only by silence (`silence`). Where a peer's link names a processor, its large
messages take of its cores too and are as long as they are on the wire (`cores`), and over TLS, where the machine of a
dead process closes its connections, the others hear of it at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from atoll.net.stream import TAG_BYTES_MAX
from atoll.net.transport import STREAMS_MAX, ConnLost, PeerId, Traffic
from atoll.sim.flows import NO_LINK, Flow
from atoll.sim.silence import Silence
from atoll.sim.streams import Bell, Item, Kind, SimStream

if TYPE_CHECKING:
    from atoll.sim.network import SimTransport

PACKET_BYTES = 1400
MATHIS = 1.22
"""A connection under random loss p carries about MATHIS * packet / (round trip * sqrt(p))."""
RESEND_S_MIN = 0.2


class SimConn:
    """One end of a connection."""

    other: SimConn

    def __init__(self, door: SimTransport, remote: SimTransport, delay_s: float) -> None:
        self.door = door
        self.delay_s = delay_s
        self.network = door.network
        self.why: str | None = None
        """Why it is gone, once it is."""
        self.streams: dict[int, SimStream] = {}
        self.lingers = False
        """This side dies just after a send: what is on the wire still arrives."""
        self._remote = remote
        self._number = next(self.network.loop.numbers)
        self._opened = 0
        self._streams_made = 0
        self._arrived: deque[tuple[str, SimStream]] = deque()
        self._bell = Bell(self.network.loop)
        self._held: list[Callable[[], None]] = []
        self._silence = Silence(self)
        self._loss_link = NO_LINK
        door.conns[self._number] = self

    @property
    def peer(self) -> PeerId:
        return self._remote.id

    def round_trip_s(self) -> float | None:
        return 2 * self.delay_s

    def distance_s(self) -> float | None:
        return 2 * self.delay_s

    async def open(self, tag: str, traffic: Traffic) -> SimStream:
        self.network.loop.check_open()
        assert len(tag.encode()) <= TAG_BYTES_MAX, f"a tag has at most {TAG_BYTES_MAX} bytes: {tag!r}"
        self.raise_if_gone()
        while self._opened >= STREAMS_MAX:
            await self._bell.wait()
            self.raise_if_gone()
        self._opened += 1
        self._streams_made += 1
        near = SimStream(self, self._streams_made, tag, traffic, opener=True)
        far = SimStream(self.other, -self._streams_made, tag, traffic, opener=False)
        near.twin, far.twin = far, near
        self.streams[near.number] = near
        near.put(Item(Kind.OPEN))
        return near

    async def accept(self) -> tuple[str, SimStream]:
        while not self._arrived:
            self.raise_if_gone()
            await self._bell.wait()
        return self._arrived.popleft()

    async def closed(self) -> str:
        while self.why is None:
            await self._bell.wait()
        return self.why

    async def close(self, reason: str = "") -> None:
        self.network.loop.check_open()
        self.end(f"closed by this side: {reason}", tell=f"closed by the other side: {reason}")

    def raise_if_gone(self) -> None:
        if self.why is not None:
            raise ConnLost(f"the connection to {self.peer.hex()[:8]} is gone: {self.why}")

    # carrying

    def reaches(self) -> bool:
        """Say whether a packet from this side gets to the other now."""
        return self.network.passes(self.door, self._remote)

    def lands(self) -> bool:
        """Say whether what this side sent before it died gets through now."""
        return self.network.lands(self.door, self._remote)

    def hears(self) -> bool:
        """Say whether a ping from the other side gets here now."""
        return self.other.why is None and self.network.passes(self._remote, self.door)

    def flows(self) -> bool:
        """Say whether a transfer makes headway: data one way, acknowledgements the other."""
        return self.reaches() and self.network.passes(self._remote, self.door)

    def carry(self, land: Callable[[], None]) -> None:
        """Call `land` on the other side after the delay; while the path is cut it is sent again."""
        loop = self.network.loop
        loop.call_in_world_at(loop.time() + self.delay_s, self._land, land)

    def _land(self, land: Callable[[], None]) -> None:
        if self.reaches() or (self.lingers and self.lands()):
            land()
        else:
            self._held.append(land)

    def count(self, traffic: Traffic, size_bytes: int) -> None:
        """Note that so much was sent."""
        self.door.counts.sent_bytes[traffic] += size_bytes
        if traffic is Traffic.ROUND:
            self.network.round_bytes[self.door.host.link.region, self._remote.host.link.region] += size_bytes

    def small_s(self, size_bytes: float) -> float:
        """Return how long a small message takes on top of the delay, resent if it gets lost."""
        mine, theirs = self.door.host, self._remote.host
        rate = min(mine.link.up_bytes_s / mine.factor, theirs.link.down_bytes_s / theirs.factor)
        took_s = size_bytes / rate
        loss = self.loss()
        if loss > 0:
            arrives = (1 - loss) ** math.ceil(max(size_bytes, 1) / PACKET_BYTES)
            while self.network.rng.random() >= arrives:
                took_s += max(RESEND_S_MIN, 3 * self.delay_s)
        return took_s

    def flow(self, item: Item, traffic: Traffic, done: Callable[[], None]) -> Flow:
        """Start the transfer of a large message."""
        limit = self.network.window_bytes / (2 * self.delay_s) if self.delay_s > 0 else math.inf
        mine, theirs = self.door.host, self._remote.host
        links, weights = [mine.up, theirs.down, self._lossy_link()], [1.0, 1.0, 1.0]
        for place, host in enumerate((mine, theirs)):
            if host.toll is not None and host.cores is not None:
                weights[place] = host.toll.line
                cpu_s = host.receive_cpu_s() if place else host.send_cpu_s()
                links += [host.loop, host.cores.link]
                weights += [cpu_s, cpu_s]
        flow = Flow(
            links=tuple(links),
            weights=tuple(weights),
            traffic=traffic,
            size_bytes=item.size_bytes,
            limit_bytes_s=limit,
            done=done,
        )
        self.network.fluid.start(flow)
        if not self.flows():
            self.network.fluid.limit(flow, 0.0)
        return flow

    def loss(self) -> float:
        """Return the part of the packets that is lost, either way."""
        way = self.network.lost_between(self.door.id, self._remote.id)
        return 1 - (1 - self.door.host.loss) * (1 - self._remote.host.loss) * (1 - way)

    def _lossy_link(self) -> int:
        """Return the link that stands for what congestion control leaves of this connection under loss."""
        loss = self.loss()
        if loss <= 0 or self.delay_s <= 0:
            return NO_LINK
        rate = MATHIS * PACKET_BYTES / (2 * self.delay_s * math.sqrt(loss))
        if self._loss_link == NO_LINK:
            self._loss_link = self.network.fluid.link(rate)
        else:
            self.network.fluid.resize(self._loss_link, rate)
        return self._loss_link

    # opening and ending

    def arrive(self, stream: SimStream) -> None:
        """Take a stream that the other side opened."""
        if self.why is None:
            self.streams[stream.number] = stream
            self._arrived.append((stream.tag, stream))
            self._bell.ring()

    def release(self, stream: SimStream) -> None:
        """Forget a stream that is over in both directions."""
        if self.streams.pop(stream.number, None) is not None and stream.opener:
            self._opened -= 1
            self._bell.ring()

    def end(self, why: str, *, tell: str | None) -> None:
        """Be gone; `tell` is what the other side hears, if anything gets through."""
        if self.why is not None:
            return
        self._stop(why)
        if tell is not None:
            self.carry(lambda: self.other.end(tell, tell=None))
        self.other.listen()

    def vanish(self) -> None:
        """End with the process: nothing sent arrives any more, and only silence or its machine tells the other side."""
        for stream in self.streams.values():
            stream.drop()
        self._held.clear()
        self._stop("this process crashed")
        self.other.path_changed()
        if self.door.host.toll is not None and self.door.host.toll.death_heard:
            loop = self.network.loop
            loop.call_in_world_at(loop.time() + self.delay_s, self._told_by_machine)

    def _told_by_machine(self) -> None:
        if self.lands():
            self.other.end("the other side's process ended", tell=None)

    def _stop(self, why: str) -> None:
        self.why = why
        self._silence.disarm()
        self.door.conns.pop(self._number, None)
        for stream in list(self.streams.values()):
            stream.halt()
        self.streams.clear()
        self._arrived = deque((tag, stream) for tag, stream in self._arrived if stream.ended)
        if self._loss_link != NO_LINK:
            self.network.fluid.unlink(self._loss_link)
        self._bell.ring()

    def path_changed(self) -> None:
        """Start or stop counting silence, hold or go on with what is on the way."""
        self.listen()
        if self.reaches():
            held, self._held = self._held, []
            for land in held:
                self.carry(land)
        for stream in list(self.streams.values()):
            stream.path_changed()

    def listen(self) -> None:
        """Look whether the other side can be heard, and how long it has not been."""
        if self.why is None:
            self._silence.look()
