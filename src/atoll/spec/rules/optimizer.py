"""What must hold of optimizers, inner and outer."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.spec.axes.optimizer import Accumulate, AdamW, Assign, DelayedNesterov, Inner, Lamb, Muon, Outer, Sgd, SignSgd
from atoll.spec.rules.terms import Rule, above, below_one, within
from atoll.spec.strict import KeyPath


def optimizer_rules(path: KeyPath, optimizer: Inner | Outer) -> Iterator[Rule]:
    """Rates are positive, momenta forget, and nothing is said that has no effect."""
    match optimizer:
        case DelayedNesterov():
            yield above((*path, "lr"), optimizer.lr)
            yield below_one((*path, "momentum"), optimizer.momentum)
            yield within((*path, "every"), optimizer.every, 1, 2**20)
            yield within((*path, "spread"), optimizer.spread, 0, 1 / max(1, optimizer.every))
        case AdamW() | Lamb():
            yield above((*path, "lr"), optimizer.lr)
            for i, beta in enumerate(optimizer.betas):
                yield below_one((*path, "betas", i), beta)
            yield above((*path, "eps"), optimizer.eps)
            yield within((*path, "weight_decay"), optimizer.weight_decay, 0)
        case Sgd():
            yield above((*path, "lr"), optimizer.lr)
            yield below_one((*path, "momentum"), optimizer.momentum)
            real = optimizer.momentum > 0 or not optimizer.nesterov
            yield real, (*path, "nesterov"), "is true without momentum", "set momentum, for example 0.9"
        case SignSgd():
            yield above((*path, "lr"), optimizer.lr)
            yield within((*path, "weight_decay"), optimizer.weight_decay, 0)
        case Muon():
            yield above((*path, "lr"), optimizer.lr)
            yield below_one((*path, "momentum"), optimizer.momentum)
            yield below_one((*path, "beta2"), optimizer.beta2)
            yield within((*path, "weight_decay"), optimizer.weight_decay, 0)
            yield from optimizer_rules((*path, "adamw"), optimizer.adamw)
        case Assign() | Accumulate():
            pass
