"""Is the simulator right? The same settings for real and in simulation, side by side.

    sudo python -m bench.calibrate                         every setting, both ways: a quarter of an hour
    sudo python -m bench.calibrate --keep real.json        keep what was measured
    python -m bench.calibrate --real real.json             simulate again beside what was measured before
    sudo python -m bench.calibrate --fit computer.json     measure this computer's constants, and keep them
    python -m bench.calibrate --real real.json --computer computer.json

For real: peers whose models stand still (`bench.still`) on the hosts of a network lab, all on this computer. In
simulation: the very same peers, run file, models and sizes, in virtual time, on a fleet with the same lines whose
machines share one computer of as many cores. A round's time is from its announcement to the commit on the last member,
the median of some rounds after the first two; where one is killed in the middle of a round, the time from its death to
the commit of that round on the last survivor. Given are both times and how far apart they are, and of the real side the
processor time of all peers per gigabit they send and the largest memory of a peer.

The simulator's constants (`sim/cores.py`, and the lab's own work below) are fitted to no round's time: what moving
bytes costs is the processor time of the settings marked with a star, a slow and a fast line of each kind; what a job
costs is timed alone, and how much of a line links fill is `bench.mesh`.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import msgspec
from bench import usage
from bench.allreduce import Setting, even, run_of
from bench.mesh import RATES_MBIT, filled
from bench.show import asked_for, ending, parser_of, show
from bench.still import StillEngine
from bench.swarm import MBIT, Swarm
from blake3 import blake3
from msgspec import Struct

from atoll import journal
from atoll.model.compute import Step
from atoll.net.transport import LinkKind
from atoll.sim.cores import TOLLS
from atoll.sim.faults import Crash, Fault
from atoll.sim.scenario import Scenario, World, simulate
from atoll.spec.axes.codec import Fp32
from atoll.spec.fleet import Device, LinkName, Machine, Processor
from atoll.spec.load import load_run
from atoll.sync.codec import decode, encode
from atoll.sync.grid import grid_of
from atoll.sync.merge import add_up, mean

E = TypeVar("E")
UNMEASURED = 2
"""Rounds in which rates are found out."""
MEASURED = 3
SIMULATED = 2
"""Rounds of the simulation that count: there, one is like the other."""
VICTIM = 2
"""Who is killed: an owner that does not lead."""
NEVER_S = 160.0
ELEMENTS, PARTS, PASSES = 10_000_000, 4, 20
"""What the cost of jobs is timed with: a vector, so many peers' parts of it, over and over."""
MEDIAN_MAX, WORST_MAX = 0.10, 0.20
"""How far the simulation may be off."""


class Moving(Struct, frozen=True):
    """What moving bytes takes of a computer's cores, both ends together."""

    s_gbit: float
    """Processor time per gigabit ..."""
    awake: float
    """... and for each second that a line is full."""


