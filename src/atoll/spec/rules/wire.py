"""What must hold of what travels: codecs, what they leave out, and the routes that can carry them."""

from __future__ import annotations

from collections.abc import Iterator

from atoll.spec.axes.codec import (
    BLOCK_MAX,
    BLOCK_MIN,
    Above,
    Bf16,
    Buckets,
    CacheLines,
    Codec,
    E3m0,
    Fp16,
    Fp32,
    Int8,
    MaxN,
    Quantiser,
    Quaternary,
    Sign,
    Significance,
    Sparse,
    Stochastic,
    Ternary,
    Threshold,
    TopK,
    TurnedSign,
)
from atoll.spec.axes.merge import CentredClip, Mean, MedianNormClip, Rda
from atoll.spec.axes.pace import Block, Delay, Discard, Full, OneRound, Shift
from atoll.spec.axes.what import ByInputs, Dct, Delta, Feedback, Forget, Grad, Hold, LowRank, What
from atoll.spec.axes.when import Every, Fragments, Named
from atoll.spec.axes.whom import All, AllGather, Carried, Owned
from atoll.spec.recipe import Channel, Finer
from atoll.spec.rules.terms import Rule, above, within
from atoll.spec.strict import KeyPath

RANK_MAX = 1024
DAMPING_MIN = 1e-3
"""Below that some directions would count a million times as much as others, and fp32 loses them."""
LINE_MAX = 256
_EVEN = Fp32 | Fp16 | Bf16 | Int8 | E3m0 | Stochastic
"""Forms of which a chunk of one is not too long in any other."""
_TOO_LONG = "a chunk of one bit a value is too long for a message in fp32"
_WHOLE = _EVEN | Buckets | Sign | Ternary | Quaternary
"""Forms that chunks of any length have."""


def wire_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """Codecs, and which of them go with the route."""
    what, route = channel.what, channel.whom.route
    path = (*path, "what")
    yield from _codec_rules((*path, "codec"), what.codec)
    match what.residual:
        case Feedback(decay=decay):
            yield within((*path, "residual", "decay"), decay, 0, 1)
        case Hold(decay=decay, shared=shared):
            yield within((*path, "residual", "decay"), decay, 0, 1)
            yield from _hold_rules((*path, "residual"), channel)
            if shared:
                yield from _shared_rules((*path, "residual", "shared"), channel, shared)
        case Forget():
            pass
    if what.result is not None:
        yield from _codec_rules((*path, "result"), what.result)
    match what.transform:
        case Dct() as dct:
            yield from _dct_rules((*path, "transform"), channel, dct)
        case LowRank() as low:
            yield from _low_rank_rules((*path, "transform"), channel, low)
        case None:
            pass
    yield from _threshold_rules(path, what)
    sparse, fed_back = isinstance(what.merged(), TopK), isinstance(what.owners, Feedback)
    hint = 'set owners = { kind = "feedback" }, or result = { kind = "fp32" } with whom.route = { kind = "all-gather" }'
    said = "the mean of sparse contributions is not as sparse: most would be lost"
    yield fed_back or not sparse, (*path, "result"), said, hint
    if isinstance(what.owners, Feedback):
        yield within((*path, "owners", "decay"), what.owners.decay, 0, 1)
        said = "nobody owns a chunk where everybody reduces all of them"
        yield isinstance(route, Owned), (*path, "owners"), said, 'set whom.route = { kind = "butterfly" }'
    if isinstance(what.rounding, ByInputs):
        yield from _by_inputs_rules((*path, "rounding"), channel, what.rounding)
    linked = isinstance(what.codec, MaxN)
    said = "how near to its tensor's largest a value must be is a link's own number"
    hint = (
        'choose whom { kind = "circles", pattern = { kind = "mesh" } } and result { kind = "fp32" }, or another codec'
    )
    yield not linked or channel.mesh is not None, (*path, "codec"), said, hint
    same = what.result in (None, what.codec) or isinstance(route, AllGather) or channel.mesh is not None
    owned = isinstance(route, Owned) and isinstance(what.result, Quantiser)
    hint = 'leave it out, or set whom.route = { kind = "butterfly" } or "all-gather"'
    said = "what is added up on its way travels in the form of contributions"
    yield same or owned, (*path, "result"), said, hint
    fits = same or not (_is_long(what.codec) and isinstance(what.result, Fp32))
    yield fits, (*path, "result"), _TOO_LONG, 'choose result = { kind = "fp16" } or another form'
    yield from _turned_rules(path, channel)
    for number, finer in enumerate(channel.finer):
        yield from _finer_rules(channel, (*path[:-1], "finer", number), finer)
    for name, form in channel.forms.items():
        yield from _form_rules(channel, (*path[:-1], "forms", name), name, form)
    sums = Buckets | Sign | Ternary | Quaternary | Stochastic | TurnedSign
    own = not isinstance(route, AllGather) or not isinstance(what.merged(), sums)
    said = "everybody makes the result alone, and sums within it would differ between machines"
    yield own, (*path, "result"), said, 'set result = { kind = "fp32" }'


