"""What a trial of docs/convergence.md is: what is trained, on what, how.

All of them read the same samples in the same order and take the same number of tokens, whatever they exchange; one peer
alone (`solo`) gets an eighth of them. A trial is data: its run is made from a recipe of the project and the changes
that it names, so that one line of the record is enough to play it again. Which there are is said in `listed`.
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
WHEN_KIND, WHEN_COUNT = "recipe.channel.outer.when.kind", "recipe.channel.outer.when.count"
NAME_MAX = 64
"""Characters of a run's name; a trial's may be longer."""


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
    """Steps between exchanges of the whole model."""
    fragments: int = 1
    """Parts in which it is exchanged, one after the other."""
    grown: int = 0
    """Rounds in all where they grow on the way, and `every` is what the first of them have."""
    changes: dict[str, Any] = {}
    """Keys of the run file, by path."""
    seed: int = 0

    @property
    def rounds(self) -> int:
        return self.grown or SAMPLES // self.batch // self.every * self.fragments

    @property
    def steps(self) -> int:
        return SAMPLES // self.batch if self.grown else self.rounds * self.every // self.fragments


def run_of(trial: Trial, shards: Path) -> Run:
    """Return a trial's run."""
    warm, by_name = max(1, round(WARM * trial.steps)), trial.changes.get(WHEN_KIND) == "named"
    keys: dict[str, Any] = {
        "name": trial.name[:NAME_MAX],
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
        **({WHEN_COUNT: trial.fragments} if trial.fragments > 1 and not by_name else {}),
        **({"budget.tokens": SAMPLES * CONTEXT} if trial.grown else {"budget.rounds": trial.rounds}),
        "membership.start_with": trial.peers,
        "membership.contributors_min": trial.peers,
        "upkeep.checkpoint_every": CHECKPOINT_EVERY,
        "seeds.model": trial.seed,
        "seeds.data": trial.seed,
        **trial.changes,
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / "run.toml"
        file.write_text("".join(f"{path} = {_toml(value)}\n" for path, value in keys.items()))
        return load_run(file)


def _toml(value: Any) -> str:
    """Return a value as a run file has it: as JSON does, but for tables."""
    match value:
        case dict():
            return f"{{{', '.join(f'{key} = {_toml(each)}' for key, each in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(_toml(each) for each in value)}]"
        case _:
            return json.dumps(value)
