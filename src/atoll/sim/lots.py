"""The runs that storms are played over: shipped recipes cut down to a few samples a round, and changed by lot.

Which changes go together the spec decides; here are those that do, how often each is drawn, and from which stream: what
is added draws after all that was there, so that the cases of before stay what they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Literal

from msgspec.structs import replace

from atoll.spec.axes.codec import Bf16, Buckets, Codec, E3m0, Fp16, Fp32, Int8, Stochastic, TopK
from atoll.spec.axes.control import Auto, Rung
from atoll.spec.axes.merge import Mean, Merge
from atoll.spec.axes.optimizer import Assign, DelayedNesterov, Sgd
from atoll.spec.axes.pace import (
    Blend,
    Block,
    Carry,
    Delay,
    Discard,
    Full,
    Late,
    OneRound,
    Overlap,
    Quorum,
    RoundsLate,
    Seconds,
    Shift,
    Slack,
    StandIn,
)
from atoll.spec.axes.what import Delta, Feedback, Forget, Grad, Hold, LowRank, Params, Residual
from atoll.spec.axes.when import Every, Fragments, Named, Parts, Tensors
from atoll.spec.axes.whom import (
    All,
    AllGather,
    Butterfly,
    Circles,
    Drawn,
    Exponential,
    Lattice,
    Neighbours,
    Ring,
    Segments,
    Star,
)
from atoll.spec.axes.work import BySpeed
from atoll.spec.load import load_recipe
from atoll.spec.recipe import Channel, Finer, Recipe
from atoll.spec.run import AllowList, Budget, Data, Membership, Run, Upkeep

PATIENCE_S = 20.0
"""A round waits no longer for a slow member: short, so that it matters within a storm."""
STEPS, BATCH = 4, 2
GATHERS = 0.2
"""Part of the runs in which everybody gets all contributions and reduces them for itself."""
OVERLAPPED = 0.4
"""Part of the runs in which peers go on while a round is exchanged."""
OVERLAPS: tuple[Overlap, ...] = (
    Delay(steps=2),
    Delay(steps=1, reconcile=Blend(keep=0.5)),
    Delay(steps=STEPS, reconcile=Shift()),
    OneRound(eager=False),
    OneRound(),
)
ROUNDS_LATE = (0, 0, 0, 1, 2, 3, 5)
"""By how many rounds results of gradients are late; 0: they are waited for, or one of the above."""
IN_CIRCLES = 0.15
"""Part of the runs in which peers exchange in circles, each with weights of its own."""
CIRCLES: tuple[Circles, ...] = (
    Circles(pattern=Drawn(), all_every=4),
    Circles(pattern=Lattice(side=2), all_every=3),
    Circles(pattern=Lattice(side=3)),
    Circles(pattern=Neighbours()),
)
BY_MASS = 0.4
"""Part of those runs in which models have a mass, in these circles:"""
PUSHED: tuple[Circles, ...] = (
    Circles(pattern=Exponential(), all_every=4),
    Circles(pattern=Exponential()),
    Circles(pattern=Drawn(size=3)),
)
IN_SEGMENTS = 0.3
"""Part of those runs that take their models in parts, like this:"""
SEGMENTED: tuple[Circles, ...] = (
    Circles(pattern=Segments(count=3, sources=1, explore=0.5), all_every=4),
    Circles(pattern=Segments(count=5, sources=2)),
)
LENT = 0.4
"""Part of the other runs in circles in which nobody is waited for, and who is late lends its weights, like this:"""
LENDING: tuple[Circles, ...] = (
    Circles(pattern=Drawn(), all_every=4),
    Circles(pattern=Lattice(side=3), all_every=3),
    Circles(pattern=Drawn(size=3)),
)
IN_STARS = 0.15
"""Part of the runs in which whoever leads reduces for all."""
IN_RINGS = 0.2
"""Part of the runs whose sums go round."""
RINGS: tuple[Codec, ...] = (Fp32(), Fp32(), Int8(), Buckets())
"""In these forms."""
IN_FRAGMENTS = 0.2
"""Part of the runs that exchange their model in parts."""
BY_LOT = 0.4
"""Part of those in which the parts are elements by lot, if they can be."""
BY_TENSORS = 0.4
"""Part of those in which the parts are tensors, some of them several times in a period."""
HELD = 0.6
"""Part of those in which what codecs leave out of a part stays in a peer's own weights, if it can, in these forms:"""
HELD_IN: tuple[Codec, ...] = (Bf16(), Fp16(), Int8(), E3m0())
IN_TURNS = 0.4
"""Part of the runs in which parts by lot are averaged between the rounds of a channel, if that can be."""
SPARSE = Channel(when=Fragments(steps=4 * STEPS, count=4, pattern="drawn"), what=Params(), merge=Merge(outer=Assign()))
BEGIN_FINER = 0.3
"""Part of the runs whose first rounds have another form, if they can, one of these:"""
FIRST: tuple[tuple[Finer, ...], ...] = (
    (Finer(rounds=2, codec=Fp32()),),
    (Finer(rounds=3, codec=Fp16()),),
    (Finer(rounds=2, codec=Fp16(), result=Fp32()), Finer(rounds=4, codec=Fp32(), part=2)),
)
BY_NAME = 0.5
"""Part of those in parts of which two are exchanged in turn that have named tensors in the first."""
IN_FACTORS: tuple[Residual | None, ...] = (None, Forget(), Feedback())
"""Gradients travel whole, or as factors in two rounds, of which what is left out is lost or fed back."""
HASTY = 0.3
"""Part of the runs in which a round does not wait for everybody."""
QUORUMS: tuple[Quorum, ...] = (
    Quorum(),
    Quorum(contributors=2),
    Quorum(contributors=1, grace=Seconds(s=0.5)),
    Quorum(contributors=2, grace=Slack(part=0.5)),
    Quorum(contributors=64),
)
LATES: tuple[Late, ...] = (Carry(), Carry(), Discard())


