"""Small runs and made-up tokens for the tests of the model room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.model.compute import Step, Vector
from atoll.spec.axes.merge import Merge
from atoll.spec.axes.optimizer import AdamW, Inner, Sgd
from atoll.spec.axes.what import Delta
from atoll.spec.axes.when import Every
from atoll.spec.axes.work import Work
from atoll.spec.recipe import Channel, Recipe
from atoll.spec.run import Budget, Data, Fresh, Model, Run, Seeds, Size

VOCAB, CONTEXT = 61, 16
GROUPED = Size(dim=32, layers=2, heads=4, kv_heads=2, ffn=48)
PLAIN = Size(dim=32, layers=2, heads=2, kv_heads=2, ffn=48, tied=False, rope_theta=500.0, norm_eps=1e-6)
ADAMW = AdamW(lr=3e-3)


class ToyData:
    """Tokens that are a function of their position: a noisy walk, so that there is something to learn."""

    vocab_size, context, held_out_samples = VOCAB, CONTEXT, 10

    def batch(self, positions: Sequence[int]) -> NDArray[np.int64]:
        rows = [self._row(position) for position in positions]
        return np.array(rows, np.int64).reshape(len(rows), CONTEXT + 1)

    def held_out(self, first: int, count: int) -> NDArray[np.int64]:
        assert first + count <= self.held_out_samples
        return self.batch(range(10**6 + first, 10**6 + first + count))

    def _row(self, position: int) -> NDArray[np.int64]:
        draw = np.random.Generator(np.random.PCG64(position))
        return (draw.integers(VOCAB) + np.arange(CONTEXT + 1) * 3 + draw.integers(0, 2, CONTEXT + 1)) % VOCAB


def toy_run(model: Model | Size = GROUPED, inner: Inner = ADAMW, **work: Any) -> Run:
    """Return a run of a tiny model; `work` overrides the local work."""
    channel = Channel(when=Every(steps=2), what=Delta(), merge=Merge(outer=Sgd(lr=1.0)))
    return Run(
        name="toy",
        recipe=Recipe(work=Work(**{"inner": inner, "batch": 4, **work}), channel={"outer": channel}),
        budget=Budget(rounds=1),
        model=Fresh(size=model) if isinstance(model, Size) else model,
        data=Data(context=CONTEXT),
        seeds=Seeds(model=7),
    )


def toy_steps(count: int, batch: int = 4, first: int = 0) -> list[Step]:
    """Return steps over consecutive samples at a falling rate."""
    starts = range(first * batch, (first + count) * batch, batch)
    return [Step(samples=tuple(range(at, at + batch)), rate=1 / (1 + at // batch)) for at in starts]


def same(one: Vector, other: Vector) -> bool:
    """Return whether two vectors agree to the bit."""
    return one.tobytes() == other.tobytes()
