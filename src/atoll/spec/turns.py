"""Which channel a round is of, where a recipe has several: a pure function of the round's number.

A run has one row of rounds, and each belongs to one channel. They come as often as the channel that is due most often,
and where several are due, the rarest goes; so every channel's steps are a multiple of those of the next more frequent.

    rounds     1   2   3   4   5   6   7   8   9
    sparse     .   .   .       .   .   .       .     every step
    outer                  .               .         every four

The rarest channel makes the run's model. It may have an outer optimizer, which steps from where it stood last: what the
others do to the weights meanwhile is theirs. All others put merged weights in the place of everybody's own, and keep
nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from atoll.spec.axes.optimizer import Assign
from atoll.spec.axes.what import Params
from atoll.spec.axes.when import Fragments, Named
from atoll.spec.recipe import Channel, Recipe


class Turn(NamedTuple):
    """What one round is."""

    name: str
    channel: Channel
    number: int
    """Which of its channel's own rounds it is, from 1 on."""

    @property
    def unit(self) -> str:
        """Return what the round is about."""
        return self.channel.unit(self.number)


def turn_of(recipe: Recipe, version: int) -> Turn:
    """Return which channel a round is of, as the recipe has it."""
    if len(recipe.channel) == 1:  # mostly, and asked for every chunk
        ((name, channel),) = recipe.channel.items()
        return Turn(name, channel.in_round(version), version)
    ordered, every = in_order(recipe), _every(recipe)
    place = max(place for place, rounds in enumerate(every) if version % rounds == 0)
    rarer = version // every[place + 1] if place + 1 < len(every) else 0
    (name, channel), number = ordered[place], version // every[place] - rarer
    return Turn(name, channel.in_round(number), number)


def _every(recipe: Recipe) -> list[int]:
    """Return after how many rounds each channel is due, the most frequent first."""
    return [channel.when.round_steps // round_steps(recipe) for _, channel in in_order(recipe)]


def shares(recipe: Recipe) -> dict[str, float]:
    """Return which part of all rounds is each channel's."""
    due = [1 / rounds for rounds in _every(recipe)]
    return {name: due[i] - sum(due[i + 1 : i + 2]) for i, (name, _) in enumerate(in_order(recipe))}


def in_order(recipe: Recipe) -> list[tuple[str, Channel]]:
    """Return the channels by name, the most frequent first."""
    return sorted(recipe.channel.items(), key=lambda named: named[1].when.round_steps)


def round_steps(recipe: Recipe) -> int:
    """Return how many local steps there are from one round to the next, of whichever channel."""
    return min(channel.when.round_steps for channel in recipe.channel.values())


def rarest(recipe: Recipe) -> Channel:
    """Return the channel that makes the run's model: its only one, mostly."""
    return max(recipe.channel.values(), key=lambda channel: channel.when.round_steps)


def makes_model(recipe: Recipe, name: str) -> bool:
    """Return whether the channel of such a name makes the run's model."""
    return in_order(recipe)[-1][0] == name


def ends_whole(recipe: Recipe) -> bool:
    """Return whether the last round is about all of the model: parts of it that are only averaged make none."""
    channel = rarest(recipe)
    averages = isinstance(channel.what, Params) and isinstance(channel.merge.outer, Assign)
    return averages and isinstance(channel.when, Fragments | Named)


def starts_apart(recipe: Recipe) -> bool:
    """Return whether the rarest channel steps from weights of its own: others have moved the anchor's meanwhile."""
    channel = rarest(recipe)
    assigns = isinstance(channel.what, Params) and isinstance(channel.merge.outer, Assign)
    return len(recipe.channel) > 1 and not assigns
