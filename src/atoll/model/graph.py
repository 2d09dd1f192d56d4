"""A step's work on a CUDA device, recorded once and replayed: what a small step waits for is its kernels' launching.

A step of a small model is some hundred kernels, and launching them takes the processor longer than running them takes
the device. A CUDA graph launches all of them at once. What is recorded reads and writes the same memory at every
replay, so what changes from step to step lies in tensors that stay where they are: tokens, targets, scale, rates.

    first    forward and backward of a step's first micro-batch: its gradients are the step's
    more     the same of any other: its gradients are added to them
    update   clipping and the optimizer's step, where the optimizer keeps its rate on the device

Every micro-batch has one shape, so there is one graph of each, however many micro-batches a step has. Recording runs
nothing. What may not happen while recording (compiling, making libraries' handles and the optimizer's state) has to
have happened: the engine takes its first step without any of this, on the stream that is recorded later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from atoll.model.llama import IGNORED

Accumulate = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Adds the gradient of a scaled loss of (tokens, targets) to the parameters'; returns the loss itself."""


class Recorded:
    """One engine's recorded step; its parameters and the optimizer's state must stay where they are."""

    def __init__(
        self,
        device: torch.device,
        rows: int,
        context: int,
        parameters: Sequence[torch.nn.Parameter],
        accumulate: Accumulate,
        update: Callable[[], None],
    ) -> None:
        self._device, self._accumulate, self._update = device, accumulate, update
        self._parameters = parameters
        self._tokens = torch.zeros(rows, context, dtype=torch.int64, device=device)
        self._targets = torch.full((rows, context), IGNORED, device=device)
        self._scale = torch.zeros((), device=device)
        self._loss = torch.zeros((), device=device)
        self._begins = True
        self._gradients: list[Tensor | None] = []
        self._graphs: dict[Callable[[], None], torch.cuda.CUDAGraph] = {}

    def add(self, tokens: Tensor, targets: Tensor, scale: float) -> Tensor:
        """Take the gradient of a micro-batch's scaled loss in; return the loss, to be read before the next."""
        self._tokens.copy_(tokens)
        self._targets.copy_(targets)
        self._scale.fill_(scale)
        if self._begins:
            self._play(self._first)
        else:
            self._play(self._more)
        self._begins = False
        return self._loss

    def update(self) -> None:
        """Clip and step."""
        self._play(self._update)

    def drop(self) -> None:
        """Let what comes next begin with other gradients: those there are stay until then."""
        self._begins = True

    def _first(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        self._more()
        # Kept, since the next recording would otherwise be given their memory.
        self._gradients = [parameter.grad for parameter in self._parameters]

    def _more(self) -> None:
        self._loss.copy_(self._accumulate(self._tokens, self._targets, self._scale))

    def _play(self, work: Callable[[], None]) -> None:
        """Replay some work, recorded first if it was not yet."""
        if work not in self._graphs:
            self._graphs[work] = self._record(work)
        self._graphs[work].replay()

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph, pool, stream = torch.cuda.CUDAGraph(), _pool(self._device.index), _stream(self._device.index)
        # Other threads of the process may use the device meanwhile: what they do is not recorded.
        recording = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        with torch.cuda.device(self._device), recording:
            work()
        return graph


@contextmanager
def warming(device: torch.device) -> Iterator[None]:
    """Work on the stream that recordings are made on: gradients are added up on the stream they were first made on."""
    side = _stream(device.index)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream(device).wait_stream(side)


@cache
def _stream(index: int | None) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


@cache
def _pool(index: int | None) -> Any:
    """Return the memory that all recordings on a device share: all are replayed on one stream, one after the other."""
    return torch.cuda.graph_pool_handle()
