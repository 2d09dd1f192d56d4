"""How long a round of a recipe takes on a fleet, by formula: work, what the lines need, and the way there and back.

    work        the slowest member's steps, or by speed, or up to a batch of all
    lines       the fullest of: a member's line up, its line down, one connection between two of them
    trips       round trips to the farthest member, from the announcement to the commit that everybody has heard of
    round       their sum; where members go on meanwhile, whichever is longer of work and what it hides

Rates, latency and loss are the fleet's, bytes and who sends them to whom those of `traffic`. A connection that loses
packets carries what Mathis et al. (1997) found. Lines are taken to be full all the while, so this is what a good
exchange comes near to. Nothing here is shared with the simulator, which plays rounds message by message and so is a
check of this, as real peers are (`python -m bench.forecast`).

Numbers of machines may be arrays of draws: everything works on the last axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from atoll.plan.lines import Line, crowd_of, lines_of
from atoll.plan.traffic import Kind, Shapes, contributors, round_steps, rounds
from atoll.spec.axes.control import Knobs
from atoll.spec.axes.pace import Block, Delay, OneRound, Quorum, RoundsLate, Seconds
from atoll.spec.axes.when import TargetBatch
from atoll.spec.axes.whom import Ring, Rings, Trees
from atoll.spec.axes.work import BySpeed
from atoll.spec.fleet import Fleet, Machine, link
from atoll.spec.recipe import Channel, Recipe

Floats = NDArray[np.float64]

EXACTLY = 1e-9
"""What is so little short of a whole step is one."""

PACKET_BYTES = 1400
MATHIS = 1.22
"""A connection with round trips of T that loses the part p of its packets carries MATHIS * packet / (T * sqrt(p))."""
COUNCIL_MAX = 7
TRIPS_LOGGED = 2.0
"""Round trips from the broker to a majority of the council: the announcement and the commit go into the log."""
TRIPS_TOLD = 2.0
"""From the broker to its farthest member: a round is announced, members say what they have brought in, the broker whose
contributions count, and in the end that it is committed: half a trip each."""
TRIPS_MOVED = 2.0
"""Between the two that are farthest apart: who brings a part says so, is told what is wanted and sends it, and the
result comes back: half a trip each."""


class Ways(Struct, frozen=True, kw_only=True):
    """What lies between the members of a round, all pairs of them, and their lines; draws on the first axis, if any."""

    up_bytes_s: Floats
    down_bytes_s: Floats
    trip_s: Floats
    """Round trips, from each to each."""
    one_bytes_s: Floats
    """What one connection carries at most, from each to each."""


class Pace(Struct, frozen=True, kw_only=True):
    """What a mean round of a recipe takes on a fleet."""

    steps: float
    """Local steps of a member in it, on average."""
    samples: Floats
    """What those that are looked at work on in it; of a crowd, so many times as much as each stands for."""
    work_s: Floats
    lines_s: Floats
    trips_s: Floats
    round_s: Floats
    binds: str
    """What makes it as long as it is."""

    @property
    def step_s(self) -> Floats:
        return self.round_s / self.steps

    @property
    def samples_s(self) -> Floats:
        return self.samples / self.round_s


def ways_of(fleet: Fleet, machines: Sequence[Machine]) -> Ways:
    """Return what lies between the machines of a fleet."""
    regions = sorted({machine.region for machine in machines})
    place = {region: number for number, region in enumerate(regions)}
    known = [[link(fleet, one, other) for other in regions] for one in regions]
    at = np.array([place[machine.region] for machine in machines])
    trip_s = 2 * np.array([[each.latency_s for each in row] for row in known])
    loss = np.array([[each.loss for each in row] for row in known])
    return Ways(
        up_bytes_s=np.array([machine.up_bytes_s for machine in machines]),
        down_bytes_s=np.array([machine.down_bytes_s for machine in machines]),
        trip_s=trip_s[np.ix_(at, at)] * (1 - np.eye(len(machines))),
        one_bytes_s=connection_bytes_s(trip_s, loss)[np.ix_(at, at)],
    )


def connection_bytes_s(trip_s: Floats, loss: Floats) -> Floats:
    """Return what one connection carries at most: as much as its line, where nothing gets lost."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(loss > 0, MATHIS * PACKET_BYTES / (trip_s * np.sqrt(loss)), math.inf))


