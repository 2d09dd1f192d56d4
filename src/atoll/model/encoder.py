"""A peer's contribution, encoded on the device that has its weights.

Where work began and what was left out before stay in the host's memory, as on a peer without a device: there they are
stepped, saved and taken back. They pass through the device a few chunks at a time, and what comes out are the encoded
bytes, and what is left out now. So the processor has no pass over the model to make, and the device keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from atoll.model.codec import OnDevice, decoded, encode
from atoll.model.compute import Portion, Vector
from atoll.model.locked import lock
from atoll.spec.axes.what import Feedback, Forget, Residual


class TorchEncoder:
    """`Encoder` on torch, of one codec."""

    def __init__(self, codec: OnDevice, weights: Tensor) -> None:
        self._codec, self._weights = codec, weights

    @torch.no_grad()
    def encode(
        self, portions: Sequence[Portion], start: Vector | None, rule: Residual, residual: Vector | None
    ) -> list[memoryview]:
        chunks: list[memoryview] = []
        for _, alike in groupby(portions, _count):
            chunks += self._encode(list(alike), start, rule, residual)
        return chunks

    def _encode(
        self, portions: Sequence[Portion], start: Vector | None, rule: Residual, residual: Vector | None
    ) -> list[memoryview]:
        """Return chunks of the same length, encoded at once."""
        wanted = self._values(portions, start)
        if not bool(wanted.isfinite().all()):
            raise FloatingPointError("some values are not finite")
        if isinstance(rule, Feedback):
            assert residual is not None, "who feeds back keeps what is left out"
            # Two operations, each rounded by itself: as `sync.feedback` does it.
            wanted = self._rows(portions, residual).mul_(rule.decay).add_(wanted)
        wire = encode(self._codec, wanted)
        if not isinstance(rule, Forget):
            assert residual is not None, "whoever holds something back keeps it"
            _write(portions, residual, wanted.sub_(decoded(self._codec, wire, wanted.shape[1])))
        return [row.data for row in on_host(wire).numpy()]

    def _values(self, portions: Sequence[Portion], start: Vector | None) -> Tensor:
        """Return what is to be sent, a chunk a row."""
        if start is None:
            return torch.stack([_tensor(portion.values).to(self._weights.device) for portion in portions])
        rows = self._rows(portions, start)
        for part, run in _stretches(portions):
            rows.view(-1)[part] -= self._weights[run]
        return rows

    def _rows(self, portions: Sequence[Portion], vector: Vector) -> Tensor:
        """Return elements of a vector in the host's memory, a chunk a row."""
        rows = torch.empty((len(portions), _count(portions[0])), device=self._weights.device)
        if rows.is_cuda:
            lock(vector)
        for part, run in _stretches(portions):
            rows.view(-1)[part].copy_(_tensor(vector[run]), non_blocking=True)
        return rows


def _write(portions: Sequence[Portion], vector: Vector, rows: Tensor) -> None:
    """Write rows where their elements are in the host's memory."""
    for part, run in _stretches(portions):
        torch.from_numpy(vector[run]).copy_(rows.view(-1)[part])


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


def _tensor(vector: Vector | None) -> Tensor:
    assert vector is not None, "what has no start has values"
    return torch.from_numpy(np.require(vector, requirements="W"))
