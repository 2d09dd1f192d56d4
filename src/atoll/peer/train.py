"""Work on one lease: local steps in slices, and the contribution they come to.

Training comes in slices of about a second, so that the peer can stop between them and everything else on the machine
keeps breathing. Where a peer does not wait for results it begins the next round's lease before the anchor that this is
to start from is there: so far, and no farther, and takes the anchor in then (`reconcile`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from atoll import journal as events
from atoll.errors import LocalError
from atoll.model.compute import Engine, Step, Trained, Vector
from atoll.model.held import Held
from atoll.peer.member import Member, Stint
from atoll.peer.private import goes_on
from atoll.spec.axes.pace import Blend, Block, Delay, OneRound, Quorum, RoundsLate, Shift
from atoll.spec.axes.what import Delta, Grad, Params
from atoll.spec.axes.when import Parts
from atoll.spec.recipe import Channel
from atoll.spec.schedule import rate
from atoll.swarm import lease
from atoll.swarm.lease import Lease
from atoll.swarm.log import Key
from atoll.sync.above import to_tell
from atoll.sync.merge import Anchor
from atoll.sync.overlap import blend, one_more, shift
from atoll.sync.units import Places, Unit, length

SLICE_S = 1.0
"""Work between two looks at the desk takes about this long."""

Contribution = Callable[[int, int], Vector]
"""Returns elements of what a round is about, in memory of their own: all at once would be one more model."""


@dataclass(frozen=True)
class Way:
    """A contribution: the way from the weights as they are now to where work began."""

    engine: Engine
    start: Vector
    unit: Unit
    anchor: Anchor | None = None
    """That whose weights they are; none: they are others."""

    def __call__(self, first: int, end: int) -> Vector:
        delta = np.empty(end - first, np.float32)
        for at, run in self.unit.runs(first, end):
            weights = _read(self.engine, run)
            np.subtract(self.start[run], weights, out=delta[at : at + weights.size])
        return delta


@dataclass(frozen=True)
class Gradients:
    """A contribution: the mean gradient of the steps of a stint."""

    total: Held
    steps: int

    def __call__(self, first: int, end: int) -> Vector:
        return self.total.read()[first:end] / np.float32(self.steps)


def stint_of(member: Member, key: Key, own: Lease) -> Stint:
    """Return the work on a lease, with the learning-rate factor of each step."""
    samples = list(lease.positions(own))
    batch = member.run.recipe.work.batch
    count = len(samples) // batch
    schedule = member.run.recipe.work.schedule
    first = _steps_before(member, key)
    begun, ended = spent(member, key.version), spent(member, key.version + 1)
    steps = [
        Step(
            samples=tuple(samples[i * batch : (i + 1) * batch]),
            rate=rate(schedule, first + i, begun + (ended - begun) * i / count, i / count),
        )
        for i in range(count)
    ]
    return Stint(key, own, steps, key.version)


def _steps_before(member: Member, key: Key) -> int:
    """Return how many steps came before a round's; where peers do not wait for each other, how many of our own did."""
    if not isinstance(member.channel.barrier, Quorum):
        return member.steps_before(key.version)
    pending = lease.size(member.begun.lease) if member.begun is not None else 0
    return (member.history.tally.samples.get(member.me, 0) + pending) // member.run.recipe.work.batch


def spent(member: Member, version: int) -> float:
    """Return the share of the budget that is used when round `version` begins; later rounds are as long as the last."""
    budget = member.run.budget
    if budget.rounds:
        return budget.part(rounds=version - 1, tokens=0)
    past = member.past.get(version)
    if past is not None:
        samples = past.samples_before
    else:
        newest = max(known for known in member.past if known < version)
        before = member.past[newest]
        samples = before.samples_before + (version - newest) * before.round_samples
    return budget.part(rounds=version - 1, tokens=samples * member.engine.tokens_per_sample)


def factor_of(member: Member, version: int) -> float:
    """Return the schedule's factor at the beginning of a round."""
    return rate(member.run.recipe.work.schedule, member.steps_before(version), spent(member, version))


def free_steps(member: Member, stint: Stint) -> int:
    """Return how many steps of a lease can be taken before the anchor is there that it is to start from."""
    if stint.carried and stint.own is None:
        return len(stint.steps)
    match member.channel_of(stint.key.version - 1).overlap:
        case Block():
            return 0
        case Delay(steps=steps):
            return min(steps, len(stint.steps))
        case OneRound() | RoundsLate():
            return len(stint.steps)


