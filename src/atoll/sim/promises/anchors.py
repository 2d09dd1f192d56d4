"""What anchors must be, to the bit where a log tells it: nothing lost, doubled, or added up in another order.

Which anchors follow from a log is worked out elsewhere (`expected`, `parts`, `factored`, `replicas`, `homes`); here is
what can be told of which recipe, and how near a checkpoint must come to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from atoll.net.identity import short
from atoll.sim import factored
from atoll.sim.compute import MARKS, UNIT
from atoll.sim.expected import anchors as anchors_of
from atoll.sim.expected import channels_of
from atoll.sim.homes import Homes, State
from atoll.sim.lives import Lives, lives_of, sure_until
from atoll.sim.masses import wrongly_named
from atoll.sim.parts import PartByPart, in_parts, told
from atoll.sim.promises.disks import saved
from atoll.sim.replicas import Replicas
from atoll.sim.retell import commits
from atoll.sim.scenario import Outcome
from atoll.spec.axes.codec import Codec, Fp16, Fp32, Int8, MaxN
from atoll.spec.axes.merge import Mean, Rda, Trimmed
from atoll.spec.axes.optimizer import Lamb
from atoll.spec.axes.pace import Blend, Block, Delay, Discard, Shift
from atoll.spec.axes.what import Forget, LowRank, Params
from atoll.spec.axes.whom import Carried
from atoll.spec.recipe import Channel
from atoll.spec.run import Run
from atoll.swarm.log import Entry
from atoll.sync.merge import Anchor

ROUNDING = UNIT / 16
"""So far from what the log says an anchor may be where it does not tell all: far less than any sample moves it."""


def as_the_log_says(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check every checkpoint on every disk against the anchor that follows from the log alone, to the bit.

    Which of a peer's lives a contribution is from no log tells; but it must be the same one in every chunk. In int8
    that does not show: each block rounds the marks of a life to steps of its own. Where peers do not wait for results,
    or for each other, no log tells from which weights each of them went on, and where a step is as long as its tensor,
    marks move all of it: there the anchor must be right but for rounding. Where sums are carried each chunk is added up
    in an order of its own: where marks are not whole counts, they are the same but for rounding.
    """
    channels = channels_of(run, entries)
    if channels[0].regional is not None:
        yield from _as_regions_say(run, outcome, entries)
        return
    if not channels[0].common:
        yield from _as_journals_say(run, outcome, entries)
        return
    if isinstance(channels[0].what.transform, LowRank):
        yield from _as_lives_say(run, outcome, entries)
        return
    if in_parts(run):
        yield from _part_by_part(run, outcome, entries)
        return
    if not all(_told_by_the_log(channel) for channel in channels.values()):
        return  # that all agree is checked elsewhere
    mixes = any(isinstance(channel.merge.outer, Lamb) for channel in channels.values())
    polar = channels[0].polar
    steps = any(isinstance(codec, Int8) for channel in channels.values() for codec in _forms(channel))
    marked = not steps and not mixes and not polar
    discards = isinstance(channels[0].late, Discard)
    waits = discards and all(isinstance(channel.overlap, Block) for channel in channels.values())
    gap_max = 0.0 if waits and not mixes else ROUNDING
    whole = not isinstance(channels[0].what, Params)  # of weights a mean is of no whole counts
    marks_apart_max = (gap_max if whole else ROUNDING) if isinstance(channels[0].whom.route, Carried) else 0.0
    honest_until, lives = _known_until(outcome, entries, lived=polar)
    expected: dict[int, Anchor] = {}
    for host, anchor in saved(outcome):
        expected = expected or anchors_of(run, len(anchor.weights), entries, honest_until, lives)
        if anchor.version in expected:
            whose = f"peer {host.place}, version {anchor.version}"
            yield from _differences(whose, anchor, expected[anchor.version], gap_max)
            if marked and np.ptp(anchor.weights[MARKS]) > marks_apart_max:
                yield f"{whose}: chunks are made of different contributions of one peer"
        elif anchor.version <= honest_until:
            yield f"peer {host.place} holds version {anchor.version}, which the log does not have"


