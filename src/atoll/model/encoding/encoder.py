"""A peer's contribution, encoded on the device that has its weights.

Only bytes leave the device, if it has room for two more vectors: for the weights that work began from, as the engine
got them (`Began`), and for what was left out before, which lies there from the first contribution on (`Held`). What
there is no room for, and weights that work did not begin from, pass through the device a few chunks at a time, and that
takes longer than all the rest. The processor has no pass over the model to make in either case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from atoll.model.compute import Large, Made, Mean, Near, PartOf, Portion, Source, Start, Vector
from atoll.model.encoding import fused, peaks, sieve, sparse
from atoll.model.encoding.above import Least, Limits
from atoll.model.encoding.chance import draws, keys_of
from atoll.model.encoding.codec import Asked, Even, OnDevice, encode, encode_above, wire_bytes
from atoll.model.encoding.pieces import Piece, pieces_of
from atoll.model.encoding.sending import Sending
from atoll.model.encoding.wanted import Ends
from atoll.model.held import Held
from atoll.model.locked import lock
from atoll.spec.axes.codec import Above, CacheLines, MaxN, Significance, Threshold, TopK
from atoll.spec.axes.what import Feedback, Forget, Residual

FEW_ELEMENTS, MANY_ELEMENTS = 2**24, 2**27
"""Encoded at once on a device: what takes a codec longer than its launching; and the most, if there is room.

A host needs as long to start a codec's kernels, whatever they are about, as they take for tens of millions."""
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
    """What is to be encoded, in vectors here or in the host's memory, and how."""

    base: Tensor | None
    """Where work began, or what there is a mean of, or what was made of these; none: portions have values."""
    weights: Tensor | None
    steps: int
    rule: Residual
    left_out: Tensor | None
    least: float
    """How large is large."""
    part: float = 1.0
    part_of: Tensor | None = None
    """Or as large as such a part of these."""
    of_unit: bool = False
    """Whether the base has the elements of a unit only, one after the other."""


