"""A few desks on a simulated network, without the life around them: peers that have a state, and peers that want it.

The log they go by is given: so many rounds were committed, and the next one is open and names the anchor it starts
from. What is measured here is getting and serving alone; whole lives are in `world`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any

import numpy as np
from blake3 import blake3

from atoll import journal
from atoll.journal import Journal, parse
from atoll.net.identity import Identity, short
from atoll.net.transport import PeerId, Traffic
from atoll.peer.box import Box
from atoll.peer.fetch import Fetched, fetch_state, serve_fetch
from atoll.peer.links import Handler, Links
from atoll.peer.member import Member, Past
from atoll.peer.private import Private
from atoll.peer.store import Store
from atoll.sim import links as wires
from atoll.sim.compute import CountingEngine, SimCompute
from atoll.sim.disk import SimDisk
from atoll.sim.links import Link
from atoll.sim.loop import Incarnation, VirtualLoop
from atoll.sim.network import SimNetwork
from atoll.spec.axes.codec import Fp32
from atoll.spec.run import Run, identity
from atoll.swarm import log
from atoll.swarm.log import History
from atoll.sync.merge import Anchor
from atoll.sync.units import whole
from tests.peer.world import counting_run

MIB = 2**20
SIZE = MIB
"""Elements; the state has twice as many, of four bytes each: 8 MiB."""
VERSION = 5
RUN = counting_run()
DELAY_S = 0.01


@cache
def engine() -> CountingEngine:
    return CountingEngine(seed=0, size=SIZE)


@cache
def anchor(version: int = VERSION) -> Anchor:
    draw = np.random.default_rng(version)
    vectors = [draw.random(SIZE, np.float32) for _ in range(2)]
    return Anchor(version, vectors[0], {"momentum": vectors[1]})


@cache
def digest(version: int = VERSION) -> str:
    return anchor(version).digest()


class Clock:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_s(self) -> float:
        return self._loop.time()


@dataclass
class Desk:
    """One machine and the peer that works on it."""

    key: Identity
    disk: SimDisk
    member: Member
    life: Incarnation
    lines: list[journal.Line] = field(default_factory=list)

    @property
    def name(self) -> str:
        return short(self.key.peer)

    def received_bytes(self) -> int:
        return self.member.links.transport.counts.received_bytes[Traffic.STATE]

    def sent_bytes(self) -> int:
        return self.member.links.transport.counts.sent_bytes[Traffic.STATE]


class Office:
    """All desks, and the network between them."""

    def __init__(self, loop: VirtualLoop, links: dict[int, Link], seed: int = 0, run: Run = RUN) -> None:
        self.loop = loop
        self.run = run
        self.seed = seed
        self.keys = [Identity.from_seed(blake3(b"desk %d %d" % (seed, place)).digest()) for place in links]
        peers = {self.keys[place].peer: link for place, link in links.items()}
        self.network = SimNetwork(loop, wires.Links(peers=peers, delay_s=DELAY_S), Random(seed))
        self.history = History(
            next_index=1,
            version=VERSION,
            broker=self.keys[0].peer,
            members={key.peer: log.Member(key.peer, (self.network.address(key.peer),)) for key in self.keys},
        )

    async def sit(self, place: int, state: Anchor | None = None, disk: SimDisk | None = None) -> Desk:
        """Start a peer that holds this anchor and has it on disk, or (None) one that is new to the run."""
        key = self.keys[place]
        life = self.loop.incarnation(f"desk {place}")
        disk = disk or SimDisk(Random(self.seed), name=f"desk {place}")
        lines: list[journal.Line] = []
        store = Store(disk)
        links = Links(
            self.network.transport(key.peer, life),
            Journal(short(key.peer), Clock(self.loop), life.guard(lambda line: lines.append(parse(line)))),
        )
        links.contacts.update({PeerId(p): m.addresses for p, m in self.history.members.items()})
        member = self._member(links, store, state, key, lines, life)
        desk = Desk(key, disk, member, life, lines)
        if state is not None:
            await store.keep_checkpoint(state)
        life.watch(crash=disk.crash)
        self.serve(desk, partial(serve_fetch, member))
        life.start(links.run())
        await asyncio.sleep(0)
        return desk

    def serve(self, desk: Desk, fetch: Handler) -> None:
        """Let a desk answer fetches in this way."""
        desk.member.links.serve({"fetch": fetch})

    def _member(
        self,
        links: Links,
        store: Store,
        state: Anchor | None,
        key: Identity,
        lines: list[journal.Line],
        life: Incarnation,
    ) -> Member:
        async def build(run: Run) -> CountingEngine:
            return engine()

        box = Box(
            transport=links.transport,
            compute=SimCompute(),
            beside=SimCompute(),
            disk=store.disk,
            journal=Journal(short(key.peer), Clock(self.loop), life.guard(lambda line: lines.append(parse(line)))),
            random=Random(f"{self.seed} {key.peer.hex()} {self.loop.time()}"),
            sign=key.sign,
            build=build,
        )
        member = Member(
            box=box,
            links=links,
            store=store,
            run=self.run,
            run_id=identity(self.run),
            engine=(model := engine()),
            private=Private(model, self.run.recipe),
            units={"outer": (whole(SIZE, Fp32()),)},
            life=1,
            anchor=state if state is not None else _blank(),
            digest="",
            broker=self.keys[0].peer,
        )
        member.history = self.history
        member.past = {
            v + 1: Past(samples_before=0, round_samples=8, steps=1, start=v, base=digest(v)) for v in (VERSION,)
        }
        member.ready = state is not None
        return member


@cache
def _blank() -> Anchor:
    return Anchor(0, np.zeros(SIZE, np.float32), {"momentum": np.zeros(SIZE, np.float32)})


def play(links: dict[int, Link], scene: Callable[[Office], Coroutine[Any, Any, None]], *, seed: int = 0) -> None:
    """Let a scene happen in virtual time."""
    loop = VirtualLoop()

    async def main() -> None:
        await scene(Office(loop, links, seed))

    loop.run(main(), limit_s=20_000.0, event_budget=5_000_000)


async def fetch(desk: Desk) -> tuple[Fetched, float]:
    """Return the state a desk downloads, checked, and how long it took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    fetched = await desk.life.start(fetch_state(desk.member, newer_than=0))
    assert fetched.anchor.digest() == digest(fetched.anchor.version)
    return fetched, loop.time() - began_s
