"""What must hold of one channel: which choices on its axes go together."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.spec.axes.codec import Bf16, Fp16, Fp32, MaxN, Sparse
from atoll.spec.axes.merge import CentredClip, Mean, MeanPresent, MedianNormClip, Merge, Rda, Sum, Trimmed
from atoll.spec.axes.optimizer import Accumulate, Assign, Sgd, SignSgd
from atoll.spec.axes.pace import (
    Blend,
    Block,
    Carry,
    Delay,
    Discard,
    Full,
    OneRound,
    Quorum,
    RoundsLate,
    Seconds,
    StandIn,
)
from atoll.spec.axes.what import Delta, Feedback, Forget, Grad, Hold, Params
from atoll.spec.axes.when import Every, Fragments, Growth, Named, Parts, TargetBatch, Tensors, WithMoments
from atoll.spec.axes.whom import (
    GROUP_MAX,
    All,
    AllGather,
    Butterfly,
    Circles,
    Drawn,
    Exponential,
    Lattice,
    Mesh,
    Neighbours,
    Regions,
    Ring,
    Rings,
    Segments,
    Star,
    Trees,
)
from atoll.spec.axes.work import Constant, Work
from atoll.spec.recipe import Channel
from atoll.spec.rules.home import home_rules
from atoll.spec.rules.moments import moments_rules
from atoll.spec.rules.optimizer import optimizer_rules
from atoll.spec.rules.terms import Rule, above, within
from atoll.spec.rules.wire import is_exact, wire_rules
from atoll.spec.strict import KeyPath

FRAGMENTS_MAX, DRAWN_MAX, TENSORS_MAX = 1024, 65536, 64
PASSES_MAX = 1e9
LATE_MAX = 64
"""Rounds that results may be late by: a peer keeps as many anchors."""
AHEAD_BY_MAX = 1_000_000
DIMENSIONS_MAX = 8
BATCH_MAX = 2**40
"""Samples of all together."""
_FINE = Fp32 | Fp16 | Bf16


def channel_rules(path: KeyPath, channel: Channel, work: Work) -> Iterator[Rule]:
    """All that must hold of one channel beside the work that feeds it."""
    yield from _when_rules(path, channel)
    if isinstance(channel.when, WithMoments):
        yield from moments_rules(path, channel, channel.when, work.inner)
    yield from optimizer_rules((*path, "merge", "outer"), channel.merge.outer)
    yield from _whom_rules(path, channel)
    yield from wire_rules(path, channel)
    yield from _combine_rules((*path, "merge", "combine"), channel)
    yield from _overlap_rules(path, channel)
    yield from _barrier_rules((*path, "barrier"), channel)
    yield from home_rules(path, channel)
    if isinstance(channel.late, Carry):
        yield from _carry_rules(path, channel)
    if isinstance(channel.late, StandIn):
        yield from _stand_in_rules((*path, "late"), channel)
    accumulates = isinstance(work.inner, Accumulate)
    match channel.what:
        case Grad():
            hint = 'set recipe.work.inner = { kind = "accumulate" }, or exchange { kind = "delta" }'
            yield accumulates, (*path, "what"), "gradients are taken at the anchor, but the inner work moves on", hint
            hint = 'choose { kind = "sgd", lr = ... } or { kind = "adamw", lr = ... }'
            assigns = isinstance(channel.merge.outer, Assign)
            yield not assigns, (*path, "merge", "outer"), "a gradient cannot be assigned: it needs a rate", hint
            idle = work.schedule != Constant() and not channel.merge.scheduled
            what = "false, so recipe.work.schedule would have no effect"
            yield not idle, (*path, "merge", "scheduled"), what, "set it to true, or leave the schedule out"
        case Delta():
            hint = 'choose recipe.work.inner of kind "adamw", "sgd", "lamb" or "muon", or exchange { kind = "grad" }'
            yield not accumulates, (*path, "what"), "there is no delta: the inner work only accumulates", hint
        case Params():
            hint = 'choose recipe.work.inner of kind "adamw", "sgd", "lamb" or "muon", or exchange { kind = "grad" }'
            yield not accumulates, (*path, "what"), "weights stay where they are: the inner work only accumulates", hint
            exact = is_exact(channel.what)
            hint = 'choose codec { kind = "fp32" }, "fp16" or "bf16" without feedback, or exchange { kind = "delta" }'
            yield exact, (*path, "what"), "weights as coarse as that are no model any more", hint
            hint = 'choose { kind = "block" }, or exchange { kind = "delta" }'
            said = "what a peer goes on with is known by how far it went, not by where it is"
            yield isinstance(channel.overlap, Block), (*path, "overlap"), said, hint


def _when_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    when, path = channel.when, (*path, "when")
    if isinstance(when, TargetBatch):
        yield within((*path, "samples"), when.samples, 1)
        if when.growth is not None:
            yield from _growth_rules((*path, "growth"), when.samples, when.growth)
        gradients = isinstance(channel.what, Grad)
        yield gradients, path, "a batch of all together is one of gradients", 'exchange { kind = "grad" }'
        full = isinstance(channel.barrier, Full)
        said = "a round that ends before everybody is in has less than the batch"
        yield full, (*path[:-1], "barrier"), said, 'choose { kind = "full" }'
        by_samples = channel.merge.combine.weights == "samples"
        said = "is uniform, but peers have unequal parts of the batch"
        yield by_samples, (*path[:-1], "merge", "combine", "weights"), said, 'set it to "samples"'
        return
    yield within((*path, "steps"), when.steps, 1)
    if not isinstance(when, Fragments | Named | Tensors):
        return
    if isinstance(when, Named):
        said = "names nothing: the model would have one part"
        yield bool(when.names) and all(when.names), (*path, "names"), said, 'name tensors, for example ["embed_tokens"]'
    else:
        yield within((*path, "count"), when.count, 1, _parts_max(when))
    if isinstance(when, Tensors):
        yield within((*path, "passes"), when.passes, 0, PASSES_MAX)
    said = f"{when.steps} is not a multiple of {when.count}, the exchanges in it"
    yield when.steps % when.count == 0, (*path, "steps"), said, "each round has as many steps as every other"
    whole = isinstance(channel.what, Grad)
    yield not whole, path, "gradients are taken at one anchor, of all parts", 'choose { kind = "every", steps = ... }'
    linear = isinstance(channel.merge.outer, Assign | Sgd | SignSgd)
    said = "counts its steps, of which every part has had another number"
    yield linear, (*path[:-1], "merge", "outer"), said, 'choose { kind = "sgd", lr = ... }'
    if isinstance(when, Fragments) and when.pattern == "drawn":
        yield from _drawn_rules(path, channel)


def _growth_rules(path: KeyPath, samples: int, growth: Growth) -> Iterator[Rule]:
    """A batch that grows: from what it is on, to what it is at most."""
    yield within((*path, "every"), growth.every, 1)
    yield within((*path, "add"), growth.add, 1)
    yield within((*path, "until"), growth.until, 0)
    yield within((*path, "most"), growth.most, samples, BATCH_MAX)


def _drawn_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """Elements by lot are of no tensor, and no part is the same twice."""
    combine, hint = channel.merge.combine, 'choose pattern = "strided", "sequential" or "packed", or '
    clips = isinstance(combine, MedianNormClip | CentredClip) and combine.over == "tensor"
    tensors = clips or isinstance(combine, Rda)
    said = "elements by lot are no tensors, whose lengths this way to combine needs"
    yield not tensors, (*path, "pattern"), said, hint + 'merge.combine = { kind = "mean" }'
    values = channel.what.transform is None
    yield values, (*path, "pattern"), "elements by lot have no frequencies", hint + "leave what.transform out"
    forgets = channel.what.owners == Forget()
    said = "what an owner left out of one part would be added to other elements in the next"
    yield forgets, (*path, "pattern"), said, hint + 'set what.owners = { kind = "forget" }'


def _whom_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    whom, path = channel.whom, (*path, "whom")
    if isinstance(whom, All):
        match whom.route:
            case Butterfly(group=group):
                yield within((*path, "route", "group"), group, 2, GROUP_MAX)
            case Ring():
                yield from _carried_rules(path, channel)
            case Trees(roots=roots, gain=gain):
                yield within((*path, "route", "roots"), roots, 1, GROUP_MAX)
                said = f"{gain} is out of range"
                yield 0 <= gain < 1, (*path, "route", "gain"), said, "it must be at least 0 and below 1"
                yield from _carried_rules(path, channel)
            case Rings(clusters=clusters):
                yield within((*path, "route", "clusters"), clusters, 2, GROUP_MAX)
                yield from _carried_rules(path, channel)
            case Regions(near_ms=near_ms):
                yield above((*path, "route", "near_ms"), near_ms)
                mean = isinstance(channel.merge.combine, Mean)
                said = "regions send each other sums, of which only a mean can be made"
                yield mean, (*path, "route"), said, 'choose merge.combine { kind = "mean" }, or { kind = "butterfly" }'
            case AllGather() | Star():
                pass
        return
    yield within((*path, "all_every"), whom.all_every, 0)
    match whom.pattern:
        case Lattice(side=side, dimensions=dimensions):
            yield within((*path, "pattern", "side"), side, 2, GROUP_MAX)
            yield within((*path, "pattern", "dimensions"), dimensions, 1, DIMENSIONS_MAX)
        case Drawn(size=size):
            yield within((*path, "pattern", "size"), size, 2, GROUP_MAX)
        case Neighbours(reach=reach):
            yield within((*path, "pattern", "reach"), reach, 1, GROUP_MAX // 2)
        case Exponential():
            pass
        case Regions(near_ms=near_ms):
            yield above((*path, "pattern", "near_ms"), near_ms)
        case Segments(count=count, sources=sources, explore=explore):
            yield within((*path, "pattern", "count"), count, 1, FRAGMENTS_MAX)
            yield within((*path, "pattern", "sources"), sources, 1, GROUP_MAX - 1)
            yield within((*path, "pattern", "explore"), explore, 0, 1)
        case Mesh(teach_every=teach_every, pull=pull):
            often = teach_every != 1
            said = "1, so that no round would be left to work in"
            yield often, (*path, "pattern", "teach_every"), said, "choose 2 or more, or 0 for never"
            yield within((*path, "pattern", "teach_every"), teach_every, 0)
            yield within((*path, "pattern", "pull"), pull, 0, 1)
            yield from _mesh_rules(path, channel, whom)
            return
    yield from _circle_rules(path, channel)


def _mesh_rules(path: KeyPath, channel: Channel, whom: Circles) -> Iterator[Rule]:
    """What goes with gradients that are taken at everybody's own weights and sent over each link by itself."""
    what, other = channel.what, 'or choose another whom.pattern, or whom { kind = "all" }'
    said = "over a link of its own goes what a step's work has found"
    yield isinstance(what, Grad), path, said, f'exchange {{ kind = "grad" }}, {other}'
    whole = isinstance(channel.when, Every | TargetBatch) and isinstance(channel.overlap, Block)
    said = "everybody waits for what comes over its links, which is about the whole model"
    hint = 'choose when { kind = "every" } or "target-batch", and overlap { kind = "block" }'
    yield whole, path, said, f"{hint}, {other}"
    full = isinstance(channel.barrier, Full) and isinstance(channel.late, Discard)
    said = "a round ends when all are in"
    yield full, path, said, f'choose barrier {{ kind = "full" }} and late {{ kind = "discard" }}, {other}'
    mean = isinstance(channel.merge.combine, Mean) and channel.merge.combine.weights in ("uniform", "samples")
    said = "the mean of what comes is taken, by samples or evenly"
    yield mean, path, said, f'choose merge.combine {{ kind = "mean" }} with weights "samples" or "uniform", {other}'
    own = isinstance(channel.merge.outer, Sgd)
    said = "rounds in which weights travel would be counted by an optimizer that counts its steps"
    yield own, path, said, f'choose merge.outer of kind "sgd", {other}'
    fits = is_exact(what) or (isinstance(what.codec, MaxN) and not isinstance(what.residual, Hold))
    said = "what is left out must be kept for each link, which is built for one codec"
    hint = 'choose what.codec { kind = "max-n" }, or "fp32", "fp16" or "bf16" without feedback'
    yield fits and what.owners == Forget() and what.transform is None, path, said, f"{hint}, {other}"
    said = "the last round is of all; others that are not of gradients are those in which one teaches"
    yield whom.all_every == 0, (*path, "all_every"), said, "set whom.pattern.teach_every instead"


