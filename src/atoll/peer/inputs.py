"""What an owner knows of the inputs of the matrices that it makes results of: seen in its own model, in its own work.

Nobody tells anybody: owners are peers, and what layers are given is much the same whoever's samples are read. So
another owner of the same chunk may choose other bits. Either choice is a result, and whose counts the plan says.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from atoll.peer.member import Member
from atoll.spec.axes import what as axes
from atoll.spec.axes.codec import Sign
from atoll.swarm import lease
from atoll.swarm.log import OpenRound
from atoll.sync.by_inputs import ByInputs, segments_of


async def by_inputs(member: Member, announced: OpenRound, chunks: Sequence[int]) -> ByInputs | None:
    """Return what rounds some chunks of a round's result; None: each element goes to what is nearest."""
    version = announced.key.version
    what, engine = member.channel_of(version).what, member.engine
    if not isinstance(what.rounding, axes.ByInputs) or not chunks:
        return None
    codec = what.merged()
    assert isinstance(codec, Sign), "rules see to that"
    every = segments_of(member.unit_of(version), engine.layout, engine.shapes)
    mine = {index: every[index] for index in chunks}
    names = sorted({segment.tensor for segments in mine.values() for segment in segments})
    own = announced.lease_of(member.me) if member.me in announced.members else ()
    samples = list(islice(lease.positions(own or announced.ranges), what.rounding.samples))
    moments = await member.box.compute.run(lambda: engine.inputs(names, samples), engine.cost(len(samples)))
    return ByInputs(mine, moments, damping=what.rounding.damping, block=codec.block)