async def train(member: Member, stint: Stint, end: int, wanted: Callable[[], bool]) -> bool:
    """Take the steps of a stint up to `end`; return False when it was not wanted any longer before that."""
    loop = asyncio.get_running_loop()
    while stint.done < end:
        if not wanted():
            return False
        await _start(member, stint)
        part = stint.steps[stint.done : min(stint.done + stint.slice, end)]
        began_s = loop.time()
        trained = await _slice(member, stint, part)
        took_s = loop.time() - began_s
        stint.done += len(part)
        stint.worked_s += took_s
        stint.loss_sum += trained.loss_sum
        stint.slice = max(1, min(2 * stint.slice, round(stint.slice * SLICE_S / max(took_s, 1e-3))))
        member.box.journal.write(
            events.WorkProgressed(
                channel=stint.key.channel,
                version=stint.first,
                steps=stint.done,
                steps_of=len(stint.steps),
                loss=trained.loss_sum / trained.steps,
                tokens=trained.tokens,
                took_s=took_s,
            )
        )
    return True


async def _start(member: Member, stint: Stint) -> None:
    """Put the model where the work starts from, if it has not begun."""
    if stint.started:
        return
    private = member.private
    if stint.of is not None:
        weights = member.starts.get(stint.of, member.anchor.weights)
        await member.job(lambda: member.engine.assign(weights))
        stint.started = True
        return
    if stint.start is None and private.local is None and goes_on(member.channel_of(stint.key.version - 1)):
        private.local = await member.job(lambda: private.beginning(member.anchor.weights).copy())
    local = private.local if stint.start is None else stint.start
    anchor = member.anchor

    def assign() -> None:
        if local is None:
            member.engine.assign(anchor.weights, name=anchor, less=private.held, part=private.held_part)
        else:
            member.engine.assign(local, name=anchor if local is anchor.weights else None)

    await member.job(assign)
    stint.started = True


async def _slice(member: Member, stint: Stint, steps: Sequence[Step]) -> Trained:
    """Work through some steps."""
    engine = member.engine
    cost = engine.cost(sum(len(step.samples) for step in steps), len(steps))
    match member.channel.what:
        case Delta() | Params():
            return await member.box.compute.run(lambda: engine.train(steps), cost)
        case Grad():
            trained, stint.gradient = await member.box.compute.run(
                lambda: engine.gradients(steps, stint.gradient), cost
            )
            return trained


async def reconcile(member: Member, stint: Stint) -> None:
    """Take in what changed in the anchor that a stint is to start from: that is there now, and some steps are taken."""
    await _start(member, stint)
    stint.reconciled = True
    how = _reconciles(member.channel_of(stint.key.version - 1))
    if how is None or stint.key.version == 1:
        return
    private, anchor, local = member.private, member.anchor.weights, member.private.local
    assert local is not None, "there is somewhere that it starts from"

    def taken_in(weights: Vector, run: slice | Places) -> Vector:
        match how:
            case Blend(keep=keep):
                return blend(weights, private.beginning(anchor, run), keep)
            case Shift():
                return shift(weights, private.beginning(anchor, run), local[run])

    await _take_in(member, stint.key.version - 1, taken_in)


async def take_in_missed(member: Member, version: int, *, under_way: bool) -> None:
    """Take in a part that others exchanged without us: it is the anchor's now, wherever we are with our work.

    What we hold of it stays held. Our weights as we last contributed them get it too: they may have to be contributed
    again. Where no step was taken from them, the model gets it from there.
    """
    how = _reconciles(member.channel)
    if how is None:
        return
    assert isinstance(how, Blend), "who works on blends: the spec sees to it"
    anchor, private, unit, keep = member.anchor.weights, member.private, member.unit_of(version), how.keep
    local = private.local

    def taken_in(weights: Vector, run: slice | Places) -> Vector:
        return blend(weights, private.beginning(anchor, run), keep)

    def into(weights: Vector) -> None:
        for _, run in unit.runs(0, unit.size):
            weights[run] = taken_in(weights[run], run)

    if local is not None:
        await member.job(partial(into, local), vectors=2 * unit.reach / member.engine.size)
    if under_way:
        await _take_in(member, version, taken_in)


async def _take_in(member: Member, version: int, taken_in: Callable[[Vector, slice | Places], Vector]) -> None:
    """Change the part of the model that a round was about."""
    unit, engine = member.unit_of(version), member.engine

    def job() -> None:
        for _, run in unit.runs(0, unit.size):
            _write(engine, run, taken_in(_read(engine, run), run))

    await member.job(job, vectors=4 * unit.reach / engine.size)


