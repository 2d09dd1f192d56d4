"""A run in virtual time: the same peers on imagined machines, with faults from a list.

A scenario is data (run, machines, seed, faults, when to end); `simulate` plays it and returns what can be
looked at afterwards: every journal line in order, the disks, and the trace hash. Nothing here knows how
peers work inside. Peers are named by their place in the fleet; the first one organises the run.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from blake3 import blake3
from msgspec import Struct
from msgspec.structs import replace

from atoll import journal
from atoll.errors import AtollError, PeerLost
from atoll.journal import Journal, Line
from atoll.model.compute import Engine
from atoll.model.folder import layout_of
from atoll.model.shape import elements, train_cost
from atoll.net.identity import Identity, short
from atoll.net.transport import PeerId
from atoll.peer.box import Box
from atoll.peer.life import Start, Stop, live
from atoll.sim import faults as kinds
from atoll.sim.compute import CountingEngine, Device, SimCompute
from atoll.sim.disk import SimDisk
from atoll.sim.faults import Fault, stream
from atoll.sim.loop import Incarnation, SimulationFailed, VirtualLoop
from atoll.sim.network import Link, Links, SimNetwork
from atoll.sim.trace import Trace
from atoll.spec.fleet import Always, Churn, Fleet, Machine, expand, latency_s, link
from atoll.spec.run import Folder, Run, identity

Build = Callable[[Run], Engine]

EVENTS_MAX = 50_000_000
PROGRESS_S_MAX = 20 * 3600.0
"""No journal line for so long, in virtual time, is a stall."""


class PeerBroke(SimulationFailed):
    """A peer ended with an exception that is no error of ours: an invariant was broken."""


TRY_AGAIN_S = 5.0
COUNTING_SIZE = 256
"""Elements of a counting model's vector in a search for faults: a few chunks, so that not everybody owns one."""
STAND_IN_SIZE = 8192
"""Elements where it stands for a real model: as many chunks as a group may have members."""


class Entrance(Struct, frozen=True):
    """When a peer of the fleet first starts: once the organiser has announced this round (0: at the beginning)."""

    peer: int
    round: int = 0


@dataclass(frozen=True)
class Scenario:
    """What is played."""

    run: Run
    machines: Sequence[Machine]
    delays_s: dict[tuple[str, str], float]
    losses: dict[tuple[str, str], float] = field(default_factory=dict)
    """Part of the packets lost between regions."""
    seed: int = 0
    faults: Sequence[Fault] = ()
    entrances: Sequence[Entrance] = ()
    build: Build | None = None
    """How a peer makes its engine; None: a small counting model."""
    scale: float = 1.0
    """Modelled bytes per byte that is really exchanged: above 1 where a small vector stands for a large model."""
    enough: Callable[[World], bool] | None = None
    """Ends the play early; None: until every peer has stopped."""
    limit_s: float = 400 * 86400.0
    sees: Callable[[Line], None] | None = None
    """Called with every journal line as it is written: progress for a person, or a check."""


@dataclass
class Host:
    """One machine of the fleet: its disk and key outlive its processes."""

    place: int
    machine: Machine
    key: Identity
    disk: SimDisk
    compute: SimCompute
    skew_s: float = 0.0
    life: Incarnation | None = None
    stop: Stop | None = None
    task: asyncio.Task[None] | None = None
    failed: AtollError | None = None
    """What ended its present life."""
    failures: list[AtollError] = field(default_factory=list)
    """What ended any of its lives."""
    version: int = 0
    anchor: str = ""

    @property
    def peer(self) -> PeerId:
        return self.key.peer

    @property
    def alive(self) -> bool:
        return self.life is not None and self.life.alive and self.task is not None and not self.task.done()


class Remains(Struct, frozen=True):
    """What a crash left of the log on a disk, and how many journal lines had been written by then."""

    place: int
    lines: int
    log: bytes


