"""A contribution as bytes: chunk by chunk, on the device that has the weights where it can, else on the processor.

Both make the same bytes and leave the same residual, to the bit; only one of them passes the processor a model's worth
of values to work through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from atoll.model.compute import Cosines, Encoder, Made, Mean, PartOf, Portion, Source, Start, Vector
from atoll.model.encoding.chance import draws
from atoll.peer.member import Member
from atoll.peer.train import Contribution, Gradients, Way, diverged, factor_of, finite
from atoll.spec.axes.codec import CacheLines, Fp32, Significance, Threshold
from atoll.spec.axes.what import Feedback, Forget, Hold
from atoll.swarm.log import OpenRound
from atoll.sync.codec import decoded, encode, seed_of
from atoll.sync.feedback import encode_fed_back
from atoll.sync.frequencies import Frequencies
from atoll.sync.grid import Grid
from atoll.sync.units import Unit

ENCODE_ELEMENTS = 2**22
"""So many are encoded at once on the processor."""


def encoded_of(member: Member, announced: OpenRound, contribution: Contribution) -> Iterator[dict[int, memoryview]]:
    """Return a contribution encoded, some chunks at a time: the first of each owner's come first.

    A value that is not finite never leaves, and what left before it does not count: only whole contributions do.
    """
    version = announced.key.version
    unit, kept = member.unit_of(version), member.channel_of(version).kept_by(member.me)
    encoder = member.engine.encoder(kept)
    transform, cosines = member.transform(version), cosines_of(member, version)
    is_here = isinstance(kept, Fp32) and source_of(contribution) is None  # and would come back as it went
    if encoder is None or is_here or (transform is not None and cosines is None) or not unit.spans:
        one = _here(member, announced, contribution)
        for indexes in _in_turn(unit.grid, len(announced.members), ENCODE_ELEMENTS):
            yield {index: one(index) for index in indexes}
        return
    some = _there(member, announced, contribution, encoder, cosines)
    elements = encoder.elements
    stretch = elements // unit.grid.chunk // len(announced.members)
    for indexes in _in_turn(unit.grid, len(announced.members), elements, stretch):
        yield dict(zip(indexes, some(indexes), strict=True))


def _in_turn(grid: Grid, owners: int, elements: int, stretch: int = 1) -> Iterator[list[int]]:
    """Yield the chunks, about so many elements at a time: first the first ones of about so many owners' shards.

    Of each as many as a stretch has, which lie one after the other: a device is given them at once.
    """
    every, stretch = -(-grid.chunks // owners), max(1, stretch)
    shards = [range(first, min(first + every, grid.chunks)) for first in range(0, grid.chunks, every)]
    order = iter([index for at in range(0, every, stretch) for shard in shards for index in shard[at : at + stretch]])
    while some := list(islice(order, max(1, elements // grid.chunk))):
        yield some


def cosines_of(member: Member, version: int) -> Cosines | None:
    """Return what makes frequencies on the device; None: a round is not about these, or there is no device."""
    there, transform = member.engine.transforms(), member.transform(version)
    if there is None or not isinstance(transform, Frequencies):
        return None
    return there.cosines(transform.tiles)


def _there(
    member: Member, announced: OpenRound, contribution: Contribution, encoder: Encoder, cosines: Cosines | None
) -> Callable[[list[int]], list[memoryview]]:
    """Return how chunks are encoded on the device: the way to the weights is worked out there too."""
    version = announced.key.version
    unit, rule, residual = member.unit_of(version), member.channel_of(version).what.residual, member.private.residual
    chance = draws(member.channel_of(version).kept_by(member.me))
    source, large, known = source_of(contribution), _large(member, version), _known(member, version)
    if cosines is not None:
        source = _made(member, version, contribution, cosines)

    def portion(index: int) -> Portion:
        first, end = unit.grid.bounds(index)
        values = contribution(first, end) if source is None else None
        seed = seed_of(version, index, member.me) if chance else 0
        return Portion(_runs(unit, first, end), values, first, seed, known(first))

    def encoded(indexes: list[int]) -> list[memoryview]:
        try:
            return encoder.encode([portion(index) for index in indexes], source, rule, residual, large)
        except FloatingPointError as error:
            raise diverged(version) from error

    return encoded


def portion_of(
    unit: Unit, contribution: Contribution, first: int = 0, end: int | None = None, seed: int = 0
) -> Portion:
    """Return all of a contribution, or some elements of it; their values only where a device cannot have them."""
    end = unit.size if end is None else end
    values = contribution(first, end) if source_of(contribution) is None else None
    return Portion(_runs(unit, first, end), values, first, seed)


def _made(member: Member, version: int, contribution: Contribution, cosines: Cosines) -> Made:
    """Return the frequencies of all of a contribution; raises `LocalError` when training has diverged."""
    try:
        return cosines.of(portion_of(member.unit_of(version), contribution), source_of(contribution))
    except FloatingPointError as error:
        raise diverged(version) from error


def source_of(contribution: Contribution) -> Source | None:
    """Return where the values of a contribution are, if the device may have them."""
    match contribution:
        case Way(start=start, anchor=anchor):
            return Start(start, anchor)
        case Gradients(total=total, steps=steps):
            return Mean(total, steps)
        case _:
            return None


def _runs(unit: Unit, first: int, end: int) -> tuple[slice, ...]:
    return tuple(run for _, run in unit.runs(first, end) if isinstance(run, slice))


def _here(member: Member, announced: OpenRound, contribution: Contribution) -> Callable[[int], memoryview]:
    """Return how a chunk is encoded on the processor."""
    version = announced.key.version
    channel, unit, left_out = member.channel_of(version), member.unit_of(version), member.private.residual
    residual = None if left_out is None else left_out.write()
    what, kept = channel.what, channel.kept_by(member.me)
    grid, other = unit.grid, member.transform(version)
    whole = None if other is None else other.of(contribution(0, unit.size))
    least_of = _least(member, version)

    def encoded(index: int) -> memoryview:
        first, end = grid.bounds(index)
        values = contribution(first, end) if whole is None else whole[first:end]
        finite(values, version)
        seed, least = seed_of(announced.key.version, index, member.me), least_of(first, end)
        match what.residual:
            case Forget():
                return encode(kept, values, seed, least)
            case Feedback(decay=decay):
                assert residual is not None, "who feeds back keeps what is left out"
                left_out = unit.take(residual, first, end)
                data = encode_fed_back(kept, values, left_out, decay, seed, least)
                unit.put(residual, left_out, first)
                return data
            case Hold():
                assert residual is not None, "who holds back keeps it"
                data = encode(kept, values, seed, least)
                unit.put(residual, values - decoded(kept, data, end - first), first)
                return data

    return encoded


def _large(member: Member, version: int) -> float | PartOf | None:
    """Return how large elements of a contribution must be to be sent; None: their codec does not ask."""
    codec, anchor = member.channel_of(version).what.codec, member.anchor
    match codec:
        case Threshold(least=least, scaled=scaled):
            return least * (factor_of(member, version) if scaled else 1.0)
        case Significance(least=least, shrinks=shrinks):
            part = np.float32(least / math.sqrt(version) if shrinks else least)
            return PartOf(Start(anchor.weights, anchor), float(part))
        case _:
            return None


def _known(member: Member, version: int) -> Callable[[int], Vector | None]:
    """Return what is remembered of the chunk from an element on, to be moved; None: its codec remembers nothing."""
    codec, name = member.channel_of(version).what.codec, member.channel.when.unit(version)
    if not isinstance(codec, CacheLines) or not codec.remember:
        return lambda first: None
    return lambda first: member.private.threshold(codec, name, first)


def _least(member: Member, version: int) -> Callable[[int, int], float | Vector | None]:
    """Return what a codec on the processor is to go by, of some elements."""
    large, known, unit = _large(member, version), _known(member, version), member.unit_of(version)
    match large:
        case PartOf(start=start, part=part):
            return lambda first, end: np.abs(unit.take(start.weights, first, end)) * np.float32(part)
        case None:
            return lambda first, end: known(first)
        case _:
            return lambda first, end: large
