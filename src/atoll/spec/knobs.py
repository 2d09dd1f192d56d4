"""What a channel is once its knobs are turned, and which positions of them a policy may choose.

A policy never invents: it takes a rung of the ladder that the recipe gives it, a number of steps within that rung's
bounds, an outer rate of the recipe's table and a batch of those that it lists. Whatever else is said in its name is
refused. Quantity, combination, kind of outer optimizer and residual are no knobs, so that outer state and what codecs
left out stay what they are.
"""

from __future__ import annotations

from msgspec.structs import replace

from atoll.spec.axes.codec import CacheLines, Codec, TopK
from atoll.spec.axes.control import Auto, Form, Hide, Knobs, Match, Nobody, Rung
from atoll.spec.axes.merge import Merge
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.pace import Block, Delay, Overlap, RoundsLate
from atoll.spec.axes.when import Every, TargetBatch, When
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.turns import round_steps, turn_of

PEER_BYTES = 32
"""What names a peer."""


def turned(recipe: Recipe, knobs: Knobs) -> Channel:
    """Return the recipe's channel at a position of its knobs."""
    (channel,) = recipe.channel.values()
    assert not isinstance(recipe.control, Nobody), "only a policy turns knobs"
    ladder = recipe.control.ladder
    form = ladder[knobs.rung]
    if isinstance(recipe.control, Match):
        forms: dict[str, Codec] = {peer.hex(): ladder[rung].codec for peer, rung in knobs.each}
        return replace(channel, what=replace(channel.what, codec=form.codec), forms=forms)
    return replace(
        channel,
        when=_sized(channel.when, knobs.samples) if isinstance(recipe.control, Hide) else Every(steps=knobs.steps),
        what=replace(channel.what, codec=form.codec, result=form.result),
        whom=replace(channel.whom, route=form.route),
        merge=_at_rate(channel.merge, knobs.lr),
        overlap=_late(form, knobs.delay),
    )


def beginning(recipe: Recipe) -> Knobs:
    """Return the position of the knobs that a recipe begins with, if that is on its ladder: else before the first."""
    (channel,) = recipe.channel.values()
    form = Form(codec=channel.what.codec, result=channel.what.result, route=channel.whom.route)
    ladder = () if isinstance(recipe.control, Nobody) else recipe.control.ladder
    rung = ladder.index(form) if form in ladder else -1
    return Knobs(rung=rung, steps=channel.when.round_steps, samples=batches_of(recipe)[0])


def batches_of(recipe: Recipe) -> tuple[int, ...]:
    """Return the batches of all together that a policy may choose from, the channel's first; 0: that is no knob."""
    (channel,) = recipe.channel.values()
    batch = recipe.control.batch if isinstance(recipe.control, Hide) else None
    if batch is None or not isinstance(channel.when, TargetBatch):
        return (0,)
    return tuple(times * channel.when.samples for times in batch.times)


def _sized(when: When, samples: int) -> When:
    return replace(when, samples=samples) if samples and isinstance(when, TargetBatch) else when


def _at_rate(merge: Merge, lr: float) -> Merge:
    if not lr:
        return merge
    assert isinstance(merge.outer, Sgd), "a table of rates is for an optimizer that has one"
    return replace(merge, outer=replace(merge.outer, lr=lr))


def _late(form: Form, delay: int) -> Overlap:
    """Return what members do while a round is exchanged: where a form does not say, a delay is of whole rounds."""
    if not delay:
        return Block()
    if not isinstance(form, Rung):
        return RoundsLate(rounds=delay)
    return replace(form.overlap, steps=delay) if isinstance(form.overlap, Delay) else Block()


def channel_of(recipe: Recipe, version: int, knobs: Knobs | None) -> Channel:
    """Return the channel of a round as its knobs stand; None: as the recipe has it."""
    return turn_of(recipe, version).channel if knobs is None else turned(recipe, knobs)