class TorchEncoder:
    """`Encoder` on torch, of one codec."""

    def __init__(self, codec: OnDevice, weights: Tensor, began: Began | None = None) -> None:
        self._codec, self._weights, self._began = codec, weights, began or Began()
        self._device = weights.device

    @property
    def elements(self) -> int:
        many = MANY_ELEMENTS
        while many > FEW_ELEMENTS and not _has_room(self._device, WORKING_BYTES * many):
            many //= 2
        return many

    @torch.no_grad()
    def encode(
        self,
        portions: Sequence[Portion],
        source: Source | None,
        rule: Residual,
        residual: Held | None,
        large: Large | None = None,
    ) -> list[memoryview]:
        work, sending = self._work(source, rule, residual, large), Sending(self._device)
        pieces = self._pieces(portions)
        asked = self._asked(pieces)
        if isinstance(self._codec, Threshold | Significance | MaxN):
            self._send_above(self._codec, pieces, asked, work, large, sending)
        else:
            self._send_even(self._codec, pieces, asked, work, sending)
        _remember(pieces, asked)
        return sending.chunks()

    @torch.no_grad()
    def wanted(self, portion: Portion, source: Source | None, rule: Residual, residual: Held | None) -> Tensor:
        """Return what is to be sent of one portion, as it is, in memory of its own; raises as `encode`."""
        (piece,), bad = self._pieces([portion]), self._nothing_bad()
        values = self._wanted(piece, self._work(source, rule, residual, None), bad)
        _check(int(bad))
        return values.view(-1)

    def _send_even(
        self, codec: Even, pieces: Sequence[Piece], asked: Sequence[Asked], work: Work, sending: Sending
    ) -> None:
        """Let chunks be on their way of which all are as long, after it has been seen that all values are finite."""
        bad = self._nothing_bad()
        made = [self._made(codec, piece, work, bad) for piece in pieces]
        _check(int(bad))
        for piece, (rows, scores), beside in zip(pieces, made, asked, strict=True):
            left = self._left(piece, work)
            sending.rows(encode(codec, rows, beside._replace(scores=scores), left))
            self._leave(piece, work, left)

    def _send_above(
        self,
        codec: Above,
        pieces: Sequence[Piece],
        asked: Sequence[Asked],
        work: Work,
        large: Large | None,
        sending: Sending,
    ) -> None:
        """Let chunks be on their way that are as long as values make them."""
        bad = self._nothing_bad()
        if not isinstance(large, Near):
            self._send_sized(codec, pieces, self._sized(pieces, work), asked, work, bad, sending)
            return
        # A whole unit, of which all is finite by now: together its chunks could take as much memory as it does.
        for piece, sized, beside in zip(pieces, self._near(pieces, work, bad, large), asked, strict=True):
            self._send_sized(codec, [piece], [sized], [beside], work, bad, sending)

    def _send_sized(
        self,
        codec: Above,
        pieces: Sequence[Piece],
        sized: Sequence[tuple[Ends, Least]],
        asked: Sequence[Asked],
        work: Work,
        bad: Tensor,
        sending: Sending,
    ) -> None:
        """Let them be on their way: of all at once it is asked how long they are, and whether all values are finite.

        Where kernels make them, what is left out has been written by then.
        """
        lefts = [self._left(piece, work) for piece in pieces]
        each = zip(sized, lefts, strict=True)
        made = [sieve.sifted(type(codec.values), *some, left, bad) for some, left in each]
        ends = zip(made, sized, strict=True)
        rows = [fused.wanted(some, bad) if sifted is None else some.base for sifted, (some, _) in ends]
        told = torch.cat([bad, *(sifted.keeps for sifted in made if sifted is not None)]).cpu().numpy()
        _check(int(told[0]))
        at, every = 1, zip(pieces, sized, asked, made, rows, lefts, strict=True)
        for piece, (_, least), beside, sifted, values, left in every:
            if sifted is None:
                kept = encode_above(codec, values, least, beside, left)
            else:
                kept = sifted.kept(told[at : at + len(piece.portions)])
                at += len(piece.portions)
            sending.cut(kept.wire, kept.starts, kept.lengths)
            self._leave(piece, work, left)

    def _work(self, source: Source | None, rule: Residual, residual: Held | None, large: Large | None) -> Work:
        left_out = None if residual is None else at_hand(residual, self._device)
        assert left_out is not None or isinstance(rule, Forget), "whoever holds something back keeps it"
        least = float(getattr(self._codec, "least", 0.0)) if not isinstance(self._codec, MaxN) else 0.0
        work = Work(None, None, 1, rule, left_out, float(large) if isinstance(large, float) else least)
        if isinstance(large, PartOf):
            work = work._replace(part=large.part, part_of=self._at_start(large.start))
        match source:
            case None:
                return work
            case Mean(total=total, steps=steps):
                return work._replace(base=at_hand(total, self._device), steps=steps)
            case Made(values=made):
                return work._replace(base=at_hand(made, self._device), of_unit=True)
            case Start():
                return work._replace(base=self._at_start(source), weights=self._weights)

    def _pieces(self, portions: Sequence[Portion]) -> list[Piece]:
        """Return what is encoded at once, so that the bus has its first bytes soon.

        Of what goes by size none leaves before all is counted: a piece is as long as it may be.
        """
        codec = self._codec
        if isinstance(codec, Threshold | Significance | MaxN):
            most = self.elements
            return pieces_of(portions, lambda count: max(1, most // count))
        return pieces_of(portions, lambda count: max(1, PIECE_BYTES // wire_bytes(codec, count)))

    def _ends(self, piece: Piece, work: Work) -> Ends:
        """Return what there is to be sent of, a chunk a row."""
        if work.base is None:
            base = torch.stack([_tensor(portion.values).to(self._device) for portion in piece.portions])
        else:
            base = (piece.in_unit() if work.of_unit else piece).seen(work.base, self._device)
        weights = None if work.weights is None else piece.seen(work.weights, self._device)
        before, decay = None, 1.0
        if isinstance(work.rule, Feedback) and work.left_out is not None:
            before, decay = piece.seen(work.left_out, self._device), work.rule.decay
        return Ends(base, weights, work.steps, before, decay)

    def _wanted(self, piece: Piece, work: Work, bad: Tensor) -> Tensor:
        """Return what is to be sent, in memory of its own, a chunk a row; say if any of it is not finite."""
        return fused.wanted(self._ends(piece, work), bad)

    def _made(self, codec: Even, piece: Piece, work: Work, bad: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return likewise, and of lines their scores, if they came by on the way.

        Of what sends some values only, kernels make it where what is left out is kept: there most of it stays, and a
        pass less is needed.
        """
        ends = self._ends(piece, work)
        stays = self._there(piece, work) if isinstance(codec, TopK | CacheLines) else None
        if isinstance(codec, CacheLines):
            return sparse.wanted_lines(codec, ends, bad, stays)
        return fused.wanted(ends, bad, stays), None

    def _sized(self, pieces: Sequence[Piece], work: Work) -> list[tuple[Ends, Least]]:
        """Return what there is to be sent of each piece, and how large it must be."""
        ends = [self._ends(piece, work) for piece in pieces]
        return [(each, self._least(piece, work, each)) for piece, each in zip(pieces, ends, strict=True)]

    def _near(self, pieces: Sequence[Piece], work: Work, bad: Tensor, near: Near) -> list[tuple[Ends, Least]]:
        """Return likewise where that depends on all values of the unit."""
        assert isinstance(self._codec, MaxN), "no other codec goes by that"
        ends = [self._ends(piece, work) for piece in pieces]
        least = peaks.least_of(self._codec, near, ends, bad)
        _check(int(bad))
        if not isinstance(least, Limits):
            return [(each, least) for each in ends]
        rows = torch.split(least.rows, [each.base.numel() // least.width for each in ends])
        return [(each, least._replace(rows=some)) for each, some in zip(ends, rows, strict=True)]

    def _nothing_bad(self) -> Tensor:
        """Return a number on the device that becomes more than zero if values are not finite."""
        return torch.zeros(1, dtype=torch.int32, device=self._device)

    def _there(self, piece: Piece, work: Work) -> Tensor | None:
        """Return where what is left out is kept, a chunk a row; None: it is forgotten, or cannot be written there."""
        if isinstance(work.rule, Forget) or work.left_out is None:
            return None
        return piece.view(work.left_out, self._device)

    def _left(self, piece: Piece, work: Work) -> Tensor | None:
        """Return rows to write to what is left out: where it is kept, or on its way there; None: it is forgotten."""
        if isinstance(work.rule, Forget) or work.left_out is None:
            return None
        there = self._there(piece, work)
        return torch.empty((len(piece.portions), piece.width), device=self._device) if there is None else there

    def _leave(self, piece: Piece, work: Work, left: Tensor | None) -> None:
        """Write what is left out where it is kept, unless it is there."""
        if left is not None and work.left_out is not None and self._there(piece, work) is None:
            piece.write(work.left_out, left)

    def _asked(self, pieces: Sequence[Piece]) -> list[Asked]:
        """Return what the codec goes by beside values, for each piece."""
        seeds = [keys_of(each.seed) for piece in pieces for each in piece.portions] if draws(self._codec) else []
        known = [each.known for piece in pieces for each in piece.portions if each.known is not None]
        sizes = [len(piece.portions) for piece in pieces]
        nothing = [None] * len(pieces)
        keys = torch.split(torch.tensor(seeds).to(self._device), sizes) if seeds else nothing
        thresholds = torch.split(torch.from_numpy(np.stack(known)).to(self._device), sizes) if known else nothing
        return [Asked(*each) for each in zip(keys, thresholds, strict=True)]

    def _least(self, piece: Piece, work: Work, ends: Ends) -> Least:
        """Return how large elements must be: often a part of what work began from, which is there already."""
        if work.part_of is None:
            return work.least
        is_base = work.base is not None and work.base.data_ptr() == work.part_of.data_ptr()
        return Limits(ends.base if is_base else piece.seen(work.part_of, self._device), work.part)

    def _at_start(self, start: Start) -> Tensor:
        """Return where work began: on the device, if it has been kept there."""
        began = self._began.called(start.name)
        return _from_host(start.weights, self._device) if began is None else began


def _check(bad: int) -> None:
    if bad:
        raise FloatingPointError("some values are not finite")


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


def _remember(pieces: Sequence[Piece], asked: Sequence[Asked]) -> None:
    """Write thresholds where they are remembered."""
    moved = [beside.known for beside in asked if beside.known is not None]
    if not moved:
        return
    for portion, known in zip(
        (p for piece in pieces for p in piece.portions), torch.cat(moved).cpu().numpy(), strict=True
    ):
        assert portion.known is not None, "all remember, or none"
        portion.known[:] = known


def _tensor(vector: Vector | None) -> Tensor:
    assert vector is not None, "what has no start has values"
    return torch.from_numpy(np.require(vector, requirements="W"))