def _carried_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """What can be added up a little at a time, and encoded again at every hop."""
    what, path = channel.what, (*path, "route")
    other = 'or choose { kind = "butterfly" }'
    dense = not isinstance(what.codec, Sparse)
    said = "a sum of sparse values is not as sparse: every hop would lose more"
    yield dense, path, said, f"choose a what.codec that sends every value, {other}"
    mean = isinstance(channel.merge.combine, Mean) and what.transform is None
    said = "nobody has all contributions to look at, only a sum of some"
    yield mean, path, said, f'choose merge.combine {{ kind = "mean" }} without what.transform, {other}'
    full = isinstance(channel.barrier, Full) and isinstance(channel.late, Discard)
    said = "a sum is carried on when everybody is in"
    yield full, path, said, f'choose barrier {{ kind = "full" }} and late {{ kind = "discard" }}, {other}'
    forgets = what.residual == what.owners == Forget()
    said = "what a hop leaves out of a sum is nobody's own, so nobody could feed it back"
    yield forgets, path, said, f"leave what.residual and what.owners out, {other}"
    moves = not isinstance(what, Params) or isinstance(what.codec, Fp32)
    said = "weights would be rounded at every hop"
    yield moves, path, said, f'exchange {{ kind = "delta" }}, send weights as {{ kind = "fp32" }}, {other}'
    fits = channel.merge.combine.weights == "uniform" or not isinstance(what.codec, Fp16)
    said = "a sum weighed by samples is too large for fp16"
    yield fits, path, said, f'set merge.combine.weights = "uniform", choose another what.codec, {other}'