class Computer(Struct, frozen=True, kw_only=True):
    """What the computer takes that all hosts of a lab share."""

    cores: float
    pass_bytes_s: float
    """What a core passes over in the jobs of a round."""
    links: dict[LinkName, Moving]
    lab: dict[LinkName, Moving]
    """What the pretended network itself takes of the same cores."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    setting: Setting
    kills: bool = False
    fits: bool = False
    """Its processor time and bytes, not its rounds, gave the simulator its constants."""

    @property
    def name(self) -> str:
        return f"{self.setting.name}-{1e-6 * self.setting.size_bytes:g}MB{'-kill' if self.kills else ''}"

    @property
    def rate_mbit(self) -> float:
        return self.setting.lines_mbit[0][0]

    @property
    def links(self) -> LinkName:
        return "tls" if self.setting.links is LinkKind.TLS else "iroh"


Lines = tuple[tuple[float, float], ...]


def case(
    links: LinkKind, lines: Lines, size_mb: float, trip_s: float = 0.0, *, kills: bool = False, fits: bool = False
) -> Case:
    """Return a row with a vector of so many megabytes."""
    return Case(Setting(links, lines, trip_s, elements=int(size_mb * 1e6) // 4), kills, fits)


TLS, IROH = LinkKind.TLS, LinkKind.IROH
_ONE_SLOW = (*even(3, 100), (25.0, 25.0))
_HOMES = ((25.0, 100.0),) * 4
CASES = [
    case(TLS, even(2, 100), 40),
    case(TLS, even(4, 25), 10, fits=True),
    case(TLS, even(4, 50), 20),
    case(TLS, even(4, 100), 10),
    case(TLS, even(4, 100), 40),
    case(TLS, even(4, 200), 80),
    case(TLS, even(8, 100), 30),
    case(TLS, even(2, 500), 100),
    case(TLS, even(4, 500), 60, fits=True),
    case(TLS, even(8, 500), 40),
    case(TLS, even(4, 100), 40, trip_s=0.04),
    case(TLS, _ONE_SLOW, 20),
    case(TLS, _HOMES, 10),
    case(TLS, even(4, 100), 40, kills=True),
    case(IROH, even(2, 100), 40),
    case(IROH, even(4, 25), 10, fits=True),
    case(IROH, even(4, 50), 20),
    case(IROH, even(4, 100), 40),
    case(IROH, even(8, 50), 15),
    case(IROH, even(4, 500), 40, fits=True),
    case(IROH, even(4, 100), 40, trip_s=0.04),
    case(IROH, _ONE_SLOW, 20),
    case(IROH, even(4, 100), 40, kills=True),
]


@dataclass(frozen=True, kw_only=True)
class Real:
    """What came of a setting for real."""

    name: str
    rounds_s: list[float]
    took_s: float
    """The median of the rounds; where one was killed, from its death to the commit."""
    cpu_s_gbit: float
    """Processor time of all peers."""
    jobs_s_gbit: float = 0.0
    """Of it, what their worker threads took."""
    lab_s_gbit: float
    """Of the lab's switch."""
    else_s_gbit: float
    """Of everything else on this computer: the kernel for the lab, and whoever disturbs."""
    wire: float
    """Bytes that lines carried for each byte of a message."""
    resident_mb: float
    agreed: bool


@dataclass(frozen=True, kw_only=True)
class Row:
    """A setting both ways."""

    real: Real
    simulated_s: float
    error: float
    fits: bool


# for real


class _Spent(Struct, frozen=True):
    """What was used up by now."""

    peers_s: float
    jobs_s: float
    switch_s: float
    busy_s: float
    wire_bytes: float

    def since(self, before: _Spent) -> _Spent:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(before), strict=True)
        return _Spent(*(now - then for now, then in pairs))


def measured(case: Case, folder: Path) -> Real:
    """Play a setting for real."""
    rounds = UNMEASURED + MEASURED
    with case.setting.played(folder) as swarm:
        swarm.until_committed(UNMEASURED)
        before = _spent(swarm)
        swarm.until_committed(rounds)
        spent = _spent(swarm).since(before)
        rounds_s = [swarm.took_s(version) for version in range(UNMEASURED + 1, rounds + 1)]
        resident_mb, agreed = swarm.resident_mb(), swarm.agreed(rounds)
        took_s = statistics.median(rounds_s)
        if case.kills:
            took_s = _killed(swarm, rounds + 1, took_s)
        gbit = 8e-9 * case.setting.sent_bytes * MEASURED
        return Real(
            name=case.name,
            rounds_s=rounds_s,
            took_s=took_s,
            cpu_s_gbit=spent.peers_s / gbit,
            jobs_s_gbit=spent.jobs_s / gbit,
            lab_s_gbit=spent.switch_s / gbit,
            else_s_gbit=(spent.busy_s - spent.peers_s - spent.switch_s) / gbit,
            wire=spent.wire_bytes / (gbit * 1e9 / 8),
            resident_mb=resident_mb,
            agreed=agreed,
        )


