"""DDP without a swarm: one model, the batches of all peers, one AdamW over every parameter.

The mean of what peers compute at one set of weights is what one device computes from all their samples, so the recipe
`ddp` need not be played by eight peers that all do the same. `tests/converge/test_trials.py` holds this loop to the
simulated world's result; the order of additions differs, so they are equal up to rounding, not to the bit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from atoll.model.compute import Vector
from atoll.model.engine import Batches, views
from atoll.model.folder import layout_of
from atoll.model.llama import bind, blank
from atoll.model.shape import initial
from atoll.spec.axes.optimizer import AdamW
from atoll.spec.run import Run
from atoll.spec.schedule import rate


class Trained(NamedTuple):
    """What a training left."""

    weights: Vector
    losses: list[float]
    """Mean training loss of each step."""


def train(run: Run, data: Batches, device: torch.device, *, micro: int = 0, compiled: bool = False) -> Trained:
    """Play a run of the recipe `ddp` by one peer; so many samples at a time go through the model, 0: a step's all."""
    (channel,) = run.recipe.channel.values()
    adam, work, rounds = channel.merge.outer, run.recipe.work, run.budget.rounds
    assert isinstance(adam, AdamW), "the common optimizer of DDP"
    shape, layout = layout_of(run, data.vocab_size)
    model = blank(shape.size, shape.vocab)
    flat = torch.from_numpy(initial(layout, run.seeds.model, shape.size.layers)).to(device)
    bind(model, views(layout, flat), frozenset(layout))
    # Weights and gradients are one tensor each, of which the model has views: the optimizer steps all at once.
    whole = torch.nn.Parameter(flat)
    whole.grad = torch.zeros_like(flat)
    for name, view in views(layout, whole.grad).items():
        model.get_parameter(name).grad = view
    optimizer = torch.optim.AdamW([whole], betas=adam.betas, eps=adam.eps, weight_decay=adam.weight_decay, fused=True)
    loss_of = torch.compile(model.loss_sum, dynamic=False) if compiled else model.loss_sum
    losses = torch.zeros(rounds, device=device)
    for step in range(rounds):
        tokens = _on(device, torch.from_numpy(data.batch(range(step * work.batch, (step + 1) * work.batch))))
        for part in torch.split(tokens, micro or work.batch):
            with _precision(device):
                loss = loss_of(part[:, :-1].contiguous(), part[:, 1:].contiguous()) / (work.batch * data.context)
            loss.backward()  # type: ignore[no-untyped-call]
            losses[step] += loss.detach()
        optimizer.param_groups[0]["lr"] = adam.lr * rate(work.schedule, step, step / rounds)
        optimizer.step()
        whole.grad.zero_()
    return Trained(flat.cpu().numpy(), losses.tolist())


def _on(device: torch.device, tensor: Tensor) -> Tensor:
    """Return a tensor on its way to the device, without waiting for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _precision(device: torch.device) -> AbstractContextManager[object]:
    """Return what the engine computes in, too."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
