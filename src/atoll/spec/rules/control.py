"""What must hold of a policy that turns knobs, on whatever rung it may come to stand."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.spec.axes.codec import CacheLines, Sparse, TopK
from atoll.spec.axes.control import Auto, Batches, Form, Hide, Knobs, Match, Policy
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.pace import Block, Delay, Discard, Full, OneRound
from atoll.spec.axes.what import Delta, Feedback, Forget, Grad
from atoll.spec.axes.when import Every, TargetBatch
from atoll.spec.axes.whom import Carried, Regions
from atoll.spec.axes.work import ByRate, Growing
from atoll.spec.knobs import PEER_BYTES, beginning, delay_max, turned
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.rules.channel import LATE_MAX, channel_rules
from atoll.spec.rules.terms import Rule, above, within
from atoll.spec.strict import KeyPath

LADDER_MAX = 64
MEASURED_MAX = 1000
TIMES_MAX = 2**20


def control_rules(recipe: Recipe, policy: Policy) -> Iterator[Rule]:
    """What a policy writes must be there to be written, and whatever it may choose must be a channel that runs."""
    ((name, channel),) = recipe.channel.items()
    path: KeyPath = ("recipe", "control")
    at: KeyPath = ("recipe", "channel", name)
    whole = isinstance(channel.when, Every) or (isinstance(channel.when, TargetBatch) and isinstance(policy, Hide))
    said = "a policy turns knobs of exchanges of the whole model, most of them after a number of steps"
    yield whole, (*at, "when"), said, 'choose { kind = "every", steps = ... }, or control = { kind = "none" }'
    yield channel.common, (*at, "whom"), "a policy turns knobs for all alike", 'choose { kind = "all" }'
    full = isinstance(channel.barrier, Full) and isinstance(channel.late, Discard)
    said = "a policy turns knobs between rounds, which nobody's work may outlast"
    yield full, (*at, "barrier"), said, 'choose barrier = { kind = "full" } and late = { kind = "discard" }'
    routes = [channel.whom.route, *(form.route for form in policy.ladder)]
    said = "who passes sums on to whom does not survive a change of the exchange"
    hint = 'choose { kind = "butterfly" } or { kind = "all-gather" } there and on every rung'
    yield not any(isinstance(route, Carried | Regions) for route in routes), (*at, "whom", "route"), said, hint
    said = "what an owner left out of one form of results does not fit another"
    yield channel.what.owners == Forget(), (*at, "what", "owners"), said, "leave it out"
    said = "a policy turns to forms of its own, from whatever round it likes"
    yield not channel.finer, (*at, "finer"), said, "leave it out"
    grows = isinstance(recipe.work.quota, Growing | ByRate)
    said = "two would turn the number of steps: this and recipe.control"
    yield not grows, ("recipe", "work", "quota"), said, "choose one of them"
    yield bool(policy.ladder), (*path, "ladder"), "is empty", "give at least one rung: a codec, and steps at most"
    yield within((*path, "ladder"), len(policy.ladder), 1, LADDER_MAX)
    for number, form in enumerate(policy.ladder):
        keeps = isinstance(channel.what.residual, Feedback) or not isinstance(form.codec, Sparse)
        said = "most of what is sent in this form is left out, and would be lost"
        yield keeps, (*path, "ladder", number, "codec"), said, 'set what.residual = { kind = "feedback" }'
    match policy:
        case Auto():
            yield from _auto_rules(recipe, at, policy)
        case Hide():
            yield from _hide_rules(recipe, at, policy)
        case Match():
            yield from _match_rules(recipe, at, policy)


def _auto_rules(recipe: Recipe, at: KeyPath, auto: Auto) -> Iterator[Rule]:
    (channel,) = recipe.channel.values()
    path: KeyPath = ("recipe", "control")
    delta = isinstance(channel.what, Delta)
    yield delta, (*at, "what"), "a policy turns how rare exchanges are, which gradients cannot be", 'exchange "delta"'
    said = "what a peer is ahead by does not survive a change of the exchange"
    late = isinstance(channel.overlap, OneRound)
    yield not late, (*at, "overlap"), said, 'choose { kind = "block" } or { kind = "delay", ... }'
    yield 0 < auto.share < 1, (*path, "share"), f"{auto.share} is out of range", "it must be between 0 and 1"
    yield within((*path, "least"), auto.least, 1)
    yield from _rate_rules((*path, "outer_lr"), channel, auto)
    for number, rung in enumerate(auto.ladder):
        on = (*path, "ladder", number)
        yield within((*on, "steps"), rung.steps, auto.least)
        if isinstance(rung.overlap, Delay):
            yield within((*on, "overlap", "steps"), rung.overlap.steps, 1, rung.steps - 1)
        yield from _runs(recipe, Knobs(rung=number, steps=rung.steps, delay=delay_max(rung, rung.steps)))


def _hide_rules(recipe: Recipe, at: KeyPath, hide: Hide) -> Iterator[Rule]:
    (channel,) = recipe.channel.values()
    path: KeyPath = ("recipe", "control")
    said = "this policy turns how late results are: gradients do not mind, weights of one's own would"
    yield isinstance(channel.what, Grad), (*at, "what"), said, 'exchange { kind = "grad" }, or choose { kind = "auto" }'
    said = "this policy says how late results are, and begins with waiting for them"
    yield isinstance(channel.overlap, Block), (*at, "overlap"), said, "leave it out"
    said = "it begins with the form that the recipe's channel has, which is not among these"
    yield beginning(recipe).rung >= 0, (*path, "ladder"), said, "let one of the rungs be that"
    yield within((*path, "penalty"), hide.penalty, 0, 1)
    yield within((*path, "amplify"), hide.amplify, 1, 1e6)
    yield within((*path, "every"), hide.every, 1, MEASURED_MAX)
    yield within((*path, "late_max"), hide.late_max, 0, LATE_MAX)
    if hide.batch is not None:
        yield from _batch_rules((*path, "batch"), at, channel, hide.batch)
    for number, form in enumerate(hide.ladder):
        known = isinstance(form.codec, TopK | CacheLines) or not isinstance(form.codec, Sparse)
        said = "which part of the values it sends depends on them, and this policy must know"
        yield known, (*path, "ladder", number, "codec"), said, 'choose { kind = "top-k", ... }'
        for delay in sorted({0, hide.late_max}):
            yield from _runs(recipe, Knobs(rung=number, steps=channel.when.round_steps, delay=delay))


def _batch_rules(path: KeyPath, at: KeyPath, channel: Channel, batch: Batches) -> Iterator[Rule]:
    """Batches to choose from are of all together, and nothing else makes them grow."""
    shared = isinstance(channel.when, TargetBatch)
    said, hint = "the batch of all together is no knob where each has its own", 'choose { kind = "target-batch", ... }'
    yield shared, (*at, "when"), said, hint
    steady = not isinstance(channel.when, TargetBatch) or channel.when.growth is None
    yield steady, (*at, "when", "growth"), "two would turn the batch: this and recipe.control", "choose one of them"
    times = list(batch.times)
    rising = times == sorted(set(times)) and times[:1] == [1]
    yield rising, (*path, "times"), "must rise from 1 on, the channel's own batch", "for example [1, 2, 4, 8]"
    yield within((*path, "times"), len(times), 1, LADDER_MAX)
    yield within((*path, "times"), times[-1] if times else 1, 1, TIMES_MAX)
    yield above((*path, "critical"), batch.critical)


def _match_rules(recipe: Recipe, at: KeyPath, match: Match) -> Iterator[Rule]:
    (channel,) = recipe.channel.values()
    path: KeyPath = ("recipe", "control")
    yield not channel.forms, (*at, "forms"), "two would say who contributes in which form", "leave it out"
    yield within((*path, "every"), match.every, 1, MEASURED_MAX)
    first = Form(codec=channel.what.codec, result=channel.what.result, route=channel.whom.route)
    said = "it begins with the form that the recipe's channel has"
    yield match.ladder[:1] in ((), (first,)), (*path, "ladder", 0), said, "let the first rung be that"
    for number, form in enumerate(match.ladder):
        same = (form.result, form.route) == (first.result, first.route)
        said = "forms of one round differ in nothing but their codecs"
        yield same, (*path, "ladder", number), said, "let route and result be those of the recipe's channel"
        peer = bytes(PEER_BYTES)
        yield from _runs(recipe, Knobs(rung=number, steps=channel.when.round_steps, each=((peer, number),)))


def _runs(recipe: Recipe, knobs: Knobs) -> Iterator[Rule]:
    """What must hold of a channel at a position of its knobs, said of the rung it stands on."""
    on: KeyPath = ("recipe", "control", "ladder", knobs.rung)
    for holds, where, what, hint in channel_rules((), turned(recipe, knobs), recipe.work):
        yield holds, (*on, *_on_rung(where)), what, hint


def _on_rung(path: KeyPath) -> KeyPath:
    """Return where a rung says what stands at a place of a channel."""
    return path[1:] if path[:1] in (("what",), ("whom",), ("when",)) else path


def _rate_rules(path: KeyPath, channel: Channel, auto: Auto) -> Iterator[Rule]:
    rates = isinstance(channel.merge.outer, Sgd)
    said = "only an outer optimizer of kind sgd has its rate turned"
    yield rates or not auto.outer_lr, path, said, 'leave it out, or set merge.outer = { kind = "sgd", ... }'
    counts = [count for count, _ in auto.outer_lr]
    said = "numbers of members must rise from 1 on"
    yield counts == sorted(set(counts)) and counts[:1] in ([], [1]), path, said, "for example [[1, 0.4], [2, 0.6]]"
    for number, (_, lr) in enumerate(auto.outer_lr):
        yield above((*path, number, 1), lr)
