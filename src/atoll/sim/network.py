"""The simulated network: the transport contract between peers that exist only in virtual time.

Large messages are flows that share up- and downlinks (`flows`), small ones take latency plus size over capacity
and never queue behind bulk. Each direction of a stream keeps its order:

    send ─> queue ─(credit)─> flow ─(last byte left)─> transit ─(delay)─> inbox ─> recv

What the real transport gets wrong is kept on purpose: a crash, a cut or a pause is noticed only when the last ping
that got through is so old that the connection's history (`net/pulse`, the same code) makes it very improbable,
connecting to nobody takes the whole deadline, a close throws away what was not read, one stream never gets more than
its window per round trip, and loss slows a whole connection. Pings cost no events: when silence begins, the time of
the last ping that passed is computed, and the history up to it. Where a peer's link names a processor, its large
messages take of its cores too and are as long as they are on the wire (`cores`), and over TLS, where the machine of a
dead process closes its connections, the others hear of it at once.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from random import Random

from msgspec import Struct

from atoll.net.pulse import SILENCE_S_MAX, Rhythm, tick_for
from atoll.net.stream import TAG_BYTES_MAX, Counts
from atoll.net.transport import (
    CONNECT_S_MAX,
    MESSAGE_BYTES_MAX,
    STREAMS_MAX,
    ConnectFailed,
    ConnLost,
    Malformed,
    PeerId,
    StreamClosed,
    StreamReset,
    Traffic,
)
from atoll.sim.cores import GBIT_BYTES, Cores, Toll, toll_of
from atoll.sim.flows import NO_LINK, Flow, Fluid
from atoll.sim.loop import Incarnation, VirtualLoop
from atoll.sim.points import Points
from atoll.spec.fleet import Processor

SMALL_BYTES = 4096
"""Messages below this bypass the fluid model."""
WINDOW_BYTES = 1_250_000
"""What one stream may have on the way; iroh's default, which cannot be set from Python."""
PACKET_BYTES = 1400
MATHIS = 1.22
"""A connection under random loss p carries about MATHIS * packet / (round trip * sqrt(p))."""
CONNECT_RETRY_S = 1.0
"""QUIC's first repetition, before any round trip is known."""
RESEND_S_MIN = 0.2
ARRIVALS_MAX = 1024
"""Connections waiting to be accepted; more are not answered."""


class Link(Struct, frozen=True, kw_only=True):
    """How one peer hangs on the network."""

    up_bytes_s: float = 12.5e6
    down_bytes_s: float = 12.5e6
    region: str = ""
    loss: float = 0.0
    """Part of its packets that get lost, either way."""
    nat: bool = False
    """Behind a router that lets nobody in."""
    processor: Processor | None = None
    """What moves its bytes; None: that costs nothing."""


class Links(Struct, frozen=True, kw_only=True):
    """Who hangs on the network how, and how far regions are apart."""

    default: Link = Link()
    peers: dict[PeerId, Link] = {}
    delay_s: float = 0.02
    """One way, between regions that `delays_s` does not name."""
    delays_s: dict[tuple[str, str], float] = {}
    """One way, between two regions (or within one), in either order."""
    losses: dict[tuple[str, str], float] = {}
    """Part of the packets lost between two regions (or within one), in either order."""

    def of(self, peer: PeerId) -> Link:
        """Return a peer's link."""
        return self.peers.get(peer, self.default)

    def between_s(self, one: PeerId, other: PeerId) -> float:
        """Return the one-way delay between two peers."""
        return self._between(self.delays_s, one, other, self.delay_s)

    def loss_between(self, one: PeerId, other: PeerId) -> float:
        """Return the part of the packets lost on the way between two peers' own links."""
        return self._between(self.losses, one, other, 0.0)

    def _between(self, table: dict[tuple[str, str], float], one: PeerId, other: PeerId, default: float) -> float:
        pair = (self.of(one).region, self.of(other).region)
        return table.get(pair, table.get((pair[1], pair[0]), default))


