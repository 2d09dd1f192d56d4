"""A contribution as factors: what a peer sends in either of the two rounds that its matrices travel in.

What the codec and the rank leave out is fed back as everywhere: of what was wanted (the gradient, and what was left out
before), what arrives of it is known as soon as the second contribution is made, before anybody else's is. The first
leaves nothing behind: who crashes between the two makes the same work again, from the same anchor.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from atoll.model.compute import Vector
from atoll.peer.member import Member
from atoll.peer.train import Contribution, finite
from atoll.spec.axes.what import Feedback
from atoll.swarm.log import OpenRound
from atoll.sync.codec import decoded, encode, seed_of


def factored(member: Member, announced: OpenRound, contribution: Contribution) -> Iterator[dict[int, memoryview]]:
    """Return a contribution encoded, all at once: a factor needs all of its matrix."""
    version, factors, basis = announced.key.version, member.factors, member.anchor.basis
    channel, grid = member.channel_of(version), member.grid_of(announced.key)
    assert factors is not None, "it is asked for only where matrices are factored"
    assert basis is not None, "there are directions from the beginning"
    wanted = finite(contribution(0, factors.size), version)
    left_out, feeds_back = member.private.residual, channel.what.residual
    residual = None if left_out is None else left_out.write()
    if residual is not None and isinstance(feeds_back, Feedback):
        wanted += residual * np.float32(feeds_back.decay)
    made = factors.directions(wanted, basis) if channel.holds(version) else factors.along(wanted, basis)

    def encoded(index: int) -> memoryview:
        return encode(channel.kept_by(member.me), made[slice(*grid.bounds(index))], seed_of(version, index, member.me))

    chunks = {index: encoded(index) for index in range(grid.chunks)}
    if residual is not None and not channel.holds(version):
        arrives = [_arrives(member, announced, index, chunk) for index, chunk in chunks.items()]
        np.subtract(wanted, factors.values(np.concatenate(arrives), basis), out=residual)
    yield chunks


def _arrives(member: Member, announced: OpenRound, index: int, chunk: memoryview) -> Vector:
    first, end = member.grid_of(announced.key).bounds(index)
    return decoded(member.channel_of(announced.key.version).kept_by(member.me), chunk, end - first)
