"""Is the planner right? Forecasts that were filed before, beside simulated fleets and real peers on shaped links.

    python -m bench.forecast file          write forecasts to docs/forecasts: before anything is played
    python -m bench.forecast fleets        the plans of shipped fleets in virtual time, beside what was filed
    python -m bench.forecast drawn         the same with machines and lines drawn: are ranges wide enough?
    sudo python -m bench.forecast lines    real peers whose models stand still in a network lab, beside what was filed

The formulas (`plan.pace`) and the simulator share nothing that tells the time. In the lab a byte takes as much of a
line as bare links measured (`bench.mesh`): 1.08 of its own over TLS, 1.28 over iroh. No setting here is one of those
that the simulator was calibrated with.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from bench.allreduce import Setting, even, run_of
from bench.show import ending, parser_of
from bench.swarm import MBIT
from msgspec import Struct
from msgspec.structs import replace

from atoll import journal
from atoll.errors import SpecError
from atoll.facts.book import load_facts
from atoll.net.transport import LinkKind
from atoll.plan.estimate import estimate
from atoll.plan.goal import Goal, size_named
from atoll.plan.lines import Line
from atoll.plan.pace import Ways, pace
from atoll.plan.planner import Judged, plan
from atoll.plan.spread import range_of
from atoll.sim.scenario import Scenario, losses_of, on_fleet, simulate, stand_in
from atoll.spec.axes.codec import Int8
from atoll.spec.fleet import Always, Fleet, Machine, expand, load_fleet
from atoll.spec.load import load_run
from atoll.spec.run import Budget
from atoll.units import say_table

FOLDER = Path("docs/forecasts")
FLEETS = ("lan", "homes", "town", "regions", "spot")
RECIPES = ("ddp", "diloco", "opendiloco")
WIRE = {LinkKind.TLS: 1.08, LinkKind.IROH: 1.28}
"""What a byte takes of a line's time (`python -m bench.mesh`; docs/measured.md)."""
WIRE_ENDS = {LinkKind.TLS: (1.05, 1.2), LinkKind.IROH: (1.15, 1.45)}
"""What it was at least and at most in rounds that were measured before."""
FLEETS_MAX, LINES_MAX = 0.10, 0.15
"""How far off a forecast may be."""
ROUNDS, UNMEASURED = 5, 2
DRAWS, TENTHS = 400, 0.8
PLAYED = 2
"""Fleets that are drawn of each."""

TLS, IROH = LinkKind.TLS, LinkKind.IROH
LINES = (
    Setting(TLS, even(3, 40), elements=4_000_000),
    Setting(TLS, even(5, 30), elements=3_000_000),
    Setting(TLS, even(6, 20), elements=2_000_000),
    Setting(TLS, ((20.0, 80.0),) * 4, elements=3_000_000),
    Setting(TLS, even(4, 60), round_trip_s=0.1, elements=5_000_000),
    Setting(TLS, (*even(3, 60), (15.0, 15.0)), elements=3_000_000),
    Setting(TLS, even(4, 30), elements=8_000_000, codec=Int8()),
    Setting(IROH, even(3, 40), elements=4_000_000),
    Setting(IROH, even(4, 20), round_trip_s=0.06, elements=2_000_000),
)


class Filed(Struct, frozen=True, kw_only=True):
    """One forecast."""

    name: str
    way: str
    step_s: float
    low_s: float
    high_s: float


class Seen(Struct, frozen=True, kw_only=True):
    """What came of it."""

    filed: Filed
    step_s: float

    @property
    def error(self) -> float:
        return self.filed.step_s / self.step_s - 1

    @property
    def covered(self) -> bool:
        return self.filed.low_s <= self.step_s <= self.filed.high_s


# forecasts


def goal() -> Goal:
    return Goal(size=size_named("125m"), vocab=1024, context=128, tokens=10**9, batch_tokens=2**17)


def planned(name: str) -> list[Judged]:
    """Return the ways for a shipped fleet that are played: with several peers, the fastest by each recipe."""
    fleet = load_fleet(name)
    verdict = plan(goal(), fleet, expand(fleet), RECIPES, load_facts())
    ways = [each for each in verdict.judged if not each.offer.alone and each.proven]
    return [
        min((each for each in ways if each.offer.recipe == recipe), key=lambda each: each.takes[0])
        for recipe in RECIPES
        if any(each.offer.recipe == recipe for each in ways)
    ]


