"""Torch's optimizers without torch's compiler, where nothing is compiled.

`torch.optim` imports `torch._dynamo` before it adds its first parameters and before each step, only to keep out of the
way of a compiler that may be at work: seconds of a peer's start that its first round would have been done in. An engine
compiles a model's loss and never an optimizer, so here they do what they do without asking. Should a torch not have
what this looks for, it is merely as slow as before.
"""

from __future__ import annotations

from inspect import unwrap

import torch

_ASKING = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""What first makes a copy of itself that a compiler leaves alone, and remembers it under the name below."""
_REMEMBERED = "__dynamo_disable"


def ask_nobody() -> None:
    """Let optimizers be made without the compiler."""
    for name in _ASKING:
        method = unwrap(getattr(torch.optim.Optimizer, name))
        if not hasattr(method, _REMEMBERED):
            setattr(method, _REMEMBERED, method)


def step(optimizer: torch.optim.Optimizer) -> None:
    """Step with the gradients that there are, as `optimizer.step` would."""
    with torch.no_grad():
        unwrap(type(optimizer).step)(optimizer)
