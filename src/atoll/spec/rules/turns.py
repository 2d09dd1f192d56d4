"""What must hold where a recipe has several channels: that all of them can be one row of rounds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from atoll.spec.axes.control import Nobody
from atoll.spec.axes.optimizer import Assign, Sgd, SignSgd
from atoll.spec.axes.pace import Block, Discard, Full
from atoll.spec.axes.what import Delta, Hold, Params
from atoll.spec.axes.when import Every, TargetBatch, WithMoments
from atoll.spec.axes.whom import All, Carried, Regions
from atoll.spec.axes.work import Same
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.rules.terms import Rule, within
from atoll.spec.strict import KeyPath
from atoll.spec.turns import in_order

CHANNELS_MAX = 8


def turn_rules(recipe: Recipe) -> Iterator[Rule]:
    """Each channel's rounds are a multiple of the more frequent ones', and only the rarest keeps anything."""
    path: KeyPath = ("recipe", "channel")
    yield within(path, len(recipe.channel), 1, CHANNELS_MAX)
    control = isinstance(recipe.control, Nobody)
    said = "a policy turns the knobs of one channel"
    yield control, ("recipe", "control"), said, 'choose { kind = "none" }, or give one channel'
    same = isinstance(recipe.work.quota, Same)
    said = "rounds of several channels are steps that all take together"
    yield same, ("recipe", "work", "quota"), said, 'choose { kind = "same" }, or give one channel'
    ordered = in_order(recipe)
    for name, channel in ordered:
        yield from _plain_rules((*path, name), channel)
    for (often, one), (rarely, other) in pairwise(ordered):
        steps, theirs = one.when.round_steps, other.when.round_steps
        said = f"a round every {theirs} steps, and one of {often} every {steps}: where both are due one would be lost"
        multiple = theirs % steps == 0 and theirs > steps
        yield multiple, (*path, rarely, "when"), said, f"choose a multiple of {steps} steps, two times that at least"
    for name, channel in ordered[:-1]:
        assigns = isinstance(channel.what, Params) and isinstance(channel.merge.outer, Assign)
        said = f"{ordered[-1][0]} is rarer, and only the rarest channel has an outer optimizer"
        hint = 'exchange { kind = "params" } with merge.outer = { kind = "assign" }'
        yield assigns, (*path, name, "merge", "outer"), said, hint
    name, channel = ordered[-1]
    whole = isinstance(channel.when, Every) and isinstance(channel.what, Delta | Params)
    said = "the rarest channel brings all of everybody's weights together"
    yield whole, (*path, name, "when"), said, 'choose { kind = "every", steps = ... }, and exchange "delta" or "params"'
    linear = isinstance(channel.merge.outer, Assign | Sgd | SignSgd)
    said = "counts its steps, and rounds of other channels would be counted too"
    yield linear, (*path, name, "merge", "outer"), said, 'choose { kind = "sgd", lr = ... }'


def _plain_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """What several channels have in common: all take part in each round, and wait for what it comes to."""
    counted = not isinstance(channel.when, TargetBatch)
    said = "how many steps a batch of all together takes is not known before"
    yield counted, (*path, "when"), said, 'choose { kind = "every", ... } or "fragments"'
    alone = not isinstance(channel.when, WithMoments)
    said = "what optimizers remember lies behind the weights, and another channel's rounds are of all that there is"
    yield alone, (*path, "when"), said, 'choose { kind = "every", ... }, or give one channel'
    together = isinstance(channel.whom, All) and not isinstance(channel.whom.route, Carried | Regions)
    hint = 'choose { kind = "all" } with route "butterfly" or "all-gather"'
    yield together, (*path, "whom"), "several channels have one roster, and owners that any of them can use", hint
    waits = isinstance(channel.overlap, Block)
    said = "what comes late would meet the next channel's round"
    yield waits, (*path, "overlap"), said, 'choose { kind = "block" }'
    full = isinstance(channel.barrier, Full) and isinstance(channel.late, Discard)
    said = "who is late for one channel's round would be in another's"
    yield full, (*path, "barrier"), said, 'choose barrier { kind = "full" } and late { kind = "discard" }'
    even = channel.merge.combine.weights != "tokens^2/steps"
    said = "counts what was worked since a part was last committed, by whichever channel"
    yield even, (*path, "merge", "combine", "weights"), said, 'choose "uniform" or "samples"'
    held = isinstance(channel.what.residual, Hold)
    said = "what a peer holds of one channel's work is in the weights that another channel sends"
    hint = 'set residual = { kind = "feedback" }, or give one channel'
    yield not held, (*path, "what", "residual"), said, hint
