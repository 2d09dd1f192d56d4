"""What one way to train takes: time, money, energy and carbon, at any deviation of what is not known exactly.

Time is tokens over what peers work on in a second: a round's pace, less what is lost when machines leave. Whoever is
away draws and costs nothing; whoever is there waits at idle power. Deviations are columns of draws, or nothing for the
middle of everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from atoll.facts.book import Facts
from atoll.facts.rows import Region
from atoll.model.shape import train_cost
from atoll.plan import upkeep
from atoll.plan.carbon.energy import Drawn, network_drawn
from atoll.plan.cost import churn
from atoll.plan.goal import Goal
from atoll.plan.knowledge import Knowledge
from atoll.plan.money import bill as money
from atoll.plan.offers import Offer
from atoll.plan.pace import Pace, Ways, kinds_on, paced, sample_s, ways_of
from atoll.plan.spread import Floats
from atoll.plan.traffic import Kind, Line, lines_of
from atoll.spec.axes.optimizer import Assign
from atoll.spec.axes.pace import Block
from atoll.spec.axes.when import Every
from atoll.spec.fleet import Churn, Fleet, Machine
from atoll.spec.recipe import Recipe
from atoll.spec.run import canonical
from atoll.spec.terms import Rented

MEMBERS_MAX = 24
"""Of a larger crew so many stand for all."""
STATE_BYTES = 8.0
"""For each parameter that who comes back has to fetch: weights, and the state that moves the anchor."""
RECOMPUTED = 4 / 3
HOUR_S = 3600.0
NEAR_TRIP_S = 2.5e-3

Deviations = Mapping[str, Any]


class Scene(Struct, frozen=True, kw_only=True):
    """A crew with everything that no draw changes: who stands for all, what they exchange, what is known of them."""

    crew: tuple[Machine, ...]
    knowledge: Knowledge
    members: tuple[int, ...]
    """Places in the crew of those that stand for all."""
    lines: tuple[Line, ...]
    ways: Ways
    kinds: tuple[Kind, ...]


class Estimate(Struct, frozen=True, kw_only=True):
    """What an offer takes; numbers, or one for each draw."""

    tokens: Floats
    """As many as teach what the goal's would: more, where a step takes more at once, or where the recipe loses some."""
    time_s: Floats
    bill: money.Bill
    drawn: Drawn
    pace: Pace
    present: float
    """The part of the work of a fleet that never leaves."""
    sent_bytes: float
    """By who sends most, in a round."""

    @property
    def usd(self) -> Floats:
        return np.asarray(self.bill.total_usd + 0.0 * self.time_s)

    @property
    def carbon_g(self) -> Floats:
        return np.asarray(self.drawn.carbon_g + 0.0 * self.time_s)

    @property
    def energy_kwh(self) -> Floats:
        return np.asarray(self.drawn.energy_kwh + 0.0 * self.time_s)


class Found(Struct, frozen=True):
    """What was found out for other offers: where a crew is, and what it exchanges by recipes that send the same."""

    places: dict[tuple[str, ...], tuple[tuple[int, ...], tuple[Line, ...], Ways]] = {}
    exchanges: dict[tuple[tuple[str, ...], bytes], list[tuple[int, Kind]]] = {}
    """Each kind of round with the place of its channel."""


def scene_of(goal: Goal, offer: Offer, fleet: Fleet, knowledge: Knowledge, found: Found) -> Scene:
    """Return an offer's crew at its work; `knowledge` is of that crew."""
    crew = offer.crew.machines
    names = tuple(machine.name for machine in crew)
    if names not in found.places:
        chosen = _standing_in(crew)
        some = [crew[place] for place in chosen]
        found.places[names] = chosen, tuple(lines_of(some)), ways_of(fleet, some)
    members, lines, ways = found.places[names]
    kinds = _kinds(goal, offer.run.recipe, names, lines, ways, found) if len(lines) > 1 else ()
    return Scene(crew=crew, knowledge=knowledge, members=members, lines=lines, ways=ways, kinds=kinds)


