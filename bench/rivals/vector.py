"""The numbers that members average.

They are drawn whole, so that sums are exact in any order and equality is a question of protocol, not of rounding: one
digest is over the bits, one over values rounded to 1/24, which every mean of up to four (or of eight) whole numbers is
a multiple of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from hashlib import sha256

import torch
from bench.rivals.member import Place

BLOCK = 2**20
"""Elements that are drawn; a vector repeats them."""
GRAINS = 24.0
SPREAD = 100.0
"""Standard deviation of what is drawn."""


@dataclass
class Vector:
    """A member's numbers: its own before a round, everybody's mean after it."""

    here: Place
    size_bytes: int
    values: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.values = torch.zeros(self.size_bytes // 4)

    def draw(self, number: int) -> None:
        """Take this member's own numbers of a round."""
        block = _drawn(self.here.index, number)
        for part in self._parts():
            part.copy_(block[: len(part)])

    def _parts(self) -> tuple[torch.Tensor, ...]:
        return torch.split(self.values, BLOCK)

    def digests(self) -> tuple[str, str]:
        """Return a digest of the bits, and one of the values up to rounding."""
        bits, grains = sha256(), sha256()
        for part in self._parts():
            bits.update(part.numpy().data)
            grains.update((GRAINS * part).round_().to(torch.int32).numpy().data)
        return bits.hexdigest()[:16], grains.hexdigest()[:16]

    def off(self, number: int) -> float:
        """Return the error against the true mean of all members, as a share of the mean's own size."""
        mean = torch.stack([_drawn(index, number) for index in range(self.here.count)]).mean(0)
        wrong = sum(float((part - mean[: len(part)]).double().square().sum()) for part in self._parts())
        return math.sqrt(wrong / len(self.values)) / float(mean.double().square().mean().sqrt())


def _drawn(index: int, number: int) -> torch.Tensor:
    source = torch.Generator().manual_seed(1000 * number + index)
    return (SPREAD * torch.randn(BLOCK, generator=source)).round_()
