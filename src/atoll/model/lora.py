"""Low-rank adapters: train and exchange two thin matrices beside a frozen one.

A linear map with an adapter keeps its own name and weight and gains `lora_A.weight` and `lora_B.weight`
below it, so PEFT's names are ours with a prefix (see `folder`). B starts at zero, so an adapted model begins
as the model it adapts. Only these two are trainable, so only they are in the vector and travel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atoll.model.llama import Llama
from atoll.spec.run import Lora


class LoraLinear(nn.Linear):
    """A linear map plus a low-rank correction."""

    def __init__(self, base: nn.Linear, lora: Lora) -> None:
        super().__init__(base.in_features, base.out_features, bias=False, device="meta")
        self.lora_A = nn.Linear(base.in_features, lora.rank, bias=False, device="meta")
        self.lora_B = nn.Linear(lora.rank, base.out_features, bias=False, device="meta")
        self.scale = lora.alpha / lora.rank

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x) + self.lora_B(self.lora_A(x)) * self.scale
        return out


def adapt(model: Llama, lora: Lora) -> None:
    """Replace the targeted linear maps of a blank model by adapted ones."""
    for name, module in list(model.named_modules()):
        owner, _, leaf = name.rpartition(".")
        if leaf in lora.targets and isinstance(module, nn.Linear):
            setattr(model.get_submodule(owner), leaf, LoraLinear(module, lora))


def merged(base: dict[str, Tensor], adapter: dict[str, Tensor], lora: Lora) -> dict[str, Tensor]:
    """Return the base weights with the adapters folded in: one plain model."""
    found = dict(base)
    for name in base:
        module = name.removesuffix(".weight")
        if f"{module}.lora_A.weight" in adapter:
            a, b = adapter[f"{module}.lora_A.weight"], adapter[f"{module}.lora_B.weight"]
            found[name] = base[name] + torch.matmul(b, a) * (lora.alpha / lora.rank)
    return found