def _circle_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """What goes with models that differ from peer to peer."""
    what, all_ = channel.what, 'or choose whom { kind = "all" }'
    common = isinstance(what, Grad)
    yield not common, path, "gradients are taken at one common anchor", f'exchange {{ kind = "params" }}, {all_}'
    plain = isinstance(channel.when, Every) and isinstance(channel.overlap, Block)
    said = "circles exchange whole models after a fixed number of steps, and wait for the result"
    yield plain, path, said, f'choose when {{ kind = "every" }} and overlap {{ kind = "block" }}, {all_}'
    if channel.regional is not None:
        return  # which has rules of its own
    full = isinstance(channel.barrier, Full) and isinstance(channel.late, Discard)
    hasty = isinstance(channel.barrier, Quorum) and isinstance(channel.late, StandIn)
    said = "all circles of a round end together, when all are in or those who are not have lent what they have"
    hint = 'choose barrier { kind = "full" } and late { kind = "discard" }, or "quorum" and "stand-in"'
    yield full or hasty, path, said, f"{hint}, {all_}"
    mean = isinstance(channel.merge.combine, Mean)
    said = "the last round of all is the mean of weights, and those of circles must come to the same"
    yield mean, path, said, f'choose merge.combine {{ kind = "mean" }}, {all_}'
    own = isinstance(channel.merge.outer, Assign | Sgd)
    said = "an outer optimizer that counts its steps would count others than everybody's"
    yield own, path, said, f'choose merge.outer of kind "assign" or "sgd", {all_}'
    said = "in a round of all weights travel in the form of contributions, which is too coarse for that"
    yield is_exact(what), path, said, f'choose codec {{ kind = "fp32" }}, "fp16" or "bf16" without feedback, {all_}'


