"""The sense of a run as a whole: what its types alone cannot say.

Each rule is one line of a list: where, what is wrong, what to do. The first that is broken is reported, by key path,
like every other mistake in a file. A run from another peer is checked by the same rules, so nobody can make us
build a model of a billion layers or a folder outside our own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from atoll.spec.knobs import delay_max, turned
from atoll.spec.recipe import (
    BLOCK_MAX,
    BLOCK_MIN,
    GROUP_MAX,
    Accumulate,
    AdamW,
    All,
    AllGather,
    Assign,
    Auto,
    Bf16,
    Blend,
    Block,
    Buckets,
    Butterfly,
    BySpeed,
    Carry,
    CentredClip,
    Channel,
    Codec,
    Constant,
    Cosine,
    Cyclic,
    Dct,
    Delay,
    DelayedNesterov,
    Delta,
    Discard,
    Drawn,
    E3m0,
    Every,
    Feedback,
    Forget,
    Fp16,
    Fp32,
    Fragments,
    Full,
    Grad,
    Growing,
    Inner,
    Int8,
    Knobs,
    Lamb,
    Lattice,
    Mean,
    MeanPresent,
    MedianNormClip,
    Muon,
    Neighbours,
    OneRound,
    Outer,
    Params,
    Quorum,
    Rda,
    Recipe,
    Ring,
    Seconds,
    Sgd,
    Sign,
    Significance,
    SignSgd,
    Sparse,
    Stochastic,
    TargetBatch,
    Threshold,
    TopK,
    Trimmed,
    What,
    Work,
    Wsd,
)
from atoll.spec.run import SIZES, AllowList, Corpus, Data, Folder, Fresh, Lora, Model, Run, Size
from atoll.spec.strict import KeyPath, Layers, near

Rule = tuple[bool, KeyPath, str, str]
"""Holds, where, what is wrong otherwise, what to do."""

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_DIGEST = re.compile(r"^([0-9a-f]{32,128})?$")
_PEER = re.compile(r"^[0-9a-f]{64}$")
_BPE = re.compile(r"^bpe-([1-9][0-9]{2,6})$")
_VOCABULARY_MIN = 260
_SEED_MAX = 2**63 - 1
FRAGMENTS_MAX = 1024
DIMENSIONS_MAX = 8
LADDER_MAX = 64
_COUNT_MAX = 2**53  # beyond it a float, and so another program, could not tell two counts apart


def check(run: Run, layers: Layers) -> Run:
    """Return `run`, or raise the `SpecError` of the first rule it breaks."""
    for holds, path, what, hint in _rules(run):
        if not holds:
            layers.refuse(path, what, hint=hint)
    return run


def _rules(run: Run) -> Iterator[Rule]:
    yield _named(("name",), run.name)
    yield from _budget_rules(run)
    yield from _model_rules(run.model)
    yield from _data_rules(run.data)
    yield from _recipe_rules(run.recipe)
    yield from _membership_rules(run)
    for which, seed in (("model", run.seeds.model), ("data", run.seeds.data)):
        yield _within(("seeds", which), seed, 0, _SEED_MAX)
    yield _within(("upkeep", "checkpoint_every"), run.upkeep.checkpoint_every, 0)
    yield _within(("upkeep", "evaluate_every"), run.upkeep.evaluate_every, 0)
    yield _within(("upkeep", "evaluate_samples"), run.upkeep.evaluate_samples, 1)
    yield _above(("upkeep", "patience_s_max"), run.upkeep.patience_s_max)
    yield _above(("upkeep", "silence_s_max"), run.upkeep.silence_s_max)


def _budget_rules(run: Run) -> Iterator[Rule]:
    tokens, rounds = run.budget.tokens, run.budget.rounds
    yield _within(("budget", "tokens"), tokens, 0)
    yield _within(("budget", "rounds"), rounds, 0)
    said = "both tokens and rounds are given" if tokens and rounds else "neither tokens nor rounds is given"
    yield bool(tokens) != bool(rounds), ("budget",), said, "give exactly one, for example: rounds = 12"


def _model_rules(model: Model) -> Iterator[Rule]:
    if isinstance(model, Folder):
        yield bool(model.path), ("model", "path"), "is empty", "give the path of a Hugging Face model folder"
        yield _digest(("model", "digest"), model.digest)
        if model.adapter is not None:
            yield from _lora_rules(model.adapter)
    else:
        yield from _size_rules(model)


def _lora_rules(lora: Lora) -> Iterator[Rule]:
    path = ("model", "adapter")
    yield _within((*path, "rank"), lora.rank, 1, 4096)
    yield _above((*path, "alpha"), lora.alpha)
    yield bool(lora.targets), (*path, "targets"), "is empty", 'name the layers to adapt, for example ["q_proj"]'


def _size_rules(model: Fresh) -> Iterator[Rule]:
    path, size = ("model", "size"), model.size
    if isinstance(size, str):
        hint = f"known sizes: {', '.join(SIZES)}{near(size, SIZES)}; or write a table with dim, layers, heads, ..."
        yield size in SIZES, path, f"unknown size '{size}'", hint
        return
    for name, most in (("dim", 65536), ("layers", 1024), ("heads", 1024), ("kv_heads", 1024), ("ffn", 2**20)):
        yield _within((*path, name), getattr(size, name), 1, most)
    yield from _head_rules(path, size)
    yield _above((*path, "rope_theta"), size.rope_theta)
    yield _above((*path, "norm_eps"), size.norm_eps)


def _head_rules(path: KeyPath, size: Size) -> Iterator[Rule]:
    fits = size.heads % size.kv_heads == 0
    what = f"{size.heads} heads cannot share {size.kv_heads} kv_heads evenly"
    yield fits, (*path, "kv_heads"), what, f"choose a divisor of {size.heads}"
    what = f"dim {size.dim} is not divisible by {size.heads} heads"
    yield size.dim % size.heads == 0, (*path, "heads"), what, "choose heads that divide dim"
    what = f"a head of {size.dim // size.heads} is odd, rotary positions need an even size"
    yield size.dim // size.heads % 2 == 0, (*path, "heads"), what, "choose heads so that dim / heads is even"


def _data_rules(data: Data) -> Iterator[Rule]:
    yield _within(("data", "context"), data.context, 8, 2**20)
    yield _digest(("data", "digest"), data.digest)
    path: KeyPath = ("data", "source")
    if isinstance(data.source, Corpus):
        yield _named((*path, "name"), data.source.name)
        tokenizer = data.source.tokenizer
        found = _BPE.match(tokenizer)
        known = tokenizer == "bytes" or (found is not None and int(found[1]) >= _VOCABULARY_MIN)
        hint = f'write "bytes", or "bpe-N" with N from {_VOCABULARY_MIN}, for example "bpe-1024"'
        yield known, (*path, "tokenizer"), f"unknown tokenizer '{tokenizer}'", hint
    else:
        yield bool(data.source.path), (*path, "path"), "is empty", "give the folder that `atoll data prepare` made"


def _recipe_rules(recipe: Recipe) -> Iterator[Rule]:
    yield from _work_rules(recipe.work)
    path: KeyPath = ("recipe", "channel")
    count = len(recipe.channel)
    yield count == 1, path, f"{count} channels are given", "give exactly one, for example [recipe.channel.outer]"
    for name, channel in recipe.channel.items():
        yield _named((*path, name), name)
        yield from _channel_rules((*path, name), channel, recipe.work)
    if isinstance(recipe.control, Auto):
        yield from _auto_rules(recipe, recipe.control)


def _auto_rules(recipe: Recipe, auto: Auto) -> Iterator[Rule]:
    """What a policy writes must be there to be written, and whatever it may choose must be a channel that runs."""
    ((name, channel),) = recipe.channel.items()
    path: KeyPath = ("recipe", "control")
    at: KeyPath = ("recipe", "channel", name)
    whole = isinstance(channel.when, Every)
    said = "a policy turns the number of steps between exchanges of the whole model"
    yield whole, (*at, "when"), said, 'choose { kind = "every", steps = ... }, or control = { kind = "none" }'
    yield channel.common, (*at, "whom"), "a policy turns knobs for all alike", 'choose { kind = "all" }'
    full = isinstance(channel.barrier, Full) and isinstance(channel.late, Discard)
    said = "a policy turns knobs between rounds, which nobody's work may outlast"
    yield full, (*at, "barrier"), said, 'choose barrier = { kind = "full" } and late = { kind = "discard" }'
    routes = [channel.whom.route, *(rung.route for rung in auto.ladder)]
    said = "who is next to whom in a ring does not survive a change of the exchange"
    hint = 'choose { kind = "butterfly" } or { kind = "all-gather" } there and on every rung'
    yield not any(isinstance(route, Ring) for route in routes), (*at, "whom", "route"), said, hint
    delta = isinstance(channel.what, Delta)
    yield delta, (*at, "what"), "a policy turns how rare exchanges are, which gradients cannot be", 'exchange "delta"'
    said = "what an owner left out of one form of results does not fit another"
    yield channel.what.owners == Forget(), (*at, "what", "owners"), said, "leave it out"
    said = "what a peer is ahead by does not survive a change of the exchange"
    late = isinstance(channel.overlap, OneRound)
    yield not late, (*at, "overlap"), said, 'choose { kind = "block" } or { kind = "delay", ... }'
    grows = isinstance(recipe.work.quota, Growing)
    said = "two would turn the number of steps: this and recipe.control"
    yield not grows, ("recipe", "work", "quota"), said, "choose one of them"
    yield 0 < auto.share < 1, (*path, "share"), f"{auto.share} is out of range", "it must be between 0 and 1"
    yield _within((*path, "least"), auto.least, 1)
    yield bool(auto.ladder), (*path, "ladder"), "is empty", "give at least one rung: a codec, and steps at most"
    yield _within((*path, "ladder"), len(auto.ladder), 1, LADDER_MAX)
    yield from _rate_rules((*path, "outer_lr"), channel, auto)
    for number, rung in enumerate(auto.ladder):
        on = (*path, "ladder", number)
        yield _within((*on, "steps"), rung.steps, auto.least)
        keeps = isinstance(channel.what.residual, Feedback) or not isinstance(rung.codec, Sparse)
        said = "most of what is sent in this form is left out, and would be lost"
        yield keeps, (*on, "codec"), said, 'set what.residual = { kind = "feedback" }'
        if isinstance(rung.overlap, Delay):
            yield _within((*on, "overlap", "steps"), rung.overlap.steps, 1, rung.steps - 1)
        knobs = Knobs(rung=number, steps=rung.steps, delay=delay_max(rung, rung.steps))
        for holds, where, what, hint in _channel_rules((), turned(recipe, knobs), recipe.work):
            yield holds, (*on, *_on_rung(where)), what, hint


def _on_rung(path: KeyPath) -> KeyPath:
    """Return where a rung says what stands at a place of a channel."""
    return path[1:] if path[:1] in (("what",), ("whom",), ("when",)) else path


def _rate_rules(path: KeyPath, channel: Channel, auto: Auto) -> Iterator[Rule]:
    rates = isinstance(channel.merge.outer, Sgd)
    said = "only an outer optimizer of kind sgd has its rate turned"
    yield rates or not auto.outer_lr, path, said, 'leave it out, or set merge.outer = { kind = "sgd", ... }'
    counts = [count for count, _ in auto.outer_lr]
    said = "numbers of members must rise from 1 on"
    yield counts == sorted(set(counts)) and counts[:1] in ([], [1]), path, said, "for example [[1, 0.4], [2, 0.6]]"
    for number, (_, lr) in enumerate(auto.outer_lr):
        yield _above((*path, number, 1), lr)


def _work_rules(work: Work) -> Iterator[Rule]:
    path: KeyPath = ("recipe", "work")
    yield _within((*path, "batch"), work.batch, 1, 2**20)
    yield _within((*path, "micro_batch"), work.micro_batch, 0, 2**20)
    divides = work.micro_batch == 0 or work.batch % work.micro_batch == 0
    what = f"{work.micro_batch} does not divide the batch of {work.batch}"
    yield divides, (*path, "micro_batch"), what, "choose a divisor, or 0 for the whole batch at once"
    yield _within((*path, "clip"), work.clip, 0)
    path = (*path, "schedule")
    yield _within((*path, "warmup_steps"), work.schedule.warmup_steps, 0)
    if isinstance(work.schedule, Cosine | Wsd | Cyclic):
        yield _within((*path, "floor"), work.schedule.floor, 0, 1)
    if isinstance(work.schedule, Wsd):
        yield _within((*path, "decay"), work.schedule.decay, 0, 1)
    if isinstance(work.quota, BySpeed):
        yield _within(("recipe", "work", "quota", "least"), work.quota.least, 1)
    if isinstance(work.quota, Growing):
        yield _within(("recipe", "work", "quota", "below"), work.quota.below, 0)
        yield _within(("recipe", "work", "quota", "factor"), work.quota.factor, 2, 1000)
        yield _within(("recipe", "work", "quota", "most"), work.quota.most, 1)
    yield from _optimizer_rules(("recipe", "work", "inner"), work.inner)


def _channel_rules(path: KeyPath, channel: Channel, work: Work) -> Iterator[Rule]:
    yield from _when_rules(path, channel)
    yield from _optimizer_rules((*path, "merge", "outer"), channel.merge.outer)
    yield from _whom_rules(path, channel)
    yield from _wire_rules(path, channel)
    yield from _combine_rules((*path, "merge", "combine"), channel)
    yield from _overlap_rules(path, channel)
    yield from _barrier_rules((*path, "barrier"), channel)
    if isinstance(channel.late, Carry):
        yield from _carry_rules(path, channel)
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
            hint = 'choose recipe.work.inner of kind "adamw", "sgd" or "muon", or exchange { kind = "grad" }'
            yield not accumulates, (*path, "what"), "there is no delta: the inner work only accumulates", hint
        case Params():
            hint = 'choose recipe.work.inner of kind "adamw", "sgd" or "muon", or exchange { kind = "grad" }'
            yield not accumulates, (*path, "what"), "weights stay where they are: the inner work only accumulates", hint
            exact = _is_exact(channel.what)
            hint = 'choose codec { kind = "fp32" }, "fp16" or "bf16" without feedback, or exchange { kind = "delta" }'
            yield exact, (*path, "what"), "weights as coarse as that are no model any more", hint
            hint = 'choose { kind = "block" }, or exchange { kind = "delta" }'
            said = "what a peer goes on with is known by how far it went, not by where it is"
            yield isinstance(channel.overlap, Block), (*path, "overlap"), said, hint


def _is_exact(what: What) -> bool:
    """Return whether what arrives is what was sent but for rounding, all of it and at once."""
    forgets = what.residual == what.owners == Forget()
    fine = all(isinstance(codec, Fp32 | Fp16 | Bf16) for codec in (what.codec, what.merged()))
    return fine and what.transform is None and forgets


def _whom_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    whom, path = channel.whom, (*path, "whom")
    if isinstance(whom, All):
        match whom.route:
            case Butterfly(group=group):
                yield _within((*path, "route", "group"), group, 2, GROUP_MAX)
            case Ring():
                yield from _ring_rules(path, channel)
            case AllGather():
                pass
        return
    yield _within((*path, "all_every"), whom.all_every, 0)
    match whom.pattern:
        case Lattice(side=side, dimensions=dimensions):
            yield _within((*path, "pattern", "side"), side, 2, GROUP_MAX)
            yield _within((*path, "pattern", "dimensions"), dimensions, 1, DIMENSIONS_MAX)
        case Drawn(size=size):
            yield _within((*path, "pattern", "size"), size, 2, GROUP_MAX)
        case Neighbours(reach=reach):
            yield _within((*path, "pattern", "reach"), reach, 1, GROUP_MAX // 2)
    yield from _circle_rules(path, channel)


def _ring_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
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
    said = "a sum goes round when everybody is in"
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
    full = isinstance(channel.barrier, Full) and isinstance(channel.late, Discard)
    said = "all circles of a round end together, when all are in"
    yield full, path, said, f'choose barrier {{ kind = "full" }} and late {{ kind = "discard" }}, {all_}'
    mean = isinstance(channel.merge.combine, Mean)
    said = "the last round of all is the mean of weights, and those of circles must come to the same"
    yield mean, path, said, f'choose merge.combine {{ kind = "mean" }}, {all_}'
    own = isinstance(channel.merge.outer, Assign | Sgd)
    said = "an outer optimizer that counts its steps would count others than everybody's"
    yield own, path, said, f'choose merge.outer of kind "assign" or "sgd", {all_}'
    said = "in a round of all weights travel in the form of contributions, which is too coarse for that"
    yield _is_exact(what), path, said, f'choose codec {{ kind = "fp32" }}, "fp16" or "bf16" without feedback, {all_}'


def _combine_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """Ways to combine, and which of them go with the route and the codec."""
    combine = channel.merge.combine
    gathers = isinstance(channel.whom.route, AllGather)
    match combine:
        case Mean():
            return
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
            said = "an owner has chunks, of which a tensor may be many: it cannot know its length"
            yield gathers, path, said, 'set whom.route = { kind = "all-gather" }'
    if isinstance(combine, CentredClip):
        yield _above((*path, "radius"), combine.radius)
        yield _within((*path, "iterations"), combine.iterations, 1, 1000)


def _when_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    when, path = channel.when, (*path, "when")
    if isinstance(when, TargetBatch):
        yield _within((*path, "samples"), when.samples, 1)
        gradients = isinstance(channel.what, Grad)
        yield gradients, path, "a batch of all together is one of gradients", 'exchange { kind = "grad" }'
        full = isinstance(channel.barrier, Full)
        said = "a round that ends before everybody is in has less than the batch"
        yield full, (*path[:-1], "barrier"), said, 'choose { kind = "full" }'
        by_samples = channel.merge.combine.weights == "samples"
        said = "is uniform, but peers have unequal parts of the batch"
        yield by_samples, (*path[:-1], "merge", "combine", "weights"), said, 'set it to "samples"'
        return
    yield _within((*path, "steps"), when.steps, 1)
    if not isinstance(when, Fragments):
        return
    yield _within((*path, "count"), when.count, 1, FRAGMENTS_MAX)
    said = f"{when.steps} is not a multiple of {when.count} fragments"
    yield when.steps % when.count == 0, (*path, "steps"), said, "each round has as many steps as every other"
    whole = isinstance(channel.what, Grad)
    yield not whole, path, "gradients are taken at one anchor, of all parts", 'choose { kind = "every", steps = ... }'
    linear = isinstance(channel.merge.outer, Assign | Sgd | SignSgd)
    said = "counts its steps, of which every part has had another number"
    yield linear, (*path[:-1], "merge", "outer"), said, 'choose { kind = "sgd", lr = ... }'


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
            yield _within((*path, "steps"), overlap.steps, 1, most)
            if isinstance(reconcile, Blend):
                yield _within((*path, "reconcile", "keep"), reconcile.keep, 0, 1)
        case OneRound(eager=eager):
            said = "what one part is ahead by would be late for the others"
            parts = isinstance(channel.when, Fragments)
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
    yield _within((*path, "contributors"), barrier.contributors, 1)
    if isinstance(barrier.grace, Seconds):
        yield _within((*path, "grace", "s"), barrier.grace.s, 0, 86400)
    else:
        yield _within((*path, "grace", "part"), barrier.grace.part, 0, 1)


def _carry_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """What goes with work that outlasts a round."""
    hint = 'set late = { kind = "discard" }, or '
    overlap, parts = channel.overlap, isinstance(channel.when, Fragments)
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


def _wire_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """Codecs, and which of them go with the route."""
    what, route = channel.what, channel.whom.route
    path = (*path, "what")
    yield from _codec_rules((*path, "codec"), what.codec)
    if isinstance(what.residual, Feedback):
        yield _within((*path, "residual", "decay"), what.residual.decay, 0, 1)
    if what.result is not None:
        yield from _codec_rules((*path, "result"), what.result)
    if what.transform is not None:
        yield from _transform_rules((*path, "transform"), channel, what.transform)
    yield from _threshold_rules(path, what)
    sparse, fed_back = isinstance(what.merged(), TopK), isinstance(what.owners, Feedback)
    hint = 'set owners = { kind = "feedback" }, or result = { kind = "fp32" } with whom.route = { kind = "all-gather" }'
    said = "the mean of sparse contributions is not as sparse: most would be lost"
    yield fed_back or not sparse, (*path, "result"), said, hint
    if isinstance(what.owners, Feedback):
        yield _within((*path, "owners", "decay"), what.owners.decay, 0, 1)
        said = "nobody owns a chunk where everybody reduces all of them"
        yield isinstance(route, Butterfly), (*path, "owners"), said, 'set whom.route = { kind = "butterfly" }'
    same = what.result is None or isinstance(route, AllGather)
    hint = 'leave it out, or set whom.route = { kind = "all-gather" }'
    yield same, (*path, "result"), "where chunks have owners results travel in the form of contributions", hint
    own = not isinstance(route, AllGather) or not isinstance(what.merged(), Buckets | Sign | Stochastic)
    said = "everybody makes the result alone, and sums within it would differ between machines"
    yield own, (*path, "result"), said, 'set result = { kind = "fp32" }'


def _threshold_rules(path: KeyPath, what: What) -> Iterator[Rule]:
    """What is sent if it is large enough, and what that can be compared with."""
    said = "how large the mean must be to be sent nobody says, and the mean of sparse contributions is not as sparse"
    hint = 'set result = { kind = "fp32" } with whom.route = { kind = "all-gather" }'
    yield not isinstance(what.merged(), Threshold | Significance), (*path, "result"), said, hint
    gradients = isinstance(what, Grad)
    scaled = isinstance(what.codec, Threshold) and what.codec.scaled
    said = "true, but a gradient does not shrink with the rate"
    yield not (scaled and gradients), (*path, "codec", "scaled"), said, "set it to false"
    if isinstance(what.codec, Significance):
        hint = 'choose { kind = "threshold", least = ... }'
        said = "frequencies have no weights of their own to be compared with"
        yield what.transform is None, (*path, "codec"), said, f"leave transform out, or {hint}"
        said = "a gradient is not yet the change of a weight that it could be a part of"
        yield not gradients, (*path, "codec"), said, f'exchange {{ kind = "delta" }}, or {hint}'


def _transform_rules(path: KeyPath, channel: Channel, transform: Dct) -> Iterator[Rule]:
    yield _within((*path, "tile"), transform.tile, 2, 256)
    combine = channel.merge.combine
    apart = isinstance(combine, Rda) or (isinstance(combine, MedianNormClip | CentredClip) and combine.over == "tensor")
    said = "frequencies lie tile by tile, not tensor by tensor as this way to combine needs them"
    yield not apart, path, said, 'leave it out, or set merge.combine = { kind = "mean" }'
    eager = isinstance(channel.overlap, OneRound) and channel.overlap.eager
    said = "what a peer is ahead by is made of values, its contribution of frequencies"
    yield not eager, path, said, "leave it out, or set overlap.eager = false"


def _codec_rules(path: KeyPath, codec: Codec) -> Iterator[Rule]:
    match codec:
        case Int8() | E3m0() | Sign():
            yield _within((*path, "block"), codec.block, BLOCK_MIN, BLOCK_MAX)
        case Stochastic():
            yield _within((*path, "bits"), codec.bits, 2, 12)
            yield _within((*path, "block"), codec.block, BLOCK_MIN, BLOCK_MAX)
        case Buckets():
            yield _within((*path, "bits"), codec.bits, 1, 8)
            yield _above((*path, "width"), codec.width)
        case TopK():
            yield _within((*path, "block"), codec.block, BLOCK_MIN, BLOCK_MAX)
            power = codec.block & (codec.block - 1) == 0
            yield power, (*path, "block"), f"{codec.block} is not a power of two", "for example 4096"
            yield _within((*path, "keep"), codec.keep, 1, codec.block)
            yield from _codec_rules((*path, "values"), codec.values)
        case Threshold() | Significance():
            yield _within((*path, "least"), codec.least, 0)
            yield from _codec_rules((*path, "values"), codec.values)
        case Fp32() | Fp16() | Bf16():
            pass


def _optimizer_rules(path: KeyPath, optimizer: Inner | Outer) -> Iterator[Rule]:
    match optimizer:
        case DelayedNesterov():
            yield _above((*path, "lr"), optimizer.lr)
            yield _below_one((*path, "momentum"), optimizer.momentum)
            yield _within((*path, "every"), optimizer.every, 1, 2**20)
            yield _within((*path, "spread"), optimizer.spread, 0, 1 / max(1, optimizer.every))
        case AdamW() | Lamb():
            yield _above((*path, "lr"), optimizer.lr)
            for i, beta in enumerate(optimizer.betas):
                yield _below_one((*path, "betas", i), beta)
            yield _above((*path, "eps"), optimizer.eps)
            yield _within((*path, "weight_decay"), optimizer.weight_decay, 0)
        case Sgd():
            yield _above((*path, "lr"), optimizer.lr)
            yield _below_one((*path, "momentum"), optimizer.momentum)
            real = optimizer.momentum > 0 or not optimizer.nesterov
            yield real, (*path, "nesterov"), "is true without momentum", "set momentum, for example 0.9"
        case SignSgd():
            yield _above((*path, "lr"), optimizer.lr)
            yield _within((*path, "weight_decay"), optimizer.weight_decay, 0)
        case Muon():
            yield _above((*path, "lr"), optimizer.lr)
            yield _below_one((*path, "momentum"), optimizer.momentum)
            yield _within((*path, "weight_decay"), optimizer.weight_decay, 0)
            yield from _optimizer_rules((*path, "adamw"), optimizer.adamw)
        case Assign() | Accumulate():
            pass


def _membership_rules(run: Run) -> Iterator[Rule]:
    path: KeyPath = ("membership",)
    yield _within((*path, "start_with"), run.membership.start_with, 1)
    yield _within((*path, "contributors_min"), run.membership.contributors_min, 1)
    if isinstance(run.membership.who, AllowList):
        path = (*path, "who", "peers")
        peers = run.membership.who.peers
        yield bool(peers), path, "is empty: nobody could join", "name the public keys of those who may"
        for i, peer in enumerate(peers):
            yield bool(_PEER.match(peer)), (*path, i), f"'{peer[:20]}' is not a public key", "write 64 hex digits"
        yield len(set(peers)) == len(peers), path, "a peer is named twice", "name each peer once"


def _named(path: KeyPath, name: str) -> Rule:
    hint = "use 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"
    return bool(_NAME.match(name)), path, f"'{name[:40]}' is not a name", hint


def _digest(path: KeyPath, digest: str) -> Rule:
    return bool(_DIGEST.match(digest)), path, "is not a digest", "leave it out: it is filled in when the run is made"


def _within(path: KeyPath, value: float, least: float, most: float | None = None) -> Rule:
    fits = least <= value <= (_COUNT_MAX if most is None else most)
    allowed = f"at least {least}" if most is None else f"between {least} and {most}"
    return fits, path, f"{value} is out of range", f"it must be {allowed}"


def _above(path: KeyPath, value: float) -> Rule:
    return value > 0, path, f"{value} is not positive", "it must be greater than 0"


def _below_one(path: KeyPath, value: float) -> Rule:
    return 0 <= value < 1, path, f"{value} is out of range", "it must be at least 0 and less than 1"
