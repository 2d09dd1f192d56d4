"""The compute opening: where tensor work runs, and what a peer may ask of it.

Two contracts. `Engine` is the model on one peer: plain blocking functions on flat fp32 vectors, so that
nothing above it knows about torch, devices or layers. `Compute` runs such functions off the event
loop: in the real world on one worker thread, in simulation inline under modelled time. A job that takes
a minute therefore never stops a heartbeat; long work comes in slices (`Engine.train` of a few steps)
so that it can be stopped between them.

A vector is the model's trainable parameters, sorted by name, flattened and joined, and behind them what inner
optimizers remember, where the recipe exchanges that (`moments`): the layout every peer derives from the spec alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from atoll.model.encoding.matrices import Factored
from atoll.model.encoding.tiles import Tiled
from atoll.spec.axes.codec import Codec
from atoll.spec.axes.what import Residual

if TYPE_CHECKING:
    from atoll.model.held import Held

T = TypeVar("T")
Vector = NDArray[np.float32]
Moments = NDArray[np.float32]
"""Of inputs, in the mean: each times each."""
Merged = Iterable[tuple[int, Vector]]
"""A result some elements at a time: the first of them, and their values."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a job costs, for worlds that model time: floating-point work and bytes of memory moved."""

    flop: float = 0.0
    moved_bytes: float = 0.0


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """What a slice of local work did."""

    steps: int
    samples: int
    tokens: int
    loss_sum: float
    """Sum over steps of the mean loss per token of that step."""


def together(parts: Sequence[Trained]) -> Trained:
    """Return what several slices did."""
    return Trained(
        steps=sum(part.steps for part in parts),
        samples=sum(part.samples for part in parts),
        tokens=sum(part.tokens for part in parts),
        loss_sum=sum(part.loss_sum for part in parts),
    )


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One local step: which samples (positions in the global order), at which learning-rate factor."""

    samples: tuple[int, ...]
    rate: float = 1.0
    """Factor on the optimizer's learning rate, from the schedule."""


class Portion(NamedTuple):
    """A chunk of a contribution that is to be encoded."""

    runs: tuple[slice, ...]
    """Where its elements are in a vector, one run after the other."""
    values: Vector | None = None
    """What they are; none: the encoder is told where they are."""
    first: int = 0
    """Its first element in what was `Made`."""
    seed: int = 0
    """What chance depends on, where it has a part."""
    known: Vector | None = None
    """A remembered threshold and what it was at first, which are moved where they are; none: nothing is remembered."""


class Start(NamedTuple):
    """Where work began."""

    weights: Vector
    name: object = None
    """What they were called when the model got them, and no other weights were ever called; none: nobody said."""


class Mean(NamedTuple):
    """What gradients come to."""

    total: Held
    steps: int


class Made(NamedTuple):
    """What was made of values where the weights are: all of a unit, one after the other."""

    values: Held


Source = Start | Mean | Made
"""Where the values of a contribution are."""


class PartOf(NamedTuple):
    """How large is large: such a part of the weight that an element is to change."""

    start: Start
    part: float


class Near(NamedTuple):
    """How large is large: near the largest of its tensor, by so much that about so many are. Asked of a whole unit."""

    sizes: tuple[int, ...]
    """Elements of each tensor of the unit, in order."""
    keep: int | None
    """How many, if the codec allows; none: as many as it allows."""


Large = float | PartOf | Near
"""How large elements must be to be sent, where a codec goes by that."""


class Encoder(Protocol):
    """Makes chunks where the weights are, of one codec: the bytes that `sync.codec` makes, to the bit."""

    @property
    def elements(self) -> int:
        """Return about how many elements are best encoded at once."""

    def encode(
        self,
        portions: Sequence[Portion],
        source: Source | None,
        rule: Residual,
        residual: Held | None,
        large: Large | None = None,
    ) -> list[memoryview]:
        """Return chunks, and let the residual be what is left out of them by its rule.

        Where portions have no values, these are the way from a start to the weights as they are now, a mean, or what
        was made of these. What is `Near` is given with all portions of a unit. Raises `FloatingPointError` where values
        are not finite: then nothing of the contribution counts, and the residual, finite though it is, may be that of
        neither before nor after.
        """


