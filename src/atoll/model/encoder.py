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

from atoll.model import fused
from atoll.model.above import Least, Limits
from atoll.model.chance import keys_of
from atoll.model.codec import Asked, OnDevice, encode, encode_above, wire_bytes
from atoll.model.compute import Large, Mean, PartOf, Portion, Start, Vector
from atoll.model.held import Held
from atoll.model.locked import lock
from atoll.model.sending import Sending
from atoll.model.wanted import Ends
from atoll.spec.axes.codec import MaxN, Significance, Stochastic, Threshold
from atoll.spec.axes.what import Feedback, Forget, Residual

FEW_ELEMENTS, MANY_ELEMENTS = 2**24, 2**26
"""Encoded at once on a device: what takes a codec longer than its launching; and the most, if there is room."""
WORKING_BYTES = 40
"""Of an element, while it is encoded."""
PIECE_BYTES = 2**24
"""Of chunks that leave the device together, while the next are encoded."""


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


class Work(NamedTuple):
    """What is to be encoded, and how."""

    source: Start | Mean | None
    rule: Residual
    left_out: Tensor | None
    large: Large | None


class TorchEncoder:
    """`Encoder` on torch, of one codec."""

    def __init__(self, codec: OnDevice, weights: Tensor, began: Began | None = None) -> None:
        self._codec, self._weights, self._began = codec, weights, began or Began()

    @property
    def elements(self) -> int:
        return MANY_ELEMENTS if _has_room(self._weights.device, WORKING_BYTES * MANY_ELEMENTS) else FEW_ELEMENTS

    @torch.no_grad()
    def encode(
        self,
        portions: Sequence[Portion],
        source: Start | Mean | None,
        rule: Residual,
        residual: Held | None,
        large: Large | None = None,
    ) -> list[memoryview]:
        device = self._weights.device
        left_out = None if residual is None else at_hand(residual, device)
        assert left_out is not None or isinstance(rule, Forget), "whoever holds something back keeps it"
        work, sending = Work(source, rule, left_out, large), Sending(device)
        pieces = [piece for _, alike in groupby(portions, _count) for piece in self._pieces(list(alike))]
        bad = torch.zeros((), dtype=torch.int32, device=device)
        wanted = [self._wanted(piece, work, bad) for piece in pieces]
        if int(bad):
            raise FloatingPointError("some values are not finite")
        asked = [self._asked(piece) for piece in pieces]
        for piece, rows, beside in zip(pieces, wanted, asked, strict=True):
            self._send(piece, rows, work, beside, sending)
        for piece, beside in zip(pieces, asked, strict=True):
            _remember(piece, beside.known)
        return sending.chunks()

    def _pieces(self, portions: Sequence[Portion]) -> Iterator[Sequence[Portion]]:
        """Yield chunks of one length as they are encoded at once: what lies together, and is not long on the bus."""
        few = max(1, PIECE_BYTES // wire_bytes(self._codec, _count(portions[0])))
        for stretch in _together(portions):
            yield from (stretch[first : first + few] for first in range(0, len(stretch), few))

    def _wanted(self, portions: Sequence[Portion], work: Work, bad: Tensor) -> Tensor:
        """Return what is to be sent, in memory of its own, a chunk a row; say if any of it is not finite."""
        device, weights, steps = self._weights.device, None, 1
        match work.source:
            case None:
                base = torch.stack([_tensor(portion.values).to(device) for portion in portions])
            case Mean(total=total, steps=steps):
                base = self._seen(portions, at_hand(total, device))
            case Start():
                base, weights = self._seen(portions, self._at_start(work.source)), self._seen(portions, self._weights)
        before, decay = None, 1.0
        if isinstance(work.rule, Feedback):
            assert work.left_out is not None, "who feeds back keeps what is left out"
            before, decay = self._seen(portions, work.left_out), work.rule.decay
        return fused.wanted(Ends(base, weights, steps, before, decay), bad)

    def _send(self, portions: Sequence[Portion], wanted: Tensor, work: Work, asked: Asked, sending: Sending) -> None:
        """Let chunks be on their way, and what is left out of them be kept."""
        codec, left = self._codec, None
        if not isinstance(work.rule, Forget):
            assert work.left_out is not None, "whoever holds something back keeps it"
            there = _view(portions, work.left_out) if work.left_out.device == wanted.device else None
            left = torch.empty_like(wanted) if there is None else there
        if isinstance(codec, Threshold | Significance | MaxN):
            kept = encode_above(codec, wanted, self._least(portions, work.large), asked, left)
            sending.cut(kept.wire, kept.starts, kept.lengths)
        else:
            sending.rows(encode(codec, wanted, asked, left))
        if left is not None and there is None:
            _write(portions, work.left_out, left)

    def _asked(self, portions: Sequence[Portion]) -> Asked:
        """Return what the codec goes by beside values."""
        device = self._weights.device
        chance = isinstance(self._codec, Stochastic) or isinstance(getattr(self._codec, "values", None), Stochastic)
        keys = torch.tensor([keys_of(each.seed) for each in portions], device=device) if chance else None
        thresholds = [each.known for each in portions if each.known is not None]
        return Asked(keys, torch.from_numpy(np.stack(thresholds)).to(device) if thresholds else None)

    def _least(self, portions: Sequence[Portion], large: Large | None) -> Least:
        """Return how large elements must be: as the codec says, or as somebody else does."""
        match large:
            case None:
                return 0.0 if isinstance(self._codec, MaxN) else float(getattr(self._codec, "least", 0.0))
            case PartOf(start=start, part=part):
                return Limits(self._seen(portions, self._at_start(start)), part)
            case _:
                return float(large)

    def _at_start(self, start: Start) -> Tensor:
        """Return where work began: on the device, if it has been kept there."""
        began = self._began.called(start.name)
        return _from_host(start.weights, self._weights.device) if began is None else began

    def _seen(self, portions: Sequence[Portion], vector: Tensor) -> Tensor:
        """Return elements of a vector on the device, a chunk a row, not to be written to."""
        there = _view(portions, vector) if vector.device == self._weights.device else None
        if there is not None:
            return there
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


def _view(portions: Sequence[Portion], vector: Tensor) -> Tensor | None:
    """Return elements of a vector where they are, a chunk a row; None: they do not lie together."""
    runs = [run for _, run in _stretches(portions)]
    return vector[runs[0]].view(len(portions), -1) if len(runs) == 1 else None


def _remember(portions: Sequence[Portion], known: Tensor | None) -> None:
    """Write thresholds where they are remembered."""
    if known is not None:
        for portion, moved in zip(portions, known.cpu().numpy(), strict=True):
            assert portion.known is not None, "all remember, or none"
            portion.known[:] = moved


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


def _together(portions: Sequence[Portion]) -> Iterator[Sequence[Portion]]:
    """Yield chunks that lie one after the other in a vector; those in several runs are by themselves."""
    first = 0
    for at in range(1, len(portions) + 1):
        if at == len(portions) or not _follows(portions[at - 1], portions[at]):
            yield portions[first:at]
            first = at


def _follows(one: Portion, other: Portion) -> bool:
    return len(one.runs) == len(other.runs) == 1 and one.runs[0].stop == other.runs[0].start


def _count(portion: Portion) -> int:
    return sum(run.stop - run.start for run in portion.runs)


def _tensor(vector: Vector | None) -> Tensor:
    assert vector is not None, "what has no start has values"
    return torch.from_numpy(np.require(vector, requirements="W"))
