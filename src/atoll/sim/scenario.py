"""A run in virtual time: the same peers on imagined machines, with faults from a list.

A scenario is data (run, machines, seed, faults, when to end); `simulate` plays it and returns what can be
looked at afterwards: every journal line in order, the disks, and the trace hash. Nothing here knows how
peers work inside. Peers are named by their place in the fleet; the first one organises the run.
"""

from __future__ import annotations

import asyncio
import gc
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from blake3 import blake3
from msgspec import Struct
from msgspec.structs import replace

from atoll import journal
from atoll.errors import AtollError, LocalError, PeerLost
from atoll.journal import Journal, Line
from atoll.model.compute import Engine
from atoll.model.folder import layout_of
from atoll.model.moments import equal_parts, parts_of, travelling
from atoll.model.shape import elements, step_cost, train_cost
from atoll.net.identity import Identity, short
from atoll.net.transport import PeerId
from atoll.peer.box import Box
from atoll.peer.life import Start, Stop, live
from atoll.sim import faults as kinds
from atoll.sim.compute import CountingEngine, Device, SimCompute
from atoll.sim.disk import SimDisk
from atoll.sim.faults import Fault, stream
from atoll.sim.links import Link, Links
from atoll.sim.loop import Incarnation, SimulationFailed, VirtualLoop
from atoll.sim.network import SimNetwork
from atoll.sim.points import Points, Trap
from atoll.sim.trace import Trace
from atoll.sim.vandal import Eavesdropper, Vandal
from atoll.spec.axes.when import Named
from atoll.spec.fleet import Always, Churn, Fleet, Machine, expand, latency_s, link
from atoll.spec.run import AllowList, Folder, Run, identity
from atoll.spec.turns import rarest
from atoll.swarm.log import EpochStarted, from_bytes
from atoll.sync.units import part_named

Build = Callable[[Run], Engine]

EVENTS_MAX = 50_000_000
PROGRESS_S_MAX = 20 * 3600.0
"""No journal line for so long, in virtual time, is a stall."""


class PeerBroke(SimulationFailed):
    """A peer ended with an exception that is no error of ours: an invariant was broken."""


TRY_AGAIN_S = 5.0
LOOK_AGAIN_S = 5.0
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
    tickets: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Whom a peer first turns to, by place; whoever is not named here asks the organiser."""
    stated_bytes_s: Mapping[int, int] = field(default_factory=dict)
    """What people say that their lines carry, by place."""
    build: Build | None = None
    """How a peer makes its engine; None: a small counting model."""
    resumes_with: Run | None = None
    """What the organiser's run file says when it starts again; None: the same."""
    hesitates: float = 0.0
    """Part of the compute jobs that run somewhere within their time instead of at its beginning."""
    looks: bool = False
    """Count every send and sync by kind."""
    remembers: bool = True
    """Keep every result as it lay on disks at its commit, for the checks; with a large model that is gigabytes."""
    scale: float = 1.0
    """Modelled bytes per byte that is really exchanged: above 1 where a small vector stands for a large model."""
    quantum_s: float = 0.0
    """How often the shares of links are computed anew at most; 0: at every change. Large fleets need some."""
    enough: Callable[[World], bool] | None = None
    """Ends the play early; None: until every peer has stopped."""
    calm_s: float = math.inf
    """When the faults are over: whoever has not entered by then enters."""
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
    beside: SimCompute
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
    here: bool = False
    """It was alive when the play ended."""
    lives: int = 0
    """Processes started on it."""
    gone: bool = False
    """It crashed or left for good, or was rightly set aside: nothing more is expected of it."""
    reforms: bool = False
    """Its owner starts it with a council re-formed."""
    lied: bool = False
    """It sent what it had not computed."""
    full: int = 0
    """How many faults keep its disk full: that it stops is then right."""
    roomy_bytes: int = 0
    """What its disk holds when it is not full."""
    points: Points | None = None

    @property
    def peer(self) -> PeerId:
        return self.key.peer

    @property
    def alive(self) -> bool:
        return self.life is not None and self.life.alive and self.task is not None and not self.task.done()


class Remains(Struct, frozen=True):
    """What is sure to survive of every peer's log at the moment of a crash, and the journal lines written by then."""

    place: int
    lines: int
    logs: list[bytes]


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
    parted: int = 0
    """The newest version that was made in circles."""
    finished: bool = False
    remains: list[Remains] = field(default_factory=list)
    held: dict[int, dict[bytes, list[int]]] = field(default_factory=dict)
    vandals: dict[str, Vandal] = field(default_factory=dict)
    bug: PeerBroke | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def now_s(self) -> float:
        return self.loop.time()

    def leader(self) -> int:
        """Return the place of who took office last, as far as any disk knows; the organiser before that."""
        offices = [office for host in self.hosts for office in _offices(host)]
        last = max(offices, key=lambda office: office.epoch, default=None)
        return next((host.place for host in self.hosts if last is not None and host.peer == last.broker), 0)


