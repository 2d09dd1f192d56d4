"""What must hold where moments of inner optimizers travel with the model."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.spec.axes.codec import Bf16, Fp32
from atoll.spec.axes.merge import Mean, Trimmed
from atoll.spec.axes.optimizer import Accumulate, AdamW, Assign, Inner, Lamb, Muon, Sgd
from atoll.spec.axes.pace import Replicated
from atoll.spec.axes.what import Params
from atoll.spec.axes.when import WithMoments
from atoll.spec.axes.whom import All
from atoll.spec.recipe import Channel
from atoll.spec.rules.terms import Rule, within
from atoll.spec.strict import KeyPath

EVERY_MAX = 100
"""Exchanges between two of the same moments."""
_RANGE = Fp32 | Bf16
"""Forms in which the square of a small gradient is not zero."""


def moments_rules(path: KeyPath, channel: Channel, when: WithMoments, inner: Inner) -> Iterator[Rule]:
    """There are such moments; and they, as weights, are averaged and put in the place of everybody's own."""
    at = (*path, "when")
    yield within((*at, "first"), when.first, 0, EVERY_MAX)
    yield within((*at, "second"), when.second, 0, EVERY_MAX)
    some = bool(when.first or when.second)
    yield some, at, "no moments ever go with the model", 'choose { kind = "every", steps = ... }, or set first'
    first, second = _has(inner)
    yield first or not when.first, (*at, "first"), "recipe.work.inner remembers no gradients", "give it a momentum"
    said = "recipe.work.inner remembers no squares of gradients"
    yield second or not when.second, (*at, "second"), said, 'set it to 0, or choose inner of kind "adamw"'
    said = "who begins from the anchor would have means of gradients and none of their squares to divide them by"
    yield bool(when.second or not (when.first and second)), (*at, "second"), said, "set it, for example to twice first"
    weights = isinstance(channel.what, Params)
    said = "moments are averaged as they are, as weights are"
    yield weights, (*path, "what"), said, 'exchange { kind = "params" }, or choose when { kind = "every" }'
    forms = [("codec", channel.what.codec), ("result", channel.what.merged())]
    for key, form in forms:
        fine = isinstance(form, _RANGE)
        said = "squares of small gradients would become zero"
        yield fine, (*path, "what", key), said, 'choose { kind = "fp32" } or { kind = "bf16" }'
    assigned = isinstance(channel.merge.outer, Assign)
    said = "an outer optimizer would step moments as if they were weights"
    yield assigned, (*path, "merge", "outer"), said, 'choose { kind = "assign" }, or when { kind = "every" }'
    each = isinstance(channel.merge.combine, Mean | Trimmed) and channel.merge.combine.weights != "mass"
    said = "moments have other lengths than weights, and are not to be weighed with them"
    yield each, (*path, "merge", "combine"), said, 'choose { kind = "mean" } or { kind = "trimmed" }'
    common = isinstance(channel.whom, All) and isinstance(channel.home, Replicated)
    said = "who has a model of its own remembers what is about that"
    yield common, (*path, "whom"), said, 'choose { kind = "all" }, or when { kind = "every" }'


def _has(inner: Inner) -> tuple[bool, bool]:
    """Return whether an optimizer remembers gradients, and their squares."""
    match inner:
        case AdamW() | Lamb() | Muon():
            return True, True
        case Sgd(momentum=momentum):
            return bool(momentum), False
        case Accumulate():
            return False, False
