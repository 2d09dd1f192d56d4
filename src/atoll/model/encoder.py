"""A peer's contribution, encoded on the device that has its weights.

Only bytes leave the device, if it has room for two more vectors: for the weights that work began from, as the engine
got them (`Began`), and for what was left out before, which lies there from the first contribution on (`Held`). What
there is no room for, and weights that work did not begin from, pass through the device a few chunks at a time, and that
takes longer than all the rest. The processor has no pass over the model to make in either case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from atoll.model.codec import OnDevice, decoded, encode
from atoll.model.compute import Made, Mean, Portion, Source, Start, Vector
from atoll.model.held import Held
from atoll.model.locked import lock
from atoll.spec.axes.what import Feedback, Forget, Residual

FEW_ELEMENTS, MANY_ELEMENTS = 2**24, 2**26
"""Encoded at once on a device: what takes a codec longer than its launching; and the most, if there is room."""
WORKING_BYTES = 40
"""Of an element, while it is encoded."""


class Began:
    """The weights that work began from, on the device, if there is room for them."""

    def __init__(self) -> None:
        self._name: object = None
        self._weights: Tensor | None = None

    def keep(self, name: object, weights: Tensor) -> None:
        """Keep a copy of the weights as they are, under a name."""
        if self._weights is None and _has_room(weights.device, weights.nbytes):
            self._weights = torch.empty_like(weights)
        if self._weights is not None:
            self._weights.copy_(weights)
            self._name = name

    def called(self, name: object) -> Tensor | None:
        """Return the weights of a name; None: they are not here."""
        return self._weights if name is not None and name is self._name else None


class TorchEncoder:
    """`Encoder` on torch, of one codec."""

    def __init__(self, codec: OnDevice, weights: Tensor, began: Began | None = None) -> None:
        self._codec, self._weights, self._began = codec, weights, began or Began()

    @property
    def elements(self) -> int:
        return MANY_ELEMENTS if _has_room(self._weights.device, WORKING_BYTES * MANY_ELEMENTS) else FEW_ELEMENTS

    @torch.no_grad()
    def encode(
        self, portions: Sequence[Portion], source: Source | None, rule: Residual, residual: Held | None
    ) -> list[memoryview]:
        chunks: list[memoryview] = []
        left_out = None if residual is None else at_hand(residual, self._weights.device)
        for _, alike in groupby(portions, _count):
            chunks += self._encode(list(alike), source, rule, left_out)
        return chunks

    def _encode(
        self, portions: Sequence[Portion], source: Source | None, rule: Residual, left_out: Tensor | None
    ) -> list[memoryview]:
        """Return chunks of the same length, encoded at once."""
        wanted = self.values(portions, source)
        if not bool(wanted.isfinite().all()):
            raise FloatingPointError("some values are not finite")
        if isinstance(rule, Feedback):
            assert left_out is not None, "who feeds back keeps what is left out"
            # Two operations, each rounded by itself: as `sync.feedback` does it.
            wanted = self._rows(portions, left_out).mul_(rule.decay).add_(wanted)
        wire = encode(self._codec, wanted)
        if not isinstance(rule, Forget):
            assert left_out is not None, "whoever holds something back keeps it"
            _write(portions, left_out, wanted.sub_(decoded(self._codec, wire, wanted.shape[1])))
        return [row.data for row in on_host(wire).numpy()]

    def values(self, portions: Sequence[Portion], source: Source | None) -> Tensor:
        """Return what is to be sent, a chunk a row."""
        device = self._weights.device
        match source:
            case None:
                return torch.stack([_tensor(portion.values).to(device) for portion in portions])
            case Mean(total=total, steps=steps):
                rows = self._rows(portions, at_hand(total, device))
                # By a number on the device: by one in the host's memory it would be multiplied with the reciprocal.
                return rows if steps == 1 else rows.div_(torch.tensor(float(steps), device=device))
            case Made(values=made):
                return self._rows([Portion((_in_unit(each),)) for each in portions], at_hand(made, device))
            case Start(weights=start, name=name):
                began = self._began.called(name)
                rows = self._rows(portions, _from_host(start, device) if began is None else began)
                for part, run in _stretches(portions):
                    rows.view(-1)[part] -= self._weights[run]
                return rows

    def _rows(self, portions: Sequence[Portion], vector: Tensor) -> Tensor:
        """Return elements of a vector on the device, a chunk a row."""
        rows = torch.empty((len(portions), _count(portions[0])), device=self._weights.device)
        for part, run in _stretches(portions):
            rows.view(-1)[part].copy_(vector[run], non_blocking=True)
        return rows


class Copy(NamedTuple):
    """A vector on a device (`held.Elsewhere`)."""

    values: Tensor

    def bring(self, values: Vector) -> None:
        _from_host(values, self.values.device).copy_(self.values)


def at_hand(held: Held, device: torch.device) -> Tensor:
    """Return a vector on the device if there is room, else in the host's memory; what is written to it stays."""
    there = held.elsewhere()
    if isinstance(there, Copy) and there.values.device == device:
        return there.values
    values = _from_host(held.write(), device)
    if not _has_room(device, values.nbytes):
        return values
    moved = values.to(device, copy=True)
    held.move(Copy(moved))
    return moved


def _has_room(device: torch.device, size_bytes: int) -> bool:
    """Return whether a device can hold so much more for good, and as much again stays free.

    What steps once needed torch keeps for them: it is not free, and need not be asked about once there has been a step.
    """
    if device.type != "cuda":
        return False
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return free_bytes >= 2 * size_bytes


def _from_host(vector: Vector, device: torch.device) -> Tensor:
    """Return a vector in the host's memory as one that a device reads fast, if it comes often."""
    if device.type == "cuda":
        lock(vector)
    return _tensor(vector)


def _write(portions: Sequence[Portion], vector: Tensor, rows: Tensor) -> None:
    """Write rows where their elements are in a vector."""
    for part, run in _stretches(portions):
        vector[run].copy_(rows.view(-1)[part])


def _stretches(portions: Sequence[Portion]) -> Iterator[tuple[slice, slice]]:
    """Yield where elements are, in rows one after the other and in the model: each stretch as long as it goes."""
    at = 0
    stretches: list[slice] = []
    for run in (run for portion in portions for run in portion.runs):
        if stretches and stretches[-1].stop == run.start:
            stretches[-1] = slice(stretches[-1].start, run.stop)
        else:
            stretches.append(run)
    for stretch in stretches:
        size = stretch.stop - stretch.start
        yield slice(at, at + size), stretch
        at += size


def on_host(wire: Tensor) -> Tensor:
    """Return bytes in the host's memory; a device writes fast only into what is page-locked, which torch keeps."""
    return torch.empty_like(wire, device="cpu", pin_memory=wire.is_cuda).copy_(wire)


def _count(portion: Portion) -> int:
    return sum(run.stop - run.start for run in portion.runs)


def _in_unit(portion: Portion) -> slice:
    return slice(portion.first, portion.first + _count(portion))


def _tensor(vector: Vector | None) -> Tensor:
    assert vector is not None, "what has no start has values"
    return torch.from_numpy(np.require(vector, requirements="W"))
