"""How long transforms take, for `bench.codec`: the ways that are measured, on the processor or a device, and a check.

`encode` is what a contributor does, `decode` what everybody does with a result; on a device both of what is there.
`from host` is the whole way back there: a result comes out of the host's memory, and its values go back into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from atoll.model.compute import Mean, Portion, Vector
from atoll.model.encoding import cosines, products
from atoll.model.encoding.encoder import Began
from atoll.model.encoding.transforms import TorchTransforms
from atoll.model.held import Held
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.what import Dct, Feedback, LowRank
from atoll.sync.factors import Factors
from atoll.sync.frequencies import Frequencies
from atoll.sync.units import whole

COLUMNS = 1024
CHECKED_ROWS = 4096

Shapes = Mapping[str, tuple[int, ...]]


class Measure(NamedTuple):
    """What is to be measured."""

    ways: dict[str, Callable[[], object]]
    bits: float = 32.0
    """Of an element on the wire, before any codec."""
    same_bits: bool = True
    """Whether a device makes what the processor makes, where all must make the same."""


def matrices(elements: int) -> Shapes:
    """Return shapes of square matrices, one of each layer."""
    return {f"layers.{number}.weight": (COLUMNS, COLUMNS) for number in range(elements // COLUMNS**2)}


# cosines


def dct_here(values: Vector) -> Measure:
    """Return the cosine transform of a matrix on the processor, to frequencies and back."""
    tiles = _tiles(values.size)
    spectrum = tiles.of(values)
    return Measure({"encode": lambda: tiles.of(values), "decode": lambda: tiles.back(spectrum)})


def dct_there(device: torch.device, values: Vector) -> Measure:
    """Return it on a device."""
    tiling, there = _tiles(values.size).tiles, torch.from_numpy(values).to(device)
    spectrum = cosines.frequencies(tiling, there)
    host, way = spectrum.cpu().numpy(), TorchTransforms(there, Began()).cosines(tiling)
    return Measure(
        {
            "encode": lambda: cosines.frequencies(tiling, there),
            "decode": lambda: cosines.values(tiling, spectrum),
            "from host": lambda: way.back([(0, host)]),
        },
        same_bits=_same_cosines(device, values[: CHECKED_ROWS * COLUMNS]),
    )


def _tiles(elements: int) -> Frequencies:
    return Frequencies(Dct(), whole(elements, Fp32()), {"weight": (elements // COLUMNS, COLUMNS)})


def _same_cosines(device: torch.device, values: Vector) -> bool:
    tiles = _tiles(values.size)
    spectrum = tiles.of(values)
    made = cosines.frequencies(tiles.tiles, torch.from_numpy(values).to(device))
    back = cosines.values(tiles.tiles, made)
    pairs = ((made, spectrum), (back, tiles.back(spectrum)))
    return all(one.cpu().numpy().tobytes() == other.tobytes() for one, other in pairs)


# factors


def low_rank_here(low: LowRank, shapes: Shapes, values: Vector) -> Measure:
    """Return how matrices become factors in both of a step's rounds, and factors matrices, on the processor."""
    factors = Factors(low, shapes, 0)
    first = factors.first_basis()
    directions = factors.directions(values, first)
    basis = factors.orthonormal(directions)
    merged, residual = factors.along(values, basis), np.zeros_like(values)

    def contribute() -> None:
        factors.directions(values + residual, first)
        wanted = values + residual
        np.subtract(wanted, factors.values(factors.along(wanted, basis), basis), out=residual)

    def back() -> None:
        factors.orthonormal(directions)
        factors.values(merged, basis)
        factors.next_basis(merged, 2)

    return Measure({"encode": contribute, "decode": back}, _bits(factors))


def low_rank_there(device: torch.device, low: LowRank, shapes: Shapes, values: Vector) -> Measure:
    """Return it on a device: with a residual, as a peer does it, and with the factors in the host's memory."""
    factors, there = Factors(low, shapes, 0), torch.from_numpy(values).to(device)
    transforms = TorchTransforms(there, Began())
    ours, restored = transforms.products(factors.form), transforms.restored(factors.form)
    gradient, residual, portion = Held(values.size), Held(values.size), Portion((slice(0, values.size),))
    gradient.write()[:] = values
    first = factors.first_basis()

    def wanted() -> Held:
        return ours.wanted(portion, Mean(gradient, 1), Feedback(), residual)

    directions = ours.directions(wanted(), first)
    basis = factors.orthonormal(directions)
    merged = ours.along(wanted(), basis)
    on_device = [torch.from_numpy(each).to(device) for each in (merged, basis, directions)]

    def contribute() -> None:
        ours.directions(wanted(), first)
        again = wanted()
        ours.leave(again, ours.along(again, basis), basis, residual)

    def back() -> None:
        products.orthonormal(factors.form, on_device[2])
        products.values(factors.form, on_device[0], on_device[1])
        products.unit_columns(factors.form, on_device[0][: factors.basis_size])

    def from_host() -> None:
        restored.orthonormal(directions)
        restored.values(merged, basis)
        restored.unit_columns(merged[: factors.basis_size])

    same = restored.orthonormal(directions).tobytes() == basis.tobytes()
    same = same and restored.values(merged, basis).tobytes() == factors.values(merged, basis).tobytes()
    return Measure({"encode": contribute, "decode": back, "from host": from_host}, _bits(factors), same)


def _bits(factors: Factors) -> float:
    return 32.0 * (factors.left_size + factors.right_size) / factors.size
