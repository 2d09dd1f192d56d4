"""The simulated network: the transport contract between peers that exist only in virtual time.

    links     how a peer hangs on it
    streams   messages in order, as flows over shared lines or by themselves
    conns     what carries streams, with loss and cores
    silence   how the death of one end is noticed at the other

Here are the whole of it, with the faults between any two, and everybody's door, where connecting to nobody takes the
whole deadline, as in the real world.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from random import Random

from atoll.net.pulse import SILENCE_S_MAX
from atoll.net.transport import CONNECT_S_MAX, ConnectFailed, ConnLost, Counts, PeerId
from atoll.peer.stripes import STREAM_BYTES, STRIPES_MAX
from atoll.sim.conns import SimConn
from atoll.sim.cores import GBIT_BYTES, Cores, Toll, toll_of
from atoll.sim.flows import NO_LINK, Fluid
from atoll.sim.links import Link, Links
from atoll.sim.loop import Incarnation, VirtualLoop
from atoll.sim.points import Points
from atoll.sim.streams import Bell
from atoll.spec.fleet import Processor

CONNECT_RETRY_S = 1.0
"""QUIC's first repetition, before any round trip is known."""
ARRIVALS_MAX = 1024
"""Connections waiting to be accepted; more are not answered."""


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
        self.window_bytes = STREAM_BYTES * (1 if scale == 1.0 else STRIPES_MAX)
        """What one stream may have on its way. Peers take several where that is too little for the rates they measure;
        of bytes that stand for more they measure too little, so there one has the window of all that they could take.
        """
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