def fleets() -> Iterator[tuple[Fleet, Judged, Filed]]:
    """Yield what is planned for each fleet, and its forecast: for lines without headers, as simulated ones are."""
    facts = load_facts()
    for name in FLEETS:
        for way in planned(name):
            plain = {**way.scene.knowledge, "forecast": _ones(way)}
            scene = replace(way.scene, knowledge=plain)
            middle = estimate(goal(), way.offer, scene, facts).pace
            rng = np.random.default_rng(0)
            deviations = {key: rng.standard_normal((DRAWS, 1)) for key in ("computing", "lines", "loss")}
            ends = range_of(estimate(goal(), way.offer, scene, facts, deviations).pace.step_s)
            filed = Filed(
                name=f"{name}-{way.offer.recipe}",
                way=way.offer.name,
                step_s=float(middle.step_s),
                low_s=ends.low,
                high_s=ends.high,
            )
            yield load_fleet(name), way, filed


def _ones(way: Judged) -> object:
    about = way.scene.knowledge["forecast"]
    ones = np.ones_like(about.middle)
    return replace(about, low=ones, middle=ones, high=ones)


def line_forecast(setting: Setting) -> Filed:
    """Return the forecast for real peers on the lines of a lab."""
    with TemporaryDirectory() as name:
        path = Path(name) / "run.toml"
        path.write_text(run_of(setting.peers, setting.codec))
        recipe = load_run(path).recipe
    lines = [
        Line(name=f"host-{place}", up_bytes_s=up * MBIT, down_bytes_s=down * MBIT, region="lab")
        for place, (up, down) in enumerate(setting.lines_mbit)
    ]
    still = np.zeros(setting.peers) + 1e-9
    low, middle, high = (
        float(pace(recipe, setting.elements, still, lines, _ways(setting, wire)).round_s)
        for wire in (WIRE_ENDS[setting.links][0], WIRE[setting.links], WIRE_ENDS[setting.links][1])
    )
    return Filed(name=f"{setting.name}-{setting.elements}", way="lab", step_s=middle, low_s=low, high_s=high)


def _ways(setting: Setting, wire: float) -> Ways:
    peers = setting.peers
    up, down = np.array(setting.lines_mbit).T * MBIT / wire
    apart = setting.round_trip_s * (1 - np.eye(peers))
    return Ways(up_bytes_s=up, down_bytes_s=down, trip_s=apart, one_bytes_s=np.full((peers, peers), np.inf))


def write() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    kinds = {"fleets": [filed for _, _, filed in fleets()], "lines": [line_forecast(each) for each in LINES]}
    for kind, rows in kinds.items():
        (FOLDER / f"{kind}.json").write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
        print(f"filed {len(rows)} forecasts in {FOLDER / kind}.json")
    return 0


def _read(kind: str) -> dict[str, Filed]:
    rows = msgspec.json.decode((FOLDER / f"{kind}.json").read_bytes(), type=list[Filed])
    return {row.name: row for row in rows}


# what came of them


def played_step_s(fleet: Fleet, way: Judged, machines: Sequence[Machine], seed: int = 0) -> float:
    """Return what a step takes in virtual time, of the middle of some rounds; nobody leaves meanwhile."""
    offer = way.offer
    run = replace(offer.run, budget=Budget(rounds=ROUNDS))
    build, scale = stand_in(run, goal().vocab)
    _, delays_s = on_fleet(fleet)
    outcome = simulate(
        Scenario(
            run=run,
            machines=[replace(machine, availability=Always()) for machine in machines],
            delays_s=delays_s,
            losses=losses_of(fleet),
            seed=seed,
            build=build,
            scale=scale,
        )
    )
    announced: dict[int, float] = {}
    for line in outcome.lines:
        if isinstance(line.event, journal.RoundAnnounced):
            announced.setdefault(line.event.version, line.at_s)
    times = [announced[v + 1] - announced[v] for v in range(UNMEASURED, ROUNDS) if v + 1 in announced]
    return statistics.median(times) / float(way.middle.pace.steps)


