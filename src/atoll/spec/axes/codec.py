"""Codecs: the form that values have on the wire, and which of them are sent."""

from __future__ import annotations

from atoll.spec.axes.axis import Axis

BLOCK_MIN, BLOCK_MAX = 16, 65536
"""Elements that may share a scale: in smaller blocks int8 would be no shorter than fp16."""


class Fp32(Axis, tag="fp32"):
    """Four bytes an element, exact."""


class Fp16(Axis, tag="fp16"):
    """Two bytes an element: IEEE half, values beyond its range clipped to the largest half."""


class Bf16(Axis, tag="bf16"):
    """Two bytes an element: the upper half of an fp32, rounded to the nearest."""


class Int8(Axis, tag="int8"):
    """A byte an element: 255 even steps between plus and minus the largest of its block, whose size is sent too."""

    block: int = 256
    """Elements that share a step; each block costs four bytes more."""

    @property
    def bits(self) -> int:
        """Return how many bits an element has, beside its block's scale."""
        return 8


class Buckets(Axis, tag="buckets"):
    """So many bits an element: even bins around the chunk's mean, each sent as the mean of what fell into it."""

    bits: int = 8
    width: float = 12.0
    """Standard deviations from the first bin to the last; what lies outside falls into those."""


class E3m0(Axis, tag="e3m0"):
    """Four bits an element: a sign and one of seven powers of two below its block's largest, or zero."""

    block: int = 64
    """Elements that share a scale; each block costs four bytes more."""

    @property
    def bits(self) -> int:
        """Return how many bits an element has, beside its block's scale."""
        return 4


class Sign(Axis, tag="sign"):
    """A bit an element: its sign, times the mean magnitude of its block."""

    block: int = 4096

    @property
    def bits(self) -> int:
        """Return how many bits an element has, beside its block's scale."""
        return 1


TERNARY_LEVEL = 1.534
"""In mean magnitudes of a block: of three levels the best for values that are spread like a bell."""


class Ternary(Axis, tag="ternary"):
    """Five elements a byte: each is nothing, or plus or minus the level of its block, whichever is nearest."""

    block: int = 512


QUATERNARY_LEVEL, QUATERNARY_LARGE = 0.5675, 3.335
"""The smaller of two sizes, in mean magnitudes of a block, and how many times that the larger is: of four levels the
best for values that are spread like a bell."""


class Quaternary(Axis, tag="quaternary"):
    """Two bits an element: plus or minus one of two sizes of its block, whichever is nearer."""

    block: int = 512

    @property
    def bits(self) -> int:
        """Return how many bits an element has, beside its block's scale."""
        return 2


class Stochastic(Axis, tag="stochastic"):
    """So many bits an element: even steps of its block's norm, up or down by chance so that the mean is right."""

    bits: int = 8
    block: int = 512


class TurnedSign(Axis, tag="turned-sign"):
    """A bit an element, in a basis that each chunk draws: what a block has is spread over all of its elements first."""

    block: int = 512
    """Elements that share a scale; a power of two."""


Quantiser = Fp32 | Fp16 | Bf16 | Int8 | Buckets | E3m0 | Sign | Ternary | Quaternary | Stochastic | TurnedSign
"""What becomes of a value."""


class TopK(Axis, tag="top-k"):
    """Of each block the largest only: where they are in as few bits as a place in the block needs, and their values."""

    keep: int = 64
    block: int = 4096
    """A power of two, at most 65536."""
    values: Quantiser = Fp32()

    @property
    def place_bits(self) -> int:
        """Return how many bits a place in a block has."""
        return (self.block - 1).bit_length()

    def kept(self, count: int) -> int:
        """Return how many of so many elements are kept: of a short block as much as of a full one, and at least one."""
        whole, rest = divmod(count, self.block)
        return whole * self.keep - (-self.keep * rest // self.block)


class Threshold(Axis, tag="threshold"):
    """Only what is at least so large; how many that are differs from chunk to chunk, and from round to round."""

    least: float
    scaled: bool = False
    """True: times the schedule's factor, so that what counts as large shrinks with the steps that it is made of."""
    values: Quantiser = Fp32()


class Significance(Axis, tag="significance"):
    """Only what is at least such a part of the weight it is to change (Gaia's filter)."""

    least: float = 0.01
    """In the first round."""
    shrinks: bool = True
    """Whether it is divided by the square root of the round's number in later ones."""
    values: Quantiser = Fp32()


class MaxN(Axis, tag="max-n"):
    """Only what is within N % of the largest of its tensor: of 100 everything, of 10 what is at least 90 % of that.

    N is of each link, and its sender's affair: what comes says itself what it is about.
    """

    least: float = 0.85
    most: float = 100.0
    """Between these: as much as the link was measured to carry in the time of a step's work."""
    values: Quantiser = Fp32()


class CacheLines(Axis, tag="cache-lines"):
    """Only whole lines of neighbouring values: those of the largest sums."""

    keep: float = 0.01
    """Part of the lines; at least one of each chunk."""
    line: int = 16
    remember: bool = True
    """Find them by a threshold that is kept from round to round and follows; False: exactly, every time."""
    values: Quantiser = Fp32()


Above = Threshold | Significance | MaxN
"""What sends whatever is large enough: as long as its values make it."""


Sparse = TopK | Above | CacheLines
"""What sends some values only."""


Codec = Quantiser | Sparse
