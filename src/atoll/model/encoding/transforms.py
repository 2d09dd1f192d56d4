"""Transforms of contributions and of results, on the device that has the weights (`Transforms`).

What is to be sent is read where the encoder reads it, and what is made of it stays there for it. Results come up from
the host's memory and values go down again: that is a pass over the bus each way, in place of one core's over the model.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from atoll.model.compute import Made, Merged, Portion, Source, Vector
from atoll.model.encoding import cosines, products
from atoll.model.encoding.encoder import Began, Copy, TorchEncoder, at_hand
from atoll.model.encoding.matrices import Factored
from atoll.model.encoding.tiles import Tiled
from atoll.model.held import Held
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.what import Forget, Residual


class TorchTransforms:
    """`Transforms` on torch."""

    def __init__(self, weights: Tensor, began: Began) -> None:
        self._device = weights.device
        self._encoder = TorchEncoder(Fp32(), weights, began)

    def cosines(self, tiling: tuple[Tiled, ...]) -> TorchCosines:
        return TorchCosines(tiling, self._encoder, self._device)

    def products(self, form: Factored) -> TorchProducts:
        return TorchProducts(form, self._encoder, self._device)

    def restored(self, form: Factored) -> TorchRestored:
        return TorchRestored(form, self._device)


class TorchCosines:
    """`Cosines` on torch."""

    def __init__(self, tiling: tuple[Tiled, ...], encoder: TorchEncoder, device: torch.device) -> None:
        self._tiling, self._encoder, self._device = tiling, encoder, device

    @torch.no_grad()
    def of(self, portion: Portion, source: Source | None) -> Made:
        values = self._encoder.wanted(portion, source, Forget(), None)
        return Made(_held(cosines.frequencies(self._tiling, values)))

    @torch.no_grad()
    def back(self, frequencies: Merged) -> Vector:
        there = torch.empty(sum(each.rows * each.columns for each in self._tiling), device=self._device)
        for first, some in frequencies:
            there[first : first + some.size] = _sent(some, self._device)
        return _brought(cosines.values(self._tiling, there))


class TorchProducts:
    """`Products` on torch."""

    def __init__(self, form: Factored, encoder: TorchEncoder, device: torch.device) -> None:
        self._form, self._encoder, self._device = form, encoder, device

    @torch.no_grad()
    def wanted(self, portion: Portion, source: Source | None, rule: Residual, residual: Held | None) -> Held:
        return _held(self._encoder.wanted(portion, source, rule, residual))

    @torch.no_grad()
    def directions(self, wanted: Held, basis: Vector) -> Vector:
        return _brought(products.directions(self._form, at_hand(wanted, self._device), _sent(basis, self._device)))

    @torch.no_grad()
    def along(self, wanted: Held, basis: Vector) -> Vector:
        return _brought(products.along(self._form, at_hand(wanted, self._device), _sent(basis, self._device)))

    @torch.no_grad()
    def leave(self, wanted: Held, arrives: Vector, basis: Vector, residual: Held) -> None:
        values = at_hand(wanted, self._device)
        products.subtract(self._form, values, _sent(arrives, self._device), _sent(basis, self._device))
        left_out = at_hand(residual, self._device)
        if residual.elsewhere() is None:
            left_out.copy_(values)
        else:
            residual.move(Copy(values))  # in place of what lies there: one pass less


class TorchRestored:
    """`Restored` on torch."""

    def __init__(self, form: Factored, device: torch.device) -> None:
        self._form, self._device = form, device

    @torch.no_grad()
    def values(self, merged: Vector, basis: Vector) -> Vector:
        return _brought(products.values(self._form, _sent(merged, self._device), _sent(basis, self._device)))

    @torch.no_grad()
    def orthonormal(self, merged: Vector) -> Vector:
        return _brought(products.orthonormal(self._form, _sent(merged, self._device)))

    @torch.no_grad()
    def unit_columns(self, basis: Vector) -> Vector | None:
        made = products.unit_columns(self._form, _sent(basis, self._device))
        return None if made is None else _brought(made)


def _held(values: Tensor) -> Held:
    """Return a vector that is on the device: its place in the host's memory is never touched unless it is asked for."""
    held = Held(values.numel())
    held.move(Copy(values))
    return held


def _sent(vector: Vector, device: torch.device) -> Tensor:
    return torch.from_numpy(np.require(vector, requirements="W")).to(device)


def _brought(values: Tensor) -> Vector:
    """Return values in the host's memory; a device writes fast only into what is page-locked, which torch keeps."""
    vector: Vector = torch.empty_like(values, device="cpu", pin_memory=values.is_cuda).copy_(values).numpy()
    return vector
