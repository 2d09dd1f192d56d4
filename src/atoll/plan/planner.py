"""From a goal and a fleet to the best ways to train: those that nothing beats in time, money and carbon at once.

Every offer is judged at the middle of what is known. Those that keep to the goal and are best in something are then
judged again with everything drawn, so that each number has its range, and with one input at a time at either end, so
that it is known what the verdict hangs on. What is left out says why; where nothing keeps to the goal the answer is no,
with what stands in the way and the nearest way that would do.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from atoll.facts.book import Facts
from atoll.plan.estimate import Estimate, Found, Scene, estimate, scene_of
from atoll.plan.front import LEAST, Takes, front, recommended
from atoll.plan.goal import Goal
from atoll.plan.knowledge import USEFUL_MIN, Knowledge, knowledge_of
from atoll.plan.offers import Crew, Lack, Offer, crews, offers, plain, untold
from atoll.plan.ranges import Ranged, Sway, ranged, sways
from atoll.plan.stages import Staged, staged
from atoll.spec.fleet import Fleet, Machine
from atoll.spec.load import load_recipe
from atoll.spec.strict import Tree
from atoll.units import say_time, say_usd

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
    takes: Takes

    @property
    def proven(self) -> bool:
        """Return whether it is known what its loss will be beside that of gradients at every step."""
        return self.offer.alone or self.offer.loss is not None


class Plan(Ranged, frozen=True, kw_only=True):
    """One of the best ways, with ranges and reasons."""

    offer: Offer
    middle: Estimate
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
    """Recipes that were not, and why."""
    small: dict[str, str]
    """Machines that can take part by no recipe, and why."""


def plan(
    goal: Goal,
    fleet: Fleet,
    machines: Sequence[Machine],
    recipes: Sequence[str],
    facts: Facts,
    base: Tree | None = None,
    *,
    seed: int = 0,
    say: Say = lambda text: None,
) -> Verdict:
    """Return the best ways to reach a goal on some machines."""
    look = _Look(goal, fleet, machines, facts, base or {})
    for number, name in enumerate(recipes, start=1):
        say(f"{name} ({number} of {len(recipes)})")
        look.at(name)
    found = partial(Verdict, goal=goal, judged=tuple(look.judged), rejected=look.rejected, small=look.small)
    if not look.judged and len(look.small) == len(machines) > 0:
        say("stages")
        why = f"no machine can take part in training {goal.parameters:,} parameters ({next(iter(look.small.values()))})"
        return found(plans=(), nearest=None, why_not=why, staged=staged(goal, fleet, machines, facts, seed))
    if not look.judged:
        return found(plans=(), nearest=None, why_not=_nothing_told(recipes, machines, look.rejected))
    drawn = partial(_drawn, goal, facts, seed)
    good = [each for each in look.judged if not each.misses]
    good = [each for each in good if each.proven] or good
    if not good:
        near = min([each for each in look.judged if each.proven] or look.judged, key=lambda each: _excess(goal, each))
        why = f"nothing keeps to the goal; nearest is {near.offer.name}: {'; '.join(near.misses)}"
        return found(plans=(), nearest=drawn(near, ()), why_not=why)
    told = [drawn(good[place], best) for place, best in front([each.takes for each in good])]
    return found(plans=_swayed(told), nearest=None, why_not="")


def _nothing_told(recipes: Sequence[str], machines: Sequence[Machine], rejected: Container[str]) -> str:
    """Return why there is nothing to judge though the model would fit."""
    if not machines:
        return "the fleet has no machine"
    told = [name for name in recipes if name not in rejected]
    if told:
        return f"one machine alone has nobody to exchange with by {', '.join(told)}: let it train by ddp too"
    return f"no formula tells how long rounds take by {', '.join(recipes) or 'no recipe'}"


class _Look:
    """Everything that is looked at, recipe by recipe, and what is not."""

    def __init__(self, goal: Goal, fleet: Fleet, machines: Sequence[Machine], facts: Facts, base: Tree) -> None:
        self._goal, self._fleet, self._machines, self._facts = goal, fleet, machines, facts
        self._base, self._known = base, Known({}, Found())
        self.judged: list[Judged] = []
        self.rejected: dict[str, str] = {}
        self._holds: set[str] = set()
        self._small: dict[str, Lack] = {}

    @property
    def small(self) -> dict[str, str]:
        """Return the machines that can take part by no recipe, with what the least demanding one asks of them."""
        return {name: why for name, (_, why) in self._small.items() if name not in self._holds}

    def at(self, name: str) -> None:
        """Judge every way to train by a recipe."""
        recipe = load_recipe(name)
        if why := untold(recipe):
            self.rejected[name] = f"{why}: `atoll compare` plays it"
            return
        able, small = crews(self._goal, recipe, self._machines)
        for machine, (need_bytes, why) in small.items():
            lack = need_bytes, f"{name}: {why}"
            self._small[machine] = min(lack, self._small.get(machine, lack))
        self._holds |= {machine.name for crew in able for machine in crew.machines}
        if not able:
            self.rejected[name] = "no machine can take part by it"
        for crew in able:
            if len(crew.machines) == 1 and (not plain(recipe) or self._is_judged(crew)):
                continue  # whoever is alone has nobody to exchange with: any plain recipe will do
            self.judged += self._ways(name, crew)

    def _is_judged(self, crew: Crew) -> bool:
        return any(each.offer.crew.machines == crew.machines for each in self.judged)

    def _ways(self, recipe: str, crew: Crew) -> list[Judged]:
        """Return every way in which a crew may train by a recipe, judged."""
        goal, facts, known = self._goal, self._facts, self._known
        key = tuple(machine.name for machine in crew.machines)
        if key not in known.crews:
            known.crews[key] = knowledge_of(crew.machines, facts)
        found: list[Judged] = []
        for offer in offers(goal, recipe, self._base, crew, facts):
            scene = scene_of(goal, offer, self._fleet, known.crews[key], known.found, facts)
            middle = estimate(goal, offer, scene, facts)
            takes = float(middle.time_s), float(middle.usd), float(middle.carbon_g)
            found.append(Judged(offer=offer, scene=scene, middle=middle, misses=_misses(goal, middle), takes=takes))
        return found


def _misses(goal: Goal, found: Estimate) -> tuple[str, ...]:
    """Return what of the goal an estimate does not keep to; whoever never gets anywhere keeps to none."""
    if found.present <= USEFUL_MIN:
        return (f"machines leave before a round of {say_time(float(found.pace.round_s))} is over",)
    return tuple(
        f"{name} {said} instead of {wanted}"
        for name, takes, limit, said, wanted in (
            ("time", found.time_s, goal.deadline_s, say_time(float(found.time_s)), say_time(goal.deadline_s or 0)),
            ("money", found.usd, goal.budget_usd, say_usd(float(found.usd)), say_usd(goal.budget_usd or 0)),
            ("carbon", found.carbon_g, goal.carbon_g, _kg(float(found.carbon_g)), _kg(goal.carbon_g or 0)),
        )
        if limit is not None and float(takes) > limit
    )


def _kg(carbon_g: float) -> str:
    return f"{carbon_g / 1000:,.0f} kg CO2e" if carbon_g >= 1e5 else f"{carbon_g / 1000:.3g} kg CO2e"


def _excess(goal: Goal, each: Judged) -> float:
    """Return how many times more than it may an offer takes, of what it misses by most; or how long, without limits."""
    told = zip(each.takes, goal.limits, LEAST, strict=True)
    return max(
        (takes / max(limit, nothing) for takes, limit, nothing in told if limit is not None), default=each.takes[0]
    )


# ranges and sensitivity


def _drawn(goal: Goal, facts: Facts, seed: int, each: Judged, best: tuple[str, ...]) -> Plan:
    """Return a plan with a range for each number, and what it hangs on."""
    forecast = partial(estimate, goal, each.offer, each.scene, facts)
    known = each.scene.knowledge
    return Plan(
        **ranged(goal, known, forecast, seed),
        offer=each.offer,
        middle=each.middle,
        best=best,
        sways=sways(goal, known, forecast),
    )


def _swayed(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return plans of which the first says at which ends of its inputs another would be recommended."""
    ends = [{sway.name: sway for sway in each.sways} for each in plans]
    found = []
    for sway in plans[0].sways:
        instead = ["", ""]
        for end in (0, 1):
            there = [place for place, known in enumerate(ends) if known[sway.name].feasible[end]]
            if there:
                chosen = there[recommended([_at_end(ends[place][sway.name], end) for place in there])]
                instead[end] = "" if chosen == 0 else plans[chosen].offer.name
        found.append(replace(sway, instead=(instead[0], instead[1])))
    return (replace(plans[0], sways=tuple(found)), *plans[1:])


def _at_end(sway: Sway, end: int) -> Takes:
    return sway.time_s[end], sway.usd[end], sway.carbon_g[end]
