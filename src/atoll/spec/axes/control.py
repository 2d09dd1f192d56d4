"""Control: who turns the knobs while a run goes on."""

from __future__ import annotations

from msgspec import Struct

from atoll.spec.axes.axis import Axis
from atoll.spec.axes.codec import Codec
from atoll.spec.axes.pace import Block, Delay
from atoll.spec.axes.whom import Butterfly, Route


class Nobody(Axis, tag="none"):
    """Everything stays as the recipe has it."""


class Form(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A form that the exchange may take."""

    codec: Codec
    result: Codec | None = None
    route: Route = Butterfly()


class Rung(Form, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A form that the exchange may take, and how rare and how late it may be in that form."""

    steps: int
    """Local steps between two exchanges at most."""
    overlap: Block | Delay = Block()
    """Whether results may come late: then by so many steps at most, and no more than exchanges take."""


class Auto(Axis, tag="auto"):
    """The broker does: it measures rounds, and climbs the ladder no farther than exchanges take too much of them."""

    ladder: tuple[Rung, ...]
    """From what is best for the model to what is fewest bytes."""
    share: float = 0.1
    """Of a round's time the exchange may take so much."""
    least: int = 10
    """Local steps between two exchanges at least."""
    outer_lr: tuple[tuple[int, float], ...] = ()
    """From so many members on, the outer optimizer has this rate; empty: the one it is given."""


class Batches(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Batches of all together that a policy may choose from, and what a larger one costs."""

    times: tuple[int, ...]
    """The channel's own, with which a run begins: rising, from 1 on."""
    critical: float
    """In batches of so many samples a run has to read twice what it would in small ones, to come as far."""


class Hide(Axis, tag="hide"):
    """The broker does: it hides exchanges behind work, by how late results are and by how much is sent, together.

    A run is taken to last as long as its rounds, and to need so many times more of them:

        1 + penalty * (amplify ^ (rounds that results are late) / (part of the values that is sent) - 1)

    Where it chooses the batch too, what a round takes is shared among its samples, of which a run is taken to need

        1 + batch / critical

    times as many as in small batches: as few large ones as hide an exchange, since reading more costs too.
    """

    ladder: tuple[Form, ...]
    """From what sends everything to what is fewest bytes."""
    penalty: float = 0.01
    amplify: float = 2.0
    """Lateness makes what is left out so much worse, with every round."""
    every: int = 10
    """Rounds that are measured before anything is decided."""
    late_max: int = 1
    """By so many rounds results may be late."""
    batch: Batches | None = None
    """How large a batch of all together may be; none: as the channel has it."""


class Match(Axis, tag="match"):
    """The broker does: each peer contributes in the finest form that its line carries in the time that all have for it.

    That is the time of the fastest line in the finest form, or that of the work, if that is longer.
    """

    ladder: tuple[Form, ...]
    """The finest first, in which everybody begins; they differ in nothing but their codecs."""
    every: int = 10
    """Rounds that are measured before anything is decided."""


Policy = Auto | Hide | Match
"""Who writes knobs, for a ladder of forms."""


Control = Nobody | Policy


class Knobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a policy writes: everything else of a channel stays as the recipe has it."""

    rung: int
    steps: int
    delay: int = 0
    """Steps that results come late by, or rounds where a policy counts in those; 0: they are waited for."""
    lr: float = 0.0
    """Of the outer optimizer; 0: as the recipe has it."""
    samples: int = 0
    """Of a batch of all together; 0: as the recipe has it."""
    each: tuple[tuple[bytes, int], ...] = ()
    """Peers whose contributions are on a rung of their own, and on which; sorted."""
