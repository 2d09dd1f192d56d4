"""Bytes on their way from a device to the host's memory, while the device goes on with the next.

A bus is slower than any codec, so it must never wait for one: each piece of a contribution leaves in a stream of its
own as soon as it is made, into page-locked memory, and only when all are made does anybody wait. Where there is no bus,
bytes stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor


class Sending:
    """Chunks that were made, in their order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sent: list[tuple[Tensor, Sequence[int], Sequence[int]]] = []

    def rows(self, wire: Tensor) -> None:
        """Send chunks of one length, a row each; what lies between rows goes along."""
        (many, size), step = wire.shape, wire.stride(0)
        data = wire.as_strided(((many - 1) * step + size,), (1,))
        self.cut(data, range(0, many * step, step), [size] * many)

    def cut(self, wire: Tensor, starts: Sequence[int], lengths: Sequence[int]) -> None:
        """Send chunks that begin somewhere in one row of bytes."""
        self._sent.append((self._to_host(wire), starts, lengths))

    def chunks(self) -> list[memoryview]:
        """Return all of them, when they have arrived."""
        if self._device.type == "cuda":
            _stream(self._device).synchronize()
        return [
            data[start : start + length]
            for wire, starts, lengths in self._sent
            for data in [wire.numpy().data]
            for start, length in zip(starts, lengths, strict=True)
        ]

    def _to_host(self, wire: Tensor) -> Tensor:
        if self._device.type != "cuda":
            return wire.cpu()
        stream = _stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            there = torch.empty_like(wire, device="cpu", pin_memory=True).copy_(wire, non_blocking=True)
        wire.record_stream(stream)  # whose memory is not to be written to again before it has left
        return there


@cache
def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
