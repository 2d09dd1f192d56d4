"""How near to each other peers stay: what journals tell of it, and what they leave open.

After every round each peer writes down the digest of its anchor. Where everybody goes on from just that, the digests
are all there is to know. Where peers have weights of their own beside it, or no anchor in common, a distance is known
from rounds in which whole models are averaged: each writes down how far its own was from the mean it took. Of the rest
we say that nobody measured it: a common anchor tells nothing of weights that are trained beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from atoll.observe.trial import Trial
from atoll.spec.axes.control import Auto, Control
from atoll.spec.axes.pace import Block, Delay
from atoll.spec.axes.what import Grad, Hold
from atoll.spec.axes.when import Parts
from atoll.spec.recipe import Channel, Recipe
from atoll.units import say_counted

Common = Literal["weights", "anchor", "nothing"]


def common(recipe: Recipe) -> Common:
    """Return what all members have alike after every round, as far as a recipe promises it."""
    channels = recipe.channel.values()
    if not all(channel.common for channel in channels):
        return "nothing"
    own = any(_has_own(channel, recipe.control) for channel in channels)
    return "anchor" if own else "weights"


def _has_own(channel: Channel, control: Control) -> bool:
    """Return whether a peer goes on from more than the anchor: steps of its own, or what it holds back."""
    if isinstance(channel.what.residual, Hold):
        return True
    if isinstance(channel.what, Grad):  # steps add gradients up and leave weights where they are
        return False
    waits = isinstance(channel.overlap, Block) and not channel.carries and not _may_delay(control)
    return not waits or isinstance(channel.when, Parts)


def _may_delay(control: Control) -> bool:
    return isinstance(control, Auto) and any(isinstance(rung.overlap, Delay) for rung in control.ladder)


def distance(trial: Trial, recipe: Recipe) -> float | None:
    """Return how far peers were from their mean when that was last measured, as a part of its length.

    It is 0 where all go on from one anchor and their digests agree, and None where nobody measured it.
    """
    if trial.apart:
        return trial.apart[-1][1]
    return 0.0 if common(recipe) == "weights" and not trial.rounds_split else None


class Told(NamedTuple):
    """A trial, and the recipe that it was one of."""

    trial: Trial
    recipe: Recipe

    @property
    def alike(self) -> Common | None:
        """Return what all members had alike after every round; None: that was promised and did not hold."""
        promised = common(self.recipe)
        return None if promised != "nothing" and self.trial.rounds_split else promised


def notes(told: Sequence[Told]) -> list[str]:
    """Return what the distances of some trials mean, and of which of them nothing is known."""
    measured = [each.trial for each in told if each.trial.apart]
    weights, anchor, nothing, broken = (
        [each.trial for each in told if each.alike == alike] for alike in ("weights", "anchor", "nothing", None)
    )
    return [
        *_of_measured(measured),
        *_of_weights(weights),
        *_of_anchors(anchor),
        *_of_nothing(nothing),
        *_of_broken(broken),
    ]


def _of_measured(trials: Sequence[Trial]) -> list[str]:
    """Return what was measured, where something was."""
    said = (
        "Consensus distance: how far from their mean peers' weights were, as a part of its length, just before whole "
        f"models were last averaged ({_names(trials)})."
    )
    return [said] if trials else []


def _of_weights(trials: Sequence[Trial]) -> list[str]:
    """Return what a distance of 0 says."""
    said = (
        f"Consensus distance 0 ({_names(trials)}): after every round all go on from the same weights, bit for bit, by "
        "the digests in their journals."
    )
    return [said] if trials else []


def _of_anchors(trials: Sequence[Trial]) -> list[str]:
    """Return what is the same among peers that may have weights of their own beside a common anchor."""
    if not trials:
        return []
    open_ = [trial for trial in trials if not trial.apart]
    more = f"; how far apart those are nobody measured ({_names(open_)})" if open_ else ""
    return [
        f"{_names(trials)}: after every round all have the same anchor, bit for bit, by the digests in their journals, "
        f"and may go on from weights of their own beside it{more}."
    ]


def _of_nothing(trials: Sequence[Trial]) -> list[str]:
    """Return whose models are not common and were not measured either."""
    open_ = [trial for trial in trials if not trial.apart]
    return [f"{_names(open_)}: models are not common, and how far apart they are nobody measured."] if open_ else []


def _of_broken(trials: Sequence[Trial]) -> list[str]:
    """Return after how many rounds a common anchor was not one."""
    return [
        f"{trial.label}: after {trial.rounds_split} of {say_counted(trial.rounds, 'round')} some peers had another "
        "anchor than the others."
        for trial in trials
    ]


def _names(trials: Sequence[Trial]) -> str:
    return ", ".join(trial.label for trial in trials)


def say_distance(distance: float) -> str:
    """Return a distance as text, in per cent of the mean's length."""
    return "0" if distance == 0 else f"{100 * distance:.2g} %"