def _is_long(codec: Codec) -> bool:
    """Return whether a chunk of so many bytes is of very many values."""
    bit = isinstance(codec, Buckets | Stochastic) and codec.bits == 1
    return bit or isinstance(codec, Sign | TurnedSign)


def _turned_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """Where values may be spread over their block."""
    codec, result = channel.what.codec, channel.what.result
    said = "few values of a block, spread over all of it, are as many as before"
    hint = 'choose values = { kind = "sign" } or another form'
    yield not isinstance(getattr(codec, "values", None), TurnedSign), (*path, "codec", "values"), said, hint
    said = "chunks have whole blocks of contributions: of a result turned otherwise more would be sent"
    alike = not isinstance(result, TurnedSign) or result == codec
    yield alike, (*path, "result"), said, "choose the same form as what.codec, or another"


def _finer_rules(channel: Channel, path: KeyPath, finer: Finer) -> Iterator[Rule]:
    """What goes with first rounds that have another form than later ones."""
    turned = isinstance(channel.when, Every | Fragments | Named)
    said = "which part of the model a round is about, so that it could have a form, is not told by its number"
    yield turned, path, said, 'leave it out, or choose when { kind = "every" }, "fragments" or "named"'
    yield within((*path, "rounds"), finer.rounds, 1)
    yield within((*path, "part"), finer.part, 1, channel.parts)
    what, forms = channel.what, (finer.codec, finer.codec if finer.result is None else finer.result)
    fits = all(isinstance(form, _WHOLE) for form in (what.codec, what.merged(), *forms))
    said = "first rounds have chunks in common with later ones, which are those of values that are all sent"
    yield fits, path, said, "leave it out, or choose forms that send every value, here and in what"
    long = all(_is_long(codec) for codec in (what.codec, *(each.codec for each in channel.finer)))
    hint = 'choose result = { kind = "fp16" } or another form'
    yield not (long and isinstance(finer.result, Fp32)), (*path, "result"), _TOO_LONG, hint
    shared = isinstance(channel.whom, All) and isinstance(channel.whom.route, Owned)
    plain = shared and channel.mesh is None and what.transform is None and not channel.forms and not channel.polar
    said = "first rounds may have another form only where owners merge values"
    hint = 'leave it out, or choose whom { kind = "all", route = { kind = "butterfly" } }, no transform and no forms'
    yield isinstance(what, Delta) and plain, path, said, hint
    said = "who is late gives what it has to a later round, which may have another form"
    yield isinstance(channel.late, Discard), path, said, 'leave it out, or set late = { kind = "discard" }'
    yield from _codec_rules((*path, "codec"), finer.codec)
    if finer.result is not None:
        yield from _codec_rules((*path, "result"), finer.result)


def _form_rules(channel: Channel, path: KeyPath, name: str, form: Codec) -> Iterator[Rule]:
    """What goes with contributions of one round in forms of their own."""
    is_id = len(name) == 64 and set(name) <= set("0123456789abcdef")
    yield is_id, path, f"'{name}' names no peer", "give its id: 64 hexadecimal digits"
    said = "contributions in forms of their own have chunks in common, which are those of values that are all sent"
    fits = all(isinstance(each, _EVEN) for each in (form, channel.what.codec))
    hint = 'choose "fp32", "fp16", "bf16", "int8", "e3m0" or "stochastic", here and as what.codec'
    yield fits, path, said, hint
    alike = isinstance(channel.whom, All) and not isinstance(channel.whom.route, Carried)
    said = "sums that go round, or models that differ, have one form"
    yield alike, path, said, 'leave it out, or choose whom { kind = "all" } by "butterfly" or "all-gather"'
    yield from _codec_rules(path, form)


