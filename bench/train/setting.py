"""Who trains, and with which settings: those chosen, and those that were tried."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from bench.allreduce import FP32, kind_of
from bench.train.task import Rates

from atoll.net.transport import LinkKind
from atoll.spec.axes.codec import Codec, Fp16, Int8

FP16, INT8 = Fp16(), Int8()


class System(StrEnum):
    """Who trains."""

    OURS = "ours"
    DDP = "ddp"
    HIVEMIND = "hivemind"
    TORCHFT = "torchft"


@dataclass(frozen=True)
class Setting:
    """How one of them is set."""

    system: System
    peers: int
    rates: Rates
    rounds: int
    """So many are played; the target is reached before."""
    codec: Codec = FP32
    """What is exchanged, on the wire."""
    links: LinkKind = LinkKind.TLS
    keep_every: int = 1
    """Rounds from one look at the loss to the next."""
    matchmaking_s: float = 3.0
    delayed: bool = False
    fragments: int = 1
    delay: int = 0
    limit_s: float = 900.0

    @property
    def name(self) -> str:
        """The row's name."""
        return f"{self.system}-{self.peers}-{self.about}"

    @property
    def about(self) -> str:
        """What is special about it, in short."""
        rates = self.rates
        words = [f"{'a' if self.system is System.DDP else 'h'}{rates.steps}", f"lr{rates.lr:g}"]
        if self.system in (System.OURS, System.TORCHFT):
            words.append(f"outer{rates.outer_lr:g},{rates.outer_momentum:g}")
        words.append(kind_of(self.codec))
        if self.system is System.HIVEMIND:
            words += [f"match{self.matchmaking_s:g}s", *(["delayed"] if self.delayed else [])]
        if self.fragments > 1 or self.delay:
            words.append(f"fragments{self.fragments},{self.delay}")
        return "-".join(words)


H = 20
"""Our local steps between two exchanges, and so everybody's."""


def chosen(peers: int) -> list[Setting]:
    """Return everybody's best for so many peers."""
    rounds = 9 if peers == 4 else 8
    ours = Setting(System.OURS, peers, Rates(steps=H), rounds)
    ddp = Setting(System.DDP, peers, Rates(steps=8 // peers), rounds=72, keep_every=4)
    hivemind = Setting(System.HIVEMIND, peers, Rates(steps=H), rounds)
    torchft = Setting(System.TORCHFT, peers, Rates(steps=H), rounds)
    return [
        replace(ours, codec=INT8),
        replace(ours, codec=FP16),
        ours,
        torchft,
        replace(hivemind, codec=FP16),
        hivemind,
        replace(ddp, codec=FP16),
        ddp,
    ]


RATES = (5e-4, 1e-3, 2e-3, 4e-3)
OUTER = ((0.7, 0.9), (0.9, 0.5), (1.0, 0.0))
"""The paper's outer rate and momentum, the demo's, and plain averaging."""


def tried_in_maths(peers: int) -> list[Setting]:
    """Return what was tried without a wire: rates, accumulation, H."""
    ddp = [
        Setting(System.DDP, peers, Rates(steps, lr), rounds=200, keep_every=4) for steps in (1, 2, 4, 8) for lr in RATES
    ]
    diloco = [
        Setting(System.OURS, peers, Rates(steps, lr, *outer), rounds=320 // steps)
        for steps in (10, 20, 40)
        for lr in RATES
        for outer in OUTER
    ]
    return [*ddp, *diloco]


def tried_in_lab(peers: int) -> list[Setting]:
    """Return what was tried in the lab beside the chosen settings: what only the wire can tell."""
    _, ours, _, torchft, hivemind, _, _, ddp = chosen(peers)
    return [
        *(replace(each, rates=replace(each.rates, steps=2 * H), rounds=5) for each in (ours, torchft)),
        *(replace(torchft, fragments=2, delay=delay, rounds=12) for delay in (4, 8)),
        replace(hivemind, matchmaking_s=5.0),
        replace(hivemind, delayed=True, rounds=12),
        *(replace(ddp, rates=replace(ddp.rates, steps=steps), rounds=8) for steps in (1, 2, 4, 8)),
    ]
