"""The simulated world for the transport suite: mortal peers are incarnations that crash."""

from __future__ import annotations

from random import Random

from blake3 import blake3

from atoll.net.transport import PeerId, Transport
from atoll.sim.links import Link, Links
from atoll.sim.loop import Incarnation, VirtualLoop
from atoll.sim.network import SimNetwork, SimTransport
from tests.contract.transport_suite import Check

CHECK_S_MAX = 300.0
CALLBACKS_MAX = 1_000_000


class SimLab:
    """Transports on a simulated network of gigabit links, 10 ms apart."""

    silence_s_max = 5.0
    connect_s = 10.0

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        links = Links(default=Link(up_bytes_s=125e6, down_bytes_s=125e6), delay_s=0.01)
        self._network = SimNetwork(
            loop, links, Random(1), silence_s_max=self.silence_s_max, connect_s_max=self.connect_s
        )
        self._lives: dict[PeerId, Incarnation] = {}

    async def transport(self, name: str) -> Transport:
        return self._make(name, None)

    async def mortal(self, name: str) -> Transport:
        life = self._loop.incarnation(name)
        transport = self._make(name, life)
        self._lives[transport.id] = life
        return transport

    async def kill(self, transport: Transport) -> None:
        self._lives[transport.id].crash()

    def now_s(self) -> float:
        return self._loop.time()

    def _make(self, name: str, life: Incarnation | None) -> SimTransport:
        return self._network.transport(PeerId(blake3(name.encode()).digest()), life)


def run_in_sim(check: Check) -> None:
    """Run a check in virtual time; a deadlock or a livelock fails it."""
    loop = VirtualLoop()

    async def main() -> None:
        await check(SimLab(loop))

    loop.run(main(), limit_s=CHECK_S_MAX, event_budget=CALLBACKS_MAX)
    assert not loop.complaints
