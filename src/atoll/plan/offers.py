"""Ways to train a model on a fleet that are worth a forecast: a recipe, how often it exchanges, on which machines.

Recipes are the shipped ones that `pace` can tell the time of. Of machines there are all that the model fits into; those
without the slowest lines, or the slowest devices; those of each region, and of them those with the fastest lines; and
the fastest one alone. How often peers exchange is what the recipe says, a quarter of it and four times as much, where
that is one number, and what its loss was measured with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from atoll.errors import SpecError
from atoll.facts.book import Facts
from atoll.facts.rows import Loss
from atoll.plan.cost.holds import Fit, fits
from atoll.plan.goal import Goal
from atoll.plan.knowledge import fetch_s
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.control import Nobody
from atoll.spec.axes.pace import Block, Quorum
from atoll.spec.axes.what import Grad
from atoll.spec.axes.when import Every, TargetBatch, WithMoments
from atoll.spec.axes.whom import All, AllGather, Owned, Regions
from atoll.spec.axes.work import BySpeed
from atoll.spec.fleet import Churn, Machine
from atoll.spec.load import build_run
from atoll.spec.recipe import Recipe
from atoll.spec.run import SIZES, Run
from atoll.spec.strict import Tree, merge
from atoll.units import say_time

SLOWER = 4.0
"""Lines or devices so many times slower than the median may be left out."""
STEPS = (0.25, 1.0, 4.0)
"""Of the steps between exchanges that a recipe has."""
ROUND = 8
"""A batch of more samples is a multiple of so many, so that it can be done in parts."""

OWN_DATA = "each peer has data of its own: Atoll hands out samples of one corpus, and losses were measured with those"
PLAN = Path("plan.toml")
"""Whose mistakes are said, if there are any."""


class Crew(Struct, frozen=True, kw_only=True):
    """Machines that train together, and why the others do not."""

    machines: tuple[Machine, ...]
    which: str
    left_out: dict[str, str] = {}


class Offer(Struct, frozen=True, kw_only=True):
    """One way to train."""

    recipe: str
    run: Run
    tree: Tree
    """The run as a file says it."""
    crew: Crew
    recompute: bool = False
    """Layers are computed again on the way back, since the model fits no other way."""
    plan_only: str = ""
    """Why Atoll cannot run it, if it cannot."""
    loss: Loss | None = None
    """How much higher its loss was measured to be; None: nobody has."""

    @property
    def steps(self) -> int:
        return min(channel.when.round_steps for channel in self.run.recipe.channel.values())

    @property
    def alone(self) -> bool:
        return len(self.crew.machines) == 1

    @property
    def name(self) -> str:
        if self.alone:
            return f"{self.crew.machines[0].name} alone"
        by_speed = ", work by speed" if isinstance(self.run.recipe.work.quota, BySpeed) else ""
        return f"{self.recipe}, {self.often}{by_speed}, {self.crew.which}"

    @property
    def often(self) -> str:
        """Return in words how often it exchanges."""
        targets = [each.when.samples for each in self.run.recipe.channel.values() if isinstance(each.when, TargetBatch)]
        if targets:
            return f"every {targets[0]:,} samples"
        return f"every {self.steps} steps" if self.steps > 1 else "every step"

    def batch_tokens(self, context: int) -> int:
        """Return what all together work on in one step of the optimizer that steps on gradients."""
        targets = [each.when.samples for each in self.run.recipe.channel.values() if isinstance(each.when, TargetBatch)]
        samples = targets[0] if targets else len(self.crew.machines) * self.run.recipe.work.batch
        return samples * context


def untold(recipe: Recipe) -> str:
    """Return why nobody can tell by formula how long rounds of a recipe take; empty: somebody can."""
    if not isinstance(recipe.control, Nobody):
        return "a policy turns its knobs while it runs"
    for channel in recipe.channel.values():
        if not isinstance(channel.whom, All):
            return "peers exchange in circles, which change"
        if not isinstance(channel.whom.route, AllGather | Owned | Regions):
            return "values go from peer to peer in turn"
        if channel.regional is not None:
            return "regions hold states of their own"
        if isinstance(channel.barrier, Quorum) and channel.barrier.lag_max is not None:
            return "who falls behind is waited for now and then"
    return ""


def plain(recipe: Recipe) -> bool:
    """Return whether a recipe exchanges gradients as they are at every step, and waits."""
    (first, *more) = recipe.channel.values()
    exact = isinstance(first.what, Grad) and isinstance(first.what.codec, Fp32) and first.what.transform is None
    return not more and exact and first.when == Every(steps=1) and isinstance(first.overlap, Block)


Lack = tuple[float, str]
"""What a machine would have to hold to take part, in bytes, and in words why it cannot."""


def crews(goal: Goal, recipe: Recipe, machines: Sequence[Machine]) -> tuple[list[Crew], dict[str, Lack]]:
    """Return who may train together by a recipe, and why each of the others cannot take part at all.

    Where data may not move nobody who can take part is left out: what it has would not be learnt.
    """
    able, small = [], dict[str, Lack]()
    known = {each: _fit(goal, recipe, each, len(machines)) for each in {m.device.memory_bytes for m in machines}}
    for machine, fetch in zip(machines, fetch_s(machines, goal, recipe), strict=True):
        fit = known[machine.device.memory_bytes]
        if why := fit.reason or _too_short(machine, float(fetch)):
            small[machine.name] = fit.device_bytes, why
        else:
            able.append(machine)
    found: dict[frozenset[str], Crew] = {}
    for which, some in islice(_groups(able), 1 if goal.data_stays else None):
        names = frozenset(each.name for each in some)
        out = {each.name: f"not among {which}" for each in able if each.name not in names}
        out |= {name: why for name, (_, why) in small.items()}
        found.setdefault(names, Crew(machines=tuple(some), which=which, left_out=out))
    return list(found.values()), small


def _too_short(machine: Machine, fetch: float) -> str:
    """Return why a machine never gets to work: it leaves again before it has the model; empty: it does not."""
    stays = machine.availability.up_s if isinstance(machine.availability, Churn) else math.inf
    if fetch < stays:
        return ""
    return f"it stays {say_time(stays)} at a time and fetches the model for {say_time(fetch)}"


def _groups(able: Sequence[Machine]) -> Iterator[tuple[str, list[Machine]]]:
    """Yield groups of machines by what they have in common, the largest first."""
    if not able:
        return
    yield f"all {_many(able)}" if len(able) > 1 else "one machine", list(able)
    rate, speed = median(map(_line, able)), median(map(_speed, able))
    fast = [each for each in able if SLOWER * _line(each) >= rate]
    yield f"{_many(fast)} without the slowest lines", fast
    quick = [each for each in able if SLOWER * _speed(each) >= speed]
    yield f"{_many(quick)} without the slowest devices", quick
    names = {each.name for each in quick}
    if both := [each for each in fast if each.name in names]:
        yield f"{_many(both)} without the slowest lines and devices", both
    for region in sorted({each.region for each in able}):
        near = [each for each in able if each.region == region]
        yield f"the {_many(near)} in {region}", near
        best = max(map(_line, near))
        wide = [each for each in near if SLOWER * _line(each) >= best]
        yield f"the {_many(wide)} in {region} with the fastest lines", wide
    yield "the fastest machine alone", [max(able, key=_speed)]


def _many(machines: Sequence[Machine]) -> str:
    return f"{len(machines)} machine{'s' * (len(machines) != 1)}"


def _line(machine: Machine) -> float:
    return min(machine.up_bytes_s, machine.down_bytes_s)


def _speed(machine: Machine) -> float:
    return machine.device.reached_flop_s


def _fit(goal: Goal, recipe: Recipe, memory_bytes: int, members: int) -> Fit:
    """Return whether a device can hold the model with one sample at once."""
    small = replace(recipe, work=replace(recipe.work, batch=1, micro_batch=1))
    return fits(goal.size, goal.vocab, goal.context, small, members, memory_bytes)


def offers(goal: Goal, recipe: str, base: Tree, crew: Crew, facts: Facts) -> Iterator[Offer]:
    """Yield the ways in which a crew may train by a recipe."""
    plain = build_run(_tree(goal, recipe, base, crew), PLAN)
    at_once, recompute = _within_memory(goal, plain.recipe, crew)
    micro: Tree = {} if at_once == plain.recipe.work.at_once else {"recipe": {"work": {"micro_batch": at_once}}}
    why = OWN_DATA if goal.data_stays else ""
    proven = [row.steps for row in facts.rows(Loss) if row.recipe == recipe]
    for variant in _variants(plain.recipe, crew, proven):
        tree = merge(_tree(goal, recipe, base, crew), merge(micro, variant))
        try:
            run = build_run(tree, PLAN)
        except SpecError:  # the recipe does not go with these steps: a delay that is longer than a round, ...
            continue
        loss = facts.loss(recipe, len(crew.machines), _period(run.recipe)) if len(crew.machines) > 1 else None
        yield Offer(recipe=recipe, run=run, tree=tree, crew=crew, recompute=recompute, plan_only=why, loss=loss)


def _variants(recipe: Recipe, crew: Crew, proven: Sequence[int]) -> Iterator[Tree]:
    """Yield what may be said of a recipe beside what it says itself: other steps between exchanges, work by speed."""
    regular = {name: c.when for name, c in recipe.channel.items() if isinstance(c.when, Every | WithMoments)}
    own = {name: when.steps for name, when in regular.items()}
    if not len(own) == len(recipe.channel) == 1 or min(own.values()) == 1 or len(crew.machines) == 1:
        yield {}
        return
    ((name, count),) = own.items()
    work: list[Tree] = [{}]
    if not isinstance(recipe.work.quota, BySpeed) and _unequal(crew):
        work.append({"work": {"quota": {"kind": "by-speed"}}})
    counts = dict.fromkeys([*(max(2, round(factor * count)) for factor in STEPS), *proven])
    for steps, more in product(counts, work):
        turned = {"channel": {name: {"when": {"steps": steps}}}} if steps != count else {}
        yield {"recipe": merge(turned, more)}


def _period(recipe: Recipe) -> int:
    """Return after how many steps all of the model has been exchanged."""
    return max(getattr(channel.when, "steps", 1) for channel in recipe.channel.values())


def _unequal(crew: Crew) -> bool:
    speeds = [_speed(machine) for machine in crew.machines]
    return max(speeds) > 1.25 * min(speeds)


def _tree(goal: Goal, recipe: str, base: Tree, crew: Crew) -> Tree:
    """Return the run file of a crew under a recipe."""
    share = goal.batch_tokens / goal.context / len(crew.machines)
    batch = max(1, round(share)) if share < ROUND else ROUND * round(share / ROUND)
    named = next((name for name, size in SIZES.items() if size == goal.size), None)
    model: Any = {"kind": "fresh", "size": named or _shape(goal)}
    own: Tree = {
        "name": base.get("name", "plan"),
        "model": base.get("model", model),
        "data": base.get("data", {"context": goal.context, "source": _corpus(goal)}),
        "recipe": {"base": recipe, "work": {"batch": batch}},
        "budget": {"tokens": goal.tokens},
        "membership": {"start_with": len(crew.machines)},
    }
    kept: Tree = {key: base[key] for key in ("seeds", "upkeep") if key in base}
    return merge(own, kept)


def _corpus(goal: Goal) -> Tree:
    """Return the data of a goal that names none: any text, in as many tokens as the goal counts with."""
    return {"kind": "corpus", "tokenizer": f"bpe-{goal.vocab}"}


def _shape(goal: Goal) -> Tree:
    size = goal.size
    return {key: getattr(size, key) for key in size.__struct_fields__}


def _within_memory(goal: Goal, recipe: Recipe, crew: Crew) -> tuple[int, bool]:
    """Return how many samples at once the smallest device holds, and whether layers must be computed twice."""
    memory_bytes = min(machine.device.memory_bytes for machine in crew.machines)
    work = recipe.work
    for at_once in sorted((count for count in range(1, work.at_once + 1) if work.batch % count == 0), reverse=True):
        tried = replace(recipe, work=replace(work, micro_batch=at_once))
        fit = fits(goal.size, goal.vocab, goal.context, tried, len(crew.machines), memory_bytes)
        if fit.fits and not fit.recompute:
            break
    return at_once, fit.recompute