def _kinds(
    goal: Goal, recipe: Recipe, names: tuple[str, ...], lines: Sequence[Line], ways: Ways, found: Found
) -> tuple[Kind, ...]:
    """Return the kinds of rounds of a recipe in a crew, each with the recipe's own channel."""
    key, own = (names, _exchanged(recipe)), list(recipe.channel.values())
    if key not in found.exchanges:
        kinds = kinds_on(recipe, goal.parameters, lines, ways)
        found.exchanges[key] = [(own.index(kind.channel), kind) for kind in kinds]
    return tuple(replace(kind, channel=own[place]) for place, kind in found.exchanges[key])


def _exchanged(recipe: Recipe) -> bytes:
    """Return all of a recipe that decides who sends what to whom."""
    return canonical(
        [
            replace(channel, overlap=Block(), merge=replace(channel.merge, outer=Assign()))
            if not isinstance(channel.when, Every)
            else replace(channel, when=Every(steps=1), overlap=Block(), merge=replace(channel.merge, outer=Assign()))
            for channel in recipe.channel.values()
        ]
    )


def estimate(goal: Goal, offer: Offer, scene: Scene, facts: Facts, deviations: Deviations | None = None) -> Estimate:
    """Return what an offer takes where inputs deviate so much from their middle."""
    drawn = _Drawn(scene, deviations or {})
    pace = _pace(goal, offer, scene, drawn)
    useful, there = _useful(goal, scene, drawn, pace)
    samples_s = pace.samples_s * len(scene.crew) / len(scene.members) * useful.mean(axis=-1)
    tokens = goal.needs_tokens(offer.batch_tokens(goal.context), drawn.every("critical batch")[..., 0])
    gap = offer.loss.gap if offer.loss is not None else 0.0
    tokens = tokens * (1 + gap) ** (1 / drawn.every("loss slope")[..., 0])
    time_s = np.asarray(tokens / goal.context / samples_s)
    sent = _sent_bytes(scene)
    rounds = tokens / goal.context / np.maximum(1e-9, pace.samples * len(scene.crew) / len(scene.members))
    traffic, tariffs = _egress(scene, rounds, facts)
    mine_h = time_s[..., None] / HOUR_S * there
    network = network_drawn(
        moved_bytes=rounds * _far_bytes(scene, sent) * len(scene.crew) / len(scene.members),
        energy_kwh_gb=drawn.every("network")[..., 0],
        carbon_g_kwh=drawn.every("grid").mean(axis=-1),
    )
    return Estimate(
        tokens=tokens,
        time_s=time_s,
        bill=money.bill(
            upkeep.terms(scene.crew, drawn.every, mine_h, pace.computing), traffic_gb=traffic, tariffs=tariffs
        ),
        drawn=network + upkeep.drawn(scene.crew, drawn.every, mine_h, pace.computing),
        pace=pace,
        present=float(np.median(useful)),
        sent_bytes=max((sum(size for (one, _), size in sent.items() if one == place) for place, _ in sent), default=0),
    )


class _Drawn:
    """The inputs of one estimate: each at its deviation, for the whole crew or for those that stand for it."""

    def __init__(self, scene: Scene, deviations: Deviations) -> None:
        self._scene, self._deviations = scene, deviations

    def every(self, name: str) -> Any:
        """Return an input for everybody."""
        return self._scene.knowledge[name].at(self._deviations.get(name, 0.0))

    def some(self, name: str) -> Floats:
        """Return it for those that stand for all."""
        return np.asarray(self.every(name)[..., list(self._scene.members)])


def _standing_in(crew: Sequence[Machine]) -> tuple[int, ...]:
    """Return the places of those that stand for all: evenly over regions, speeds and lines, both ends among them."""
    if len(crew) <= MEMBERS_MAX:
        return tuple(range(len(crew)))
    order = sorted(
        range(len(crew)), key=lambda place: (crew[place].region, _speed(crew[place]), crew[place].up_bytes_s)
    )
    chosen = {order[round(step)] for step in np.linspace(0, len(order) - 1, MEMBERS_MAX)}
    return tuple(sorted(chosen))