class Bell:
    """Wakes all who wait; they look for themselves whether it was for them."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Return at the next ring."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        try:
            await future
        finally:
            if future in self._waiting:
                self._waiting.remove(future)

    def ring(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)


class _Host:
    """A peer's place in the network: outlives its crashes."""

    def __init__(self, peer: PeerId, address: str, link: Link, fluid: Fluid) -> None:
        self.peer = peer
        self.address = address
        self.link = link
        self.loss = link.loss
        self.factor = 1.0
        self.up = fluid.link(link.up_bytes_s)
        self.down = fluid.link(link.down_bytes_s)
        self.toll: Toll | None = None
        self.loop = NO_LINK
        """The thread that moves its bytes."""
        self.cores: Cores | None = None
        self.door: SimTransport | None = None
        self.points: Points | None = None
        """Who looks at its sends, if anybody does."""

    def send_cpu_s(self) -> float:
        """Return what sending a byte takes of its cores, as fast as its line is now."""
        assert self.toll is not None, "it has cores"
        return self.toll.send_s_gbit / GBIT_BYTES + self.toll.awake * self.factor / self.link.up_bytes_s

    def receive_cpu_s(self) -> float:
        assert self.toll is not None, "it has cores"
        return self.toll.receive_s_gbit / GBIT_BYTES + self.toll.awake * self.factor / self.link.down_bytes_s


