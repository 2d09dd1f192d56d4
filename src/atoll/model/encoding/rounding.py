"""Rows of matrices rounded by what their layers are given (`sync.by_inputs`), on the device where that was seen.

An owner chooses alone what a result becomes, and whatever it chooses is one. So not every sign has to be what a
processor would choose; but what is left out must cost as little, which a first trial on a device sees to.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.model.encoding.trust import launch, trusted

Matrix = NDArray[np.float32]

ROWS, NEAR, WIDE = 16, 32, 64
"""Rows that a program has, columns that it goes through one by one, and those behind that it corrects at once."""
STEP = 256
"""Rows of nearly as many columns have one kernel: where a chunk ends in a row there may be any number."""
WORSE_MAX = 1.02
"""So much more may cost what a kernel leaves out than what the plain form does, of chance."""


class RowsThere:
    """What is seen of inputs, and rows rounded by it."""

    def __init__(self, moments: Mapping[str, Tensor], damping: float) -> None:
        self._moments, self._damping = moments, damping

    def known(self, tensor: str) -> tuple[Tensor, Tensor] | None:
        seen = self._moments.get(tensor)
        return None if seen is None else prepared(seen, self._damping)

    def rounded(
        self, known: tuple[Tensor, Tensor], columns: slice, wanted: Matrix, sizes: Matrix
    ) -> tuple[Matrix, Matrix]:
        passed_on, moments = (each[columns, columns].contiguous() for each in known)
        given = [torch.from_numpy(np.ascontiguousarray(each)).to(passed_on.device) for each in (wanted, sizes)]
        signed = by_kernel(given[0], given[1], passed_on)
        return signed.cpu().numpy(), (signed @ moments).cpu().numpy()


def rounds_on(device: torch.device) -> bool:
    """Return whether rows are rounded on a device."""
    return trusted(as_good, device)


def prepared(moments: Tensor, damping: float) -> tuple[Tensor, Tensor] | None:
    """Return what part of each column's error goes into the ones behind it, and the damped moments behind that."""
    exact = moments.double()
    every = exact.diagonal().mean()
    if not (bool(exact.isfinite().all()) and float(every) > 0):
        return None  # of a layer that is given nothing, or of training that has diverged, which others say
    damped = exact / every
    damped.diagonal().add_(damping)
    upper = torch.linalg.cholesky(damped.flip(0, 1)).flip(0, 1)
    return (upper / upper.diagonal()).float().contiguous(), damped.float()


def by_kernel(wanted: Tensor, sizes: Tensor, passed_on: Tensor) -> Tensor:
    """Return a sign times a size for every element, so that errors make up for each other along rows."""
    from atoll.model.encoding import signs

    rows, columns = wanted.shape
    corrected, made = wanted.clone(), torch.empty_like(wanted)
    given, until = (wanted, sizes, passed_on, corrected, made, rows, columns), -(-columns // STEP) * STEP
    launch(signs.chosen, (-(-rows // ROWS),), *given, UNTIL=until, ROWS=ROWS, NEAR=NEAR, WIDE=WIDE)
    return made


def plain(wanted: Tensor, sizes: Tensor, passed_on: Tensor) -> Tensor:
    """Return the same, a column at a time."""
    columns = wanted.shape[1]
    corrected, made = wanted.clone(), torch.empty_like(wanted)
    for first in range(0, columns, NEAR):
        end = min(first + NEAR, columns)
        for at in range(first, end):
            made[:, at] = torch.copysign(sizes[:, at], corrected[:, at])
            missed = (wanted[:, at] - made[:, at])[:, None]
            corrected[:, at + 1 : end].addcmul_(missed, passed_on[at, at + 1 : end])
        corrected[:, end:] += (wanted[:, first:end] - made[:, first:end]) @ passed_on[first:end, end:]
    return made


def as_good(device: torch.device) -> bool:
    """Return whether the kernel's signs cost as little as the plain form's, of rows that end in no whole program."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(400, 150, generator=draw) / torch.arange(1.0, 151.0).sqrt()
    known = prepared(inputs.T @ inputs, 0.3)
    assert known is not None, "they are given something"
    passed_on, moments = (each.to(device) for each in known)
    wanted = torch.randn(70, 150, generator=draw).to(device)
    sizes = torch.full_like(wanted, 0.9)
    made, best = (form(wanted, sizes, passed_on) for form in (by_kernel, plain))
    costs = [float(((wanted - each) @ moments * (wanted - each)).sum()) for each in (made, best)]
    return bool((made.abs() == sizes).all()) and costs[0] <= WORSE_MAX * costs[1]
