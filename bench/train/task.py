"""What is learnt: one model, from one set of initial weights, on one order of samples, whoever trains it.

Ours read it from a run file. The others get it as files: weights and samples as plain arrays, and a plan. They build
Atoll's own model; of what that imports their environment lacks msgspec alone, which is lent by a link.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from bench.allreduce import FP32, kind_of
from bench.runs import run_text

from atoll.cli.machine import cache
from atoll.data.samples import TokenData, open_data
from atoll.model.compute import Vector
from atoll.model.engine import TorchEngine, build_engine
from atoll.model.shape import initial, shapes
from atoll.spec.axes.codec import Codec
from atoll.spec.load import load_run
from atoll.spec.run import SIZES, Run
from atoll.sync.codec import wire_bytes

SIZE = "5m"
"""With bytes as its tokens: 4.5 million parameters, 18 MB."""
CONTEXT = 64
BATCH = 4
CLIP = 1.0
WARMUP_STEPS = 10
SAMPLES = 100_000
"""Of the order; nobody gets that far."""
HELD_OUT = 256
"""Samples of the held-out text; everybody is judged on the same."""
THREADS = 2
SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Rates:
    """How fast the model moves, and how often it is exchanged."""

    steps: int
    """Local steps between two exchanges; for DDP, batches that are accumulated."""
    lr: float = 1e-3
    outer_lr: float = 1.0
    outer_momentum: float = 0.0


def run_of(name: str, peers: int, rates: Rates, codec: Codec = FP32) -> str:
    """Return the run file."""
    outer: dict[str, object] = {"lr": rates.outer_lr, "momentum": rates.outer_momentum}
    if not rates.outer_momentum:
        outer["nesterov"] = False
    return run_text(
        name,
        {
            "model.size": SIZE,
            "data.context": CONTEXT,
            "recipe.base": "diloco",
            "recipe.channel.outer.what.codec.kind": kind_of(codec),
            "recipe.work.batch": BATCH,
            "recipe.work.clip": CLIP,
            "recipe.work.inner.lr": rates.lr,
            "recipe.work.schedule.kind": "constant",
            "recipe.work.schedule.warmup_steps": WARMUP_STEPS,
            "recipe.channel.outer.when.steps": rates.steps,
            **{f"recipe.channel.outer.merge.outer.{key}": value for key, value in outer.items()},
            "membership.start_with": peers,
        },
    )


class Judge:
    """Looks at weights on the held-out text."""

    def __init__(self, folder: Path) -> None:
        path = folder / "judge.toml"
        path.write_text(run_of("judge", 1, Rates(steps=1)))
        self.run: Run = load_run(path)
        self.data: TokenData = open_data(self.run.data, self.run.seeds.data, cache())
        self._engine: TorchEngine = build_engine(self.run, self.data, device="cpu", threads=THREADS)

    def size_bytes(self, codec: Codec) -> int:
        """Return what one exchange has to average."""
        return wire_bytes(codec, self._engine.size)

    def loss(self, weights: Vector) -> float:
        """Return the mean held-out loss, in nats per token."""
        self._engine.assign(weights)
        total, tokens = self._engine.evaluate(0, HELD_OUT)
        return total / tokens


def hand_out(judge: Judge, folder: Path, rates: Rates, keep_every: int) -> list[Path]:
    """Write what the others need, and return where they find modules that they lack."""
    size, run = SIZES[SIZE], judge.run
    layout = shapes(size, judge.data.vocab_size)
    np.save(folder / "initial.npy", initial(layout, run.seeds.model, size.layers))
    np.save(folder / "samples.npy", judge.data.batch(range(SAMPLES)).astype(np.uint16))
    plan = {"size": msgspec.to_builtins(size), "vocab": judge.data.vocab_size, "batch": BATCH, "clip": CLIP}
    chosen = {"warmup_steps": WARMUP_STEPS, "steps": rates.steps, "lr": rates.lr, "keep_every": keep_every}
    (folder / "plan.json").write_text(json.dumps(plan | chosen))
    lent = folder / "lent"
    lent.mkdir()
    (lent / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    return [SOURCE, lent]