class SimNetwork:
    """All links, all connections, and the faults between them."""

    def __init__(
        self,
        loop: VirtualLoop,
        links: Links,
        rng: Random,
        *,
        quantum_s: float = 0.0,
        silence_s_max: float = SILENCE_S_MAX,
        connect_s_max: float = CONNECT_S_MAX,
        scale: float = 1.0,
    ) -> None:
        self.loop = loop
        self.links = links
        self.rng = rng
        self.silence_s_max = silence_s_max
        self.connect_s_max = connect_s_max
        self.scale = scale
        """Modelled bytes per real byte of round and state traffic: a small vector may stand for a large model."""
        bound = any(link.processor is not None for link in (links.default, *links.peers.values()))
        self.fluid = Fluid(loop, quantum_s, uses=7 if bound else 3)
        self._computers: dict[str, Cores] = {}
        self._hosts: dict[PeerId, _Host] = {}
        self._addresses: dict[str, _Host] = {}
        self._cuts: dict[tuple[PeerId, PeerId], int] = {}
        self._lost: dict[tuple[PeerId, PeerId], float] = {}
        self.round_bytes: Counter[tuple[str, str]] = Counter()
        """Round traffic so far, from region to region."""

    def transport(self, peer: PeerId, incarnation: Incarnation | None = None) -> SimTransport:
        """Return a door for one life of a peer; a crash or pause of that life shuts it."""
        host = self._host(peer)
        door = SimTransport(self, host)
        host.door = door
        if incarnation is not None:
            incarnation.watch(crash=door.vanish, pause=door.freeze, resume=door.thaw)
        return door

    def address(self, peer: PeerId) -> str:
        """Return where a peer listens, in this life and the next."""
        return self._host(peer).address

    def cores(self, peer: PeerId) -> Cores | None:
        """Return the cores that a peer's computer has, if anybody said how many."""
        return self._host(peer).cores

    def cut(self, one: PeerId, other: PeerId, *, one_way: bool = False) -> None:
        """Let nothing pass from `one` to `other` (nor back, unless `one_way`), until as many `heal`s."""
        self._cuts[one, other] = self._cuts.get((one, other), 0) + 1
        if not one_way:
            self._cuts[other, one] = self._cuts.get((other, one), 0) + 1
        self._refresh(one, other)

    def heal(self, one: PeerId, other: PeerId, *, one_way: bool = False) -> None:
        """Take one `cut` back."""
        for pair in ((one, other),) if one_way else ((one, other), (other, one)):
            self._cuts[pair] = max(0, self._cuts.get(pair, 0) - 1)
        self._refresh(one, other)

    def heal_all(self) -> None:
        """Take every cut back."""
        cuts, self._cuts = self._cuts, {}
        for one, other in cuts:
            self._refresh(one, other)

    def slow(self, peer: PeerId, factor: float) -> None:
        """Make a peer's links `factor` times slower than their own rate (1: as they were)."""
        host = self._host(peer)
        host.factor = factor
        self.fluid.resize(host.up, host.link.up_bytes_s / factor)
        self.fluid.resize(host.down, host.link.down_bytes_s / factor)

    def lose(self, peer: PeerId, loss: float, other: PeerId | None = None) -> None:
        """Lose this part of a peer's packets, all or those to and from another, for messages that start from now on."""
        if other is None:
            self._host(peer).loss = loss
        else:
            self._lost[peer, other] = self._lost[other, peer] = loss

    def lost_between(self, one: PeerId, other: PeerId) -> float:
        """Return the part of packets that is lost between two, wherever they are and whatever else befalls them."""
        way, fault = self.links.loss_between(one, other), self._lost.get((one, other), 0.0)
        return 1 - (1 - way) * (1 - fault) if fault else way

    def watch(self, peer: PeerId, points: Points) -> None:
        """Let `points` look at everything a peer sends, in this life and the next."""
        self._host(peer).points = points

    def passes(self, sender: SimTransport, receiver: SimTransport) -> bool:
        """Say whether a packet would get through now."""
        return sender.running and self.lands(sender, receiver)

    def lands(self, sender: SimTransport, receiver: SimTransport) -> bool:
        """Say whether a packet that is on the wire already would arrive, whatever became of its sender."""
        return receiver.running and (not self._cuts or not self._cuts.get((sender.id, receiver.id)))

    def find(self, peer: PeerId, addresses: list[str]) -> SimTransport | None:
        """Return the listening door of `peer` if one of the addresses is its own."""
        for address in addresses:
            host = self._addresses.get(address)
            if host is not None and host.peer == peer and host.door is not None and host.door.listening:
                return host.door
        return None

    def _host(self, peer: PeerId) -> _Host:
        host = self._hosts.get(peer)
        if host is None:
            host = _Host(peer, f"peer-{len(self._hosts)}.sim:4433", self.links.of(peer), self.fluid)
            self._hosts[peer] = self._addresses[host.address] = host
            if host.link.processor is not None:
                self._seat(host, host.link.processor)
        return host

    def _seat(self, host: _Host, processor: Processor) -> None:
        """Put a peer on its computer."""
        host.toll = toll_of(processor)
        host.loop = self.fluid.link(host.toll.threads)
        computer = processor.computer or host.address
        if computer not in self._computers:
            self._computers[computer] = Cores(self.fluid, processor.cores)
        host.cores = self._computers[computer]

    def _refresh(self, one: PeerId, other: PeerId) -> None:
        """Let the connections between two peers see that their path changed."""
        host = self._hosts.get(one)
        if host is not None and host.door is not None:
            for conn in list(host.door.conns.values()):
                if conn.peer == other:
                    conn.path_changed()
                    conn.other.path_changed()


