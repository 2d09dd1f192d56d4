"""What the layers of a model are given: second moments of their inputs, over all tokens of a batch.

Of a linear map these say what an error of its weights costs (`sync.by_inputs`). Where the embedding is the head too its
inputs are the last hidden states; that tokens pick rows of it costs each row by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from atoll.model.llama import Llama

EMBEDDING = "model.embed_tokens.weight"


def second_moments(model: Llama, names: Collection[str], tokens: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield those of some parameters that are linear maps, by name; parameters of one input share what is found."""
    found: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name in names:
            if (module := _fed(model, name)) is not None:
                stack.enter_context(_watched(module, name, found))
        hidden = model.model(tokens.contiguous(), None)
    if model.lm_head is None and EMBEDDING in names:
        found[EMBEDDING] = _moments(hidden)
    yield from found.items()


def _fed(model: Llama, name: str) -> nn.Linear | None:
    """Return the linear map inside the decoder that a parameter is the weight of."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path) if leaf == "weight" else None
    return module if isinstance(module, nn.Linear) and path.startswith("model.") else None


@contextmanager
def _watched(module: nn.Module, name: str, found: dict[str, Tensor]) -> Iterator[None]:
    """Note what a module is given."""

    def see(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        found[name] = _moments(given[0])

    handle = module.register_forward_pre_hook(see)
    try:
        yield
    finally:
        handle.remove()


def _moments(given: Tensor) -> Tensor:
    rows = given.flatten(0, -2).float()
    with torch.autocast(rows.device.type, enabled=False):
        return rows.T @ rows / len(rows)