def _offices(host: Host) -> list[EpochStarted]:
    """Return who took office, as a host's log has it; nobody where it cannot be read: the checks say that."""
    try:
        entries, _ = from_bytes(host.disk.file("log"), "log")
    except LocalError:
        return []
    return [entry.record for entry in entries if isinstance(entry.record, EpochStarted)]


class Outcome(Struct, frozen=True):
    """What is left when the play is over."""

    trace: str
    took_s: float
    callbacks: int
    lines: list[Line]
    hosts: list[Host]
    remains: list[Remains]
    held: dict[int, dict[bytes, list[int]]] = {}
    """Of each version, when a journal first called it committed: what was surely on disks as its result, and whose."""
    vandals: dict[str, int] = {}
    """Short names of those who said nothing true, and how many messages they got out."""
    round_bytes: dict[tuple[str, str], int] = {}
    """What contributions, sums and results came to on the wire, from region to region."""

    @property
    def crossed_bytes(self) -> int:
        """Return how much of it went from one region to another."""
        return sum(size for (one, other), size in self.round_bytes.items() if one != other)


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


def somebody_failed(world: World) -> bool:
    """Return whether a peer stopped for an error of its own, such as training that diverged.

    Nobody starts it again. Others may wait for it for as long as time lasts, where it was in the council.
    """
    return any(host.failures for host in world.hosts)


def simulate(scenario: Scenario) -> Outcome:
    """Play a scenario to its end; raises `SimulationFailed` on deadlock, livelock, stall or a broken peer."""
    loop = VirtualLoop()

    async def main() -> Outcome:
        world = _make_world(scenario, loop)
        await _play(world)
        if world.bug is not None:
            raise world.bug
        for host in world.hosts:
            host.here = host.alive
        return Outcome(
            trace=world.trace.digest(),
            took_s=world.now_s(),
            callbacks=loop.callbacks,
            lines=world.lines,
            hosts=world.hosts,
            remains=world.remains,
            held=world.held,
            vandals={name: vandal.said for name, vandal in world.vandals.items()},
            round_bytes=dict(world.network.round_bytes),
        )

    with _seldom_collecting():
        return loop.run(main(), limit_s=scenario.limit_s, event_budget=EVENTS_MAX, progress_s_max=PROGRESS_S_MAX)


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Look for garbage seldom: a world is large, lives as long as its play, and has few cycles."""
    usual = gc.get_threshold()
    gc.set_threshold(1_000_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _make_world(scenario: Scenario, loop: VirtualLoop) -> World:
    keys = [key_of(scenario.seed, place) for place in range(len(scenario.machines))]
    links = Links(
        peers={
            key.peer: Link(
                up_bytes_s=machine.up_bytes_s,
                down_bytes_s=machine.down_bytes_s,
                region=machine.region,
                nat=machine.nat,
                processor=machine.processor,
            )
            for key, machine in zip(keys, scenario.machines, strict=True)
        },
        delays_s=dict(scenario.delays_s),
        losses=dict(scenario.losses),
    )
    silence_s_max = scenario.run.upkeep.silence_s_max
    rng = stream(scenario.seed, "network")
    network = SimNetwork(
        loop, links, rng, scale=scenario.scale, silence_s_max=silence_s_max, quantum_s=scenario.quantum_s
    )
    for key in keys:
        network.address(key.peer)
    hosts = [_make_host(scenario, place, key, network) for place, key in enumerate(keys)]
    if scenario.looks:
        for host in hosts:
            _look(network, host)
    return World(scenario, loop, network, hosts, Trace(loop.time))


def _look(network: SimNetwork, host: Host) -> Points:
    """Return what looks at a host's sends and syncs, set up if nobody looked so far."""
    if host.points is None:
        host.points = host.disk.points = Points()
        network.watch(host.peer, host.points)
    return host.points


def key_of(seed: int, place: int) -> Identity:
    """Return the identity of a simulated peer."""
    return Identity.from_seed(blake3(b"peer %d %d" % (seed, place)).digest())


