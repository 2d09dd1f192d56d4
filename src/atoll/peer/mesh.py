"""A contribution that goes over each link by itself: to everybody as much as the link carries while a step is worked.

What is left out on a link waits for the next step on that link alone, so a peer keeps as many residuals as it has
links. Who is not in a round begins anew with nothing kept: it was away, and has the weights of others by then. How much
goes over a link is its sender's own choice, by what it measured; nobody else need know, since every chunk says what it
is about.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from atoll.sync.units import tensors_in

Filled = dict[str, float]
"""Which part of the values went over the link to whom."""


def meshed(
    member: Member, announced: OpenRound, contribution: Contribution, filled: Filled
) -> Iterator[dict[int, memoryview]]:
    """Yield a contribution encoded for one member after the other; what is left out is kept when all of it is made."""
    channel, grid = member.channel_of(announced.key.version), member.grid_of(announced.key)
    values = finite(contribution(0, grid.size), announced.key.version)
    alike = _chunks(grid, channel.what.codec, values, None)
    feedback, kept = channel.what.residual, dict[bytes, Vector]()
    for place, taker in enumerate(announced.members):
        chunks = alike
        if taker != member.me and isinstance(codec := channel.what.codec, MaxN):
            wanted = values
            if isinstance(feedback, Feedback) and taker in member.private.links:
                wanted = values + member.private.links[taker] * np.float32(feedback.decay)
            chunks = _chunks(grid, codec, wanted, _limits(member, announced, codec, grid, wanted, taker))
            left = wanted - _whole(grid, codec, chunks)
            filled[short(PeerId(taker))] = round(_sent(grid, chunks) / grid.size, 4)
            if isinstance(feedback, Feedback):
                kept[taker] = left
        if place == len(announced.members) - 1 and isinstance(feedback, Feedback):
            member.private.links = kept
        yield {place * grid.each + index: chunk for index, chunk in enumerate(chunks)}


def _limits(member: Member, announced: OpenRound, codec: MaxN, grid: Grid, wanted: Vector, taker: bytes) -> Vector:
    """Return how large values must be to go over the link to a member: all that may, while its rate is not known."""
    unit = member.unit_of(announced.key.version)
    peak = peaks(wanted, tensors_in(unit, member.engine.layout))
    n, rate_bytes_s = codec.most, member.links.carries_bytes_s(PeerId(taker))
    if codec.least < codec.most and rate_bytes_s and member.samples_s:
        quota = announced.quotas[announced.members.index(member.me)]
        n = fitting(codec, grid, wanted, peak, rate_bytes_s * quota / member.samples_s)
    return limits(n, peak)


def _chunks(grid: Grid, codec: Codec, values: Vector, least: Vector | None) -> list[memoryview]:
    runs = [slice(*grid.bounds(index)) for index in range(grid.each)]
    return [encode(codec, values[run], 0, None if least is None else least[run]) for run in runs]


def _sent(grid: Grid, chunks: list[memoryview]) -> int:
    """Return how many values some chunks are about."""
    return sum(above.kept(chunk, grid.chunk) or 0 for chunk in chunks)


def _whole(grid: Grid, codec: Codec, chunks: list[memoryview]) -> Vector:
    """Return what arrives of a contribution."""
    sizes = [end - first for first, end in map(grid.bounds, range(grid.each))]
    return np.concatenate([decoded(codec, chunk, size) for chunk, size in zip(chunks, sizes, strict=True)])