def _filed_for(told: Filed, filed: dict[str, Filed]) -> Filed:
    """Return what was filed of a way; what is planned by now has to be that very way."""
    if told.name not in filed or filed[told.name].way != told.way:
        raise SpecError(
            f"docs/forecasts/fleets.json: {told.name} is planned as '{told.way}' now, which nobody forecast",
            hint="python -m bench.forecast file, and commit it before anything is played",
        )
    return filed[told.name]


def fleets_seen() -> Iterator[Seen]:
    filed = _read("fleets")
    for fleet, way, told in fleets():
        yield Seen(filed=_filed_for(told, filed), step_s=played_step_s(fleet, way, way.offer.crew.machines))


def drawn_seen() -> Iterator[Seen]:
    """Yield the same ways on fleets that turned out to be others than their files say."""
    filed = _read("fleets")
    for number, (fleet, way, told) in enumerate(fleets()):
        for draw in range(PLAYED):
            rng = np.random.default_rng((number, draw))
            about, deviation = way.scene.knowledge, rng.standard_normal(3)
            speed, rate, loss = (
                about[name].at(each) for name, each in zip(("computing", "lines", "loss"), deviation, strict=True)
            )
            machines = [
                replace(
                    machine,
                    device=replace(machine.device, flop_s=machine.device.flop_s * float(speed[place])),
                    up_bytes_s=machine.up_bytes_s * float(rate[place]),
                    down_bytes_s=machine.down_bytes_s * float(rate[place]),
                )
                for place, machine in enumerate(way.offer.crew.machines)
            ]
            worse = replace(
                fleet,
                links=tuple(replace(each, loss=each.loss * float(loss[0])) for each in fleet.links),
                elsewhere=replace(fleet.elsewhere, loss=fleet.elsewhere.loss * float(loss[0])),
                within=replace(fleet.within, loss=fleet.within.loss * float(loss[0])),
            )
            step_s = played_step_s(worse, way, machines, draw)
            yield Seen(filed=replace(_filed_for(told, filed), name=f"{told.name}-{draw}"), step_s=step_s)


def lines_seen() -> Iterator[Seen]:
    filed = _read("lines")
    for setting in LINES:
        told = filed[f"{setting.name}-{setting.elements}"]
        with TemporaryDirectory() as name, setting.played(Path(name)) as swarm:
            swarm.until_committed(ROUNDS)
            rounds_s = [swarm.took_s(version) for version in range(UNMEASURED + 1, ROUNDS + 1)]
        yield Seen(filed=told, step_s=statistics.median(rounds_s))


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("what", choices=("file", "fleets", "drawn", "lines"))
    options = parser.parse_args()
    if options.what == "file":
        return write()
    limit = {"fleets": FLEETS_MAX, "lines": LINES_MAX, "drawn": np.inf}[options.what]
    rows: list[Seen] = []
    with ending():
        for seen in {"fleets": fleets_seen, "drawn": drawn_seen, "lines": lines_seen}[options.what]():
            rows.append(seen)
            print(f"{seen.filed.name}: {seen.step_s:.4g} s", file=sys.stderr, flush=True)
    head = ("setting", "forecast", "P10-P90", "seen", "off by", "covered")
    print("\n".join(say_table([head, *map(_said, rows)])))
    errors, covered = [abs(row.error) for row in rows], sum(row.covered for row in rows) / len(rows)
    off = f"off by {statistics.median(errors):.1%} in the median, {max(errors):.1%} at worst"
    print(f"{len(rows)} settings: {off}; {covered:.0%} within P10-P90")
    return int(max(errors) > limit)


def _said(row: Seen) -> tuple[str, ...]:
    filed = row.filed
    ends = f"{filed.low_s:.3g} - {filed.high_s:.3g} s"
    covered = "yes" if row.covered else "no"
    return filed.name, f"{filed.step_s:.4g} s", ends, f"{row.step_s:.4g} s", f"{row.error:+.1%}", covered


if __name__ == "__main__":
    sys.exit(main())