def _make_host(scenario: Scenario, place: int, key: Identity, network: SimNetwork) -> Host:
    machine = scenario.machines[place]
    device = Device(flop_s=machine.device.flop_s, efficiency=machine.device.efficiency)
    if machine.processor is not None:
        device = replace(device, memory_bytes_s=machine.processor.pass_bytes_s / scenario.scale)
    disk = SimDisk(stream(scenario.seed, f"disk/{place}"), name=f"peer {place}")
    cores, hesitates = network.cores(key.peer), scenario.hesitates
    compute, beside = (
        SimCompute(device, hesitates=hesitates, rng=stream(scenario.seed, f"{name}/{place}"), cores=cores)
        for name in ("compute", "beside")
    )
    return Host(place, machine, key, disk, compute, beside)


# processes


def start(world: World, host: Host) -> None:
    """Start a peer's process on its machine; its disk is as it was left."""
    life = world.loop.incarnation(f"peer {host.place}")
    life.watch(crash=lambda: _lose(world, host))
    host.life, host.stop, host.failed = life, Stop(), None
    host.lives += 1
    host.compute, host.beside = host.compute.again(), host.beside.again()
    host.task = life.start(_process(world, host, life))


def _lose(world: World, host: Host) -> None:
    """Let a crash take what was not synced, and remember what it left."""
    host.disk.crash()
    host.compute.stop()
    host.beside.stop()
    logs = [other.disk.durable("log") for other in world.hosts]
    world.remains.append(Remains(host.place, len(world.lines), logs))


async def _process(world: World, host: Host, life: Incarnation) -> None:
    scenario = world.scenario
    run = scenario.run
    journal_ = Journal(short(host.peer), _Clock(world, host), life.guard(lambda line: _record(world, host, line)))

    async def build(run: Run) -> Engine:
        engine = (scenario.build or counting)(run)
        if isinstance(engine, CountingEngine):
            engine.life = host.lives
        return engine

    box = Box(
        transport=world.network.transport(host.peer, life),
        compute=host.compute,
        beside=host.beside,
        disk=host.disk,
        journal=journal_,
        random=Random(f"{scenario.seed}/peer/{host.place}/{world.now_s()}"),
        sign=host.key.sign,
        build=build,
        device=host.machine.name,
    )
    organiser = world.hosts[0]
    if host is organiser:
        asked = run if host.lives == 1 else scenario.resumes_with or run
        begin = Start(run=asked, name=host.machine.name, reform=host.reforms)
    else:
        known = [world.hosts[place] for place in scenario.tickets.get(host.place, (0,))]
        contacts = {other.peer: (world.network.address(other.peer),) for other in known}
        begin = Start(run_id=identity(run), contacts=contacts, name=host.machine.name)
    begin.line_bytes_s = scenario.stated_bytes_s.get(host.place, 0)
    try:
        await live(box, begin, host.stop)
    except PeerLost:
        world.loop.call_in_world_at(world.now_s() + TRY_AGAIN_S, _try_again, world, host, life)
    except AtollError as error:
        host.failed = error
        host.gone = host.gone or _unwelcome(run, host)
        if not (host.gone or (host.full and isinstance(error, LocalError))):
            host.failures.append(error)
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        world.bug = world.bug or PeerBroke(f"peer {host.place} broke at {world.now_s():.6f} s\n{told}")
    world.changed.set()


def _unwelcome(run: Run, host: Host) -> bool:
    """Return whether a host is not on the list of those who may take part: that it is refused is right."""
    who = run.membership.who
    return host.place > 0 and isinstance(who, AllowList) and host.peer.hex() not in who.peers


def _try_again(world: World, host: Host, life: Incarnation) -> None:
    """Start a peer that found nobody once more, as its owner would."""
    if host.life is life and life.alive:
        start(world, host)


def counting(run: Run, size: int = COUNTING_SIZE) -> Engine:
    """Return a small counting model."""
    moments = equal_parts(run.recipe)
    return CountingEngine(seed=run.seeds.data, size=size, tokens_per_sample=run.data.context, moments=moments)


def stand_in(run: Run, vocab: int) -> tuple[Build, float]:
    """Return how to build counting models that cost what the run's real model costs, and the scale of their bytes."""
    shape, layout = layout_of(run, vocab)
    shape = replace(shape, context=run.data.context)
    travels = elements(travelling(run.recipe, layout))
    when = rarest(run.recipe).when
    named = (when.names[0], part_named(when, layout)) if isinstance(when, Named) else None

    def build(run: Run) -> Engine:
        return CountingEngine(
            seed=run.seeds.data,
            size=STAND_IN_SIZE,
            tokens_per_sample=run.data.context,
            sample_cost=train_cost(shape, 1, run.model.adapter if isinstance(run.model, Folder) else None),
            step_cost=step_cost(layout, run.recipe.work.inner),
            moments=parts_of(run.recipe, layout),
            named=named,
        )

    return build, max(1.0, travels / STAND_IN_SIZE)