@cache
def _recipe(
    name: str,
    *,
    gathers: bool = False,
    overlap: Overlap | None = None,
    fragments: int = 0,
    circles: Circles | None = None,
    mass: bool = False,
    lends: bool = False,
    quorum: Quorum | None = None,
    late: Late | None = None,
    ring: Codec | None = None,
    factors: Residual | None = None,
    turns: int = 0,
    drawn: bool = False,
    tensors: bool = False,
    rounds_late: int = 0,
    star: bool = False,
    held: Codec | None = None,
    finer: tuple[Finer, ...] = (),
    by_name: bool = False,
) -> Recipe:
    """Return a shipped recipe cut down to a few samples a round, perhaps by another route, in parts, overlapped, ..."""
    shipped = load_recipe(name)
    ((channel_name, channel),) = shipped.channel.items()
    if channel.when.round_steps > 1:
        channel = replace(channel, when=Every(steps=STEPS))
    if gathers:
        channel = replace(channel, whom=replace(channel.whom, route=AllGather()))
    channel = _overlapped(channel, overlap, rounds_late)
    if fragments and isinstance(channel.what, Delta):
        channel = _in_parts(channel, overlap, fragments, drawn=drawn, tensors=tensors)
    if ring is not None and not isinstance(channel.what.codec, TopK):
        whom = replace(channel.whom, route=Ring())
        channel = replace(channel, whom=whom, what=replace(channel.what, codec=ring))
    if circles is not None and isinstance(channel.what, Delta):
        channel = _in_circles(channel, circles, mass=mass, lends=lends)
    if factors is not None and isinstance(channel.what, Grad):
        form = replace(channel.what, codec=Fp32(), transform=LowRank(rank=2, least=1.0), residual=factors)
        channel = replace(channel, what=form, overlap=Block(), whom=All())
    batch = BATCH if channel.when.round_steps > 1 else BATCH * STEPS
    work = replace(shipped.work, batch=batch)
    if quorum is not None:
        channel, work = _hasty(channel, quorum, late or Discard()), replace(work, quota=BySpeed())
    if star and isinstance(channel.whom, All) and isinstance(channel.whom.route, Butterfly):
        channel = replace(channel, whom=All(route=Star()))
    if held is not None and _can_hold(channel):
        channel = replace(channel, what=Delta(codec=held, residual=Hold()))
    if by_name and isinstance(channel.when, Fragments) and channel.when.count == 2 and channel.when.pattern != "drawn":
        channel = replace(channel, when=Named(steps=channel.when.steps, names=("layers.0.", "layers.2.")))
    if _can_begin_finer(channel):
        channel = replace(channel, finer=tuple(each for each in finer if each.part <= channel.parts))
    channels = {channel_name: channel}
    if turns and _goes_alone(channel):
        channels = {channel_name: replace(channel, when=Every(steps=turns * STEPS)), "sparse": SPARSE}
    return replace(shipped, work=work, channel=channels)