@dataclass
class World:
    """Everything that exists while a scenario is played."""

    scenario: Scenario
    loop: VirtualLoop
    network: SimNetwork
    hosts: list[Host]
    trace: Trace
    lines: list[Line] = field(default_factory=list)
    announced: int = 0
    committed: int = 0
    finished: bool = False
    remains: list[Remains] = field(default_factory=list)
    bug: PeerBroke | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def now_s(self) -> float:
        return self.loop.time()


class Outcome(Struct, frozen=True):
    """What is left when the play is over."""

    trace: str
    took_s: float
    callbacks: int
    lines: list[Line]
    hosts: list[Host]
    remains: list[Remains]


class _Clock:
    """A host's wall clock, which may be wrong."""

    def __init__(self, world: World, host: Host) -> None:
        self._world = world
        self._host = host

    def now_s(self) -> float:
        return self._world.now_s() + self._host.skew_s


def on_fleet(fleet: Fleet) -> tuple[list[Machine], dict[tuple[str, str], float]]:
    """Return a fleet's single machines and the one-way delays between its regions."""
    machines = expand(fleet)
    regions = sorted({machine.region for machine in machines})
    return machines, {(a, b): latency_s(fleet, a, b) for a in regions for b in regions}


def losses_of(fleet: Fleet) -> dict[tuple[str, str], float]:
    """Return the packet loss between a fleet's regions."""
    regions = sorted({machine.region for machine in expand(fleet)})
    return {(a, b): link(fleet, a, b).loss for a in regions for b in regions}


def simulate(scenario: Scenario) -> Outcome:
    """Play a scenario to its end; raises `SimulationFailed` on deadlock, livelock, stall or a broken peer."""
    loop = VirtualLoop()

    async def main() -> Outcome:
        world = _make_world(scenario, loop)
        await _play(world)
        if world.bug is not None:
            raise world.bug
        return Outcome(world.trace.digest(), world.now_s(), loop.callbacks, world.lines, world.hosts, world.remains)

    return loop.run(main(), limit_s=scenario.limit_s, event_budget=EVENTS_MAX, progress_s_max=PROGRESS_S_MAX)


def _make_world(scenario: Scenario, loop: VirtualLoop) -> World:
    hosts = [_make_host(scenario, place, machine) for place, machine in enumerate(scenario.machines)]
    links = Links(
        peers={
            host.peer: Link(
                up_bytes_s=host.machine.up_bytes_s, down_bytes_s=host.machine.down_bytes_s, region=host.machine.region
            )
            for host in hosts
        },
        delays_s=dict(scenario.delays_s),
        losses=dict(scenario.losses),
    )
    network = SimNetwork(loop, links, stream(scenario.seed, "network"), scale=scenario.scale)
    for host in hosts:
        network.address(host.peer)
    return World(scenario, loop, network, hosts, Trace(loop.time))


def key_of(seed: int, place: int) -> Identity:
    """Return the identity of a simulated peer."""
    return Identity.from_seed(blake3(b"peer %d %d" % (seed, place)).digest())


def _make_host(scenario: Scenario, place: int, machine: Machine) -> Host:
    device = Device(flop_s=machine.device.flop_s, efficiency=machine.device.efficiency)
    disk = SimDisk(stream(scenario.seed, f"disk/{place}"), name=f"peer {place}")
    return Host(place, machine, key_of(scenario.seed, place), disk, SimCompute(device))


# processes


def start(world: World, host: Host) -> None:
    """Start a peer's process on its machine; its disk is as it was left."""
    life = world.loop.incarnation(f"peer {host.place}")
    life.watch(crash=lambda: _lose(world, host))
    host.life, host.stop, host.failed = life, Stop(), None
    host.compute = SimCompute(host.compute.device)
    host.task = life.start(_process(world, host, life))


def _lose(world: World, host: Host) -> None:
    """Let a crash take what was not synced, and remember what it left."""
    host.disk.crash()
    world.remains.append(Remains(host.place, len(world.lines), host.disk.files().get("log", b"")))