def _record(world: World, host: Host, line: bytes) -> None:
    """Take a line that a peer wrote: into the trace, and into what the world knows."""
    world.trace.add(line)
    parsed = journal.parse(line)
    world.lines.append(parsed)
    world.loop.progress()
    match parsed.event:
        case journal.RoundAnnounced(version=version):
            world.announced = max(world.announced, version)
        case journal.RoundCommitted(version=version, circles=circles):
            world.committed = max(world.committed, version)
            world.parted = max(world.parted, version if circles else 0)
            if world.scenario.remembers and version not in world.held:
                world.held[version] = _held(world, version)
        case (
            journal.RoundApplied(version=version, anchor=anchor)
            | journal.RoundPassedOver(version=version, anchor=anchor)
        ):
            host.version, host.anchor = version, anchor
        case journal.RunFinished():
            world.finished = True
        case _:
            pass
    if world.scenario.sees is not None:
        world.scenario.sees(parsed)
    world.changed.set()


def _held(world: World, version: int) -> dict[bytes, list[int]]:
    """Return what is durably on disks as the result of a version, and on whose."""
    held: dict[bytes, list[int]] = {}
    for host in world.hosts:
        if kept := host.disk.durable(f"results/{version}"):
            held.setdefault(kept, []).append(host.place)
    return held


# the play


async def _play(world: World) -> None:
    """Start peers when their time comes, let the faults happen, and wait for the end."""
    late = {entrance.peer: entrance.round for entrance in world.scenario.entrances}
    async with asyncio.TaskGroup() as tasks:
        directors = [tasks.create_task(_happen(world, fault)) for fault in world.scenario.faults]
        owners = [tasks.create_task(_come_and_go(world, host)) for host in world.hosts]
        owners.append(tasks.create_task(_look_again(world)))
        for host in world.hosts:
            if late.get(host.place, 0) == 0:
                start(world, host)
        waiting = [host for host in world.hosts if late.get(host.place, 0) > 0]
        while not _over(world, waiting, directors):
            world.changed.clear()
            everybody = world.now_s() >= world.scenario.calm_s
            for host in [h for h in waiting if everybody or world.announced >= late[h.place]]:
                waiting.remove(host)
                start(world, host)
            await world.changed.wait()
        for director in (*directors, *owners):
            director.cancel()


async def _look_again(world: World) -> None:
    """Let the end be asked for now and then once the faults are over, even if nobody writes a line any more."""
    if world.scenario.calm_s < math.inf:
        await asyncio.sleep(world.scenario.calm_s)
        while True:
            world.changed.set()
            await asyncio.sleep(LOOK_AGAIN_S)


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
    await _carry_out(world, _resolved(world, fault))
    world.changed.set()


def _resolved(world: World, fault: Fault) -> Fault:
    """Return the fault with the present leader's place where it says only "the leader"."""
    match fault:
        case kinds.Partition(side=side) if kinds.LEADER in side:
            leader = world.leader()
            return replace(fault, side=tuple(sorted({leader if p == kinds.LEADER else p for p in side})))
        case kinds.Partition() | kinds.Vandal() | kinds.Reform():
            return fault
        case _:
            return replace(fault, peer=world.leader()) if fault.peer == kinds.LEADER else fault


async def _carry_out(world: World, fault: Fault) -> None:
    match fault:
        case kinds.Crash(peer=peer, restart_after_s=after_s):
            await _crash(world, world.hosts[peer], after_s)
        case kinds.CrashAt():
            await _crash_at(world, fault)
        case kinds.Vandal():
            await _vandalise(world, fault)
        case kinds.Reform():
            await _reform(world, world.hosts[0])
        case kinds.Leave(peer=peer, restart_after_s=after_s):
            await _leave(world, world.hosts[peer], after_s)
        case kinds.Pause(peer=peer, for_s=for_s):
            life = world.hosts[peer].life
            if life is not None:
                await _for_a_while(for_s, life.pause, life.resume)
        case kinds.Partition():
            await _partition(world, fault)
        case kinds.Lie():
            await _lie(world, fault)
        case kinds.Skew(peer=peer, by_s=by_s):
            world.hosts[peer].skew_s += by_s
        case _:
            await _hamper(world, fault)