def _overlapped(channel: Channel, overlap: Overlap | None, rounds_late: int) -> Channel:
    """Return a channel whose peers go on while a round is exchanged, if they are to."""
    if overlap is not None:
        channel = replace(channel, overlap=OneRound(eager=False) if isinstance(channel.what, Grad) else overlap)
    if rounds_late and isinstance(channel.what, Grad):
        channel = replace(channel, overlap=RoundsLate(rounds=rounds_late))
    if channel.overlap == OneRound():  # which must know its share of a mean before it comes
        channel = replace(channel, merge=replace(channel.merge, combine=Mean()))
    return channel


def _in_parts(channel: Channel, overlap: Overlap | None, fragments: int, *, drawn: bool, tensors: bool) -> Channel:
    """Return a channel that is about parts of the model in turn."""
    drawn = drawn and isinstance(channel.merge.combine, Mean)
    pattern: Literal["drawn", "strided"] = "drawn" if drawn else "strided"
    when: Parts = Fragments(steps=fragments * STEPS, count=fragments, pattern=pattern)
    if tensors and not drawn:
        when = Tensors(steps=when.steps, count=fragments, passes=fragments / 2)
    return replace(channel, when=when, overlap=Delay(steps=1) if isinstance(overlap, OneRound) else channel.overlap)


def _in_circles(channel: Channel, circles: Circles, *, mass: bool, lends: bool) -> Channel:
    """Return a channel whose peers have weights of their own."""
    if lends:
        merge = Merge(outer=Assign())
        barrier, late = Quorum(), StandIn()
        return Channel(when=Every(steps=STEPS), what=Params(), whom=circles, merge=merge, barrier=barrier, late=late)
    outer = channel.merge.outer if isinstance(channel.merge.outer, Assign | Sgd) else Assign()
    own = mass or isinstance(outer, Assign) or outer.nesterov
    merge = Merge(outer=Assign(), combine=Mean(weights="mass")) if mass else Merge(outer=outer)
    return Channel(when=Every(steps=STEPS), what=Params() if own else Delta(), whom=circles, merge=merge)


def _goes_alone(channel: Channel) -> bool:
    """Return whether another channel's rounds may come between those of this one."""
    plain = isinstance(channel.overlap, Block) and isinstance(channel.barrier, Full) and isinstance(channel.whom, All)
    whole = isinstance(channel.when, Every) and isinstance(channel.what, Delta)
    return plain and whole and not isinstance(channel.whom.route, Ring)


def _can_hold(channel: Channel) -> bool:
    """Return whether what is left out of parts of the model may stay in a peer's own weights."""
    late, overlap, whom = channel.late, channel.overlap, channel.whom
    shifts = isinstance(overlap, Block) or (isinstance(overlap, Delay) and isinstance(overlap.reconcile, Shift))
    parts = isinstance(channel.when, Parts) and isinstance(channel.what, Delta) and shifts
    owned = isinstance(whom, All) and not isinstance(whom.route, Ring)
    return parts and owned and isinstance(late, Discard) and isinstance(channel.merge.combine, Mean)


def _can_begin_finer(channel: Channel) -> bool:
    """Return whether first rounds may have another form than later ones."""
    owned = isinstance(channel.whom, All) and isinstance(channel.whom.route, Butterfly | Star)
    whole = isinstance(channel.what.codec, Fp32 | Fp16 | Bf16 | Int8 | E3m0) and channel.what.transform is None
    fine = isinstance(channel.when, Every | Fragments | Named) and not channel.polar and not channel.carries
    return isinstance(channel.what, Delta) and owned and whole and fine


def _hasty(channel: Channel, quorum: Quorum, late: Late) -> Channel:
    """Return a channel whose rounds do not wait for everybody, with what else goes with that."""
    if isinstance(late, Discard) or isinstance(channel.what, Grad):
        overlap = OneRound(eager=False) if isinstance(channel.overlap, OneRound) else channel.overlap
        return replace(channel, barrier=quorum, overlap=overlap)
    merge, what, overlap = channel.merge, channel.what, channel.overlap
    if isinstance(channel.when, Parts):
        merge = replace(merge, combine=Mean(weights="tokens^2/steps"))
        what = replace(what, residual=Forget())
        overlap = overlap if isinstance(overlap, Block) else Delay(steps=min(2, channel.when.round_steps))
    else:
        overlap = Block()
        if isinstance(merge.outer, Sgd):
            merge = replace(merge, outer=DelayedNesterov(lr=merge.outer.lr, every=3))
    return replace(channel, barrier=quorum, late=late, merge=merge, what=what, overlap=overlap)