class SimTransport:
    """One life's door to all others."""

    def __init__(self, network: SimNetwork, host: _Host) -> None:
        self.network = network
        self.host = host
        self.running = True
        """False while paused and after the crash."""
        self.listening = True
        self.counts = Counts()
        self.silence_s_max = network.silence_s_max
        self.conns: dict[int, SimConn] = {}
        self._arrived: deque[SimConn] = deque()
        self._bell = Bell(network.loop)

    @property
    def id(self) -> PeerId:
        return self.host.peer

    def addresses(self) -> list[str]:
        return [self.host.address]

    def limit_silence(self, silence_s_max: float) -> None:
        self.silence_s_max = silence_s_max

    async def connect(self, peer: PeerId, addresses: list[str]) -> SimConn:
        """Return a connection after one round trip, or raise `ConnectFailed` at the deadline."""
        self.network.loop.check_open()
        if peer == self.id:
            raise ConnectFailed("a peer cannot connect to itself")
        if not self.listening:
            raise ConnectFailed("this transport is closed")
        try:
            async with asyncio.timeout(self.network.connect_s_max):
                return await self._knock(peer, addresses)
        except TimeoutError:
            raise ConnectFailed(
                f"no answer from {peer.hex()[:8]} at {', '.join(addresses) or 'no address'}",
                hint="is it running, and is this its address?",
            ) from None

    async def _knock(self, peer: PeerId, addresses: list[str]) -> SimConn:
        delay_s = self.network.links.between_s(self.id, peer)
        while True:
            await asyncio.sleep(2 * delay_s)
            door = self.network.find(peer, addresses)
            if door is not None and self._meets(door):
                return _join(self, door, delay_s)
            await asyncio.sleep(CONNECT_RETRY_S)

    def _meets(self, door: SimTransport) -> bool:
        passes = self.network.passes
        open_door = not door.host.link.nat and len(door._arrived) < ARRIVALS_MAX
        return open_door and passes(self, door) and passes(door, self)

    async def accept(self) -> SimConn:
        while not self._arrived:
            if not self.listening:
                raise ConnLost("this transport is closed")
            await self._bell.wait()
        return self._arrived.popleft()

    async def close(self) -> None:
        self.listening = False
        for conn in list(self.conns.values()):
            await conn.close("the peer closed its transport")
        self._arrived.clear()
        self._bell.ring()

    def arrive(self, conn: SimConn) -> None:
        """Take a connection that another peer made."""
        if self.listening and conn.why is None:
            self._arrived.append(conn)
            self._bell.ring()

    def vanish(self) -> None:
        """Crash: everything in flight is dropped, and nobody is told."""
        self.running = self.listening = False
        for conn in list(self.conns.values()):
            conn.vanish()

    def freeze(self) -> None:
        """Pause: nothing goes in or out."""
        self.running = False
        self._path_changed()

    def thaw(self) -> None:
        """Go on after a pause; connections that the others gave up are found dead."""
        self.running = True
        self._path_changed()

    def _path_changed(self) -> None:
        for conn in list(self.conns.values()):
            conn.path_changed()
            conn.other.path_changed()


