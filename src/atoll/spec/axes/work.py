"""Work: what happens between exchanges."""

from __future__ import annotations

from msgspec import Struct

from atoll.spec.axes.axis import Axis
from atoll.spec.axes.optimizer import Inner

BATCH_MAX = 2**20
"""Samples that one peer may be asked to take in a step."""


class Constant(Axis, tag="constant"):
    """The same rate throughout, after a linear warm-up."""

    warmup_steps: int = 0


class Cosine(Axis, tag="cosine"):
    """Linear warm-up, then half a cosine down to `floor` of the peak at the end of the budget."""

    warmup_steps: int = 0
    floor: float = 0.1


class Wsd(Axis, tag="wsd"):
    """Warm-up, stable, then a linear decay to `floor` over the last `decay` of the budget."""

    warmup_steps: int = 0
    decay: float = 0.2
    floor: float = 0.0


class Cyclic(Axis, tag="cyclic"):
    """Down to `floor` of the peak within each round, by the same factor at every step; the next starts at the peak."""

    warmup_steps: int = 0
    floor: float = 0.25


Schedule = Constant | Cosine | Wsd | Cyclic


class Same(Axis, tag="same"):
    """Everybody takes all steps of a round."""


class BySpeed(Axis, tag="by-speed"):
    """The fastest takes all steps of a round, others as many as they manage in that time."""

    least: int = 1
    """So many steps everybody takes."""


class Growing(Axis, tag="growing"):
    """Everybody takes the same steps: so many times more from the round on that follows one that moved little."""

    below: float
    """What little is: a part of the length of the anchor's weights."""
    factor: int = 2
    most: int = 2**20
    """Steps of a round at most."""


class ByRate(Axis, tag="by-rate"):
    """Everybody takes the same steps: the more, the further the schedule has brought the rate down from its peak.

    Peers part from each other by rate times steps. At the part f of the peak a round has (1 / f) ** power times the
    steps that it has at the peak; with one they part as far in every round. Two is the quadratic synchronization rule
    of Gu et al. (2024) where that begins to lengthen rounds at the peak. A budget of tokens is kept to; one of rounds
    gets as many rounds, of more steps.
    """

    most: int
    """Steps of a round at most."""
    power: float = 2.0


Quota = Same | BySpeed | Growing | ByRate


class Work(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Local work of one peer between exchanges."""

    inner: Inner
    batch: int = 8
    """Samples per local step."""
    micro_batch: int = 0
    """Samples per forward pass at most, the last may have fewer; the step accumulates them. 0: all of them at once."""
    clip: float = 0.0
    """Largest norm of a local gradient; 0: no clipping."""
    schedule: Schedule = Constant()
    quota: Quota = Same()

    @property
    def at_once(self) -> int:
        """Return the samples of a forward pass, of the last of a step perhaps fewer."""
        return min(self.batch, self.micro_batch or self.batch)