def _speed(machine: Machine) -> float:
    return machine.device.flop_s * machine.device.efficiency


# time


def _pace(goal: Goal, offer: Offer, scene: Scene, drawn: _Drawn) -> Pace:
    some = [scene.crew[place] for place in scene.members]
    flop = train_cost(goal.shape, 1).flop * (RECOMPUTED if offer.recompute else 1.0)
    each_s = sample_s(some, flop) / drawn.some("computing")
    if not scene.kinds:
        return _alone(offer, each_s, scene.lines[0])
    lines, loss = drawn.some("lines"), drawn.some("loss")
    ways = replace(
        scene.ways,
        up_bytes_s=scene.ways.up_bytes_s * lines,
        down_bytes_s=scene.ways.down_bytes_s * lines,
        one_bytes_s=scene.ways.one_bytes_s / np.sqrt(loss[..., None]),
    )
    slower = drawn.every("forecast")[..., 0]
    return paced(offer.run.recipe, scene.kinds, each_s, scene.lines, ways, slower=slower)


def _alone(offer: Offer, each_s: Floats, line: Line) -> Pace:
    """Return the pace of one machine that has nobody to exchange with."""
    steps, batch = offer.steps, offer.run.recipe.work.batch
    work_s = steps * batch * each_s[..., 0]
    nothing = np.zeros_like(work_s)
    return Pace(
        steps=steps,
        samples=nothing + steps * batch,
        work_s=work_s,
        lines_s=nothing,
        trips_s=nothing,
        round_s=work_s,
        binds=f"{line.name}'s computing",
    )


def _useful(goal: Goal, scene: Scene, drawn: _Drawn, pace: Pace) -> tuple[Floats, Floats]:
    """Return which part of each machine's work counts, and which part of the time it is there."""
    goes = [isinstance(machine.availability, Churn) for machine in scene.crew]
    up_s = np.array([m.availability.up_s if isinstance(m.availability, Churn) else 1.0 for m in scene.crew])
    down_s = np.array([m.availability.down_s if isinstance(m.availability, Churn) else 0.0 for m in scene.crew])
    up_s = up_s * drawn.every("staying")
    fetch_s = STATE_BYTES * goal.parameters / np.array([machine.down_bytes_s for machine in scene.crew])
    there = np.where(goes, churn.availability(up_s, down_s), 1.0)
    round_s = np.asarray(pace.round_s)[..., None]
    kept = (1 - churn.lost_part(round_s, up_s)) * np.maximum(0.0, 1 - fetch_s / up_s)
    return np.where(goes, there * kept, 1.0), there


# money, energy and carbon


def _egress(scene: Scene, rounds: Floats, facts: Facts) -> tuple[dict[tuple[str, str], Any], list[money.Tariff]]:
    """Return what leaves cloud regions whose prices are known, in gigabytes, and those prices."""
    known = {row.region for row in facts.rows(Region)}
    traffic: dict[tuple[str, str], Any] = {}
    for (one, other), size_bytes in _sent_bytes(scene).items():
        origin, to = scene.lines[one].region, scene.lines[other].region
        if origin != to and origin in known and to in known and isinstance(scene.crew[one].terms, Rented):
            traffic[origin, to] = traffic.get((origin, to), 0.0) + rounds * size_bytes / 1e9
    tariffs = [money.Tariff(source=origin, target=to, usd_gb=facts.egress(origin, to).usd_gb) for origin, to in traffic]
    return traffic, tariffs


def _sent_bytes(scene: Scene) -> dict[tuple[int, int], float]:
    """Return what goes from each to each in a mean round."""
    found: dict[tuple[int, int], float] = {}
    for kind in scene.kinds:
        for pair, size_bytes in kind.flows.items():
            found[pair] = found.get(pair, 0.0) + kind.part * size_bytes
    return found


def _far_bytes(scene: Scene, sent: Mapping[tuple[int, int], float]) -> float:
    """Return what leaves the building: who is so near as to be on one switch costs a network next to nothing."""
    return sum(size for pair, size in sent.items() if scene.ways.trip_s[pair] > NEAR_TRIP_S)
