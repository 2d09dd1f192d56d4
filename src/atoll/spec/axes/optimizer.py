"""Optimizers: inside, for local steps, and outside, for what a round brings."""

from __future__ import annotations

from atoll.spec.axes.axis import Axis


class Assign(Axis, tag="assign"):
    """Move the anchor by the whole combined delta (plain averaging of weights)."""


class Sgd(Axis, tag="sgd"):
    """Heavy-ball or plain gradient descent; `nesterov` as PyTorch defines it."""

    lr: float
    momentum: float = 0.0
    nesterov: bool = False


class DelayedNesterov(Axis, tag="delayed-nesterov"):
    """Nesterov descent that takes its momentum from so many contributions together, for those that come one by one."""

    lr: float
    """Of one step on the mean of `every` contributions."""
    every: int
    """Contributions after which the momentum moves; a round that merges several counts as that many, all alike."""
    momentum: float = 0.9
    spread: float = 0.0
    """So much of the momentum goes with each contribution in between, the rest when it moves; 1 / every at most."""


class AdamW(Axis, tag="adamw"):
    """Adam with decoupled weight decay."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1


class Lamb(Axis, tag="lamb"):
    """Adam whose step in each tensor is as long as that tensor, times the rate: for large batches.

    Everything decays, vectors too, inside as outside.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01


class SignSgd(Axis, tag="sign-sgd"):
    """Steps of the same size in every coordinate, against the sign."""

    lr: float
    weight_decay: float = 0.0


Outer = Assign | Sgd | DelayedNesterov | SignSgd | AdamW | Lamb


class Accumulate(Axis, tag="accumulate"):
    """Only accumulate gradients: the weights move at the exchange."""


class Muon(Axis, tag="muon"):
    """Momentum made orthonormal, for the matrices inside the model; AdamW for embeddings, head and vectors."""

    lr: float
    adamw: AdamW
    """For what is not a matrix inside the model."""
    momentum: float = 0.95
    nesterov: bool = True
    beta2: float = 0.0
    """By which the size of each row's moves is remembered, so that in the mean all move alike (NorMuon); 0: not."""
    weight_decay: float = 0.1


Inner = AdamW | Sgd | Lamb | Muon | Accumulate
