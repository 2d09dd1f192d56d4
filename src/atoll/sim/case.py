"""One search case as data: everything that is played, so that a stored case replays to the byte.

A case is a storm and the calm after it. While the storm lasts, safety is watched; at `until_s` every fault is over,
whoever was to come back is back, and within `calm_s_max` new rounds must have committed and everybody who is not
lost for good must hold the newest anchor. The case's file is plain JSON: run, machines, faults, seed, and the trace
hash that a replay must reach again.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

import atoll
from atoll.errors import SpecError
from atoll.journal import Line
from atoll.net.transport import CONNECT_S_MAX
from atoll.sim.check import settled, violations
from atoll.sim.faults import Fault
from atoll.sim.loop import SimulationFailed
from atoll.sim.scenario import COUNTING_SIZE, TRY_AGAIN_S, Entrance, Host, Scenario, World, counting, simulate
from atoll.spec.axes.control import Auto
from atoll.spec.fleet import Machine
from atoll.spec.knobs import room_max
from atoll.spec.run import Run
from atoll.spec.turns import rarest, round_steps

SCHEMA = "atoll.case/1"
CALM_ROUNDS = 2
"""Rounds that must commit after the storm."""
GREETING_S = 45.0
"""A member greets its broker again within this: its longest wait between two attempts, and one greeting."""
ELECTION_S = 30.0
"""A council with a majority has a leader within this, and that leader has heard its members."""
MEND_S = 60.0
"""A disturbed exchange is planned anew within this: twice the time after which nothing moving counts."""
SAMPLE_FLOP = 6e9
"""What a sample of the small counting model costs."""


class Between(Struct, frozen=True, array_like=True):
    """What lies between two regions: seconds one way, or a part of the packets."""

    one: str
    other: str
    value: float


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is played in a fault search."""

    seed: int
    run: Run
    machines: tuple[Machine, ...]
    delays_s: tuple[Between, ...]
    losses: tuple[Between, ...] = ()
    family: str = ""
    faults: tuple[Fault, ...] = ()
    entrances: tuple[Entrance, ...] = ()
    tickets: dict[int, tuple[int, ...]] = {}
    size: int = COUNTING_SIZE
    """Elements of the counting model."""
    resumes_with: Run | None = None
    """What the organiser's run file says when it starts again; None: the same."""
    hesitates: float = 0.0
    until_s: float = 60.0
    """When the storm is over."""
    ends: bool = False
    """The run's own budget ends the play; there is no calm to wait for."""
    schema: str = SCHEMA
    trace: str = ""
    """The trace hash that a replay must have."""
    broken: tuple[str, ...] = ()
    """What it broke when it was stored."""
    made_with: str = ""


class Verdict(Struct, frozen=True, kw_only=True):
    """What one case showed."""

    seed: int
    faults: tuple[Fault, ...]
    broken: list[str]
    """Promises that did not hold."""
    stormy_rounds: int
    """Rounds committed while faults were on."""
    rounds: int
    trace: str
    took_s: float
    family: str = ""
    calm_s: float = 0.0
    """How long it took to come to peace after the storm."""
    calm_s_max: float = 0.0
    seen: dict[str, dict[int, int]] = {}
    """Sends and syncs by kind and place, where somebody looked."""


def calm_s_max(case: Case) -> float:
    """Return the bound on liveness: the time by which a healed run has new rounds and everybody holds the newest.

        silence_s_max + 2 connects + another try + greeting + election
            + (rounds wanted + rounds open) x (work of the slowest + patience_s_max + mend)

    As many as may have been open when the storm ended count too.
    """
    patience_s = case.run.upkeep.patience_s_max
    found_s = case.run.upkeep.silence_s_max + 2 * CONNECT_S_MAX + TRY_AGAIN_S + GREETING_S + ELECTION_S
    return found_s + (CALM_ROUNDS + room_max(case.run.recipe)) * (_work_s(case) + patience_s + MEND_S)


def _work_s(case: Case) -> float:
    """Return how long the slowest machine takes for the work of a round."""
    control = case.run.recipe.control
    turned = [rung.steps for rung in control.ladder] if isinstance(control, Auto) else []
    steps = max([*turned, round_steps(case.run.recipe)])
    flop = steps * case.run.recipe.work.batch * SAMPLE_FLOP
    return max(flop / (machine.device.flop_s * machine.device.efficiency) for machine in case.machines)


