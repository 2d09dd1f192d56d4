"""How contributions become one step of the anchor.

Everything here is elementwise fp32 in a fixed order, each operation rounded by itself, so that two
machines with different processors get the same bits. What contributions make together (here their mean,
other rules in `combine`) is encoded once, and everybody, its maker too, applies the decoded bytes with `advance`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from blake3 import blake3
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from atoll.model.compute import Vector
from atoll.spec.axes.optimizer import AdamW, Assign, DelayedNesterov, Lamb, Outer, Sgd, SignSgd

BASIS = "basis"
"""The name of an anchor's vector that has no element for each weight."""
START = "start"
"""What an anchor calls the weights that its outer optimizer steps from, where they are not its own."""


class Anchor(Struct, frozen=True):
    """The weights all agreed on at `version`, with the replicated state of the outer optimizer."""

    version: int
    weights: Vector
    outer: dict[str, Vector]
    basis: Vector | None = None
    """The directions that the next round's factors are taken along, where matrices travel as such."""

    def digest(self) -> str:
        """Return the hash of every bit that peers must agree on."""
        hasher = blake3(self.version.to_bytes(8, "little"), max_threads=blake3.AUTO)
        for name, vector in self.vectors().items():
            hasher.update(name.encode() + b"\0").update(np.ascontiguousarray(vector).view(np.uint8).data)
        return hasher.hexdigest()

    def copy(self) -> Anchor:
        """Return the same in memory of its own."""
        basis = None if self.basis is None else self.basis.copy()
        return Anchor(self.version, self.weights.copy(), {name: v.copy() for name, v in self.outer.items()}, basis)

    @property
    def start(self) -> Vector:
        """Return the weights that deltas are from: where several channels move the others, those of the rarest."""
        return self.outer.get(START, self.weights)

    def part(self, first: int, end: int) -> Anchor:
        """Return some of its elements, in the same memory; of the basis nothing."""
        return self.at(slice(first, end))

    def at(self, run: slice | NDArray[np.int64]) -> Anchor:
        """Return some of its elements: of a slice in the same memory, of single ones in memory of their own."""
        return Anchor(self.version, self.weights[run], {name: v[run] for name, v in self.outer.items()})

    def put(self, run: slice | NDArray[np.int64], part: Anchor) -> None:
        """Write some of its elements."""
        for name, vector in part.vectors().items():
            self.vectors()[name][run] = vector

    def vectors(self) -> dict[str, Vector]:
        """Return all its vectors by name, in a fixed order."""
        shared = self.outer if self.basis is None else self.outer | {BASIS: self.basis}
        return {"weights": self.weights, **{name: shared[name] for name in sorted(shared)}}


def outer_names(outer: Outer) -> tuple[str, ...]:
    """Return which vectors of state an outer optimizer keeps."""
    match outer:
        case Assign() | SignSgd():
            return ()
        case Sgd(momentum=momentum):
            return ("momentum",) if momentum else ()
        case DelayedNesterov():
            return ("buffer", "momentum")
        case AdamW() | Lamb():
            return ("first_moment", "second_moment")


def first_anchor(outer: Outer, weights: Vector, *, apart: bool = False) -> Anchor:
    """Return version 0: the model as the seed made it, perhaps with a start that only `depart` moves."""
    state = {name: np.zeros_like(weights) for name in outer_names(outer)}
    return Anchor(0, weights, state | ({START: weights.copy()} if apart else {}))


