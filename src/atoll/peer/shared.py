"""What results leave out of contributions, where a part of that is held by who made them.

An owner keeps what it leaves out of a result and adds it to its next one; until then nobody has it. But everybody knows
what was left out of its own contribution, once the result is there, and may hold a part of that in its own weights, as
it holds what its codec left out. All together hold as much then as the owners give up:

    peer    held += shared * (given - result)              given: its contribution as owners decode it
    owner   left  = left before + (1 - shared) * (mean - result)

What was given is saved with the private state before anybody hears of the contribution. Who crashed after the commit
finds it there, and holds its share of the result like everybody.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from atoll.model.compute import Vector
from atoll.peer.member import Member
from atoll.peer.results import Result
from atoll.peer.settle import keep_private
from atoll.swarm.log import ClosedRound, OpenRound
from atoll.sync.codec import decoded


async def keep_given(member: Member, announced: OpenRound, chunks: Mapping[int, memoryview]) -> None:
    """Remember what came of our contribution until its result is there."""
    private, grid = member.private, member.grid_of(announced.key)
    codec = member.channel_of(announced.key.version).kept_by(member.me)

    def given() -> Vector:
        values = np.empty(member.engine.size, np.float32)
        for index, chunk in chunks.items():
            first, end = grid.bounds(index)
            values[first:end] = decoded(codec, chunk, end - first)
        return values

    private.given = await member.job(given)


async def hold_share(member: Member, committed: ClosedRound, result: Result) -> None:
    """Hold our share of what a result leaves out of our contribution, if there was one that counts."""
    private, version = member.private, committed.key.version
    if private.given is None or private.residual is None:
        return
    assert member.me in committed.contributors, "of a contribution that does not count nothing is remembered"
    grid, codec = member.grid_of(committed.key), member.channel_of(version).what.merged()
    given, held, part = private.given, private.residual, np.float32(private.shared)

    def share() -> None:
        values = held.write()
        for index, chunk in enumerate(result.chunks):
            first, end = grid.bounds(index)
            values[first:end] += part * (given[first:end] - decoded(codec, chunk, end - first))

    await member.job(share, vectors=3)
    private.given = None
    if await member.store.has_private(version):  # which was saved when nobody knew the result
        await keep_private(member, version)