def _reconciles(channel: Channel) -> Blend | Shift | None:
    """Return how a result is taken in by weights that are a peer's own; None: nothing is, or a whole round later."""
    match channel.overlap:
        case Delay(reconcile=reconcile):
            return reconcile
        case Block():
            return Blend() if isinstance(channel.when, Parts) else None
        case OneRound() | RoundsLate():
            return None


def contribution_of(member: Member, stint: Stint, mass: float = 1.0) -> Contribution:
    """Return what the work on a lease came to, of a member of such a mass."""
    member.samples_s = lease.size(stint.lease) / max(stint.worked_s, 1e-6)
    member.losses.append(stint.loss_sum / max(1, len(stint.steps)))
    if stint.gradient is not None:
        return Gradients(stint.gradient, len(stint.steps))
    if stint.trained is not None:
        return joined(member, stint)
    unit = member.unit_of(stint.key.version)
    if member.sends_weights(stint.key):
        return _at_hand(unit, partial(_weights, member.engine, unit, member.anchor.weights, mass))
    start = member.private.local if isinstance(member.channel.overlap, OneRound) else member.anchor.start
    start = stint.start if stint.start is not None else start
    assert start is not None, "there have been steps from somewhere"
    anchor = member.anchor
    return _at_hand(unit, Way(member.engine, start, unit, anchor if start is anchor.weights else None))


def _at_hand(unit: Unit, contribution: Contribution) -> Contribution:
    """Return a contribution that is made at once where any of it takes a look at the whole model."""
    if unit.reach == unit.size:
        return contribution
    made: list[Vector] = []

    def some(first: int, end: int) -> Vector:
        if not made:
            made.append(contribution(0, unit.size))
        return made[0][first:end]

    return some


def weights_of_anchor(member: Member, version: int) -> Contribution:
    """Return our weights as they are, where they travel between two rounds of work."""
    unit, weights = member.unit_of(version), member.anchor.weights
    return lambda first, end: unit.take(weights, first, end).copy()


def told_by(member: Member) -> Contribution:
    """Return how far our region has come since it last told."""
    anchor = member.anchor
    return lambda first, end: to_tell(anchor, slice(first, end))


def finite(values: Vector, version: int) -> Vector:
    """Return values that may leave; raises `LocalError` when training has diverged."""
    if not np.isfinite(values).all():
        raise diverged(version)
    return values


def diverged(version: int) -> LocalError:
    """Return what is to be said of values that are not finite."""
    return LocalError(
        f"training diverged in round {version}: some values are not finite",
        hint="lower the learning rate or clip gradients (recipe.work.inner.lr, recipe.work.clip)",
    )


def joined(member: Member, stint: Stint) -> Contribution:
    """Return the weights that late work came to, as one more beside those whose mean our circle has made meanwhile."""
    assert stint.trained is not None, "who may be late keeps them"
    unit = member.unit_of(stint.key.version)
    return partial(_joined, stint.trained, member.anchor.weights, stint.among, unit)


def _joined(trained: Vector, anchor: Vector, among: int, unit: Unit, first: int, end: int) -> Vector:
    own = unit.take(trained, first, end)
    return one_more(own, unit.take(anchor, first, end), among) if among else own.copy()


def late_contribution(member: Member, stint: Stint) -> Contribution:
    """Return what work that was late for one part came to in another: by our weights as we contributed them then."""
    anchor, local = member.anchor.weights, member.private.local
    assert local is not None, "who contributed goes on from there"
    return partial(_way, anchor, local, member.unit_of(stint.key.version))


def _weights(engine: Engine, unit: Unit, start: Vector, mass: float, first: int, end: int) -> Vector:
    """Return the weights as they are; of another mass than 1 with a way from their start that counts as one of 1."""
    weights = np.empty(end - first, np.float32)
    for at, run in unit.runs(first, end):
        weights[at : at + length(run)] = _read(engine, run)
    if mass != 1.0:
        began = unit.take(start, first, end)
        weights = began + (weights - began) / np.float32(mass)
    return weights


def _read(engine: Engine, run: slice | Places) -> Vector:
    """Return some of the model's weights; single ones come with all the others."""
    return engine.weights(run.start, run.stop) if isinstance(run, slice) else engine.weights()[run]


def _write(engine: Engine, run: slice | Places, values: Vector) -> None:
    """Replace some of the model's weights; single ones go with all the others."""
    if isinstance(run, slice):
        engine.assign(values, run.start)
        return
    weights = engine.weights()
    weights[run] = values
    engine.assign(weights)


def _way(start: Vector, weights: Vector, unit: Unit, first: int, end: int) -> Vector:
    delta: Vector = unit.take(start, first, end) - unit.take(weights, first, end)
    return delta