def run_of(
    rng: Random, start_with: int, *, contributors_min: int = 1, who: Sequence[bytes] = (), recipe: str = ""
) -> Run:
    """Return an endless run of a recipe, by default of any, most often DiLoCo; by either route, waiting or not."""
    admitted = AllowList(peers=tuple(peer.hex() for peer in who)) if who else Membership().who
    drawn = rng.choice(("diloco", "diloco", "diloco", "opendiloco", "fedavg", "ddp", "sparseloco"))
    gathers = not recipe and rng.random() < GATHERS
    overlap = rng.choice(OVERLAPS) if not recipe and rng.random() < OVERLAPPED else None
    fragments = rng.choice((2, 3)) if not recipe and rng.random() < IN_FRAGMENTS else 0
    circles = rng.choice(CIRCLES) if not recipe and rng.random() < IN_CIRCLES else None
    hasty = Random(repr(rng.getstate()))  # a stream of its own: all that is drawn after it stays as it was
    quorum = hasty.choice(QUORUMS) if not recipe and circles is None and hasty.random() < HASTY else None
    late = hasty.choice(LATES)
    ring = hasty.choice(RINGS) if not recipe and not gathers and quorum is None and hasty.random() < IN_RINGS else None
    mass = circles is not None and hasty.random() < BY_MASS
    factors = hasty.choice(IN_FACTORS) if not recipe and quorum is None else None
    parts = circles is not None and hasty.random() < IN_SEGMENTS
    lends = circles is not None and not mass and not parts and hasty.random() < LENT
    if mass or parts or lends:
        circles = hasty.choice(PUSHED if mass else SEGMENTED if parts else LENDING)
    turns = hasty.choice((2, 3, 5)) if not recipe and hasty.random() < IN_TURNS else 0
    how = _recipe(
        recipe or drawn,
        gathers=gathers,
        overlap=overlap,
        fragments=fragments,
        circles=circles,
        mass=mass,
        lends=lends,
        quorum=quorum,
        late=late,
        ring=ring,
        factors=factors,
        turns=turns,
        drawn=hasty.random() < BY_LOT,
        tensors=hasty.random() < BY_TENSORS,
        rounds_late=0 if recipe else hasty.choice(ROUNDS_LATE),
        star=not recipe and hasty.random() < IN_STARS,
        held=hasty.choice(HELD_IN) if not recipe and hasty.random() < HELD else None,
        finer=hasty.choice(FIRST) if not recipe and hasty.random() < BEGIN_FINER else (),
        by_name=hasty.random() < BY_NAME,
    )
    return Run(
        name="search",
        recipe=how,
        budget=Budget(rounds=10**9),
        data=Data(context=16),
        membership=Membership(who=admitted, start_with=start_with, contributors_min=contributors_min),
        upkeep=Upkeep(checkpoint_every=rng.choice((1, 1, 2, 3)), patience_s_max=PATIENCE_S),
    )


def steered(rng: Random, recipe: Recipe) -> Recipe:
    """Return a recipe whose knobs are turned: in forms of which a log tells all, or in those that leave something out.

    The limits are about what exchanges here take, so that some are kept, some broken, and some change sides.
    """
    exact = rng.random() < 0.5
    reconcile = rng.choice((Blend(), Shift())) if exact else Blend(keep=0.5)
    late = Delay(steps=2, reconcile=reconcile) if rng.random() < 0.6 else Block()
    half = Fp32() if exact and late != Block() else Fp16()  # of weights of one's own 16 bits round otherwise
    ladder = [Rung(codec=Fp32(), steps=STEPS), Rung(codec=half, steps=2 * STEPS, overlap=late)]
    if not exact:
        sparse = TopK(keep=8, block=64, values=Stochastic(bits=4, block=64))
        ladder += [
            Rung(codec=E3m0(), steps=2 * STEPS, overlap=late),
            Rung(codec=sparse, steps=3 * STEPS, result=Fp32(), route=AllGather()),
        ]
    ((name, channel),) = recipe.channel.items()
    channel = replace(
        channel,
        when=Every(steps=rng.choice((1, 2, STEPS))),
        what=Delta(residual=Forget() if exact else Feedback()),
        merge=replace(channel.merge, outer=Sgd(lr=0.7, momentum=0.9, nesterov=True)),
        finer=(),
    )
    rates = ((1, 0.5), (3, 0.75)) if rng.random() < 0.5 else ()
    share = round(2 ** rng.uniform(-6, -1), 3)
    control = Auto(ladder=tuple(ladder), share=share, least=rng.choice((1, 2)), outer_lr=rates)
    return replace(recipe, channel={name: channel}, control=control)
