"""The trials of docs/convergence.md, in the order in which they are played: what is trained, on what, how.

All of them read the same samples in the same order and take the same number of tokens, whatever they exchange; one peer
alone (`solo`) gets an eighth of them. A trial is data: its run is made from a recipe of the project and the changes
named here, so that one line of the record is enough to play it again.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct

from atoll.spec.load import load_run
from atoll.spec.run import Run

SIZE = {"dim": 512, "layers": 5, "heads": 8, "kv_heads": 8, "ffn": 1408}
"""16.1 million parameters besides the vocabulary."""
CONTEXT = 512
BATCH = 192
"""Samples of a step of all peers together, where a trial does not say otherwise."""
SAMPLES = 2040 * BATCH
"""In all: 200.5 million tokens; rounds of 30 and of 60 steps fit in."""
CHECKPOINT_EVERY = 6
"""Rounds; results are kept until a checkpoint has them, by every peer, and all peers share one memory here."""
WARM = 1 / 16
"""Part of the steps over which the rate rises."""
FLOOR = 0.05
"""Part of the peak rate that is left at the end."""


class How(StrEnum):
    """In which way a trial is played."""

    PLAIN = "plain"
    """One model in a plain loop, proven equal to the recipe `ddp`."""
    WORLD = "world"
    """Peers in the simulated world."""


class Trial(Struct, frozen=True, kw_only=True):
    """One training, and what is special about it."""

    name: str
    recipe: str
    peers: int
    how: How = How.WORLD
    batch: int = BATCH
    """Samples of a step of all peers together."""
    alone: int = 1
    """Of so many equal shares of the samples one is trained on."""
    every: int = 1
    """Steps between exchanges."""
    changes: dict[str, Any] = {}
    """Keys of the run file, by path."""
    seed: int = 0

    @property
    def rounds(self) -> int:
        return SAMPLES // self.batch // self.every

    @property
    def steps(self) -> int:
        return self.rounds * self.every


def run_of(trial: Trial, shards: Path) -> Run:
    """Return a trial's run."""
    warm = max(1, round(WARM * trial.steps))
    keys: dict[str, Any] = {
        "name": trial.name,
        "model.kind": "fresh",
        **{f"model.size.{key}": value for key, value in SIZE.items()},
        "data.context": CONTEXT,
        "data.source.kind": "shards",
        "data.source.path": str(shards.resolve()),
        "recipe.base": trial.recipe,
        "recipe.work.batch": trial.batch // trial.alone // trial.peers,
        "recipe.work.schedule.kind": "cosine",
        "recipe.work.schedule.warmup_steps": warm,
        "recipe.work.schedule.floor": FLOOR,
        "recipe.channel.outer.when.steps": trial.every,
        "budget.rounds": trial.rounds,
        "membership.start_with": trial.peers,
        "membership.contributors_min": trial.peers,
        "upkeep.checkpoint_every": CHECKPOINT_EVERY,
        "seeds.model": trial.seed,
        "seeds.data": trial.seed,
        **trial.changes,
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "run.toml"
        file.write_text("".join(f"{path} = {json.dumps(value)}\n" for path, value in keys.items()))
        return load_run(file)


# the list

Changes = dict[str, Any]

CHANNEL = "recipe.channel.outer"
RATES = (2e-3, 4e-3, 1e-3, 8e-3)
"""Peak rates of DDP, likely ones first."""
FEEDBACK = {f"{CHANNEL}.what.residual.kind": "feedback"}
SIGN = {f"{CHANNEL}.what.codec.kind": "sign", **FEEDBACK}
"""A bit an element both ways; what that leaves out of a contribution goes into the next."""
E3M0 = {f"{CHANNEL}.what.codec.kind": "e3m0"}
ADAMW = {"recipe.work.inner.kind": "adamw", "recipe.work.clip": 1.0}
"""Recipes whose own inner optimizer is SGD are also played with the one all others have."""


def ddp(lr: float, batch: int, seed: int = 0) -> Trial:
    """Return all peers' batches through one AdamW."""
    changes = {f"{CHANNEL}.merge.outer.lr": lr}
    name = _name("ddp", f"b{batch}", f"lr{lr:g}", seed=seed)
    return Trial(name=name, recipe="ddp", peers=1, how=How.PLAIN, batch=batch, changes=changes, seed=seed)


def solo(lr: float, seed: int = 0) -> Trial:
    """Return one peer of eight with its own share."""
    changes = {f"{CHANNEL}.merge.outer.lr": lr}
    name = _name("solo", f"b{BATCH // 8}", f"lr{lr:g}", seed=seed)
    return Trial(name=name, recipe="ddp", peers=1, how=How.PLAIN, alone=8, changes=changes, seed=seed)


def delta(
    recipe: str, every: int, lr: float, changes: Changes | None = None, *, also: str = "", peers: int = 8, seed: int = 0
) -> Trial:
    """Return peers that exchange deltas every so many steps."""
    changes = {"recipe.work.inner.lr": lr, **(changes or {})}
    name = _name(recipe, *([also] if also else []), f"n{peers}", f"h{every}", f"lr{lr:g}", seed=seed)
    return Trial(name=name, recipe=recipe, peers=peers, every=every, changes=changes, seed=seed)


def outer(lr: float, momentum: float) -> Changes:
    """Return another outer rate and momentum."""
    return {f"{CHANNEL}.merge.outer.lr": lr, f"{CHANNEL}.merge.outer.momentum": momentum}


def keep(values: int) -> Changes:
    """Return so many values of each block of 4096."""
    return {f"{CHANNEL}.what.codec.keep": values}


def _name(*words: str, seed: int) -> str:
    return "-".join([*words, *([f"seed{seed}"] if seed else [])])


def trials() -> list[Trial]:
    """Return all of them, the most telling first; what takes longest comes early among its equals."""
    return [
        # 1. Where the scale begins and ends, and the three claims on it.
        delta("diloco", 30, 2e-3),
        delta("sparseloco", 30, 2e-3),
        delta("sparseloco", 60, 2e-3, keep(32), also="k32"),
        ddp(2e-3, 96),
        *(solo(lr) for lr in RATES),
        # 2. DiLoCo by rates and by peers.
        delta("diloco", 30, 4e-3),
        delta("diloco", 30, 2e-3, outer(0.9, 0.5), also="outer0.9-0.5"),
        delta("diloco", 30, 2e-3, peers=4),
        delta("diloco", 30, 2e-3, peers=2),
        # 3. DDP's grid: its optimum counts only with worse ones on every side.
        ddp(4e-3, 96),
        ddp(2e-3, 192),
        ddp(2e-3, 48),
        ddp(4e-3, 192),
        ddp(1e-3, 96),
        ddp(1e-3, 48),
        ddp(8e-3, 192),
        ddp(8e-3, 96),
        ddp(4e-3, 48),
        ddp(1e-3, 192),
        ddp(8e-3, 48),
        # 4. Ten thousand times fewer bytes; other recipes at eight peers.
        delta("sparseloco", 60, 2e-3, keep(13), also="k13"),
        delta("diloco", 30, 2e-3, SIGN, also="sign"),
        delta("opendiloco", 30, 2e-3),
        delta("diloco", 30, 2e-3, E3M0, also="e3m0"),
        delta("fedavg", 30, 2e-3, ADAMW, also="adamw"),
        delta("muloco", 30, 0.02, {"recipe.work.inner.adamw.lr": 2e-3}),
        delta("slowmo", 30, 0.1),
        delta("fedavg", 30, 0.1),
        delta("diloco", 60, 2e-3),
        # 5. More tries, so that no recipe is judged by its first; none has more than DDP's twelve.
        *(delta("sparseloco", 30, lr) for lr in (1e-3, 4e-3)),
        delta("sparseloco", 60, 4e-3, keep(32), also="k32"),
        delta("diloco", 30, 1e-3),
        *(delta("diloco", 30, 2e-3, outer(lr, 0.9), also=f"outer{lr:g}-0.9") for lr in (0.5, 0.9)),
        # 6. Other seeds of what a claim names.
        *(ddp(2e-3, 96, seed) for seed in (1, 2)),
        *(solo(2e-3, seed) for seed in (1, 2)),
        *(delta("diloco", 30, 2e-3, peers=peers, seed=seed) for seed in (1, 2) for peers in (8, 4, 2)),
        *(delta("sparseloco", 30, 2e-3, seed=seed) for seed in (1, 2)),
        *(delta("sparseloco", 60, 2e-3, keep(32), also="k32", seed=seed) for seed in (1, 2)),
    ]
