"""What one way to train takes: time, money, energy and carbon, at any deviation of what is not known exactly.

Time is tokens over what peers work on in a second: a round's pace, less what is lost when machines leave. Whoever is
away draws and costs nothing; whoever is there waits at idle power. Deviations are columns of draws, or nothing for the
middle of everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from atoll.facts.book import Facts
from atoll.facts.rows import spread as spread_of
from atoll.model.moments import exchanged
from atoll.model.shape import shapes, step_cost, train_cost
from atoll.plan import upkeep
from atoll.plan.carbon.energy import Drawn
from atoll.plan.cost import churn
from atoll.plan.goal import Goal
from atoll.plan.knowledge import AS_OF, USEFUL_MIN, Knowledge, fetch_s, stays_s
from atoll.plan.lines import Line, lines_of, standing_in
from atoll.plan.money import bill as money
from atoll.plan.offers import Offer
from atoll.plan.pace import Pace, Ways, brought, busy, kinds_on, paced, sample_s, ways_of
from atoll.plan.ranges import Deviations
from atoll.plan.spread import Floats, Spread, spread
from atoll.plan.traffic import Kind
from atoll.spec.axes.optimizer import Assign
from atoll.spec.axes.pace import Block
from atoll.spec.axes.when import Every
from atoll.spec.fleet import Fleet, Machine
from atoll.spec.recipe import Recipe
from atoll.spec.run import canonical

RECOMPUTED = 4 / 3
HOUR_S = 3600.0


class Scene(Struct, frozen=True, kw_only=True):
    """A crew with everything that no draw changes: who stands for all, what they exchange, what is known of them."""

    crew: tuple[Machine, ...]
    knowledge: Knowledge
    members: tuple[int, ...]
    """Places in the crew of those that stand for all."""
    lines: tuple[Line, ...]
    ways: Ways
    kinds: tuple[Kind, ...]
    sent: upkeep.Sent
    """In a mean round, by those that stand for all."""

    @property
    def count(self) -> float:
        """Return how many of the crew each of those stands for."""
        return len(self.crew) / len(self.members)


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


def scene_of(goal: Goal, offer: Offer, fleet: Fleet, knowledge: Knowledge, found: Found, facts: Facts) -> Scene:
    """Return an offer's crew at its work; `knowledge` is of that crew."""
    crew = offer.crew.machines
    names = tuple(machine.name for machine in crew)
    if names not in found.places:
        chosen = standing_in(crew)
        some, count = [crew[place] for place in chosen], len(crew) / len(chosen)
        found.places[names] = chosen, tuple(lines_of(some, count)), ways_of(fleet, some)
    members, lines, ways = found.places[names]
    kinds = _kinds(goal, offer.run.recipe, names, lines, ways, found) if len(lines) > 1 else ()
    return Scene(
        crew=crew,
        knowledge=knowledge | {"loss gap": _lost(offer)},
        members=members,
        lines=lines,
        ways=ways,
        kinds=kinds,
        sent=upkeep.sent_of([crew[place] for place in members], _flows(kinds), ways.trip_s, facts),
    )


def _lost(offer: Offer) -> Spread:
    """Return how many times higher the loss of an offer is after as many tokens than with gradients at every step."""
    if offer.loss is None:
        why = "one machine loses nothing" if offer.alone else "nobody has measured it"
        return spread([1.0], [1.0], [1.0], why, AS_OF)
    low, middle, high = spread_of(offer.loss, "gap")
    return spread([1 + low], [1 + middle], [1 + high], offer.loss.source, offer.loss.as_of)


def _kinds(
    goal: Goal, recipe: Recipe, names: tuple[str, ...], lines: Sequence[Line], ways: Ways, found: Found
) -> tuple[Kind, ...]:
    """Return the kinds of rounds of a recipe in a crew, each with the recipe's own channel."""
    key, own = (names, _exchanged(recipe)), list(recipe.channel.values())
    if key not in found.exchanges:
        kinds = kinds_on(recipe, goal.parameters, lines, ways, shapes=shapes(goal.size, goal.vocab))
        found.exchanges[key] = [(own.index(kind.channel), kind) for kind in kinds]
    return tuple(replace(kind, channel=own[place]) for place, kind in found.exchanges[key])


