"""What: which quantity is exchanged, in which form, and what becomes of what is left out."""

from __future__ import annotations

from atoll.spec.axes.axis import Axis
from atoll.spec.axes.codec import Codec, Fp32


class Forget(Axis, tag="forget"):
    """What the codec leaves out is lost."""


class Feedback(Axis, tag="feedback"):
    """What the codec leaves out is kept and added to the next contribution (error feedback)."""

    decay: float = 1.0
    """So much of it is kept."""


class Hold(Axis, tag="hold"):
    """What the codec leaves out is kept until it is sent, and counts in the peer's own weights meanwhile."""

    decay: float = 1.0
    """So much of it is kept."""
    shared: float = 0.0
    """So much of what a result leaves out of contributions is held likewise, by who made them, not kept by owners."""


Residual = Forget | Feedback | Hold


class Dct(Axis, tag="dct"):
    """The frequencies of each tile of a tensor (orthonormal cosine transform) in place of its values."""

    tile: int = 64
    """Elements along a side of a tile, at most: the largest divisor of the tensor's own side up to this."""


class LowRank(Axis, tag="low-rank"):
    """Two thin factors in place of each matrix, found in two rounds: a few directions, then what lies along them."""

    rank: int = 4
    """Directions, at most: no more than the shorter side of a matrix has."""
    least: float = 2.0
    """Times that both factors together must be smaller than the tensor; others travel whole, as vectors always do."""


class Nearest(Axis, tag="nearest"):
    """Each element by itself, to what is nearest."""


class ByInputs(Axis, tag="by-inputs"):
    """A row of a matrix together: what one element misses the next ones make up for, where its layer's inputs look.

    As GPTQ rounds finished weights (Frantar et al. 2022, arXiv 2210.17323); here it is done to every result.
    """

    damping: float = 1.0
    """Of the inputs' mean square, added in all directions: the more, the nearer to each element by itself."""
    gain: float = 1.0
    """Of their block's mean are magnitudes while signs are chosen: larger ones make up for more."""
    samples: int = 4
    """Of the owner's own work: what layers are given there is what is looked at."""


Rounding = Nearest | ByInputs


class _Quantity(Axis):
    """Something to exchange, and its form on the wire."""

    codec: Codec = Fp32()
    transform: Dct | LowRank | None = None
    """What the codec is given, and what results are made of; none: values themselves."""
    residual: Residual = Forget()
    result: Codec | None = None
    """The form of what contributions are merged into; none: the same as theirs."""
    owners: Forget | Feedback = Forget()
    """What becomes of what is left out of results: lost, or kept by who owns the chunk and added to its next result."""
    rounding: Rounding = Nearest()
    """How owners choose what a result becomes in its form; whoever gets it need not know."""

    def merged(self) -> Codec:
        """Return the codec of results."""
        return self.codec if self.result is None else self.result


class Delta(_Quantity, tag="delta"):
    """The anchor minus the local weights."""


class Grad(_Quantity, tag="grad"):
    """The mean gradient of the steps since the last exchange, taken at the anchor."""


class Params(_Quantity, tag="params"):
    """The local weights themselves."""


What = Delta | Grad | Params