def _combine_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """Ways to combine, and which of them go with the route and the codec."""
    combine = channel.merge.combine
    if combine.weights == "mass":
        own = isinstance(channel.whom, Circles) and isinstance(channel.what, Params)
        said = "a mass goes with weights that each peer has of its own"
        hint = 'choose whom { kind = "circles", ... } and what { kind = "params" }, or weights = "uniform"'
        yield own and isinstance(channel.merge.outer, Assign), (*path, "weights"), said, hint + ', with outer "assign"'
        whole = not (isinstance(channel.whom, Circles) and isinstance(channel.whom.pattern, Segments))
        said = "parts of a model go to different peers, so there is no one mass beside it"
        yield whole, (*path, "weights"), said, 'choose another whom.pattern, or weights = "samples"'
    gathers = isinstance(channel.whom.route, AllGather)
    match combine:
        case Mean():
            return
        case Sum():
            even = combine.weights == "uniform"
            yield even, (*path, "weights"), "a sum counts every contribution once", 'set it to "uniform"'
        case MeanPresent():
            sparse = isinstance(channel.what.codec, Sparse)
            said = "everybody sends everything: it is the mean"
            yield sparse, path, said, 'choose { kind = "mean" }, or a codec that leaves something out, like "top-k"'
        case Trimmed():
            fits = 0 < combine.drop < 0.5
            yield fits, (*path, "drop"), f"{combine.drop} is out of range", "it must be more than 0 and less than 0.5"
        case MedianNormClip() | CentredClip():
            said = f"an owner has chunks, of which a {combine.over} may be many: it cannot know its length"
            hint = 'set over = "chunk", or whom.route = { kind = "all-gather" }'
            yield gathers or combine.over == "chunk", (*path, "over"), said, hint
        case Rda():
            fine = is_exact(channel.what) and all(isinstance(form, _FINE) for form in channel.forms.values())
            said = "directions and lengths of tensors travel side by side: a coarse form would round one away"
            yield fine, path, said, 'choose what.codec { kind = "fp32" }, "fp16" or "bf16" without feedback'
    if isinstance(combine, CentredClip):
        yield above((*path, "radius"), combine.radius)
        yield within((*path, "iterations"), combine.iterations, 1, 1000)