def _as_journals_say(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check every checkpoint against the weights that its own peer must have, to the bit."""
    channel = next(iter(run.recipe.channel.values()))
    if channel.merge.combine.weights == "mass":
        yield from wrongly_named(channel.whom, entries)
    if isinstance(channel.what.codec, MaxN):
        return  # how much goes over a link is its sender's own choice
    replicas: Replicas | None = None
    for host, anchor in saved(outcome):
        if replicas is None:
            replicas = Replicas(run, len(anchor.weights), entries, _honest_until(outcome, entries))
            replicas.follow(outcome.lines)
        known = replicas.of(short(host.peer), anchor.version)
        if known is not None:
            yield from _differences(f"peer {host.place}, version {anchor.version}", anchor, known, 0.0)


def _as_regions_say(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check every checkpoint against the state of its peer's region, and the one above it, to the bit where known."""
    homes: Homes | None = None
    for host, anchor in saved(outcome):
        if homes is None:
            homes = Homes(run, len(anchor.weights), entries, outcome.lines, _honest_until(outcome, entries))
        whose = f"peer {host.place}, version {anchor.version}"
        known = homes.of(short(host.peer), anchor.version)
        problems = [[*_differences(whose, anchor, each, 0.0 if each.sure else ROUNDING)] for each in known]
        if all(problems):
            yield from problems[0] if problems else ()


def _as_lives_say(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check every checkpoint, directions and all, as far as it is known which life made which contribution."""
    if next(iter(run.recipe.channel.values())).what.residual != Forget():
        return  # what a residual makes of a life's marks no log tells
    until, lives = _known_until(outcome, entries, lived=True)
    expected: dict[int, Anchor] = {}
    for host, anchor in saved(outcome):
        expected = expected or factored.anchors(run, len(anchor.weights), entries, until, lives)
        known = expected.get(anchor.version)
        if known is not None and known.digest() != anchor.digest():
            yield f"peer {host.place}, version {anchor.version}: not what the log adds up to"


def _part_by_part(run: Run, outcome: Outcome, entries: list[Entry]) -> Iterator[str]:
    """Check every checkpoint against what parts come to in turn, to the bit."""
    parts: PartByPart | None = None
    if not all(told(channel) for channel in run.recipe.channel.values()):
        return  # from which weights each of them went on no log tells; that all agree is checked elsewhere
    lived = any(channel.polar for channel in run.recipe.channel.values())
    until, lives = _known_until(outcome, entries, lived=lived)
    for host, anchor in saved(outcome):
        if parts is None:
            parts = PartByPart(run, len(anchor.weights), entries, outcome.lines, until, lives)
            yield from parts.problems
        if anchor.version in parts.anchors:
            whose = f"peer {host.place}, version {anchor.version}"
            yield from _differences(whose, anchor, parts.anchors[anchor.version], 0.0)


def _forms(channel: Channel) -> list[Codec]:
    """Return in which forms contributions and results travel."""
    return [channel.what.codec, *(each.codec for each in channel.finer), *channel.forms.values()]


def _told_by_the_log(channel: Channel) -> bool:
    """Return whether an anchor follows from leases and contributors alone."""
    what, overlap = channel.what, channel.overlap
    if not isinstance(channel.merge.combine, Mean | Trimmed | Rda) or what.transform is not None:
        return False  # what a life's marks do to lengths and frequencies no log tells
    if channel.polar and not (isinstance(overlap, Block) and isinstance(channel.late, Discard)):
        return False  # nor from which weights marks were told
    if what.residual != Forget() or not all(isinstance(codec, Fp32 | Fp16 | Int8) for codec in _forms(channel)):
        return False  # what a block or a residual makes of a life's marks no log tells
    if any(isinstance(codec, Int8) for codec in _forms(channel)):  # rounding moves whole steps
        return isinstance(overlap, Block) and isinstance(channel.late, Discard)
    return not isinstance(overlap, Delay) or overlap.reconcile in (Blend(), Shift())


def _differences(whose: str, anchor: Anchor, expected: Anchor | State, gap_max: float) -> Iterator[str]:
    """Return in what an anchor differs from the expected one, the marks of its contributors' lives left out."""
    gaps = [np.abs(anchor.vectors()[name] - vector) for name, vector in expected.vectors().items()]
    for gap in gaps:
        gap[MARKS] = 0.0
    if any((gap > gap_max).any() for gap in gaps):
        yield f"{whose}: {max(float(gap.max()) for gap in gaps):.2e} away from what the log adds up to"


def _honest_until(outcome: Outcome, entries: list[Entry]) -> float:
    """Return the last version before a stranger or a liar contributed: what those put in nobody can recompute."""
    honest = {bytes(host.peer) for host in outcome.hosts if not host.lied}
    strange = (each for each in commits(entries) if not honest.issuperset(each.contributors))
    return min((each.version - 1 for each in strange), default=math.inf)


def _known_until(outcome: Outcome, entries: list[Entry], *, lived: bool) -> tuple[float, Lives]:
    """Return up to which version anchors can be worked out; and which lives made them, where that shows in them."""
    until = _honest_until(outcome, entries)
    lives = lives_of(outcome) if lived else {}
    return (min(until, sure_until(lives, entries)) if lived else until), lives
