"""What a channel is once its knobs are turned, and which positions of them a policy may choose.

A policy never invents: it takes a rung of the ladder that the recipe gives it, a number of steps within that rung's
bounds, and an outer rate of the recipe's table. Whatever else is said in its name is refused. Quantity, combination,
kind of outer optimizer and residual are no knobs, so that outer state and what codecs left out stay what they are.
"""

from __future__ import annotations

from msgspec.structs import replace

from atoll.spec.recipe import Auto, Block, Channel, Delay, Every, Knobs, Recipe, Rung, Sgd
from atoll.spec.turns import round_steps, turn_of


def turned(recipe: Recipe, knobs: Knobs) -> Channel:
    """Return the recipe's channel at a position of its knobs."""
    (channel,) = recipe.channel.values()
    assert isinstance(recipe.control, Auto), "only a policy turns knobs"
    rung, merge = recipe.control.ladder[knobs.rung], channel.merge
    if knobs.lr:
        assert isinstance(merge.outer, Sgd), "a table of rates is for an optimizer that has one"
        merge = replace(merge, outer=replace(merge.outer, lr=knobs.lr))
    late = isinstance(rung.overlap, Delay) and knobs.delay > 0
    return replace(
        channel,
        when=Every(steps=knobs.steps),
        what=replace(channel.what, codec=rung.codec, result=rung.result),
        whom=replace(channel.whom, route=rung.route),
        merge=merge,
        overlap=replace(rung.overlap, steps=knobs.delay) if late else Block(),
    )


def channel_of(recipe: Recipe, version: int, knobs: Knobs | None) -> Channel:
    """Return the channel of a round as its knobs stand; None: as the recipe has it."""
    return turn_of(recipe, version).channel if knobs is None else turned(recipe, knobs)


def steps_of(recipe: Recipe, knobs: Knobs | None) -> int:
    """Return how many local steps a round has as knobs stand; None: as the recipe has it."""
    return round_steps(recipe) if knobs is None else knobs.steps


def delay_max(rung: Rung, steps: int) -> int:
    """Return by how many steps results may come late in rounds of so many: the last is always from the anchor."""
    return min(rung.overlap.steps, steps - 1) if isinstance(rung.overlap, Delay) else 0


def objection(recipe: Recipe, knobs: Knobs) -> str:
    """Return why no policy of this recipe could have turned the knobs to this; empty: it could."""
    control = recipe.control
    if not isinstance(control, Auto):
        return "nobody turns knobs in this run"
    if not 0 <= knobs.rung < len(control.ladder):
        return f"there is no rung {knobs.rung} on a ladder of {len(control.ladder)}"
    rung = control.ladder[knobs.rung]
    if not control.least <= knobs.steps <= rung.steps:
        return f"{knobs.steps} steps are not between {control.least} and the {rung.steps} of rung {knobs.rung}"
    if not 0 <= knobs.delay <= delay_max(rung, knobs.steps):
        return f"a delay of {knobs.delay} steps is more than rung {knobs.rung} and {knobs.steps} steps allow"
    if knobs.lr not in ([lr for _, lr in control.outer_lr] or [0.0]):
        return f"an outer rate of {knobs.lr} is not in the recipe's table"
    return ""