def _threshold_rules(path: KeyPath, what: What) -> Iterator[Rule]:
    """What is sent if it is large enough, and what that can be compared with."""
    said = "how large the mean must be to be sent nobody says, and the mean of sparse contributions is not as sparse"
    hint = 'set result = { kind = "fp32" } with whom.route = { kind = "all-gather" }'
    yield not isinstance(what.merged(), Above | CacheLines), (*path, "result"), said, hint
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


def _hold_rules(path: KeyPath, channel: Channel) -> Iterator[Rule]:
    """What goes with weights that are the anchor's but for what a peer has not sent yet."""
    what, overlap, hint = channel.what, channel.overlap, 'set residual = { kind = "feedback" }, or '
    ways = isinstance(what, Delta) and what.transform is None
    said = "only the way from the anchor to a peer's weights has in it what was not sent of earlier ones"
    yield ways, path, said, hint + 'exchange { kind = "delta" } without transform'
    shifts = isinstance(overlap, Block) or (isinstance(overlap, Delay) and isinstance(overlap.reconcile, Shift))
    said = "what is taken in must leave what a peer has not sent where it is"
    yield shifts, path, said, hint + 'choose overlap { kind = "block" }, or "delay" with reconcile { kind = "shift" }'
    one = isinstance(channel.whom, All) and isinstance(channel.late, Discard)
    said = "what is held is held back from one common anchor, of the work of one round"
    yield one, path, said, hint + 'choose whom { kind = "all" } and late { kind = "discard" }'


def _shared_rules(path: KeyPath, channel: Channel, shared: float) -> Iterator[Rule]:
    """What goes with results of which a part is left to who contributed."""
    yield within(path, shared, 0, 1)
    hint = "leave it out, or "
    owned = isinstance(channel.what.owners, Feedback)
    said = "owners keep nothing of what results leave out that could be left to others"
    yield owned, path, said, hint + 'set owners = { kind = "feedback" }'
    even = isinstance(channel.merge.combine, Mean) and channel.merge.combine.weights == "uniform"
    said = "what a result leaves out of each contribution adds up to what it leaves out of all only in a plain mean"
    yield even, path, said, hint + 'set merge.combine = { kind = "mean", weights = "uniform" }'
    plain = isinstance(channel.when, Every) and isinstance(channel.overlap, Block)
    said = "it is known only when the result is there, and held from then on by weights that start from it"
    yield plain, path, said, hint + 'choose when { kind = "every", ... } and overlap { kind = "block" }'


def _by_inputs_rules(path: KeyPath, channel: Channel, rounding: ByInputs) -> Iterator[Rule]:
    """What goes with results of which a row is rounded together."""
    what, hint = channel.what, "leave it out, or "
    yield within((*path, "damping"), rounding.damping, DAMPING_MIN)
    yield within((*path, "gain"), rounding.gain, 0.5, 2)
    yield within((*path, "samples"), rounding.samples, 1)
    said = "only of a sign is it known before what an element may become"
    yield isinstance(what.merged(), Sign), path, said, hint + 'set what.result = { kind = "sign", block = 512 }'
    fed_back = isinstance(what.owners, Feedback)
    said = "a row misses more in all than its elements by themselves: nobody would ever get that"
    yield fed_back, path, said, hint + 'set what.owners = { kind = "feedback" }'
    said = "inputs look at values in rows, not at what is made of them"
    yield what.transform is None, path, said, hint + "exchange values, without what.transform"