def _killed(swarm: Swarm, disturbed: int, undisturbed_s: float) -> float:
    """Kill one in the middle of a round and return how long after that the survivors have all committed it."""
    died_s = swarm.kill_in(disturbed, VICTIM, undisturbed_s / 2)
    if not swarm.until_committed(disturbed, NEVER_S):
        raise RuntimeError(f"no survivor's commit within {NEVER_S:.0f} s")
    return swarm.committed_s(disturbed) - died_s


def _spent(swarm: Swarm) -> _Spent:
    jobs_s = sum(_worker_s(process.pid) for process in swarm.processes.values())
    return _Spent(swarm.cpu_s(), jobs_s, swarm.lab.switch_cpu_s(), usage.busy_s(), swarm.lab.carried_bytes())


def _worker_s(pid: int) -> float:
    """Return the processor time of a peer's worker thread: of those that Python started, by far the busiest."""
    spent_s = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        name, _, words = (task / "stat").read_text().partition("(")[2].rpartition(")")
        if name.startswith("python") and task.name != str(pid):
            spent_s.append(sum(map(int, words.split()[11:13])) / os.sysconf("SC_CLK_TCK"))
    return max(spent_s)


# in simulation


def simulated(case: Case, computer: Computer, folder: Path) -> float:
    """Play a setting in virtual time and return what `Real` calls `took_s`."""
    rounds = UNMEASURED + SIMULATED
    calm = _played(case, computer, folder, rounds + case.kills)
    rounds_s = [_took_s(calm, version) for version in range(UNMEASURED + 1, rounds + 1)]
    took_s = statistics.median(rounds_s)
    if case.kills:
        disturbed = rounds + 1
        died_s = _announced_s(calm, disturbed) + took_s / 2
        after = _played(case, computer, folder, disturbed, (Crash(at_s=died_s, peer=VICTIM, restart_after_s=None),))
        took_s = _committed_s(after, disturbed) - died_s
    return took_s


def _played(
    case: Case, computer: Computer, folder: Path, rounds: int, faults: tuple[Fault, ...] = ()
) -> list[journal.Line]:
    """Return what simulated peers wrote."""
    setting = case.setting
    seeds = iter(range(2 * setting.peers))
    (folder / "run.toml").write_text(run_of(setting.peers))

    def enough(world: World) -> bool:
        return all(host.version >= rounds for host in world.hosts if not host.gone)

    scenario = Scenario(
        run=load_run(folder / "run.toml"),
        machines=list(_machines(case, computer)),
        delays_s={("lab", "lab"): setting.round_trip_s / 2},
        build=lambda run: StillEngine(setting.elements, next(seeds), 0, 0.0),
        faults=faults,
        enough=enough,
    )
    lines = simulate(scenario).lines
    gc.collect()  # a world is gigabytes, and full of cycles
    return lines


def _machines(case: Case, computer: Computer) -> Iterator[Machine]:
    """Yield the lab's hosts as a fleet has them: lines of their own, and one computer for all."""
    toll, links, lab = TOLLS[case.links], computer.links[case.links], computer.lab[case.links]
    scale = links.s_gbit / (toll.send_s_gbit + toll.receive_s_gbit)
    processor = Processor(
        cores=computer.cores,
        pass_bytes_s=computer.pass_bytes_s,
        links=case.links,
        send_s_gbit=scale * toll.send_s_gbit + lab.s_gbit / 2,
        receive_s_gbit=scale * toll.receive_s_gbit + lab.s_gbit / 2,
        awake=(links.awake + lab.awake) / 2,
        computer="this one",
    )
    for index, (up_mbit, down_mbit) in enumerate(case.setting.lines_mbit):
        yield Machine(
            name=f"host-{index}",
            region="lab",
            device=Device(flop_s=1e12),
            up_bytes_s=up_mbit * MBIT,
            down_bytes_s=down_mbit * MBIT,
            disk_bytes=10**12,
            processor=processor,
        )