async def _process(world: World, host: Host, life: Incarnation) -> None:
    scenario = world.scenario
    run = scenario.run
    journal_ = Journal(short(host.peer), _Clock(world, host), life.guard(lambda line: _record(world, host, line)))

    async def build(run: Run) -> Engine:
        return scenario.build(run) if scenario.build is not None else counting(run)

    box = Box(
        transport=world.network.transport(host.peer, life),
        compute=host.compute,
        disk=host.disk,
        journal=journal_,
        random=Random(f"{scenario.seed}/peer/{host.place}/{world.now_s()}"),
        build=build,
        device=host.machine.name,
    )
    organiser = world.hosts[0]
    if host is organiser:
        begin = Start(run=run, name=host.machine.name)
    else:
        contacts = {organiser.peer: (world.network.address(organiser.peer),)}
        begin = Start(run_id=identity(run), contacts=contacts, name=host.machine.name)
    try:
        await live(box, begin, host.stop)
    except PeerLost:
        world.loop.call_in_world_at(world.now_s() + TRY_AGAIN_S, _try_again, world, host, life)
    except AtollError as error:
        host.failed = error
        host.failures.append(error)
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        world.bug = world.bug or PeerBroke(f"peer {host.place} broke at {world.now_s():.6f} s\n{told}")
    world.changed.set()


def _try_again(world: World, host: Host, life: Incarnation) -> None:
    """Start a peer that found nobody once more, as its owner would."""
    if host.life is life and life.alive:
        start(world, host)


def counting(run: Run) -> Engine:
    """Return a small counting model."""
    return CountingEngine(seed=run.seeds.data, size=COUNTING_SIZE, tokens_per_sample=run.data.context)


def stand_in(run: Run, vocab: int) -> tuple[Build, float]:
    """Return how to build counting models that cost what the run's real model costs, and the scale of their bytes."""
    shape, layout = layout_of(run, vocab)
    shape = replace(shape, context=run.data.context)
    trained = elements(layout)

    def build(run: Run) -> Engine:
        return CountingEngine(
            seed=run.seeds.data,
            size=STAND_IN_SIZE,
            tokens_per_sample=run.data.context,
            sample_cost=train_cost(shape, 1, run.model.adapter if isinstance(run.model, Folder) else None),
        )

    return build, max(1.0, trained / STAND_IN_SIZE)


def _record(world: World, host: Host, line: bytes) -> None:
    """Take a line that a peer wrote: into the trace, and into what the world knows."""
    world.trace.add(line)
    parsed = journal.parse(line)
    world.lines.append(parsed)
    world.loop.progress()
    match parsed.event:
        case journal.RoundAnnounced(version=version):
            world.announced = max(world.announced, version)
        case journal.RoundCommitted(version=version):
            world.committed = max(world.committed, version)
        case journal.RoundApplied(version=version, anchor=anchor):
            host.version, host.anchor = version, anchor
        case journal.RunFinished():
            world.finished = True
        case _:
            pass
    if world.scenario.sees is not None:
        world.scenario.sees(parsed)
    world.changed.set()


# the play


async def _play(world: World) -> None:
    """Start peers when their time comes, let the faults happen, and wait for the end."""
    late = {entrance.peer: entrance.round for entrance in world.scenario.entrances}
    async with asyncio.TaskGroup() as tasks:
        directors = [tasks.create_task(_happen(world, fault)) for fault in world.scenario.faults]
        owners = [tasks.create_task(_come_and_go(world, host)) for host in world.hosts]
        for host in world.hosts:
            if late.get(host.place, 0) == 0:
                start(world, host)
        waiting = [host for host in world.hosts if late.get(host.place, 0) > 0]
        while not _over(world, waiting, directors):
            world.changed.clear()
            for host in [h for h in waiting if world.announced >= late[h.place]]:
                waiting.remove(host)
                start(world, host)
            await world.changed.wait()
        for director in (*directors, *owners):
            director.cancel()


