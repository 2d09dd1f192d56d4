"""What an owner knows of the inputs of the matrices that it makes results of: seen in its own model, in its own work.

Nobody tells anybody: owners are peers, and what layers are given is much the same whoever's samples are read. So
another owner of the same chunk may choose other bits. Either choice is a result, and whose counts the plan says.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from atoll.model.compute import Rounder
from atoll.peer.member import Member
from atoll.spec.axes.codec import Sign
from atoll.spec.axes.what import ByInputs
from atoll.swarm import lease
from atoll.swarm.log import OpenRound
from atoll.sync.by_inputs import RowsHere, Seen, segments_of


async def seen_inputs(member: Member, announced: OpenRound, chunks: Sequence[int], rounding: ByInputs) -> Seen:
    """Return what is seen of the inputs of some chunks' matrices, in our own model as it is now."""
    version, engine = announced.key.version, member.engine
    codec = member.channel_of(version).what.merged()
    assert isinstance(codec, Sign), "rules see to that"
    every = segments_of(member.unit_of(version), engine.layout, engine.shapes)
    mine = {index: every[index] for index in chunks}
    names = sorted({segment.tensor for segments in mine.values() for segment in segments})
    own = announced.lease_of(member.me) if member.me in announced.members else ()
    samples = list(islice(lease.positions(own or announced.ranges), rounding.samples))

    def look() -> Rounder:
        there = engine.rounder(names, samples, rounding.damping)
        return there or RowsHere(engine.inputs(names, samples), rounding.damping)

    rounder = await member.box.compute.run(look, engine.cost(len(samples)))
    return Seen(mine, rounder, block=codec.block, gain=rounding.gain)