def _announced_s(lines: list[journal.Line], version: int) -> float:
    return min(at_s for at_s, event in _told(lines, journal.RoundAnnounced) if event.version == version)


def _committed_s(lines: list[journal.Line], version: int) -> float:
    return max(at_s for at_s, event in _told(lines, journal.RoundCommitted) if event.version == version)


def _took_s(lines: list[journal.Line], version: int) -> float:
    return _committed_s(lines, version) - _announced_s(lines, version)


def _told(lines: list[journal.Line], kind: type[E]) -> Iterator[tuple[float, E]]:
    return ((line.at_s, line.event) for line in lines if isinstance(line.event, kind))


# side by side


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", default="*", help="settings with such names: tls-*, *-kill, ...")
    parser.add_argument("--keep", type=Path, help="keep the real side in this file, beside what is in it")
    parser.add_argument("--real", type=Path, help="take the real side from this file")
    parser.add_argument("--fit", type=Path, metavar="FILE", help="measure this computer's constants and keep them")
    parser.add_argument("--computer", type=Path, help="simulate a computer with the constants in this file")
    options = parser.parse_args()
    asked = [each for each in CASES if asked_for(each.name, options.only) and (each.fits or not options.fit)]
    with ending():
        known = _kept(options.real) if options.real else _measure(asked, options.keep)
        asked = [each for each in asked if each.name in known]
        if options.fit:
            options.fit.write_bytes(msgspec.json.encode(_fitted(asked, known)))
            return 0
        computer = _computer(options.computer)
    rows = show((_row(each, computer, known[each.name]) for each in asked), _text, as_json=options.json)
    return _conclude(rows, as_json=options.json)


def _measure(cases: list[Case], keep: Path | None) -> dict[str, Real]:
    """Play settings for real, all before any is simulated, so that neither disturbs the other."""
    known: dict[str, Real] = {}
    for each in cases:
        with TemporaryDirectory() as name:
            known[each.name] = measured(each, Path(name))
        print(f"{each.name}: {known[each.name].took_s:.2f} s", file=sys.stderr, flush=True)
        if keep is not None:
            keep.write_bytes(msgspec.json.encode(_kept(keep) | known))
    return known


def _computer(path: Path | None) -> Computer:
    """Return what is known of the computer that was measured; otherwise it has our cores, and is like the first one."""
    if path is not None:
        return msgspec.json.decode(path.read_bytes(), type=Computer)
    return Computer(
        cores=float(len(usage.cores())),
        pass_bytes_s=Processor(cores=1.0).pass_bytes_s,
        links={name: Moving(toll.send_s_gbit + toll.receive_s_gbit, 2 * toll.awake) for name, toll in TOLLS.items()},
        lab={"tls": Moving(0.06, 0.04), "iroh": Moving(0.34, 0.04)},
    )


def _row(case: Case, computer: Computer, real: Real) -> Row:
    with TemporaryDirectory() as name:
        simulated_s = simulated(case, computer, Path(name))
    return Row(real=real, simulated_s=simulated_s, error=simulated_s / real.took_s - 1, fits=case.fits)