async def _come_and_go(world: World, host: Host) -> None:
    """Switch a machine off and on as its owner does."""
    match host.machine.availability:
        case Churn(up_s=up_s, down_s=down_s):
            rng = stream(world.scenario.seed, f"owner/{host.place}")
            while True:
                await asyncio.sleep(rng.expovariate(1 / up_s))
                await _leave(world, host, rng.expovariate(1 / down_s))
        case Always():
            pass


def _over(world: World, waiting: list[Host], directors: list[asyncio.Task[None]]) -> bool:
    if world.bug is not None:
        return True
    if world.scenario.enough is not None and world.scenario.enough(world):
        return True
    faults_done = all(director.done() for director in directors)
    return not waiting and (faults_done or world.finished) and not any(host.alive for host in world.hosts)


async def _happen(world: World, fault: Fault) -> None:
    """Let one fault happen and, where it ends, undo it."""
    await asyncio.sleep(fault.at_s)
    await _carry_out(world, fault)
    world.changed.set()


async def _carry_out(world: World, fault: Fault) -> None:
    match fault:
        case kinds.Crash(peer=peer, restart_after_s=after_s):
            await _crash(world, world.hosts[peer], after_s)
        case kinds.Leave(peer=peer, restart_after_s=after_s):
            await _leave(world, world.hosts[peer], after_s)
        case kinds.Pause(peer=peer, for_s=for_s):
            life = world.hosts[peer].life
            if life is not None:
                await _for_a_while(for_s, life.pause, life.resume)
        case kinds.Partition():
            await _partition(world, fault)
        case kinds.Skew(peer=peer, by_s=by_s):
            world.hosts[peer].skew_s += by_s
        case _:
            await _hamper(world, fault)


async def _crash(world: World, host: Host, after_s: float | None) -> None:
    if host.life is None or not host.life.alive:
        return
    host.life.crash()
    if after_s is not None:
        await asyncio.sleep(after_s)
        if not host.life.alive:
            start(world, host)


async def _leave(world: World, host: Host, after_s: float | None) -> None:
    if not host.alive or host.stop is None:
        return
    host.stop.ask("its owner wants the machine")
    if after_s is not None:
        await asyncio.sleep(after_s)
        if not host.alive:
            start(world, host)


async def _partition(world: World, fault: kinds.Partition) -> None:
    side = [world.hosts[place].peer for place in fault.side]
    rest = [host.peer for host in world.hosts if host.place not in fault.side]
    for one in side:
        for other in rest:
            world.network.cut(one, other, one_way=fault.one_way)
    await asyncio.sleep(fault.for_s)
    for one in side:
        for other in rest:
            world.network.heal(one, other, one_way=fault.one_way)


async def _hamper(
    world: World, fault: kinds.SlowDisk | kinds.FullDisk | kinds.SlowLink | kinds.LossyLink | kinds.SlowCompute
) -> None:
    """Make a machine worse for a while."""
    host, network = world.hosts[fault.peer], world.network
    match fault:
        case kinds.SlowDisk(factor=factor):
            await _set_for(fault.for_s, lambda value: setattr(host.disk, "slow", value), factor, 1.0)
        case kinds.FullDisk():
            was = host.disk.capacity_bytes
            full = host.disk.used_bytes()
            await _set_for(fault.for_s, lambda value: setattr(host.disk, "capacity_bytes", value), full, was)
        case kinds.SlowLink(factor=factor):
            await _set_for(fault.for_s, lambda value: network.slow(host.peer, value), factor, 1.0)
        case kinds.LossyLink(loss=loss):
            await _set_for(fault.for_s, lambda value: network.lose(host.peer, value), loss, 0.0)
        case kinds.SlowCompute(factor=factor):
            await _set_for(fault.for_s, lambda value: setattr(host.compute, "slow", value), factor, 1.0)


async def _set_for(for_s: float, put: Callable[[Any], None], during: Any, after: Any) -> None:
    await _for_a_while(for_s, lambda: put(during), lambda: put(after))


async def _for_a_while(for_s: float, begin: Callable[[], None], end: Callable[[], None]) -> None:
    begin()
    await asyncio.sleep(for_s)
    end()
