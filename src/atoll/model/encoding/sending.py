"""Bytes on their way from a device to the host's memory, while the device goes on with the next.

A bus is slower than any codec, so it must never wait for one: each piece of a contribution leaves in a stream of its
own as soon as it is made, into page-locked memory, and only when all are made does anybody wait. Where there is no bus,
bytes stay where they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.model.encoding.above import Numbers


class Sending:
    """Chunks that were made, in their order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sent: list[tuple[Tensor, Numbers, Numbers]] = []

    def rows(self, wire: Tensor) -> None:
        """Send chunks of one length, a row each; what lies between rows goes along."""
        (many, size), step = wire.shape, wire.stride(0)
        data = wire.as_strided(((many - 1) * step + size,), (1,))
        self.cut(data, np.arange(many) * step, np.full(many, size))

    def cut(self, wire: Tensor, starts: Numbers, lengths: Numbers) -> None:
        """Send chunks that begin somewhere in one row of bytes."""
        self._sent.append((self._to_host(wire), starts, lengths))

    def chunks(self) -> list[memoryview]:
        """Return all of them, when they have arrived."""
        chunks = [
            data[start : start + length]  # where it will be
            for wire, starts, lengths in self._sent
            for data in [wire.numpy().data]
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]
        if self._device.type == "cuda":
            _stream(self._device).synchronize()
        return chunks

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
