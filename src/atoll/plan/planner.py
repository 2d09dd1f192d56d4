"""From a goal and a fleet to the best ways to train: those that nothing beats in time, money and carbon at once.

Every offer is judged at the middle of what is known. Those that keep to the goal and are best in something are then
judged again with everything drawn, so that each number has its range, and with one input at a time at either end, so
that it is known what the verdict hangs on. What is left out says why; where nothing keeps to the goal the answer is no,
with what stands in the way and the nearest way that would do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from atoll.facts.book import Facts
from atoll.plan.estimate import Estimate, Found, Scene, estimate, scene_of
from atoll.plan.goal import Goal
from atoll.plan.knowledge import Knowledge, knowledge_of
from atoll.plan.offers import Crew, Offer, crews, offers, plain, untold
from atoll.plan.spread import TENTH, Floats, Range, Spread, range_of
from atoll.plan.stages import Staged, staged
from atoll.spec.fleet import Fleet, Machine
from atoll.spec.load import load_recipe
from atoll.spec.strict import Tree
from atoll.units import say_time

DRAWS = 400
PLANS_MAX = 6
"""So many plans are told; of a longer front those that are best in something, and the ones between."""
SHIFT_MIN = 0.02
"""An input that moves every number by less than this part of it is told as irrelevant."""
BLAND = 1.02
"""A way that is so little better than another is not told beside it."""

Say = Callable[[str], None]


class Known(NamedTuple):
    """What was found out once for all offers."""

    crews: dict[tuple[str, ...], Knowledge]
    found: Found


class Judged(Struct, frozen=True, kw_only=True):
    """An offer with what it takes in the middle, and what of the goal it misses."""

    offer: Offer
    scene: Scene
    middle: Estimate
    misses: tuple[str, ...]
    takes: tuple[float, float, float]
    """Seconds, dollars, grams."""

    @property
    def proven(self) -> bool:
        """Return whether it is known what its loss will be beside that of gradients at every step."""
        return self.offer.alone or self.offer.loss is not None


class Sway(Struct, frozen=True, kw_only=True):
    """What one input does to a plan at either end of its range."""

    name: str
    source: str
    as_of: str
    time_s: tuple[float, float]
    usd: tuple[float, float]
    carbon_g: tuple[float, float]
    feasible: tuple[bool, bool]
    matters: bool


class Plan(Struct, frozen=True, kw_only=True):
    """One of the best ways, with ranges and reasons."""

    offer: Offer
    middle: Estimate
    time_s: Range
    usd: Range
    energy_kwh: Range
    carbon_g: Range
    keeps: float
    """In which part of the draws it keeps to the goal."""
    best: tuple[str, ...]
    sways: tuple[Sway, ...]


class Verdict(Struct, frozen=True, kw_only=True):
    """The answer to a goal."""

    goal: Goal
    plans: tuple[Plan, ...]
    """The first is recommended; empty: nothing keeps to the goal."""
    nearest: Plan | None
    """What comes nearest, where nothing does."""
    why_not: str
    """What stands in the way then."""
    judged: tuple[Judged, ...]
    """All ways that were looked at."""
    staged: Staged | None = None
    """Where no machine holds the model: how several would; a plan only."""
    rejected: dict[str, str]
    """Recipes and machines that were not, and why."""


def plan(
    goal: Goal,
    fleet: Fleet,
    machines: Sequence[Machine],
    recipes: Sequence[str],
    facts: Facts,
    base: Tree | None = None,
    folder: Path = Path(),
    *,
    seed: int = 0,
    say: Say = lambda text: None,
) -> Verdict:
    """Return the best ways to reach a goal on some machines."""
    rejected: dict[str, str] = {}
    judged: list[Judged] = []
    known = Known({}, Found())
    for number, name in enumerate(recipes, start=1):
        say(f"{name} ({number} of {len(recipes)})")
        recipe = load_recipe(name)
        if why := untold(recipe):
            rejected[name] = f"{why}: `atoll compare` plays it"
            continue
        able, small = crews(goal, recipe, machines)
        rejected |= {machine: f"{name}: {reason}" for machine, reason in small.items()}
        for crew in able:
            if len(crew.machines) == 1 and (not plain(recipe) or any(each.offer.alone for each in judged)):
                continue  # whoever is alone has nobody to exchange with: any plain recipe will do
            judged += _judged(goal, name, crew, fleet, facts, known, base or {}, folder)
    if not judged:
        why = _no_memory(goal, rejected)
        say("stages")
        cut = staged(goal, fleet, machines, facts)
        return Verdict(goal=goal, plans=(), nearest=None, why_not=why, judged=(), staged=cut, rejected=rejected)
    good = [each for each in judged if not each.misses]
    good = [each for each in good if each.proven] or good
    if not good:
        near = min([each for each in judged if each.proven] or judged, key=lambda each: _excess(goal, each))
        why = f"nothing keeps to the goal; nearest is {near.offer.name}: {'; '.join(near.misses)}"
        nearest = _drawn(goal, near, facts, seed, ())
        return Verdict(goal=goal, plans=(), nearest=nearest, why_not=why, judged=tuple(judged), rejected=rejected)
    plans = [_drawn(goal, each, facts, seed, best) for each, best in _front(good)]
    return Verdict(goal=goal, plans=tuple(plans), nearest=None, why_not="", judged=tuple(judged), rejected=rejected)


def _judged(
    goal: Goal,
    recipe: str,
    crew: Crew,
    fleet: Fleet,
    facts: Facts,
    known: Known,
    base: Tree,
    folder: Path,
) -> list[Judged]:
    """Return every way in which a crew may train by a recipe, judged."""
    key = tuple(machine.name for machine in crew.machines)
    if key not in known.crews:
        known.crews[key] = knowledge_of(crew.machines, facts)
    found: list[Judged] = []
    for offer in offers(goal, recipe, base, folder, crew, facts):
        scene = scene_of(goal, offer, fleet, known.crews[key], known.found)
        middle = estimate(goal, offer, scene, facts)
        takes = float(middle.time_s), float(middle.usd), float(middle.carbon_g)
        found.append(Judged(offer=offer, scene=scene, middle=middle, misses=_misses(goal, middle), takes=takes))
    return found


def _misses(goal: Goal, found: Estimate) -> tuple[str, ...]:
    """Return what of the goal an estimate does not keep to."""
    return tuple(
        f"{name} {said} instead of {wanted}"
        for name, takes, limit, said, wanted in (
            ("time", found.time_s, goal.deadline_s, say_time(float(found.time_s)), say_time(goal.deadline_s or 0)),
            ("money", found.usd, goal.budget_usd, f"${float(found.usd):,.0f}", f"${goal.budget_usd or 0:,.0f}"),
            ("carbon", found.carbon_g, goal.carbon_g, _kg(float(found.carbon_g)), _kg(goal.carbon_g or 0)),
        )
        if limit is not None and float(takes) > limit
    )


def _kg(carbon_g: float) -> str:
    return f"{carbon_g / 1000:,.0f} kg CO2e"


def _excess(goal: Goal, each: Judged) -> float:
    """Return how many times more than it may an offer takes, of what it misses by most."""
    limits = (goal.deadline_s, goal.budget_usd, goal.carbon_g)
    return max(takes / limit for takes, limit in zip(each.takes, limits, strict=True) if limit)


def _no_memory(goal: Goal, rejected: dict[str, str]) -> str:
    one = next(iter(rejected.values()), "no recipe was given")
    return f"no machine holds a model of {goal.parameters:,} parameters ({one})"


# the front


def _front(good: Sequence[Judged]) -> list[tuple[Judged, tuple[str, ...]]]:
    """Return the ways that nothing beats in everything, what each is best in, the recommended one first."""
    left = [each for each in good if not any(_beats(other, each) for other in good if other is not each)]
    names = ("time", "money", "carbon")
    best = {name: min(left, key=lambda each: each.takes[place]) for place, name in enumerate(names)}
    balanced = min(left, key=lambda each: _distance(each, best))
    chosen = list(dict.fromkeys([id(balanced), *(id(each) for each in best.values())]))
    between = sorted((each for each in left if id(each) not in chosen), key=lambda each: _distance(each, best))
    by_id = {id(each): each for each in left}
    ways = [by_id[key] for key in chosen] + between[: PLANS_MAX - len(chosen)]
    return [(each, tuple(name for name in names if best[name] is each)) for each in ways]


def _beats(one: Judged, other: Judged) -> bool:
    """Return whether one is about as good in everything, and clearly better in something or first among equals."""
    no_worse = all(mine <= BLAND * theirs for mine, theirs in zip(one.takes, other.takes, strict=True))
    better = any(BLAND * mine < theirs for mine, theirs in zip(one.takes, other.takes, strict=True))
    return no_worse and (better or one.offer.name < other.offer.name)


def _distance(each: Judged, best: dict[str, Judged]) -> float:
    """Return how far from the best of everything a way is, all counted alike."""
    least = [min(other.takes[place] for other in best.values()) for place in range(3)]
    return sum(math.log(max(mine, 1e-9) / max(ours, 1e-9)) for mine, ours in zip(each.takes, least, strict=True))


# ranges and sensitivity


def _drawn(goal: Goal, each: Judged, facts: Facts, seed: int, best: tuple[str, ...]) -> Plan:
    """Return a plan with a range for each number."""
    rng = np.random.default_rng(seed)
    deviations = {name: rng.standard_normal((DRAWS, 1)) for name in each.scene.knowledge}
    drawn = estimate(goal, each.offer, each.scene, facts, deviations)
    kept = np.ones(DRAWS, bool)
    for takes, limit in zip((drawn.time_s, drawn.usd, drawn.carbon_g), _limits(goal), strict=True):
        kept &= takes <= limit
    return Plan(
        offer=each.offer,
        middle=each.middle,
        time_s=range_of(drawn.time_s),
        usd=range_of(drawn.usd),
        energy_kwh=range_of(drawn.energy_kwh),
        carbon_g=range_of(drawn.carbon_g),
        keeps=float(kept.mean()),
        best=best,
        sways=_sways(goal, each, facts),
    )


def _limits(goal: Goal) -> tuple[float, float, float]:
    wanted = (goal.deadline_s, goal.budget_usd, goal.carbon_g)
    return tuple(np.inf if each is None else each for each in wanted)  # type: ignore[return-value]


def _sways(goal: Goal, each: Judged, facts: Facts) -> tuple[Sway, ...]:
    """Return what every input does at its ends, the strongest first: one estimate, with a row for each end."""
    names = list(each.scene.knowledge)
    rows = np.zeros((2 * len(names), 1))
    deviations = {name: rows.copy() for name in names}
    for number, name in enumerate(names):
        deviations[name][2 * number : 2 * number + 2, 0] = -TENTH, TENTH
    ends = estimate(goal, each.offer, each.scene, facts, deviations)
    takes = np.stack([ends.time_s, ends.usd, ends.carbon_g])
    kept = np.asarray((takes <= np.array(_limits(goal))[:, None]).all(axis=0))
    found = [
        _sway(
            name, each.scene.knowledge[name], takes[:, 2 * number : 2 * number + 2], kept[2 * number : 2 * number + 2]
        )
        for number, name in enumerate(names)
    ]
    return tuple(sway for _, sway in sorted(found, key=lambda one: -one[0]))


def _sway(name: str, about: Spread, takes: Floats, kept: NDArray[np.bool_]) -> tuple[float, Sway]:
    """Return how far one input moves the numbers, and what they are at its ends."""
    low, high = np.maximum(takes, 1e-9).T
    shift = float(np.abs(np.log(high / low)).max())
    time_s, usd, carbon_g = ((float(ends[0]), float(ends[1])) for ends in takes)
    return shift, Sway(
        name=name,
        source=about.source,
        as_of=about.as_of,
        time_s=time_s,
        usd=usd,
        carbon_g=carbon_g,
        feasible=(bool(kept[0]), bool(kept[1])),
        matters=shift > SHIFT_MIN,
    )