def _fitted(cases: list[Case], known: dict[str, Real]) -> Computer:
    """Return the constants as they come out here and now, and print them."""
    cores = len(usage.cores())
    with ProcessPoolExecutor(cores) as pool:  # on all at once: one that is alone is faster
        pass_bytes_s = statistics.mean(pool.map(passed_bytes_s, [ELEMENTS] * cores))
    print(f"a core passes over {1e-9 * pass_bytes_s:.1f} GB/s in the jobs of a round")
    links: dict[LinkName, Moving] = {}
    lab: dict[LinkName, Moving] = {}
    for name in TOLLS:
        mine = {each.rate_mbit: known[each.name] for each in cases if each.links == name}
        links[name] = moving({rate: real.cpu_s_gbit - real.jobs_s_gbit for rate, real in mine.items()})
        lab[name] = moving({rate: real.lab_s_gbit for rate, real in mine.items()})
        line = statistics.mean(filled(LinkKind(name), rate_mbit) for rate_mbit in RATES_MBIT)
        print(f"{name:<5} line {line:.3f}, links {_said(links[name])}, the lab {_said(lab[name])}", flush=True)
    return Computer(cores=cores, pass_bytes_s=pass_bytes_s, links=links, lab=lab)


def moving(cpu_s_gbit: dict[float, float]) -> Moving:
    """Return what moving bytes takes, from the processor time per gigabit on a slow and on a fast line."""
    slow, fast = min(cpu_s_gbit), max(cpu_s_gbit)
    awake = (cpu_s_gbit[slow] - cpu_s_gbit[fast]) / (_gbit_s(slow) - _gbit_s(fast))
    return Moving(cpu_s_gbit[fast] - awake * _gbit_s(fast), awake)


def _gbit_s(rate_mbit: float) -> float:
    """Return how long a line is full with a gigabit."""
    return 1000 / rate_mbit


def _said(cost: Moving) -> str:
    return f"{cost.s_gbit:.2f} CPU-s per Gbit and {cost.awake:.3f} of a core while a line is full"


def passed_bytes_s(elements: int) -> float:
    """Return what a core passes over in the jobs of a round up to its commit, as peers count it (`Member.job`)."""
    engine, codec, grid = StillEngine(elements, 0, 0, 0.0), Fp32(), grid_of(elements)
    engine.train([Step(samples=(0,))])
    anchor = engine.weights()
    began_s = time.process_time()
    for _ in range(PASSES):
        engine.assign(anchor)
        bounds = [grid.bounds(index) for index in range(grid.chunks)]
        chunks = [encode(codec, anchor[first:end] - engine.weights(first, end)) for first, end in bounds]
        for first in range(0, grid.chunks - PARTS, PARTS):
            parts = [decode(codec, chunk, len(chunk) // 4) for chunk in chunks[first : first + PARTS]]
            blake3(encode(codec, mean([add_up(parts, [1.0] * PARTS)], PARTS))).digest()
    took_s = time.process_time() - began_s
    vectors = 1 + 2 + 1 + 1  # assigned, subtracted, cut, and of a share the parts of all added up
    return 4 * elements * vectors * PASSES / took_s


def _kept(path: Path | None) -> dict[str, Real]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Real]) if path is not None and path.exists() else {}


def _text(row: Row) -> str:
    real = row.real
    spread = f"{min(real.rounds_s):.2f} to {max(real.rounds_s):.2f}"
    return (
        f"{real.name + (' *' if row.fits else ''):<28} real {real.took_s:6.2f} s, simulated {row.simulated_s:6.2f} s, "
        f"{100 * row.error:+6.1f} %   {real.cpu_s_gbit:.2f} CPU-s per Gbit, {real.resident_mb:.0f} MB   "
        f"(rounds {spread}; wire {real.wire:.3f}; lab {real.lab_s_gbit:.2f}, else {real.else_s_gbit:.2f})"
    )


def _conclude(rows: list[Row], *, as_json: bool) -> int:
    """Say how far off the simulation is and return whether that is within bounds."""
    if not rows:
        print("no such setting", file=sys.stderr)
        return 2
    errors = [abs(row.error) for row in rows]
    median, worst = statistics.median(errors), max(errors)
    said = f"{len(rows)} settings: off by {100 * median:.1f} % in the median, {100 * worst:.1f} % at worst"
    print(said, file=sys.stderr if as_json else sys.stdout)
    within = median <= MEDIAN_MAX and worst <= WORST_MAX and all(row.real.agreed for row in rows)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