def add_up(parts: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Return the weighted sum of some contributions, in the order given; what is too large comes out not finite."""
    total, weighed = np.zeros_like(parts[0]), np.empty_like(parts[0])
    with np.errstate(over="ignore", invalid="ignore"):
        for part, weight in zip(parts, weights, strict=True):
            np.add(total, part if weight == 1.0 else np.multiply(part, np.float32(weight), out=weighed), out=total)
    return total


def mean(sums: Sequence[Vector], weight: float) -> Vector:
    """Return the mean from the weighted sums of groups, in the order given, and the weight of all together."""
    total = np.zeros_like(sums[0])
    with np.errstate(over="ignore", invalid="ignore"):
        for part in sums:
            np.add(total, part, out=total)
        return np.divide(total, np.float32(weight), out=total)


def weighed_mean(parts: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Return the weighted mean of some contributions, in the order given; what is too large comes out not finite."""
    return mean([add_up(parts, weights)], sum(weights))


class Pushes(Struct, frozen=True):
    """How many contributions a round merged, and how many all rounds before it did."""

    count: int = 1
    before: int = 0


def advance(outer: Outer, anchor: Anchor, merged: Vector, rate: float = 1.0, pushes: Pushes | None = None) -> Anchor:
    """Take the outer optimizer's step against the merged delta or gradient, and return the next version.

    It has the memory of the anchor given, which is spent: two models side by side are more than a machine may hold,
    and clearing memory for a new one takes longer than the step.
    """
    match outer:
        case Assign():
            anchor.weights[:] -= merged
        case Sgd():
            _sgd(outer, anchor, merged, rate)
        case SignSgd():
            _sign_sgd(outer, anchor, merged, rate)
        case DelayedNesterov():
            assert pushes is not None, "whoever steps it knows how many contributions there were"
            _delayed(outer, anchor, merged, rate, pushes)
        case AdamW():
            _adamw(outer, anchor, merged, rate)
        case Lamb():
            _moments(outer, anchor, merged)
    return replace(anchor, version=anchor.version + 1)


def approach(outer: Outer, anchor: Anchor, merged: Vector, rate: float = 1.0, pushes: Pushes | None = None) -> Anchor:
    """Take the outer optimizer's step towards merged weights: who assigns them is there, to the bit."""
    if isinstance(outer, Assign):
        anchor.weights[:] = merged
        return replace(anchor, version=anchor.version + 1)
    return advance(outer, anchor, anchor.weights - merged, rate, pushes)


def depart(anchor: Anchor, step: Callable[[Anchor], object]) -> None:
    """Take a step from where the last such step came to, whatever others have made of the weights since."""
    start = anchor.outer[START]
    anchor.weights[:] = start
    step(anchor)
    start[:] = anchor.weights


def meet(anchor: Anchor, merged: Vector) -> None:
    """Be where everybody is: at the merged weights, with an outer optimizer that has seen nothing yet."""
    anchor.weights[:] = merged
    for vector in anchor.outer.values():
        vector[:] = 0.0


def finish(outer: Outer, anchor: Anchor, layout: Mapping[str, int], rate: float = 1.0) -> None:
    """Take what is left of a step that needs whole tensors, once all of a result has come through `advance`.

    `anchor` is the one after the step. Only LAMB leaves anything: by how much a tensor's step is scaled.
    """
    if not isinstance(outer, Lamb):
        return
    first = 0
    for size in layout.values():
        part = anchor.part(first, first + size)
        direction = _direction(outer, part, anchor.version)
        direction += part.weights * np.float32(outer.weight_decay)
        scale = _norm(part.weights) / (_norm(direction) or 1.0)
        part.weights[:] -= direction * np.float32(outer.lr * rate * (scale or 1.0))
        first += size


def _norm(values: Vector) -> float:
    return math.sqrt(inner(values, values))


def inner(one: Vector, other: Vector) -> float:
    """Return the inner product of two vectors: added up in a fixed order, so that all machines get the same bits."""
    products = np.multiply(one, other, dtype=np.float64)
    while products.size > 1:
        half = -(-products.size // 2)
        upper = products[half:]
        products[: upper.size] += upper
        products = products[:half]
    return float(products[0]) if products.size else 0.0


def _sgd(outer: Sgd, anchor: Anchor, merged: Vector, rate: float) -> None:
    direction = merged
    if outer.momentum:
        beta = np.float32(outer.momentum)
        momentum = anchor.outer["momentum"]
        momentum *= beta
        momentum += merged
        direction = momentum * beta + merged if outer.nesterov else momentum
    anchor.weights[:] -= direction * np.float32(outer.lr * rate)


def _sign_sgd(outer: SignSgd, anchor: Anchor, merged: Vector, rate: float) -> None:
    if outer.weight_decay:
        anchor.weights[:] *= np.float32(1 - outer.lr * rate * outer.weight_decay)
    anchor.weights[:] -= np.sign(merged) * np.float32(outer.lr * rate)


def _delayed(outer: DelayedNesterov, anchor: Anchor, merged: Vector, rate: float, pushes: Pushes) -> None:
    """Step once for as many contributions as there are up to the next move of the momentum, until none is left.

    Of one contribution d out of every n, with c the part of the momentum m that is spread over them:

        always          buffer <- buffer + d / n
        the n-th time   m <- beta m + buffer, buffer <- 0;  weights <- weights - lr ((1 - c n + c) beta m + d / n)
        else            weights <- weights - lr (c beta m + d / n)

    What is left of a round's mean is the same for each of its contributions, so those in between are one step.
    """
    beta, n = np.float32(outer.momentum), outer.every
    momentum, buffer = anchor.outer["momentum"], anchor.outer["buffer"]
    left, before = pushes.count, pushes.before
    while left:
        few = min(left, n - before % n)
        part = merged * np.float32(few / n)
        buffer += part
        moves = (before + few) % n == 0
        between = outer.spread * (few - moves)
        if between:
            part += momentum * np.float32(between * outer.momentum)
        if moves:
            momentum *= beta
            momentum += buffer
            buffer[:] = 0.0
            part += momentum * np.float32((1 - outer.spread * n + outer.spread) * outer.momentum)
        anchor.weights[:] -= part * np.float32(outer.lr * rate)
        left, before = left - few, before + few


def _adamw(outer: AdamW, anchor: Anchor, merged: Vector, rate: float) -> None:
    _moments(outer, anchor, merged)
    direction = _direction(outer, anchor, anchor.version + 1)
    anchor.weights[:] *= np.float32(1 - outer.lr * rate * outer.weight_decay)
    anchor.weights[:] -= direction * np.float32(outer.lr * rate)


def _moments(outer: AdamW | Lamb, anchor: Anchor, merged: Vector) -> None:
    beta1, beta2 = outer.betas
    first, second = anchor.outer["first_moment"], anchor.outer["second_moment"]
    first *= np.float32(beta1)
    first += merged * np.float32(1 - beta1)
    second *= np.float32(beta2)
    second += (merged * merged) * np.float32(1 - beta2)


def _direction(outer: AdamW | Lamb, anchor: Anchor, version: int) -> Vector:
    """Return Adam's step from its moments, of which this is the one that makes `version`."""
    beta1, beta2 = outer.betas
    unbiased: Vector = anchor.outer["first_moment"] / np.float32(1 - beta1**version)
    root = np.sqrt(anchor.outer["second_moment"] / np.float32(1 - beta2**version))
    unbiased /= root + np.float32(outer.eps)
    return unbiased
