"""Overlap, barrier, late, home: when a result is applied, who is waited for, what of the late, where outer state is."""

from __future__ import annotations

from atoll.spec.axes.axis import Axis
from atoll.spec.axes.optimizer import DelayedNesterov, Sgd


class Block(Axis, tag="block"):
    """Wait for the result before going on."""


class Blend(Axis, tag="blend"):
    """Move from the local weights to the new anchor."""

    keep: float = 0.0
    """So much of the local weights stays."""


class Shift(Axis, tag="shift"):
    """Put the new anchor in the place of what was contributed; steps since then stay as they are."""


class Delay(Axis, tag="delay"):
    """Go on for some steps of the next round while a result is on its way, then take it in."""

    steps: int
    """A result that is not there by then is waited for."""
    reconcile: Blend | Shift = Blend()


class OneRound(Axis, tag="one-round"):
    """Go on with the whole next round while a result is on its way; it is where the round after that starts from."""

    eager: bool = True
    """Start with our own share of the newest contributions too, before those of the others come."""


class RoundsLate(Axis, tag="rounds-late"):
    """Go on for so many rounds while results are on their way: gradients are of the anchor of so many rounds before."""

    rounds: int


Overlap = Block | Delay | OneRound | RoundsLate


class Full(Axis, tag="full"):
    """A round waits for everybody who is there, as long as the run's patience lasts."""


class Seconds(Axis, tag="seconds"):
    """So long."""

    s: float = 0.0


class Slack(Axis, tag="slack"):
    """A part of the time until the next round's contributions are due, as the last rounds came."""

    part: float


class Quorum(Axis, tag="quorum"):
    """A round ends when so many have contributed and a grace is over, whoever is missing."""

    contributors: int = 1
    """Everybody, where there are fewer."""
    grace: Seconds | Slack = Seconds()
    lag_max: int | None = None
    """Nobody is ahead of anybody by more rounds (stale synchronous parallel): who has worked for so many is waited for,
    once, as long as the run's patience lasts; 0: all are, in every round; none: nobody is."""


Barrier = Full | Quorum


class Discard(Axis, tag="discard"):
    """A contribution that missed its round is dropped and its lease goes back."""


class Carry(Axis, tag="carry"):
    """Who is not done when a round ends keeps its lease and works on: it contributes to the round that is open then."""


class StandIn(Axis, tag="stand-in"):
    """Who is not done when a round ends lends its circle the weights it has, works on, and joins what that made later.

    It counts as one more beside those whose mean that is, and contributes what comes of it.
    """


Late = Discard | Carry | StandIn


class Replicated(Axis, tag="replicated"):
    """Every member holds and steps the outer state."""


class Regional(Axis, tag="regional"):
    """The members of a region hold and step one state of their own; above all of them is one that everybody holds.

    Now and then a region tells the others how far it has come: that moves the state above, and the region towards it.
    """

    outer: Sgd | DelayedNesterov
    """What moves the state above."""
    pushes: int
    """Contributions that a region takes in before it tells."""
    take: float = 0.25
    """So much of the way to the state above it goes then."""


Home = Replicated | Regional