def pace(
    recipe: Recipe,
    parameters: int,
    sample_s: Floats,
    lines: Sequence[Line],
    ways: Ways,
    knobs: Knobs | None = None,
    shapes: Shapes | None = None,
) -> Pace:
    """Return what a mean round takes where a sample takes each member so long; draws on the first axis, if any."""
    return paced(recipe, kinds_on(recipe, parameters, lines, ways, knobs, shapes), sample_s, lines, ways, knobs)


def kinds_on(
    recipe: Recipe,
    parameters: int,
    lines: Sequence[Line],
    ways: Ways,
    knobs: Knobs | None = None,
    shapes: Shapes | None = None,
) -> list[Kind]:
    """Return what goes from whom to whom once members know what their lines carry; the same for all draws of that."""
    more = min(_connections(channel, lines) for channel in recipe.channel.values())
    felt = [
        replace(line, up_bytes_s=min(line.up_bytes_s, more * far), down_bytes_s=min(line.down_bytes_s, more * far))
        for line, far in zip(lines, _reach(ways), strict=True)
    ]
    return rounds(recipe, parameters, felt, knobs, shapes)


def paced(
    recipe: Recipe,
    kinds: Sequence[Kind],
    sample_s: Floats,
    lines: Sequence[Line],
    ways: Ways,
    knobs: Knobs | None = None,
    slower: Floats | float = 1.0,
) -> Pace:
    """Return what a mean round takes; `slower`: so many times longer than by formula its exchanges are."""
    often = min((kind.channel for kind in kinds), key=lambda channel: channel.when.round_steps)
    work_s, samples = _work(recipe, often, sample_s, crowd_of(lines))
    moved = [_moved(kind, lines, ways, slower) for kind in kinds]
    lines_s = _mean(kinds, [lines_s for lines_s, _, _ in moved])
    trips_s = _mean(kinds, [trips_s for _, trips_s, _ in moved])
    took = [_took(kind.channel, work_s, ours, trips) for kind, (ours, trips, _) in zip(kinds, moved, strict=True)]
    longest = max(range(len(kinds)), key=lambda number: kinds[number].part * float(np.median(moved[number][0])))
    round_s = _mean(kinds, took)
    return Pace(
        steps=round_steps(recipe, crowd_of(lines), knobs),
        samples=samples,
        work_s=work_s,
        lines_s=lines_s,
        trips_s=trips_s,
        round_s=round_s,
        binds=_binding(_slowest(recipe, often, lines, sample_s), work_s, lines_s, trips_s, moved[longest][2]),
    )


def sample_s(machines: Sequence[Machine], sample_flop: float) -> Floats:
    """Return how long a sample takes each machine."""
    return np.array([sample_flop / machine.device.reached_flop_s for machine in machines])


def pace_on(fleet: Fleet, machines: Sequence[Machine], recipe: Recipe, parameters: int, sample_flop: float) -> Pace:
    """Return what a mean round takes on machines of a fleet as it describes them."""
    return pace(recipe, parameters, sample_s(machines, sample_flop), lines_of(machines), ways_of(fleet, machines))


def _reach(ways: Ways) -> list[float]:
    """Return what each member can send to all others at once, whatever its line: connections may carry less."""
    one = np.median(ways.one_bytes_s, axis=0) if ways.one_bytes_s.ndim == 3 else ways.one_bytes_s
    others = one.copy()
    np.fill_diagonal(others, 0.0)
    return [float(total) if len(others) > 1 else math.inf for total in others.sum(axis=-1)]