def _dct_rules(path: KeyPath, channel: Channel, transform: Dct) -> Iterator[Rule]:
    yield within((*path, "tile"), transform.tile, 2, 256)
    combine = channel.merge.combine
    apart = isinstance(combine, Rda) or (isinstance(combine, MedianNormClip | CentredClip) and combine.over == "tensor")
    said = "frequencies lie tile by tile, not tensor by tensor as this way to combine needs them"
    yield not apart, path, said, 'leave it out, or set merge.combine = { kind = "mean" }'
    eager = isinstance(channel.overlap, OneRound) and channel.overlap.eager
    said = "what a peer is ahead by is made of values, its contribution of frequencies"
    yield not eager, path, said, "leave it out, or set overlap.eager = false"


def _low_rank_rules(path: KeyPath, channel: Channel, low: LowRank) -> Iterator[Rule]:
    """What goes with work that takes two rounds, of which the second needs what the first has found."""
    yield within((*path, "rank"), low.rank, 1, RANK_MAX)
    yield within((*path, "least"), low.least, 0)
    what, out = channel.what, "leave it out, or "
    plain = isinstance(what, Grad) and isinstance(channel.when, Every) and isinstance(channel.overlap, Block)
    said = "the same gradient is asked for in two rounds, at an anchor that stays where it is between them"
    hint = 'exchange { kind = "grad" }, with when { kind = "every" } and overlap { kind = "block" }'
    yield plain, path, said, out + hint
    full = isinstance(channel.barrier, Full) and isinstance(channel.late, Discard)
    said = "who is late for the directions is waited for with what lies along them"
    yield full, path, said, out + 'choose barrier { kind = "full" } and late { kind = "discard" }'
    mean = isinstance(channel.whom, All) and isinstance(channel.merge.combine, Mean)
    said = "factors of one mean are sought: of other ways to combine, and of means of some, they would not be"
    yield mean, path, said, out + 'choose whom { kind = "all" } and merge.combine { kind = "mean" }'
    dense = not isinstance(what.codec, Sparse) and what.owners == Forget()
    said = "factors are few, and each of their values is of many weights: none can be left out"
    yield dense, path, said, out + "choose a what.codec that sends every value, without what.owners"


def _codec_rules(path: KeyPath, codec: Codec) -> Iterator[Rule]:
    match codec:
        case Int8() | E3m0() | Sign() | Ternary() | Quaternary():
            yield within((*path, "block"), codec.block, BLOCK_MIN, BLOCK_MAX)
        case Stochastic():
            yield within((*path, "bits"), codec.bits, 2, 12)
            yield within((*path, "block"), codec.block, BLOCK_MIN, BLOCK_MAX)
        case TurnedSign():
            yield within((*path, "block"), codec.block, BLOCK_MIN, BLOCK_MAX)
            yield _power_of_two((*path, "block"), codec.block)
        case Buckets():
            yield within((*path, "bits"), codec.bits, 1, 8)
            yield above((*path, "width"), codec.width)
        case TopK():
            yield within((*path, "block"), codec.block, BLOCK_MIN, BLOCK_MAX)
            yield _power_of_two((*path, "block"), codec.block)
            yield within((*path, "keep"), codec.keep, 1, codec.block)
            yield from _codec_rules((*path, "values"), codec.values)
        case CacheLines():
            part = 0 < codec.keep <= 1
            yield part, (*path, "keep"), f"{codec.keep} is out of range", "it must be more than 0 and at most 1"
            yield within((*path, "line"), codec.line, 2, LINE_MAX)
            yield from _codec_rules((*path, "values"), codec.values)
        case Threshold() | Significance():
            yield within((*path, "least"), codec.least, 0)
            yield from _codec_rules((*path, "values"), codec.values)
        case MaxN():
            fits = 0 < codec.least <= codec.most <= 100
            said = f"{codec.least} to {codec.most} is out of range"
            yield fits, (*path, "least"), said, "both are percents above 0, this one no more than most"
            yield from _codec_rules((*path, "values"), codec.values)
        case Fp32() | Fp16() | Bf16():
            pass


def _power_of_two(path: KeyPath, block: int) -> Rule:
    return block & (block - 1) == 0, path, f"{block} is not a power of two", "for example 4096"


def is_exact(what: What) -> bool:
    """Return whether what arrives is what was sent but for rounding, all of it and at once."""
    forgets = what.residual == what.owners == Forget()
    fine = all(isinstance(codec, Fp32 | Fp16 | Bf16) for codec in (what.codec, what.merged()))
    return fine and what.transform is None and forgets
