"""Who trains, and with which settings: those chosen, and those that were tried."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from bench.train.task import Rates

from atoll.net.transport import LinkKind


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
    half: bool = False
    """What is exchanged has 16 bits."""
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
        words.append("fp16" if self.half else "fp32")
        if self.system is System.HIVEMIND:
            words += [f"match{self.matchmaking_s:g}s", *(["delayed"] if self.delayed else [])]
        if self.fragments > 1 or self.delay:
            words.append(f"fragments{self.fragments},{self.delay}")
        return "-".join(words)


H = 20


def _ours(peers: int) -> Setting:
    return Setting(System.OURS, peers, Rates(steps=H), rounds=13)


def chosen(peers: int) -> list[Setting]:
    """Return everybody's best for so many peers."""
    return [
        replace(_ours(peers), half=True),
        _ours(peers),
        Setting(System.TORCHFT, peers, Rates(steps=H), rounds=13),
        Setting(System.HIVEMIND, peers, Rates(steps=H), rounds=13),
        Setting(System.DDP, peers, Rates(steps=16 // peers), rounds=96, keep_every=4),
    ]
