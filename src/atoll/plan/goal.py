"""What a person wants: a model, so many tokens, and what it may take; and which models a plan can be about.

A plan may be about models that no single peer holds, so more sizes have names here than a run may ask for: those of the
Llama 3 family, by their published shapes.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from atoll.errors import SpecError
from atoll.model.moments import exchanged, travelling
from atoll.model.shape import Shape, elements, parameters, shapes
from atoll.plan.cost.batch import samples_factor
from atoll.plan.spread import Floats
from atoll.spec.recipe import Recipe
from atoll.spec.run import SIZES, Size
from atoll.spec.strict import near

LARGE: dict[str, Size] = {
    "3b": Size(dim=3072, layers=28, heads=24, kv_heads=8, ffn=8192, rope_theta=500000.0),
    "8b": Size(dim=4096, layers=32, heads=32, kv_heads=8, ffn=14336, tied=False, rope_theta=500000.0),
    "70b": Size(dim=8192, layers=80, heads=64, kv_heads=8, ffn=28672, tied=False, rope_theta=500000.0),
    "405b": Size(dim=16384, layers=126, heads=128, kv_heads=8, ffn=53248, tied=False, rope_theta=500000.0),
}


class Goal(Struct, frozen=True, kw_only=True):
    """What is to be trained, and what it may take; None: as much as it needs."""

    size: Size
    vocab: int
    context: int
    tokens: int
    batch_tokens: int
    """What all peers together work on in a step."""
    deadline_s: float | None = None
    budget_usd: float | None = None
    carbon_g: float | None = None
    data_stays: bool = False
    """Each peer has data that may not leave it."""

    def needs_tokens(self, batch_tokens: float, critical: Floats) -> Floats:
        """Return how many tokens teach as much in steps of so many at once as were asked for in the goal's own.

        So many times more samples are needed as 1 + batch / critical batch (McCandlish et al. 2018).
        """
        own = samples_factor(self.batch_tokens, critical)
        return np.asarray(self.tokens * np.maximum(1.0, samples_factor(batch_tokens, critical) / own))

    @property
    def limits(self) -> tuple[float | None, float | None, float | None]:
        """Return what it may take of time, money and carbon."""
        return self.deadline_s, self.budget_usd, self.carbon_g

    @property
    def shape(self) -> Shape:
        return Shape(size=self.size, vocab=self.vocab, context=self.context)

    @property
    def parameters(self) -> int:
        return parameters(self.size, self.vocab)

    def travels(self, recipe: Recipe) -> int:
        """Return how many elements an anchor has under a recipe: the parameters, and moments that travel with them."""
        if not exchanged(recipe):
            return self.parameters
        return elements(travelling(recipe, shapes(self.size, self.vocab)))


def size_named(name: str) -> Size:
    """Return the shape that a name stands for."""
    known = SIZES | LARGE
    if name not in known:
        raise SpecError(
            f"--model: there is no size '{name}'", hint=f"known sizes: {', '.join(known)}{near(name, known)}"
        )
    return known[name]