def _connections(channel: Channel, lines: Sequence[Line]) -> float:
    """Return how many times more others a member of a crowd exchanges with than are looked at."""
    crowd, few = crowd_of(lines), len(lines)
    if crowd <= few or few < 2:
        return 1.0
    return max(1.0, (min(crowd, channel.group_max(int(crowd))) - 1) / (few - 1))


# work


def _work(recipe: Recipe, channel: Channel, sample_s: Floats, crowd: float) -> tuple[Floats, Floats]:
    """Return how long members work in a round until enough of them are done, and on how many samples these do."""
    members = sample_s.shape[-1]
    if isinstance(channel.when, TargetBatch):
        samples = np.full(sample_s.shape[:-1], channel.when.samples * members / crowd)
        return samples / (1 / sample_s).sum(axis=-1), samples
    quota = _quota(recipe, channel)
    enough = contributors(channel, crowd) * members / crowd
    if enough < members and not isinstance(recipe.work.quota, BySpeed):
        # each contributes at its own pace, and so many contributions are a round
        return enough * quota / (1 / sample_s).sum(axis=-1), np.full(sample_s.shape[:-1], enough * quota)
    each = _own(recipe, channel, sample_s)
    return np.maximum(quota * sample_s.min(axis=-1), (each * sample_s).max(axis=-1)), each.sum(axis=-1)


def _is_shared(channel: Channel, members: float) -> bool:
    """Return whether a round has enough with what some have done, so that nobody waits for anybody."""
    return isinstance(channel.when, TargetBatch) or contributors(channel, members) < members


def _quota(recipe: Recipe, channel: Channel) -> float:
    """Return the samples that a member works on in a round, where that is the same for all."""
    return channel.when.round_steps * recipe.work.batch / channel.phases


def _by_speed(kind: BySpeed, batch: int, quota: float, sample_s: Floats) -> Floats:
    """Return the samples of each member while the fastest has its quota, in whole batches."""
    fastest_s = sample_s.min(axis=-1, keepdims=True)
    fits = np.floor(quota * fastest_s / sample_s / batch + EXACTLY) * batch
    return np.asarray(np.clip(fits, kind.least * batch, quota))


def _often(recipe: Recipe) -> Channel:
    """Return the channel that has a round first: work is counted in its rounds."""
    return min(recipe.channel.values(), key=lambda channel: channel.when.round_steps)


def _own(recipe: Recipe, channel: Channel, sample_s: Floats) -> Floats:
    """Return the samples of each machine in a round that waits for all of them."""
    quota, kind = _quota(recipe, channel), recipe.work.quota
    if isinstance(kind, BySpeed):
        return _by_speed(kind, recipe.work.batch, quota, sample_s)
    return np.full_like(sample_s, quota)


def brought(recipe: Recipe, sample_s: Floats) -> Floats:
    """Return which part of what all work on in a round each of some machines does."""
    channel = _often(recipe)
    each = 1 / sample_s if _is_shared(channel, sample_s.shape[-1]) else _own(recipe, channel, sample_s)
    return np.asarray(each / each.sum(axis=-1, keepdims=True))


def busy(recipe: Recipe, sample_s: Floats, took: Pace) -> Floats:
    """Return which part of rounds each of some machines computes, those that nobody looked at among them."""
    channel = _often(recipe)
    round_s, work_s = np.asarray(took.round_s)[..., None], np.asarray(took.work_s)[..., None]
    count = sample_s.shape[-1]
    if _is_shared(channel, count):
        own_s = work_s + 0.0 * sample_s  # nobody waits for anybody
    else:
        own_s = _own(recipe, channel, sample_s) * sample_s
    return np.asarray(np.minimum(1.0, own_s / round_s))


# the exchange