def _exchanged(recipe: Recipe) -> bytes:
    """Return all of a recipe that decides who sends what to whom."""
    remembers = recipe.work.inner if exchanged(recipe) else None
    channels = [
        replace(
            channel,
            when=Every(steps=1) if isinstance(channel.when, Every) else channel.when,
            overlap=Block(),
            merge=replace(channel.merge, outer=Assign()),
        )
        for channel in recipe.channel.values()
    ]
    return canonical([remembers, *channels])


def estimate(goal: Goal, offer: Offer, scene: Scene, facts: Facts, deviations: Deviations | None = None) -> Estimate:
    """Return what an offer takes where inputs deviate so much from their middle."""
    drawn = _Drawn(scene, deviations or {})
    pace = _pace(goal, offer, scene, drawn)
    each_s = _each_s(goal, offer, scene.crew, drawn.every("computing"))
    useful, there = _useful(goal, offer.run.recipe, scene, drawn, pace, brought(offer.run.recipe, each_s))
    samples_s = pace.samples_s * scene.count * useful
    tokens = goal.needs_tokens(offer.batch_tokens(goal.context), drawn.every("critical batch")[..., 0])
    tokens = tokens * drawn.every("loss gap")[..., 0] ** (1 / drawn.every("loss slope")[..., 0])
    rounds = np.ceil(tokens / goal.context / (pace.samples * scene.count))  # the last one is not cut short
    time_s = np.asarray(rounds * pace.samples * scene.count / samples_s)
    often = rounds * scene.count  # each that is looked at stands for so many
    mine_h = time_s[..., None] / HOUR_S * there
    work = busy(offer.run.recipe, each_s, pace) if scene.kinds else np.ones_like(each_s)
    return Estimate(
        tokens=tokens,
        time_s=time_s,
        bill=upkeep.bill(scene.crew, drawn.every, mine_h, work, scene.sent, often, facts),
        drawn=upkeep.drawn(scene.crew, drawn.every, mine_h, work, scene.sent, often),
        pace=pace,
        present=float(np.median(useful)),
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


# time


def _pace(goal: Goal, offer: Offer, scene: Scene, drawn: _Drawn) -> Pace:
    some = [scene.crew[place] for place in scene.members]
    each_s = _each_s(goal, offer, some, drawn.some("computing"))
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


def _each_s(goal: Goal, offer: Offer, machines: Sequence[Machine], faster: Floats) -> Floats:
    """Return how long a sample takes each machine that is so many times faster than the fleet says."""
    flop = train_cost(goal.shape, 1).flop * (RECOMPUTED if offer.recompute else 1.0)
    work = offer.run.recipe.work
    stepping = step_cost(shapes(goal.size, goal.vocab), work.inner).flop / work.batch
    return np.asarray(sample_s(machines, flop + stepping) / faster)


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


def _useful(
    goal: Goal, recipe: Recipe, scene: Scene, drawn: _Drawn, pace: Pace, share: Floats
) -> tuple[Floats, Floats]:
    """Return which part of the crew's work counts, each with its share of it, and how much each machine is there."""
    up_s, down_s = stays_s(scene.crew)
    up_s = up_s * drawn.every("staying")
    there = np.asarray(churn.availability(up_s, down_s))
    round_s = np.asarray(pace.round_s)[..., None]
    fetched = np.maximum(0.0, 1 - fetch_s(scene.crew, goal, recipe) / up_s)
    kept = (1 - churn.lost_part(round_s, up_s)) * fetched
    return np.maximum((share * there * kept).sum(axis=-1), USEFUL_MIN), there


def _flows(kinds: Sequence[Kind]) -> dict[tuple[int, int], float]:
    """Return what goes from each to each in a mean round."""
    found: dict[tuple[int, int], float] = {}
    for kind in kinds:
        for pair, size_bytes in kind.flows.items():
            found[pair] = found.get(pair, 0.0) + kind.part * size_bytes
    return found