def _join(caller: SimTransport, callee: SimTransport, delay_s: float) -> SimConn:
    """Make both ends of a connection; the callee learns of it when the caller's next packet arrives."""
    near, far = SimConn(caller, callee, delay_s), SimConn(callee, caller, delay_s)
    near.other, far.other = far, near
    near.carry(lambda: callee.arrive(far))
    return near


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
        self._born_s = self.network.loop.time()
        self._opened = 0
        self._streams_made = 0
        self._arrived: deque[tuple[str, SimStream]] = deque()
        self._bell = Bell(self.network.loop)
        self._held: list[Callable[[], None]] = []
        self._rhythm = Rhythm(tick_for(door.silence_s_max), round_trip_s=2 * delay_s)
        self._written_s = self._born_s
        """Up to when the history is written."""
        self._heard_s: float | None = None
        """The last sign of life, while the other side is silent."""
        self._paused_s: float | None = None
        """Since when this side looks at nothing."""
        self._silence: asyncio.TimerHandle | None = None
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
        near.put(_Item(_Kind.OPEN))
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
        loss = self._loss()
        if loss > 0:
            arrives = (1 - loss) ** math.ceil(max(size_bytes, 1) / PACKET_BYTES)
            while self.network.rng.random() >= arrives:
                took_s += max(RESEND_S_MIN, 3 * self.delay_s)
        return took_s

    def flow(self, item: _Item, traffic: Traffic, done: Callable[[], None]) -> Flow:
        """Start the transfer of a large message."""
        limit = WINDOW_BYTES / (2 * self.delay_s) if self.delay_s > 0 else math.inf
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

    def _loss(self) -> float:
        way = self.network.lost_between(self.door.id, self._remote.id)
        return 1 - (1 - self.door.host.loss) * (1 - self._remote.host.loss) * (1 - way)

    def _lossy_link(self) -> int:
        """Return the link that stands for what congestion control leaves of this connection under loss."""
        loss = self._loss()
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
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        self.door.conns.pop(self._number, None)
        for stream in list(self.streams.values()):
            stream.halt()
        self.streams.clear()
        self._arrived = deque((tag, stream) for tag, stream in self._arrived if stream.ended)
        if self._loss_link != NO_LINK:
            self.network.fluid.unlink(self._loss_link)
        self._bell.ring()

    # silence

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
        """Arm or disarm the timer that ends this side when the other has been silent for too long."""
        if self.why is not None:
            return
        hears = self.other.why is None and self.network.passes(self._remote, self.door)
        if not self.door.running:
            self._note_silence()
            self._disarm()  # a paused process notices nothing
            self._paused_s = self.network.loop.time() if self._paused_s is None else self._paused_s
            return
        self._leave_out_pause()
        if not hears:
            self._note_silence()
            if self._silence is None:
                self._silence = self.network.loop.call_in_world_at(self._dead_s(), self._give_up)
        elif self._silence is None or self._next_ping_s() < self._silence.when():
            self._disarm()
            self._note_end_of_silence()

    def _leave_out_pause(self) -> None:
        """Our own pause says nothing about the other side."""
        if self._paused_s is not None:
            assert self._heard_s is not None
            self._heard_s += self.network.loop.time() - self._paused_s
            self._paused_s = None

    def _note_silence(self) -> None:
        """Write the history up to the last ping that got through."""
        if self._heard_s is None:
            tick_s = self._rhythm.tick_s
            pings = math.floor((self.network.loop.time() - self.delay_s - self._born_s) / tick_s)
            self._heard_s = self._born_s + max(0.0, pings * tick_s + self.delay_s)
            self._write(round((self._heard_s - self._written_s) / tick_s))
            self._written_s = max(self._written_s, self._heard_s)

    def _note_end_of_silence(self) -> None:
        if self._heard_s is not None:
            next_s = self._next_ping_s()
            silent = max(0, math.ceil((next_s - self._heard_s) / self._rhythm.tick_s) - 1)
            self._rhythm = self._rhythm.after(silent + 1, silent)
            self._written_s = next_s
            self._heard_s = None

    def _write(self, ticks: int) -> None:
        """Add so many ticks with nothing in them but the pings that loss may have swallowed, one after the other."""
        if ticks > 0:
            later = self._rhythm.after(ticks)
            loss = self._loss()
            silent = loss * (1 - (1 - loss) ** 2)  # neither their ping nor their answer to ours
            run = math.log(max(later.ticks, 1)) / -math.log(silent) if 0 < silent < 1 else 0.0
            self._rhythm = self._rhythm.after(ticks, int(run))

    def _dead_s(self) -> float:
        """Return when the present silence will have lasted too long, looked at once a tick."""
        assert self._heard_s is not None
        tick_s, loop = self._rhythm.tick_s, self.network.loop
        noticed_s = self._born_s + math.ceil((self._heard_s - self._born_s) / tick_s) * tick_s
        dead_s = noticed_s + self._rhythm.silent_max(self.door.silence_s_max) * tick_s
        return max(dead_s, loop.time() + self.delay_s)

    def _next_ping_s(self) -> float:
        pings = math.ceil((self.network.loop.time() - self._born_s) / self._rhythm.tick_s)
        return self._born_s + pings * self._rhythm.tick_s + self.delay_s

    def _disarm(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _give_up(self) -> None:
        self._silence = None
        why = self._rhythm.verdict(self._rhythm.silent_max(self.door.silence_s_max))
        self.end(why, tell=f"the other side heard nothing of this one: {why}")


class _Kind(Enum):
    OPEN = 0
    DATA = 1
    FINISH = 2


class _Item:
    """One thing a stream carries in order."""

    __slots__ = ("accepted", "data", "due_s", "kind", "size_bytes")

    def __init__(self, kind: _Kind, data: bytes = b"", size_bytes: float = 0.0) -> None:
        self.kind = kind
        self.data = data
        self.size_bytes = size_bytes
        self.accepted = False
        self.due_s = 0.0


class SimStream:
    """One end of a stream: what it sends is queued here, what it receives lies here until read."""

    twin: SimStream

    def __init__(self, conn: SimConn, number: int, tag: str, traffic: Traffic, *, opener: bool) -> None:
        self.conn = conn
        self.number = number
        self.tag = tag
        self.traffic = traffic
        self.opener = opener
        self._loop = conn.network.loop
        self._broken: str | None = None
        self._said = False
        self._finishing = False
        self._acked = False
        self._queue: deque[_Item] = deque()
        self._flow: Flow | None = None
        self._transit: deque[_Item] = deque()
        self._transit_bytes = 0.0
        self._last_due_s = 0.0
        self._sender_bell = Bell(self._loop)
        self._inbox: deque[_Item] = deque()
        self._inbox_bytes = 0.0
        self.ended = False
        """The other side's end arrived: what lies here can be read whatever becomes of the connection."""
        self._reader_bell = Bell(self._loop)

    async def send(self, message: bytes) -> None:
        """Hand over one message; returns when its last byte has left, within what the receiver will take."""
        self._loop.check_open()
        self._raise_if_broken()
        assert not self._finishing, "send after finish"
        assert len(message) <= MESSAGE_BYTES_MAX, f"a message of {len(message)} bytes is too long to send"
        points = self.conn.door.host.points
        what = points.sends(self.tag, message, self.opener and not self._said) if points is not None else ""
        if points is not None:
            await points.reach("before", what)
            message = points.said(what, message)
        self._said = True
        scale = 1.0 if self.traffic is Traffic.CONTROL else self.conn.network.scale
        item = _Item(_Kind.DATA, bytes(message), len(message) * scale)
        self.put(item)
        while not item.accepted:
            await self._wait_to_send()
        self.conn.count(self.traffic, len(message))
        if points is not None:
            await points.reach("after", what, self._outlive)

    def _outlive(self) -> None:
        """Let what is on the wire arrive although this process is about to die."""
        self.conn.lingers = True
        items, self._transit = self._transit, deque()
        for item in items:
            if item.due_s < math.inf:
                self._loop.call_in_world_at(item.due_s, self._arrive_late, item)

    def _arrive_late(self, item: _Item) -> None:
        if self.conn.lands():
            self.twin.arrive(item)

    async def _wait_to_send(self) -> None:
        """Wait for the next change; cancelled: the stream is reset, as half a message may be out."""
        self._raise_if_broken()
        try:
            await self._sender_bell.wait()
        except asyncio.CancelledError:
            self.reset()
            raise

    async def recv(self, limit: int = MESSAGE_BYTES_MAX) -> bytes:
        """Return the next message; cancel-safe, because nothing is awaited between taking and returning it."""
        while True:
            if not self.ended:
                self._raise_if_broken()
            if self._inbox:
                return self._take(limit)
            if self.ended:
                raise StreamClosed(f"{self.tag}: the other side finished")
            await self._reader_bell.wait()

    def _take(self, limit: int) -> bytes:
        if (length := len(self._inbox[0].data)) > limit:
            self.reset()
            raise Malformed(f"a message of {length} bytes is over the limit of {limit}")
        item = self._inbox.popleft()
        self._inbox_bytes -= item.size_bytes
        self.conn.door.counts.received_bytes[self.traffic] += len(item.data)
        self.twin.pump()
        return item.data

    async def finish(self) -> None:
        self._loop.check_open()
        self._raise_if_broken()
        assert not self._finishing, "a stream is finished once"
        self._finishing = True
        self.put(_Item(_Kind.FINISH))
        while not self._acked:
            await self._wait_to_send()

    def reset(self) -> None:
        if self._broken is None and self.number in self.conn.streams:
            self.ended = False  # so that nothing more is read here; what the other side holds to its end stays
            self._break("given up by this side")
            twin = self.twin
            self.conn.carry(lambda: twin._break("given up by the other side"))

    def _raise_if_broken(self) -> None:
        self.conn.raise_if_gone()
        if self._broken is not None:
            raise StreamReset(f"{self.tag}: {self._broken}")

    def _break(self, why: str) -> None:
        if self._broken is None and not (self._acked and self.ended):
            self._broken = why
            self.drop()
            if not self.ended:
                self._inbox.clear()
            self.conn.release(self)
            self._ring()

    def drop(self) -> None:
        """Forget what was to be sent or is on its way."""
        self._stop_flow()
        self._queue.clear()
        self._transit.clear()

    def halt(self) -> None:
        """Send nothing more, because the connection is gone; what left already may still arrive."""
        self._stop_flow()
        self._queue.clear()
        self._ring()

    def _ring(self) -> None:
        self._sender_bell.ring()
        self._reader_bell.ring()

    def _stop_flow(self) -> None:
        if self._flow is not None:
            self.conn.network.fluid.stop(self._flow)
            self._flow = None

    # sending

    def put(self, item: _Item) -> None:
        """Queue an item behind the others."""
        self._queue.append(item)
        self.pump()

    def pump(self) -> None:
        """Launch what may go: one transfer at a time, while the receiver is not too far behind."""
        while self._queue and self._flow is None and self._credit():
            item = self._queue.popleft()
            if item.size_bytes >= SMALL_BYTES:
                self._flow = self.conn.flow(item, self.traffic, lambda item=item: self._left(item))  # type: ignore[misc]
            else:
                self._launch(item, self.conn.small_s(item.size_bytes))

    def _credit(self) -> bool:
        """Say whether the receiver's window has room; a message on the way does not count against a long one."""
        behind = self.twin._inbox_bytes >= WINDOW_BYTES
        return not behind and (self._transit_bytes < WINDOW_BYTES or len(self._transit) <= 1)

    def _left(self, item: _Item) -> None:
        self._flow = None
        self._launch(item, 0.0)
        self.pump()

    def _launch(self, item: _Item, took_s: float) -> None:
        """Put an item on the wire: it arrives after the delay and never before its predecessor."""
        item.due_s = max(self._loop.time() + self.conn.delay_s + took_s, self._last_due_s + took_s)
        self._last_due_s = item.due_s
        item.accepted = True
        self._transit.append(item)
        self._transit_bytes += item.size_bytes
        self._loop.call_in_world_at(item.due_s, self._arrive)
        self._sender_bell.ring()

    def _arrive(self) -> None:
        """Hand over what is due; on a cut path it waits for the path to heal."""
        while self._transit and self._transit[0].due_s <= self._loop.time():
            if not self.conn.reaches():
                self._transit[0].due_s = math.inf
                return
            item = self._transit.popleft()
            self._transit_bytes -= item.size_bytes
            self.twin.arrive(item)
            self.pump()

    def path_changed(self) -> None:
        """Hold or go on with the transfer, and send again what was lost on the way."""
        if self._flow is not None:
            self.conn.network.fluid.limit(self._flow, self._flow.limit_bytes_s if self.conn.flows() else 0.0)
        if self._transit and self._transit[0].due_s == math.inf and self.conn.reaches():
            self._transit[0].due_s = self._loop.time() + self.conn.delay_s
            self._last_due_s = max(self._last_due_s, self._transit[0].due_s)
            self._loop.call_in_world_at(self._transit[0].due_s, self._arrive)

    # receiving

    def arrive(self, item: _Item) -> None:
        """Take an item from the wire."""
        if self._broken is not None or self.conn.why is not None:
            return
        match item.kind:
            case _Kind.OPEN:
                self.conn.arrive(self)
            case _Kind.DATA:
                self._inbox.append(item)
                self._inbox_bytes += item.size_bytes
            case _Kind.FINISH:
                self.ended = True
                twin = self.twin
                self.conn.carry(twin._acknowledge)
                self._close_if_over()
        self._reader_bell.ring()

    def _acknowledge(self) -> None:
        self._acked = True
        self._close_if_over()
        self._sender_bell.ring()

    def _close_if_over(self) -> None:
        if self._acked and self.ended:
            self.conn.release(self)
