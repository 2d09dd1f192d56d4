"""What anchors must be where matrices travel as factors, worked out from a log and from which life contributed what.

A factor is made of a whole matrix, so the marks by which a counting model tells its peer's lives are in every element
of it: an anchor follows to the bit only where it is known which life each contribution is from (`lives`).
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from atoll.model.compute import Vector
from atoll.net.identity import short
from atoll.sim.compute import CountingEngine, first_weights
from atoll.sim.expected import contribution, factor_of, sent, weight_of
from atoll.sim.lives import Lives
from atoll.sim.retell import Committed, commits
from atoll.spec.axes.what import LowRank
from atoll.spec.recipe import Channel
from atoll.spec.run import Run
from atoll.swarm.log import Entry
from atoll.sync.factors import Factors
from atoll.sync.merge import Anchor, Pushes, advance, finish, first_anchor


def anchors(run: Run, size: int, entries: list[Entry], honest_until: float, lives: Lives) -> dict[int, Anchor]:
    """Return the anchor of every version up to `honest_until`, up to which lives are known."""
    channel = next(iter(run.recipe.channel.values()))
    engine = CountingEngine(seed=run.seeds.data, size=size)
    assert isinstance(channel.what.transform, LowRank), "others have anchors that follow more simply"
    factors = Factors(channel.what.transform, engine.shapes, run.seeds.model)
    anchor = first_anchor(channel.merge.outer, first_weights(run.seeds.data, size))
    anchor = replace(anchor, basis=factors.first_basis())
    by_version, before = {0: anchor}, 0
    for committed in commits(entries):
        if anchor.version >= honest_until:
            break
        merged = _merged(run, channel, factors, anchor, committed, lives)
        if committed.announced.holds:
            anchor = replace(anchor.copy(), version=committed.version, basis=factors.orthonormal(merged))
        else:
            pushes = Pushes(len(committed.contributors), before)
            before += len(committed.contributors)
            anchor = _stepped(run, channel, factors, anchor, merged, pushes)
        by_version[anchor.version] = anchor
    return by_version


def _stepped(run: Run, channel: Channel, factors: Factors, anchor: Anchor, merged: Vector, pushes: Pushes) -> Anchor:
    """Return the anchor after the second of two rounds: one step of the outer optimizer, which counts steps."""
    assert anchor.basis is not None
    version, outer = anchor.version + 1, channel.merge.outer
    factor = factor_of(run, {0: channel}, version)
    values = factors.values(merged, anchor.basis)
    after = advance(outer, replace(anchor.copy(), version=version // 2 - 1), values, factor, pushes)
    finish(outer, after, CountingEngine(seed=run.seeds.data, size=len(values)).layout, factor)
    return replace(after, version=version, basis=factors.next_basis(merged, version))


def _merged(run: Run, channel: Channel, factors: Factors, anchor: Anchor, committed: Committed, lives: Lives) -> Vector:
    """Return the mean of what contributors sent: directions, or what of their gradients lies along them."""
    assert anchor.basis is not None
    codec, leases, announced = channel.what.codec, committed.announced.leases, committed.announced
    total: Vector = np.zeros(factors.left_size if announced.holds else factors.right_size, np.float32)
    weight = 0.0
    for peer in (p for p in announced.members if p in committed.contributors):
        gradient = contribution(run, channel, anchor, leases[peer], lives[short(peer), committed.version])
        of = factors.directions if announced.holds else factors.along
        weighs = weight_of(channel, leases[peer])
        total = total + sent(codec, of(gradient, anchor.basis)) * np.float32(weighs)
        weight += weighs
    return sent(channel.what.merged(), total / np.float32(weight))
