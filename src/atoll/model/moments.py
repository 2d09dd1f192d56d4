"""What inner optimizers remember of the weights, where that travels: it lies behind them, in the same vector.

    vector   | weights | first moments | second moments | mass |

So it is exchanged, kept, fetched and handed on as weights are, and who begins from the anchor, since it joins, missed a
round or lost its own, begins with what all remembered when that was last exchanged. First moments are means of
gradients (Muon's momentum), second ones those of their squares (of a row's moves, where rows move alike), each named
after its tensor.

Adam divides its means by their mass, which n steps from nothing on is 1 - beta^n. The mass of second moments goes with
them: the mean of several masses is that of the mean of the moments. Zero says that they never travelled.

Only what the recipe ever exchanges is there: mostly nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from atoll.model.shape import Shapes, elements, is_inside
from atoll.spec.axes.optimizer import AdamW, Inner, Lamb, Muon, Sgd
from atoll.spec.axes.when import WithMoments
from atoll.spec.recipe import Recipe

FIRST, SECOND = "first moment of ", "second moment of "
"""So their names begin, before those of their tensors."""
MASS = "mass of second moments"
FULL_BITS = 25
"""A mass is full when no more than so many halvings are missing: fp32 tells no more."""


def exchanged(recipe: Recipe) -> tuple[str, ...]:
    """Return which moments ever travel, by how their names begin."""
    whens = [channel.when for channel in recipe.channel.values() if isinstance(channel.when, WithMoments)]
    first, second = any(when.first for when in whens), any(when.second for when in whens)
    return (FIRST,) * first + (SECOND,) * second


def travelling(recipe: Recipe, weights: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Return the shapes of all that a vector has under a recipe, in order: the weights, and what lies behind them."""
    kinds, inner = exchanged(recipe), recipe.work.inner
    found = Shapes(weights)
    for kind in kinds:
        found |= remembered(inner, weights, kind)
    counts = any(isinstance(stepped_by(inner, name, shape), AdamW | Lamb) for name, shape in weights.items())
    return found | ({MASS: (1,)} if SECOND in kinds and counts else {})


def remembered(inner: Inner, weights: Mapping[str, tuple[int, ...]], kind: str) -> Shapes:
    """Return the shapes of one kind of moments of all tensors that have them."""
    shapes = {name: _moments(inner, name, shape).get(kind) for name, shape in weights.items()}
    return {kind + name: shape for name, shape in shapes.items() if shape is not None}


def equal_parts(recipe: Recipe) -> dict[str, float]:
    """Return which moments travel of a model of which no tensors are known: all of them as large as it is."""
    return dict.fromkeys(exchanged(recipe), 1.0)


def parts_of(recipe: Recipe, weights: Mapping[str, tuple[int, ...]]) -> dict[str, float]:
    """Return how much of each kind of moments travels, as a part of the weights."""
    own = elements(Shapes(weights))
    found = {kind: remembered(recipe.work.inner, weights, kind) for kind in exchanged(recipe)}
    return {kind: elements(some) / own for kind, some in found.items() if some}


def stepped_by(inner: Inner, name: str, shape: tuple[int, ...]) -> Inner:
    """Return what steps one tensor."""
    return inner.adamw if isinstance(inner, Muon) and not is_inside(name, shape) else inner


def _moments(inner: Inner, name: str, shape: tuple[int, ...]) -> Shapes:
    """Return the shapes of a tensor's moments: of those that there are."""
    match stepped_by(inner, name, shape):
        case Muon(beta2=beta2):
            return {FIRST: shape} | ({SECOND: (shape[0], 1)} if beta2 else {})
        case AdamW() | Lamb():
            return {FIRST: shape, SECOND: shape}
        case Sgd(momentum=momentum) if momentum:
            return {FIRST: shape}
        case _:
            return {}


def mass_of(steps: float, beta: float) -> float:
    """Return the mass of a mean of so many steps."""
    return -math.expm1(steps * math.log(beta)) if beta else float(steps > 0)


def steps_of(mass: float, beta: float) -> float:
    """Return after how many steps a mean has such a mass, of a full one the fewest."""
    if not beta:
        return 1.0 if mass else 0.0
    rest = max(1.0 - mass, 2.0**-FULL_BITS)
    return math.log(rest) / math.log(beta)


def is_weight(name: str) -> bool:
    """Return whether a part of a vector is one of the model's own tensors."""
    return name != MASS and not name.startswith((FIRST, SECOND))


def weights_in(layout: Mapping[str, int]) -> int:
    """Return how many elements of a vector are the model's: the first ones."""
    return sum(size for name, size in layout.items() if is_weight(name))
