"""A contribution that goes over each link by itself: to everybody as much as the link carries while a step is worked.

What is left out on a link waits for the next step on that link alone, so a peer keeps as many residuals as it has
links. Who is not in a round begins anew with nothing kept: it was away, and has the weights of others by then. How much
goes over a link is its sender's own choice, by what it measured; nobody else need know, since every chunk says what it
is about.

As elsewhere (`peer.encode`) chunks are made on the device that has the weights where there is one, else on the
processor, to the same bits. A residual is written to where it is, link by link, once it is known that everything that
goes over that link is finite: who does not come to the last link has everything back from disk, as all private state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from atoll.model.compute import Encoder, Near, Vector
from atoll.model.encoding.chance import draws
from atoll.model.held import Held
from atoll.net.identity import short
from atoll.net.transport import PeerId
from atoll.peer.encode import portion_of, source_of
from atoll.peer.member import Member
from atoll.peer.train import Contribution, diverged, finite
from atoll.spec.axes.codec import Codec, Fp32, MaxN
from atoll.spec.axes.what import Feedback, Forget, What
from atoll.swarm.log import OpenRound
from atoll.sync.codec import above, decoded, encode, seed_of
from atoll.sync.grid import Grid
from atoll.sync.peaks import fitting, kept_within, limits, peaks
from atoll.sync.units import Tensor, Unit, tensors_in

Filled = dict[str, float]
"""Which part of the values went over the link to whom."""


class Given(NamedTuple):
    """A contribution that is to go over links."""

    me: bytes
    version: int
    what: What
    unit: Unit
    tensors: Sequence[Tensor]
    """Those of the unit."""
    contribution: Contribution

    def seeds(self) -> list[int]:
        """Return what chance depends on in each chunk, where there is any."""
        indexes = range(self.unit.grid.each)
        return [seed_of(self.version, index, self.me) if draws(self.what.codec) else 0 for index in indexes]


class Link(NamedTuple):
    """What goes over a link is to fit this."""

    keep: int | None
    """About so many values, if the codec allows; none: as many as it allows."""
    residual: Held | None
    """What was left out on it, which becomes what is left out now; none: that is forgotten."""


Encode = Callable[[Link | None], list[memoryview]]
"""Returns the chunks of a contribution for a link, or all of it as it is."""


def meshed(
    member: Member, announced: OpenRound, contribution: Contribution, filled: Filled
) -> Iterator[dict[int, memoryview]]:
    """Yield a contribution encoded for one member after the other; who was not in the round is forgotten at its end."""
    version = announced.key.version
    what, unit, kept = member.channel_of(version).what, member.unit_of(version), dict[bytes, Held]()
    grid, tensors = unit.grid, tensors_in(unit, member.engine.layout)
    made = encoded(Given(member.me, version, what, unit, tensors, contribution), member.engine.encoder(what.codec))
    alike = made(None)
    for place, taker in enumerate(announced.members):
        chunks = alike
        if taker != member.me and isinstance(what.codec, MaxN):
            if isinstance(what.residual, Feedback):
                kept[taker] = member.private.links.get(taker) or Held(member.engine.size)
            room_bytes = _room_bytes(member, announced, taker)
            chunks = made(Link(most_over(what.codec, grid, room_bytes), kept.get(taker)))
            filled[short(PeerId(taker))] = round(_sent(grid, chunks) / grid.size, 4)
        if place == len(announced.members) - 1 and isinstance(what.residual, Feedback):
            member.private.links = kept
        yield {place * grid.each + index: chunk for index, chunk in enumerate(chunks)}


def _room_bytes(member: Member, announced: OpenRound, taker: bytes) -> float | None:
    """Return what the link to a member carries while a step is worked; None: that is not known."""
    rate_bytes_s = member.links.carries_bytes_s(PeerId(taker))
    if not rate_bytes_s or not member.samples_s:
        return None
    return rate_bytes_s * announced.quotas[announced.members.index(member.me)] / member.samples_s


def most_over(codec: MaxN, grid: Grid, room_bytes: float | None) -> int | None:
    """Return how many values may go over a link of so much room; None: as many as the codec allows."""
    return None if room_bytes is None or codec.least >= codec.most else kept_within(codec, grid, room_bytes)


def encoded(given: Given, encoder: Encoder | None) -> Encode:
    """Return how a contribution is encoded: on the device that has the weights, or here, if there is none.

    Raises `LocalError`, as what it returns does, when training has diverged.
    """
    is_here = isinstance(given.what.codec, Fp32) and source_of(given.contribution) is None  # and would come back as is
    return _here(given) if encoder is None or is_here else _there(given, encoder)


# on the device


def _there(given: Given, encoder: Encoder) -> Encode:
    grid, source = given.unit.grid, source_of(given.contribution)
    portions = [
        portion_of(given.unit, given.contribution, *grid.bounds(index), seed=seed)
        for index, seed in enumerate(given.seeds())
    ]
    sizes = tuple(each.end - each.first for each in given.tensors)
    few = max(1, encoder.elements // grid.chunk)

    def over(link: Link | None) -> list[memoryview]:
        if link is not None:
            return encoder.encode(portions, source, given.what.residual, link.residual, Near(sizes, link.keep))
        some = (portions[at : at + few] for at in range(0, len(portions), few))
        return [chunk for each in some for chunk in encoder.encode(each, source, Forget(), None)]

    def made(link: Link | None) -> list[memoryview]:
        try:
            return over(link)
        except FloatingPointError as error:
            raise diverged(given.version) from error

    return made


# on the processor


def _here(given: Given) -> Encode:
    codec, rule, unit, seeds = given.what.codec, given.what.residual, given.unit, given.seeds()
    values = finite(given.contribution(0, unit.size), given.version)

    def made(link: Link | None) -> list[memoryview]:
        if link is None or not isinstance(codec, MaxN):
            return chunks_of(unit.grid, codec, values, seeds, None)
        wanted = values
        if link.residual is not None and isinstance(rule, Feedback):
            left_out = unit.take(link.residual.read())
            wanted = finite(left_out * np.float32(rule.decay) + values, given.version)
        chunks, left = over_link(codec, unit.grid, wanted, given.tensors, seeds, link.keep)
        if link.residual is not None:
            unit.put(link.residual.write(), left)
        return chunks

    return made


def over_link(
    codec: MaxN, grid: Grid, wanted: Vector, tensors: Sequence[Tensor], seeds: Sequence[int], keep: int | None
) -> tuple[list[memoryview], Vector]:
    """Return chunks of about so many values, or of all that may be sent, and what is left out of them."""
    peak = peaks(wanted, tensors)
    n = codec.most if keep is None else fitting(codec, wanted, peak, keep)
    chunks = chunks_of(grid, codec, wanted, seeds, limits(n, peak))
    return chunks, wanted - _whole(grid, codec, chunks)


def chunks_of(grid: Grid, codec: Codec, values: Vector, seeds: Sequence[int], least: Vector | None) -> list[memoryview]:
    """Return a vector encoded: what is as large as that, or all of it."""
    runs = [slice(*grid.bounds(index)) for index in range(grid.each)]
    return [
        encode(codec, values[run], seed, None if least is None else least[run])
        for run, seed in zip(runs, seeds, strict=True)
    ]


def _sent(grid: Grid, chunks: list[memoryview]) -> int:
    """Return how many values some chunks are about."""
    return sum(above.kept(chunk, grid.chunk) or 0 for chunk in chunks)


def _whole(grid: Grid, codec: Codec, chunks: list[memoryview]) -> Vector:
    """Return what arrives of a contribution."""
    sizes = [end - first for first, end in map(grid.bounds, range(grid.each))]
    return np.concatenate([decoded(codec, chunk, size) for chunk, size in zip(chunks, sizes, strict=True)])