async def _crash(world: World, host: Host, after_s: float | None) -> None:
    if host.life is None or not host.life.alive:
        return
    host.life.crash()
    host.gone = after_s is None
    if after_s is not None:
        await asyncio.sleep(after_s)
        if not host.life.alive:
            start(world, host)


async def _reform(world: World, host: Host) -> None:
    host.reforms = True
    await _crash(world, host, 0.1)
    if not host.alive:
        start(world, host)


async def _crash_at(world: World, fault: kinds.CrashAt) -> None:
    """Wait for the point, if it comes in time; crash there, and start again."""
    host = world.hosts[fault.peer]
    points, sprung = _look(world.network, host), asyncio.Event()

    def spring() -> None:
        assert host.life is not None
        host.life.crash()
        sprung.set()

    trap = Trap(fault.what, fault.when, fault.nth, spring)
    points.set(trap)
    try:
        async with asyncio.timeout(fault.for_s):
            await sprung.wait()
    except TimeoutError:
        pass  # it never came to that
    points.clear(trap)
    host.gone = host.gone or (sprung.is_set() and fault.restart_after_s is None)
    if sprung.is_set() and fault.restart_after_s is not None:
        await asyncio.sleep(fault.restart_after_s)
        if host.life is not None and not host.life.alive:
            start(world, host)


async def _lie(world: World, fault: kinds.Lie) -> None:
    host = world.hosts[fault.peer]
    host.gone = host.lied = True
    lies = _look(world.network, host).lies
    await _for_a_while(fault.for_s, lambda: lies.append(fault.what), lambda: lies.remove(fault.what))


async def _vandalise(world: World, fault: kinds.Vandal) -> None:
    """Let a stranger loose for a while; then it is gone without a word."""
    number = len(world.vandals)
    key = Identity.from_seed(blake3(b"vandal %d %d" % (world.scenario.seed, number)).digest())
    heard = Eavesdropper()
    for host in world.hosts:
        _look(world.network, host).hear = heard.hear
    life = world.loop.incarnation(f"vandal {number}")
    rng = stream(world.scenario.seed, f"vandal/{number}")
    vandal = Vandal(world.network.transport(key.peer, life), [host.peer for host in world.hosts], heard, rng)
    world.vandals[short(key.peer)] = vandal
    await _for_a_while(fault.for_s, lambda: life.start(vandal.rampage(fault.pause_s)), life.crash)


async def _leave(world: World, host: Host, after_s: float | None) -> None:
    if not host.alive or host.stop is None:
        return
    stop = host.stop
    stop.ask("its owner wants the machine")
    host.gone = after_s is None
    if after_s is not None:
        await asyncio.sleep(after_s)
        while host.alive and host.stop is stop:  # noqa: ASYNC110 - asleep when it was asked: it goes when it wakes
            await asyncio.sleep(LOOK_AGAIN_S)
        if not host.alive:
            start(world, host)


async def _partition(world: World, fault: kinds.Partition) -> None:
    side = [world.hosts[place].peer for place in fault.side]
    others = fault.others or range(len(world.hosts))
    rest = [world.hosts[place].peer for place in others if place not in fault.side]
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
            await _fill(world, host, fault.for_s)
        case kinds.SlowLink(factor=factor):
            await _set_for(fault.for_s, lambda value: network.slow(host.peer, value), factor, 1.0)
        case kinds.LossyLink(loss=loss, other=place):
            other = world.hosts[place].peer if place is not None else None
            await _set_for(fault.for_s, lambda value: network.lose(host.peer, value, other), loss, 0.0)
        case kinds.SlowCompute(factor=factor):
            await _set_for(fault.for_s, lambda value: _slow_down(host, value), factor, 1.0)


def _slow_down(host: Host, factor: float) -> None:
    host.compute.slow_down(factor)
    host.beside.slow_down(factor)


async def _fill(world: World, host: Host, for_s: float) -> None:
    """Leave no room on a disk for a while; a peer that stopped for it is started again when there is."""
    if not host.full:
        host.roomy_bytes, host.disk.capacity_bytes = host.disk.capacity_bytes, host.disk.used_bytes()
    host.full += 1
    await asyncio.sleep(for_s)
    host.full -= 1
    if not host.full:
        host.disk.capacity_bytes = host.roomy_bytes
        if host.failed is not None and not host.alive:
            start(world, host)


async def _set_for(for_s: float, put: Callable[[Any], None], during: Any, after: Any) -> None:
    await _for_a_while(for_s, lambda: put(during), lambda: put(after))


async def _for_a_while(for_s: float, begin: Callable[[], object], end: Callable[[], object]) -> None:
    begin()
    await asyncio.sleep(for_s)
    end()