def _parts_max(when: Fragments | Tensors) -> int:
    """Return in how many parts a model may be exchanged."""
    if isinstance(when, Tensors):
        return TENSORS_MAX
    return DRAWN_MAX if when.pattern == "drawn" else FRAGMENTS_MAX


def _overlap_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    overlap, steps, merge = channel.overlap, channel.when.round_steps, channel.merge
    gradients = isinstance(channel.what, Grad)
    path = (*path, "overlap")
    match overlap:
        case Block():
            pass
        case Delay(reconcile=reconcile):
            said = "gradients are taken at an anchor: there is no step to go on with"
            yield not gradients, path, said, 'choose { kind = "one-round", eager = false }, or exchange deltas'
            whole = isinstance(channel.when, Every)
            most = steps - 1 if whole and isinstance(reconcile, Blend) else steps
            said = "is 0: a result that is waited for is not late"
            yield overlap.steps != 0, (*path, "steps"), said, 'choose { kind = "block" }'
            yield within((*path, "steps"), overlap.steps, 1, most)
            if isinstance(reconcile, Blend):
                yield within((*path, "reconcile", "keep"), reconcile.keep, 0, 1)
        case RoundsLate(rounds=rounds):
            said = "who trains goes on from weights of its own: only gradients can be of the anchors of earlier rounds"
            hint = 'choose { kind = "one-round" } or { kind = "delay", ... }, or exchange { kind = "grad" }'
            yield gradients, path, said, hint
            yield within((*path, "rounds"), rounds, 1, LATE_MAX)
        case OneRound(eager=eager):
            said = "what one part is ahead by would be late for the others"
            parts = isinstance(channel.when, Parts)
            yield not parts, path, said, 'choose { kind = "delay", ... } with fragments'
            said = "a gradient of our own would be applied twice"
            yield not (eager and gradients), (*path, "eager"), said, "set it to false, or exchange deltas"
            full = isinstance(channel.barrier, Full)
            said = "how much of the mean is our own is known before it comes only where everybody is waited for"
            yield full or not eager, (*path, "eager"), said, 'set barrier = { kind = "full" }, or eager = false'
            even = merge.combine.weights == "uniform"
            said = "how much of the mean is our own is known before it comes only where all weigh the same"
            yield even or not eager, (*path, "eager"), said, 'set merge.combine.weights = "uniform", or eager = false'
            linear = isinstance(merge.outer, Assign | Sgd) and not merge.scheduled
            mean = isinstance(merge.combine, Mean)
            said = "our own share can be taken back only from a mean"
            yield mean or not eager, (*path, "eager"), said, 'set merge.combine.kind = "mean", or eager = false'
            said = "our own share can be taken back only from an outer optimizer that is linear, at a constant rate"
            hint = 'choose merge.outer of kind "sgd" or "assign" with scheduled = false, or eager = false'
            yield linear or not eager, (*path, "eager"), said, hint


