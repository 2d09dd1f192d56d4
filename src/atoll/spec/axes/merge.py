"""Merge: how contributions are weighed, combined and applied."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from atoll.spec.axes.axis import Axis
from atoll.spec.axes.optimizer import Outer


class _Combiner(Axis):
    """A way to make one of many contributions."""

    weights: Literal["uniform", "samples", "tokens^2/steps", "mass"] = "uniform"
    """`tokens^2/steps`: tokens, times tokens per step, of all its leases since what a contributor sends was last
    committed. `mass`: a number that everybody has beside a model of its own and passes on with it (push-sum). Who
    misses a round keeps all of its own, so whoever does, no step is lost and all count the same."""


class Mean(_Combiner, tag="mean"):
    """Weighted mean over the contributors."""


class MeanPresent(_Combiner, tag="mean-present"):
    """Weighted mean of each coordinate over those contributors that sent it."""


class Sum(_Combiner, tag="sum"):
    """All contributions added up, as a parameter server adds updates to its weights; all weigh the same."""


class Trimmed(_Combiner, tag="trimmed"):
    """Weighted mean of each coordinate without its largest and its smallest values."""

    drop: float = 0.25
    """So many of the contributors at either end, rounded up; of one or two nobody can be told apart, nor dropped."""


Over = Literal["chunk", "tensor", "whole"]
"""What a length is of: one chunk, which its owner has; one tensor, or all of a round, for those who have everything."""


class MedianNormClip(_Combiner, tag="median-norm-clip"):
    """Weighted mean of contributions, those longer than the median made as long as that."""

    over: Over = "tensor"


class CentredClip(_Combiner, tag="centred-clip"):
    """The centre from which contributions, none counted as farther than a radius, pull evenly (CenteredClip)."""

    radius: float = 1.0
    """In lengths of the median contribution."""
    iterations: int = 20
    over: Over = "whole"


class Rda(_Combiner, tag="rda"):
    """Of each tensor the mean direction at the mean length (radial-directional averaging); of embeddings the mean.

    Directions and lengths travel in place of values, so that whoever has a part of them can average it.
    """


Combine = Mean | MeanPresent | Sum | Trimmed | MedianNormClip | CentredClip | Rda


class Merge(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Combine contributions, then move the anchor."""

    outer: Outer
    combine: Combine = Mean()
    scheduled: bool = False
    """True when the local schedule's factor also scales the outer learning rate (gradients need this)."""
