"""What must hold of a recipe: its work, its optimizers, and each of its channels."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.spec.axes.control import Nobody
from atoll.spec.axes.when import TargetBatch
from atoll.spec.axes.work import BATCH_MAX, ByRate, BySpeed, Cosine, Cyclic, Growing, Work, Wsd
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.rules.channel import channel_rules
from atoll.spec.rules.control import control_rules
from atoll.spec.rules.optimizer import optimizer_rules
from atoll.spec.rules.terms import Rule, named, within
from atoll.spec.rules.turns import turn_rules
from atoll.spec.strict import KeyPath


def recipe_rules(recipe: Recipe) -> Iterator[Rule]:
    """All that must hold of a recipe, whoever wrote it."""
    yield from _work_rules(recipe.work)
    path: KeyPath = ("recipe", "channel")
    yield bool(recipe.channel), path, "no channel is given", "give one, for example [recipe.channel.outer]"
    for name, channel in recipe.channel.items():
        yield named((*path, name), name)
        yield from channel_rules((*path, name), channel, recipe.work)
        if isinstance(recipe.work.quota, ByRate):
            yield from _growth_rules(recipe.work.quota, channel)
    if len(recipe.channel) > 1:
        yield from turn_rules(recipe)
    if not isinstance(recipe.control, Nobody):
        yield from control_rules(recipe, recipe.control)


def _growth_rules(quota: ByRate, channel: Channel) -> Iterator[Rule]:
    """What must hold of a channel whose rounds grow as the rate falls."""
    path: KeyPath = ("recipe", "work", "quota")
    said = "a round of this channel ends at a number of samples, whatever the rate"
    same = 'choose { kind = "same" }'
    yield not isinstance(channel.when, TargetBatch), path, said, f'{same}, or when = {{ kind = "every" }}'
    said = "members begin the next round before this one is over, and its length would not be the one they began with"
    yield channel.ahead == 0, path, said, f'{same}, or overlap = {{ kind = "block" }}'
    yield within((*path, "most"), quota.most, channel.when.round_steps)


def _work_rules(work: Work) -> Iterator[Rule]:
    path: KeyPath = ("recipe", "work")
    yield within((*path, "batch"), work.batch, 1, BATCH_MAX)
    yield within((*path, "micro_batch"), work.micro_batch, 0, BATCH_MAX)
    yield within((*path, "clip"), work.clip, 0)
    path = (*path, "schedule")
    yield within((*path, "warmup_steps"), work.schedule.warmup_steps, 0)
    if isinstance(work.schedule, Cosine | Wsd | Cyclic):
        yield within((*path, "floor"), work.schedule.floor, 0, 1)
    if isinstance(work.schedule, Wsd):
        yield within((*path, "decay"), work.schedule.decay, 0, 1)
    if isinstance(work.quota, BySpeed):
        yield within(("recipe", "work", "quota", "least"), work.quota.least, 1)
    if isinstance(work.quota, Growing):
        yield within(("recipe", "work", "quota", "below"), work.quota.below, 0)
        yield within(("recipe", "work", "quota", "factor"), work.quota.factor, 2, 1000)
        yield within(("recipe", "work", "quota", "most"), work.quota.most, 1)
    if isinstance(work.quota, ByRate):
        yield within(("recipe", "work", "quota", "power"), work.quota.power, 0, 8)
        said = "rounds grow as the rate falls, and this one does not fall"
        hint = 'choose { kind = "cosine" } or { kind = "wsd" }, or quota = { kind = "same" }'
        yield isinstance(work.schedule, Cosine | Wsd), path, said, hint
    yield from optimizer_rules(("recipe", "work", "inner"), work.inner)