def _barrier_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    barrier = channel.barrier
    if not isinstance(barrier, Quorum):
        return
    yield within((*path, "contributors"), barrier.contributors, 1)
    if isinstance(barrier.grace, Seconds):
        yield within((*path, "grace", "s"), barrier.grace.s, 0, 86400)
    else:
        yield within((*path, "grace", "part"), barrier.grace.part, 0, 1)
    if barrier.lag_max is not None:
        yield within((*path, "lag_max"), barrier.lag_max, 0, AHEAD_BY_MAX)
        said = "who is not done when a round ends begins anew, and is never behind"
        carries = isinstance(channel.late, Carry)
        yield carries, (*path, "lag_max"), said, 'leave it out, or set late = { kind = "carry" }'


def _stand_in_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """What goes with weights that are lent."""
    whom = channel.whom
    fits = isinstance(whom, Circles) and isinstance(whom.pattern, Lattice | Drawn)
    said = "who joins what its circle made later must know that all of it were in one circle with it"
    yield fits, path, said, 'choose whom { kind = "circles" } with a pattern "lattice" or "drawn", or late "discard"'
    plain = channel.what == Params() and channel.merge == Merge(outer=Assign())
    said = "weights are lent as they are, and each counts as one"
    yield plain, path, said, 'choose what { kind = "params" } in fp32, merge.outer "assign" and the uniform mean'


def _carry_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """What goes with work that outlasts a round."""
    hint = 'set late = { kind = "discard" }, or '
    overlap, parts = channel.overlap, isinstance(channel.when, Parts)
    said = "it is of the anchor that its round starts from, and cannot enter a later one: only the way from there can"
    yield isinstance(channel.what, Delta), (*path, "late"), said, hint + 'exchange { kind = "delta" }'
    if parts:
        blends = isinstance(overlap, Block) or (isinstance(overlap, Delay) and isinstance(overlap.reconcile, Blend))
        said = "parts that come back to who has not contributed have nothing of its own to take the place of"
        where = (*path, "overlap")
        yield blends, where, said, hint + 'choose { kind = "delay", ..., reconcile = { kind = "blend" } } or "block"'
        forgets = not isinstance(channel.what.residual, Feedback)
        said = "a contribution that is late is made again of another part, and what was left out of it would be lost"
        yield forgets, (*path, "what", "residual"), said, hint + 'set residual = { kind = "forget" }'
    else:
        said = "who works on has one place that its work starts from: what it goes on with meanwhile would have another"
        yield isinstance(overlap, Block), (*path, "overlap"), said, hint + 'set overlap = { kind = "block" }'