def room_max(recipe: Recipe) -> int:
    """Return how many rounds may be open at once in a run, however its knobs are turned."""
    room = max(channel.room for channel in recipe.channel.values())
    if not isinstance(recipe.control, Hide):
        return room
    places = [Knobs(rung=rung, steps=1, delay=recipe.control.late_max) for rung in range(len(recipe.control.ladder))]
    return max(room, *(turned(recipe, knobs).room for knobs in places))


def steps_of(recipe: Recipe, knobs: Knobs | None) -> int:
    """Return how many local steps a round has as knobs stand; None: as the recipe has it."""
    return round_steps(recipe) if knobs is None else knobs.steps


def delay_max(rung: Rung, steps: int) -> int:
    """Return by how many steps results may come late in rounds of so many: the last is always from the anchor."""
    return min(rung.overlap.steps, steps - 1) if isinstance(rung.overlap, Delay) else 0


def part_sent(codec: Codec) -> float:
    """Return which part of the values a form of the exchange sends."""
    match codec:
        case TopK(keep=keep, block=block):
            return keep / block
        case CacheLines(keep=part):
            return part
        case _:
            return 1.0


def objection(recipe: Recipe, knobs: Knobs) -> str:
    """Return why no policy of this recipe could have turned the knobs to this; empty: it could."""
    control = recipe.control
    if isinstance(control, Nobody):
        return "nobody turns knobs in this run"
    if not 0 <= knobs.rung < len(control.ladder):
        return f"there is no rung {knobs.rung} on a ladder of {len(control.ladder)}"
    if knobs.samples not in batches_of(recipe):
        return f"a batch of {knobs.samples} samples is not among those that may be chosen"
    match control:
        case Auto():
            return _climbing_objection(control, knobs)
        case Hide():
            return _hiding_objection(recipe, control, knobs)
        case Match():
            return _matching_objection(recipe, control, knobs)


def _climbing_objection(control: Auto, knobs: Knobs) -> str:
    rung = control.ladder[knobs.rung]
    if not control.least <= knobs.steps <= rung.steps:
        return f"{knobs.steps} steps are not between {control.least} and the {rung.steps} of rung {knobs.rung}"
    if not 0 <= knobs.delay <= delay_max(rung, knobs.steps):
        return f"a delay of {knobs.delay} steps is more than rung {knobs.rung} and {knobs.steps} steps allow"
    if knobs.each:
        return "peers on rungs of their own, where all contribute alike"
    if knobs.lr not in ([lr for _, lr in control.outer_lr] or [0.0]):
        return f"an outer rate of {knobs.lr} is not in the recipe's table"
    return ""


def _hiding_objection(recipe: Recipe, control: Hide, knobs: Knobs) -> str:
    (channel,) = recipe.channel.values()
    if knobs.steps != channel.when.round_steps or knobs.lr:
        return f"{knobs.steps} steps at an outer rate of {knobs.lr} are not what the recipe has, and no knobs"
    if knobs.each:
        return "peers on rungs of their own, where all contribute alike"
    if not 0 <= knobs.delay <= control.late_max:
        return f"results {knobs.delay} rounds late, where they may be {control.late_max}"
    return ""


def _matching_objection(recipe: Recipe, control: Match, knobs: Knobs) -> str:
    (channel,) = recipe.channel.values()
    if knobs.steps != channel.when.round_steps or knobs.lr or knobs.delay:
        return f"{knobs.steps} steps, a delay of {knobs.delay}, an outer rate of {knobs.lr}: these are no knobs"
    peers = [peer for peer, _ in knobs.each]
    if peers != sorted(set(peers)) or any(len(peer) != PEER_BYTES for peer in peers):
        return "peers are named out of order, twice or wrongly"
    if not all(0 <= rung < len(control.ladder) for _, rung in knobs.each):
        return f"a peer is on no rung of a ladder of {len(control.ladder)}"
    return ""
