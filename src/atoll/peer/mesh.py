"""A contribution that goes over each link by itself: to everybody as much as the link carries while a step is worked.

What is left out on a link waits for the next step on that link alone, so a peer keeps as many residuals as it has
links. Who is not in a round begins anew with nothing kept: it was away, and has the weights of others by then. How much
goes over a link is its sender's own choice, by what it measured; nobody else need know, since every chunk says what it
is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from atoll.model.compute import Vector
from atoll.net.identity import short
from atoll.net.transport import PeerId
from atoll.peer.member import Member
from atoll.peer.train import Contribution, finite
from atoll.spec.axes.codec import Codec, MaxN
from atoll.spec.axes.what import Feedback
from atoll.swarm.log import OpenRound
from atoll.sync.codec import above, decoded, encode
from atoll.sync.grid import Grid
from atoll.sync.peaks import fitting, limits, peaks
from atoll.sync.units import Tensor, tensors_in

Filled = dict[str, float]
"""Which part of the values went over the link to whom."""


def meshed(
    member: Member, announced: OpenRound, contribution: Contribution, filled: Filled
) -> Iterator[dict[int, memoryview]]:
    """Yield a contribution encoded for one member after the other; what is left out is kept when all of it is made."""
    channel, grid = member.channel_of(announced.key.version), member.grid_of(announced.key)
    values = finite(contribution(0, grid.size), announced.key.version)
    alike = chunks_of(grid, channel.what.codec, values, None)
    feedback, kept = channel.what.residual, dict[bytes, Vector]()
    for place, taker in enumerate(announced.members):
        chunks = alike
        if taker != member.me and isinstance(codec := channel.what.codec, MaxN):
            wanted = values
            if isinstance(feedback, Feedback) and taker in member.private.links:
                wanted = values + member.private.links[taker] * np.float32(feedback.decay)
            tensors = tensors_in(member.unit_of(announced.key.version), member.engine.layout)
            chunks, left = over_link(codec, grid, wanted, tensors, _room_bytes(member, announced, taker))
            filled[short(PeerId(taker))] = round(_sent(grid, chunks) / grid.size, 4)
            if isinstance(feedback, Feedback):
                kept[taker] = left
        if place == len(announced.members) - 1 and isinstance(feedback, Feedback):
            member.private.links = kept
        yield {place * grid.each + index: chunk for index, chunk in enumerate(chunks)}


def over_link(
    codec: MaxN, grid: Grid, wanted: Vector, tensors: Sequence[Tensor], room_bytes: float | None
) -> tuple[list[memoryview], Vector]:
    """Return chunks for a link that carries so many bytes, or all that may go over it, and what is left out of them."""
    peak, n = peaks(wanted, tensors), codec.most
    if room_bytes is not None and codec.least < codec.most:
        n = fitting(codec, grid, wanted, peak, room_bytes)
    chunks = chunks_of(grid, codec, wanted, limits(n, peak))
    return chunks, wanted - _whole(grid, codec, chunks)


def _room_bytes(member: Member, announced: OpenRound, taker: bytes) -> float | None:
    """Return what the link to a member carries while a step is worked; None: that is not known."""
    rate_bytes_s = member.links.carries_bytes_s(PeerId(taker))
    if not rate_bytes_s or not member.samples_s:
        return None
    return rate_bytes_s * announced.quotas[announced.members.index(member.me)] / member.samples_s


def chunks_of(grid: Grid, codec: Codec, values: Vector, least: Vector | None) -> list[memoryview]:
    """Return a vector encoded: what is as large as that, or all of it."""
    runs = [slice(*grid.bounds(index)) for index in range(grid.each)]
    return [encode(codec, values[run], 0, None if least is None else least[run]) for run in runs]


def _sent(grid: Grid, chunks: list[memoryview]) -> int:
    """Return how many values some chunks are about."""
    return sum(above.kept(chunk, grid.chunk) or 0 for chunk in chunks)


def _whole(grid: Grid, codec: Codec, chunks: list[memoryview]) -> Vector:
    """Return what arrives of a contribution."""
    sizes = [end - first for first, end in map(grid.bounds, range(grid.each))]
    return np.concatenate([decoded(codec, chunk, size) for chunk, size in zip(chunks, sizes, strict=True)])
