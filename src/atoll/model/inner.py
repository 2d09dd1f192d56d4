"""Inner optimizers on torch: what steps which parameters, what each remembers of them, and that as bytes."""

from __future__ import annotations

import msgspec
import numpy as np
import torch
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from atoll.errors import LocalError
from atoll.model import plain
from atoll.model.behind import Slots
from atoll.model.lamb import LambOptimizer
from atoll.model.moments import stepped_by
from atoll.model.muon import MuonOptimizer
from atoll.spec.axes.optimizer import Accumulate, AdamW, Inner, Lamb, Muon, Sgd


def optimizers_of(inner: Inner, trained: dict[str, torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
    """Return what steps the parameters, each of which has one optimizer."""
    plain.ask_nobody()
    shared: dict[Inner, list[torch.nn.Parameter]] = {}
    for name, parameter in trained.items():
        shared.setdefault(stepped_by(inner, name, tuple(parameter.shape)), []).append(parameter)
    return [optimizer for by, some in shared.items() if (optimizer := _optimizer(by, some)) is not None]


def _optimizer(inner: Inner, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer | None:
    """Return an inner optimizer; weight decay is for matrices only, but LAMB decays everything, as it does outside."""
    match inner:
        case Accumulate():
            return None
        case Muon():
            return MuonOptimizer(
                [{"params": parameters, "base_lr": inner.lr}],
                lr=_rate(inner.lr, parameters),
                momentum=inner.momentum,
                nesterov=inner.nesterov,
                weight_decay=inner.weight_decay,
                beta2=inner.beta2,
            )
        case AdamW():
            matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
            others = [parameter for parameter in parameters if parameter.ndim < 2]
            groups = [
                {"params": matrices, "weight_decay": inner.weight_decay, "base_lr": inner.lr},
                {"params": others, "weight_decay": 0.0, "base_lr": inner.lr},
            ]
            kept = [group for group in groups if group["params"]]
            lr, cuda = _rate(inner.lr, parameters), parameters[0].is_cuda
            return torch.optim.AdamW(kept, lr=lr, betas=inner.betas, eps=inner.eps, fused=True, capturable=cuda)
        case Lamb():
            return LambOptimizer(
                [{"params": parameters, "base_lr": inner.lr}],
                lr=_rate(inner.lr, parameters),
                betas=inner.betas,
                eps=inner.eps,
                weight_decay=inner.weight_decay,
            )
        case Sgd():
            groups = [{"params": parameters, "base_lr": inner.lr}]
            return torch.optim.SGD(groups, lr=inner.lr, momentum=inner.momentum, nesterov=inner.nesterov, fused=True)


def _rate(lr: float, parameters: list[torch.nn.Parameter]) -> float | Tensor:
    """Return a rate as its optimizer takes it: on CUDA it lies on the device, where recorded steps find what it is."""
    return torch.tensor(lr, device=parameters[0].device) if parameters[0].is_cuda else lr


class _About(msgspec.Struct, frozen=True):
    """What saved optimizer state says about itself."""

    inner: str
    digest: str


def _kind(inner: Inner) -> str:
    return str(inner.__struct_config__.tag)


def slots_of(inner: Inner, shape: torch.Size) -> Slots:
    """Return what the optimizer remembers about a parameter of such a shape, and in which."""
    match inner:
        case AdamW() | Lamb():
            return {"step": torch.Size([]), "exp_avg": shape, "exp_avg_sq": shape}
        case Muon(beta2=beta2):
            return {"momentum_buffer": shape} | ({"row_squares": torch.Size([shape[0], 1])} if beta2 else {})
        case Sgd(momentum=momentum) if momentum > 0:
            return {"momentum_buffer": shape}
        case _:
            return {}


def _digest(tensors: dict[str, Tensor]) -> str:
    total = blake3(max_threads=blake3.AUTO)
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(np.ascontiguousarray(tensors[name].numpy()).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def saved(inner: Inner, tensors: dict[str, Tensor]) -> bytes:
    """Return some of what an optimizer remembers as safetensors bytes, exact, with a digest against damage."""
    about = _About(inner=_kind(inner), digest=_digest(tensors))
    # One key only: the library writes several in no fixed order, and equal state must be equal bytes.
    return save(tensors, {"atoll": msgspec.json.encode(about).decode()})


def opened(inner: Inner, private: bytes) -> dict[str, Tensor]:
    """Return the tensors of saved optimizer state, proven whole and of the right kind."""
    kind = _kind(inner)
    try:
        tensors = load(private)
        about = _about(private)
    except (SafetensorError, ValueError, KeyError) as error:
        raise LocalError(f"the saved optimizer state is damaged: {error}", hint="it can be dropped") from error
    if about.inner != kind:
        raise LocalError(
            f"the saved optimizer state is of kind {about.inner!r}, the recipe's is {kind!r}",
            hint="it belongs to another run; it can be dropped",
        )
    if about.digest != _digest(tensors):
        raise LocalError("the saved optimizer state is damaged: its digest differs", hint="it can be dropped")
    return tensors


def _about(private: bytes) -> _About:
    """Return what rides in a safetensors header (its loader gives only the tensors)."""
    length = int.from_bytes(private[:8], "little")
    header = msgspec.json.decode(private[8 : 8 + length], type=dict[str, msgspec.Raw])
    metadata = msgspec.json.decode(header["__metadata__"], type=dict[str, str])
    return msgspec.json.decode(metadata["atoll"], type=_About)