class Rounder(Protocol):
    """Rounds rows of matrices by what their layers are given (`sync.by_inputs`)."""

    def known(self, tensor: str) -> tuple[Any, Any] | None:
        """Return what is known of what a matrix is given, worked out anew each time; None: nothing."""

    def rounded(
        self, known: tuple[Any, Any], columns: slice, wanted: NDArray[np.float32], sizes: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return signs times sizes, of some columns of some rows, and what layers feel of them.

        Of the end of a row that is as if there were nothing before; at its beginning, as if the rest would follow.
        """


class Cosines(Protocol):
    """`sync.frequencies` of one unit where the weights are, to the bit."""

    def of(self, portion: Portion, source: Source | None) -> Made:
        """Return the frequencies of a whole unit's values. Raises as `Encoder.encode`."""

    def back(self, frequencies: Merged) -> Vector:
        """Return the values whose frequencies these are."""


class Products(Protocol):
    """What a contributor makes of its matrices (`sync.factors`), where the weights are.

    What it multiplies is its own affair, and may differ in the last bits from what a processor makes of it.
    """

    def wanted(self, portion: Portion, source: Source | None, rule: Residual, residual: Held | None) -> Held:
        """Return what is to be sent: a whole model's values, and what was left out. Raises as `Encoder.encode`."""

    def directions(self, wanted: Held, basis: Vector) -> Vector:
        """Return each matrix times the directions of the step before."""

    def along(self, wanted: Held, basis: Vector) -> Vector:
        """Return what of each matrix lies along this step's directions, and all of the other tensors."""

    def leave(self, wanted: Held, arrives: Vector, basis: Vector, residual: Held) -> None:
        """Let the residual be what does not arrive of what was wanted, which is used up."""


class Restored(Protocol):
    """What everybody makes of results in which matrices are factors (`sync.factors`), to the bit."""

    def values(self, merged: Vector, basis: Vector) -> Vector:
        """Return the model's values that factors and whole tensors stand for."""

    def orthonormal(self, merged: Vector) -> Vector:
        """Return this step's directions."""

    def unit_columns(self, basis: Vector) -> Vector | None:
        """Return directions as long as one; None: there is one without a length, and another is to be drawn."""


class Transforms(Protocol):
    """Makes other numbers of a model's, where the weights are."""

    def cosines(self, tiling: tuple[Tiled, ...]) -> Cosines:
        """Return what makes frequencies of tiles."""

    def products(self, form: Factored) -> Products:
        """Return what makes factors of matrices."""

    def restored(self, form: Factored) -> Restored:
        """Return what makes matrices of factors."""


class Engine(Protocol):
    """The model of one peer. Blocking; called through `Compute` only. Never shares memory with a caller."""

    @property
    def size(self) -> int:
        """Return how many elements a vector has."""

    @property
    def layout(self) -> Mapping[str, int]:
        """Return the tensors of a vector in order: their names, and how many elements each has."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return their shapes, in the same order."""

    @property
    def tokens_per_sample(self) -> int: ...

    def cost(self, samples: int, steps: int = 0) -> Cost:
        """Return what training on so many samples costs, and so many steps of the optimizer."""

    def weights(self, first: int = 0, end: int | None = None) -> Vector:
        """Return a copy of a vector's elements, or of some of them."""

    def assign(
        self, weights: Vector, first: int = 0, name: object = None, less: Held | None = None, part: float = 1.0
    ) -> None:
        """Replace a vector's elements, or as many as are given from `first` on; inner optimizer state beside it stays.

        With a name all of them are given, and whoever encodes the way from there may call them by it (`Start`). The
        model gets them less what is held back, where something is, or less a part of that.
        """

    def train(self, steps: Sequence[Step]) -> Trained:
        """Take optimizer steps on the local weights."""

    def gradients(self, steps: Sequence[Step], total: Held | None) -> tuple[Trained, Held]:
        """Add each step's mean gradient at the present weights to a sum, one by one; None: to nothing yet.

        So a sum does not depend on how work was sliced. Weights stay as they are.
        """

    def inputs(self, names: Collection[str], samples: Sequence[int]) -> dict[str, Moments]:
        """Return second moments of what some matrices are given at the present weights, where they are given anything.

        Of all tokens of some samples: a square matrix, as wide as the tensor's rows are long.
        """

    def rounder(self, names: Collection[str], samples: Sequence[int], damping: float) -> Rounder | None:
        """Return what rounds rows of such matrices by what these samples give them; None: this is no such device."""

    def encoder(self, codec: Codec) -> Encoder | None:
        """Return what encodes where the weights are; None: that is here."""

    def transforms(self) -> Transforms | None:
        """Return what transforms where the weights are; None: that is here."""

    def evaluate(self, first: int, count: int) -> tuple[float, int]:
        """Return summed loss and token count over held-out samples [first, first+count)."""

    def held_out(self) -> int:
        """Return how many held-out samples there are."""

    def private(self) -> bytes:
        """Return what the inner optimizer has beside the vector, as safetensors bytes: never sent, saved with these."""

    def restore(self, private: bytes) -> None:
        """Take inner optimizer state back; raises `LocalError` when it does not fit this model."""


class Compute(Protocol):
    """Where jobs run. One job at a time, in order; the event loop is never blocked."""

    async def run(self, job: Callable[[], T], cost: Cost) -> T:
        """Run `job` and return its result; cancelled: the job may finish, its result is dropped."""

    async def close(self) -> None: ...
