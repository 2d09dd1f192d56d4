"""What every rival's trainer does alike: the same model from the same weights, the same samples, the same local step.

The model is Atoll's own; weights, samples and settings come from files that `bench.train.task` writes. Worker i's k-th
batch is the one that Atoll's i-th peer takes as its k-th: rounds of N x H batches, split in order. One line on stdin
begins the training, which ends when it is ended from outside. Member 0 leaves its weights in a file after each round;
they are looked at when all is over, so that nobody's time has evaluation in it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from bench.rivals import member
from torch import Tensor, nn

from atoll.model.llama import Llama
from atoll.spec.run import Size

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1


@dataclass(frozen=True)
class Plan:
    """How long and at which rates to train: what `task.json` says."""

    size: dict[str, float]
    vocab: int
    batch: int
    clip: float
    warmup_steps: int
    steps: int
    """Local steps, or accumulated batches, between two exchanges."""
    lr: float
    keep_every: int
    """Rounds from one file of weights to the next."""


class Loss(nn.Module):
    """The mean loss as a module's forward: what wrappers of a model can wrap."""

    def __init__(self, model: Llama) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows_BT: Tensor) -> Tensor:
        inputs_BT, targets_BT = rows_BT[:, :-1].contiguous(), rows_BT[:, 1:].contiguous()
        return self.model.loss_sum(inputs_BT, targets_BT) / targets_BT.numel()


class Trainee:
    """One worker's model, samples and optimizer."""

    def __init__(self, folder: Path, here: member.Place) -> None:
        torch.set_num_threads(1)
        self.folder, self.here = folder, here
        self.plan = Plan(**json.loads((folder / "plan.json").read_text()))
        self._samples = np.load(folder / "samples.npy", mmap_mode="r")
        self.model = _model(self.plan, np.load(folder / "initial.npy"))
        self.loss = Loss(self.model)
        self.optimizer = _optimizer(list(self.model.parameters()), self.plan.lr)
        self.batches = 0

    def rows(self) -> Tensor:
        """Return this worker's next batch."""
        plan, count = self.plan, self.here.count
        turn, inside = divmod(self.batches, plan.steps)
        first = ((turn * count + self.here.index) * plan.steps + inside) * plan.batch
        self.batches += 1
        return torch.from_numpy(self._samples[first : first + plan.batch].astype(np.int64))

    def warm(self, step: int) -> None:
        """Set the learning rate of a step, from 0."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.lr * min(1.0, (step + 1) / self.plan.warmup_steps)

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)

    def local_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Train on one batch."""
        self.warm(self.batches)
        optimizer.zero_grad(set_to_none=True)
        self.loss(self.rows()).backward()
        self.clip()
        optimizer.step()

    def weights(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """Return all weights as Atoll's vector has them: sorted by name, flattened, joined."""
        named = dict(self.model.named_parameters())
        return torch.cat([named[name].detach().flatten() for name in sorted(named)]).numpy()

    def told(self, number: int, began_s: float, *, ok: bool = True, members: int = 0) -> None:
        """Say that a round is done, and leave the weights where it is time to."""
        ended_s = time.time()
        kept = number % self.plan.keep_every == 0
        digest = sha256(self.weights().data).hexdigest()[:16] if kept else ""
        if kept and self.here.index == 0:
            np.save(self.folder / f"weights-{number}.npy", self.weights())
        member.say(
            round=number, began_s=began_s, took_s=ended_s - began_s, ok=ok, members=members or self.here.count,
            digest=digest,
        )  # fmt: skip


def train(play: Callable[[], None]) -> None:
    """Begin when told to."""
    member.say(ready=True)
    sys.stdin.readline()
    play()


def _model(plan: Plan, initial: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Llama:
    model = Llama(Size(**plan.size), plan.vocab)  # type: ignore[arg-type]
    at, named = 0, dict(model.named_parameters())
    with torch.no_grad():
        for name in sorted(named):
            parameter = named[name]
            parameter.copy_(torch.from_numpy(initial[at : at + parameter.numel()]).view_as(parameter))
            at += parameter.numel()
    return model


def _optimizer(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Return the same AdamW as Atoll's engine has: weight decay is for matrices only."""
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    others = [parameter for parameter in parameters if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS, fused=True)