def _moved(kind: Kind, lines: Sequence[Line], ways: Ways, slower: Floats | float) -> tuple[Floats, Floats, str]:
    """Return how long the bytes of a kind of round need, how long their ways are, and which line is the fullest."""
    count = len(lines)
    flows = np.zeros((count, count))
    for (sender, receiver), size_bytes in kind.flows.items():
        flows[sender, receiver] = size_bytes
    up_s = flows.sum(axis=1) / ways.up_bytes_s
    down_s = flows.sum(axis=0) / ways.down_bytes_s
    one_s = flows / _connections(kind.channel, lines) / ways.one_bytes_s
    lines_s = np.maximum(np.maximum(up_s.max(axis=-1), down_s.max(axis=-1)), one_s.max(axis=(-2, -1)))
    trips_s = _agreed_s(ways) + _hops(kind.channel, count) * TRIPS_MOVED * ways.trip_s.max(axis=(-2, -1))
    return slower * lines_s, slower * trips_s, _fullest(lines, up_s, down_s, one_s)


def _agreed_s(ways: Ways) -> Floats:
    """Return how long a round is on its way into the log and to everybody; who began the run leads, most likely."""
    trips_s = np.sort(ways.trip_s[..., 0, :], axis=-1)  # to itself there is none
    members = trips_s.shape[-1]
    council = min(members if members % 2 else members - 1, COUNCIL_MAX)
    return np.asarray(TRIPS_LOGGED * trips_s[..., council // 2] + TRIPS_TOLD * trips_s[..., -1])


def _hops(channel: Channel, members: int) -> float:
    """Return over how many members, one after the other, a value goes and comes back."""
    match channel.whom.route:
        case Ring():
            return members - 1
        case Trees() | Rings():
            return max(1.0, math.log2(members))
        case _:
            return 1.0


def _took(channel: Channel, work_s: Floats, lines_s: Floats, trips_s: Floats) -> Floats:
    """Return what a round takes from one announcement to the next."""
    exchange_s = lines_s + trips_s
    if isinstance(channel.barrier, Quorum) and channel.barrier.grace == Seconds() and channel.carries:
        return np.maximum(work_s, exchange_s)  # others work on while it is exchanged
    match channel.overlap:
        case Block():
            return work_s + exchange_s
        case Delay(steps=steps):
            return work_s + np.maximum(0.0, exchange_s - work_s * steps / channel.when.round_steps)
        case OneRound():
            return np.maximum(work_s, exchange_s)
        case RoundsLate(rounds=late):
            return np.maximum(np.maximum(work_s, lines_s), (work_s + exchange_s) / (late + 1))


def _mean(kinds: Sequence[Kind], times: Sequence[Floats]) -> Floats:
    return np.asarray(sum(kind.part * took for kind, took in zip(kinds, times, strict=True)))


# what binds


def _fullest(lines: Sequence[Line], up_s: Floats, down_s: Floats, one_s: Floats) -> str:
    """Return in words which line, or connection, is the fullest."""
    ups, downs, ones = (_middle(each, axes) for each, axes in ((up_s, 1), (down_s, 1), (one_s, 2)))
    first, second = divmod(int(ones.argmax()), len(lines))
    told = [
        (ups.max(), f"{lines[int(ups.argmax())].name}'s line up"),
        (downs.max(), f"{lines[int(downs.argmax())].name}'s line down"),
        (ones.max(), f"the connection from {lines[first].name} to {lines[second].name}"),
    ]
    return max(told, key=lambda each: float(each[0]))[1]


def _middle(times: Floats, axes: int) -> Floats:
    """Return the median over draws, where there are any."""
    return np.median(times, axis=0) if times.ndim > axes else times


def _slowest(recipe: Recipe, channel: Channel, lines: Sequence[Line], sample_s: Floats) -> str:
    """Return in words whose computing a round waits for: nobody's alone where each does what it can."""
    crowd = crowd_of(lines)
    if isinstance(recipe.work.quota, BySpeed) or _is_shared(channel, crowd):
        return "everybody's computing"
    return f"{lines[int(_middle(sample_s, 1).argmax())].name}'s computing"


def _binding(work: str, work_s: Floats, lines_s: Floats, trips_s: Floats, fullest: str) -> str:
    """Return in words what takes the largest part of a round."""
    told = [(work_s, work), (lines_s, fullest), (trips_s, "latency")]
    return max(told, key=lambda each: float(np.median(each[0])))[1]