def play(case: Case, *, looks: bool = False, sees: Callable[[Line], None] | None = None) -> Verdict:
    """Play a case and return its verdict."""
    calm = Calm(case)
    try:
        outcome = simulate(scenario_of(case, calm, looks=looks, sees=sees))
    except SimulationFailed as failed:
        return Verdict(
            seed=case.seed,
            family=case.family,
            faults=case.faults,
            broken=[str(failed)],
            stormy_rounds=0,
            rounds=0,
            trace="",
            took_s=0.0,
        )
    broken = violations(case.run, outcome)
    if not case.ends:
        broken += [] if calm.free else settled(outcome, calm.room)
        if calm.overdue(outcome.took_s):
            broken.append(f"no {CALM_ROUNDS} rounds for everybody within {calm.limit_s:.0f} s of calm")
    return Verdict(
        seed=case.seed,
        family=case.family,
        faults=case.faults,
        broken=broken,
        stormy_rounds=_top(outcome.hosts) if calm.began is None else calm.began,
        rounds=_top(outcome.hosts),
        trace=outcome.trace,
        took_s=outcome.took_s,
        calm_s=max(0.0, outcome.took_s - case.until_s),
        calm_s_max=calm.limit_s,
        seen=_seen(outcome.hosts) if looks else {},
    )


def scenario_of(case: Case, calm: Calm, *, looks: bool = False, sees: Callable[[Line], None] | None = None) -> Scenario:
    """Return the scenario that a case describes."""
    return Scenario(
        run=case.run,
        machines=case.machines,
        delays_s={(b.one, b.other): b.value for b in case.delays_s},
        losses={(b.one, b.other): b.value for b in case.losses},
        seed=case.seed,
        faults=case.faults,
        entrances=case.entrances,
        tickets=case.tickets,
        build=lambda run: counting(run, case.size),
        resumes_with=case.resumes_with,
        hesitates=case.hesitates,
        calm_s=case.until_s,
        looks=looks,
        enough=calm.enough,
        sees=sees,
    )


class Calm:
    """Watches for peace after the storm."""

    def __init__(self, case: Case) -> None:
        self.began: int | None = None
        """The newest committed version when the storm ended."""
        self.limit_s = calm_s_max(case)
        self._until_s = case.until_s
        self._ends = case.ends
        self.free = rarest(case.run.recipe).regional is not None
        """Whether rounds are of one region or another: then nobody stands still for long enough to be counted."""
        self.room = room_max(case.run.recipe)

    def enough(self, world: World) -> bool:
        now_s = world.now_s()
        if now_s < self._until_s:
            return False
        if self.began is None:
            self.began = world.committed
        calm = at_peace(world, self.began + CALM_ROUNDS, room=self.room, free=self.free)
        return (not self._ends and calm) or self.overdue(now_s)

    def overdue(self, now_s: float) -> bool:
        return now_s > self._until_s + self.limit_s


def at_peace(world: World, version: int, *, room: int = 1, free: bool = False) -> bool:
    """Return whether everybody who is not gone is alive and on one anchor: the newest, and not before `version`.

    After a round in circles everybody has its own. Where all are `free` of each other it is enough to be beyond that.
    Where several rounds may be open, each is there when it comes to look: it may be as many behind.
    """
    here = [host for host in world.hosts if not host.gone]
    if free:
        return all(host.alive and host.version >= version for host in here)
    oldest = max(version, world.committed - room + 1)
    newest = all(host.alive and oldest <= host.version <= world.committed for host in here)
    anchors = {(host.version, host.anchor) for host in here}
    return newest and (world.parted == world.committed or len(anchors) == len({version for version, _ in anchors}))


def _top(hosts: Sequence[Host]) -> int:
    return max((host.version for host in hosts), default=0)


def _seen(hosts: Sequence[Host]) -> dict[str, dict[int, int]]:
    seen: dict[str, dict[int, int]] = {}
    for host in hosts:
        for what, count in sorted(host.points.seen.items() if host.points is not None else ()):
            seen.setdefault(what, {})[host.place] = count
    return seen


# storage


def to_json(case: Case, verdict: Verdict) -> bytes:
    """Return a case as people store it, with what it broke and the trace that a replay must have."""
    stored = replace(
        case,
        faults=verdict.faults,
        trace=verdict.trace,
        broken=tuple(sentence.partition("\n")[0] for sentence in verdict.broken[:10]),
        made_with=f"atoll {atoll.__version__}, Python {platform.python_version()}",
    )
    return msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n"


def from_json(text: bytes) -> Case:
    """Return a stored case; raises `SpecError` when it is none."""
    try:
        case = msgspec.json.decode(text, type=Case)
    except msgspec.MsgspecError as error:
        raise SpecError(f"not a stored case: {error}", hint="`atoll sim --seeds` writes such files") from error
    if case.schema != SCHEMA:
        raise SpecError(f"a case of kind {case.schema!r}", hint=f"this version of Atoll replays {SCHEMA}")
    return case
