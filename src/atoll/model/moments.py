"""What inner optimizers remember of the weights, where that travels: it lies behind them, in the same vector.

    vector   | weights | first moments | second moments | steps |

So it is exchanged, kept, fetched and handed on as weights are, and who begins from the anchor begins with what all
remembered when that was last exchanged. First moments are means of gradients (Muon's momentum), second ones those of
their squares (of a row's moves, where rows move alike), each named after its tensor. How many steps they are of
corrects both, and goes with the second: without those nobody can begin. Zero says that they never travelled.

Only what the recipe ever exchanges is there: mostly nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from atoll.model.shape import Shapes, is_inside
from atoll.spec.axes.optimizer import AdamW, Inner, Lamb, Muon, Sgd
from atoll.spec.axes.when import WithMoments
from atoll.spec.recipe import Recipe

FIRST, SECOND = "first moment of ", "second moment of "
"""So their names begin, before those of their tensors."""
STEPS = "steps of moments"


def exchanged(recipe: Recipe) -> tuple[str, ...]:
    """Return which moments ever travel, by how their names begin."""
    whens = [channel.when for channel in recipe.channel.values() if isinstance(channel.when, WithMoments)]
    first, second = any(when.first for when in whens), any(when.second for when in whens)
    return (FIRST,) * first + (SECOND,) * second


def travelling(recipe: Recipe, weights: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Return the shapes of all that a vector has under a recipe, in order: the weights, and what lies behind them."""
    found, kinds = Shapes(weights), exchanged(recipe)
    remembered = {name: _remembered(recipe.work.inner, name, shape) for name, shape in weights.items()}
    for kind in kinds:
        found |= {kind + name: shapes[kind] for name, shapes in remembered.items() if kind in shapes}
    return found | ({STEPS: (1,)} if SECOND in kinds else {})


def _remembered(inner: Inner, name: str, shape: tuple[int, ...]) -> Shapes:
    """Return the shapes of a tensor's moments: of those that there are."""
    match inner:
        case Muon(beta2=beta2) if is_inside(name, shape):
            return {FIRST: shape} | ({SECOND: (shape[0], 1)} if beta2 else {})
        case AdamW() | Lamb() | Muon():
            return {FIRST: shape, SECOND: shape}
        case Sgd(momentum=momentum) if momentum:
            return {FIRST: shape}
        case _:
            return {}


def is_weight(name: str) -> bool:
    """Return whether a part of a vector is one of the model's own tensors."""
    return name != STEPS and not name.startswith((FIRST, SECOND))


def weights_in(layout: Mapping[str, int]) -> int:
    """Return how many elements of a vector are the model's: the first ones."""
    return sum(size for name, size in layout.items() if is_weight(name))
