"""Work on one lease: local steps in slices, and the contribution they come to.

Training comes in slices of about a second, so that the peer can stop between them and everything else on the machine
keeps breathing. Where a peer does not wait for results it begins the next round's lease before the anchor that this is
to start from is there: so far, and no farther, and takes the anchor in then (`reconcile`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from atoll import journal as events
from atoll.model.compute import Engine, Step, Trained, Vector
from atoll.peer.member import Member, Stint
from atoll.peer.private import goes_on
from atoll.spec.recipe import Blend, Block, Channel, Delay, Delta, Fragments, Grad, OneRound, Params, Shift
from atoll.swarm import lease
from atoll.swarm.lease import Lease
from atoll.swarm.log import Key
from atoll.sync.overlap import blend, shift
from atoll.sync.schedule import rate
from atoll.sync.units import Unit

SLICE_S = 1.0
"""Work between two looks at the desk takes about this long."""

Contribution = Callable[[int, int], Vector]
"""Returns elements of what a round is about, in memory of their own: all at once would be one more model."""


def stint_of(member: Member, key: Key, own: Lease) -> Stint:
    """Return the work on a lease, with the learning-rate factor of each step."""
    samples = list(lease.positions(own))
    batch = member.run.recipe.work.batch
    count = len(samples) // batch
    schedule = member.run.recipe.work.schedule
    first = member.steps_before(key.version)
    begun, ended = spent(member, key.version), spent(member, key.version + 1)
    steps = [
        Step(
            samples=tuple(samples[i * batch : (i + 1) * batch]),
            rate=rate(schedule, first + i, begun + (ended - begun) * i / count, i / count),
        )
        for i in range(count)
    ]
    return Stint(key, own, steps)


def spent(member: Member, version: int) -> float:
    """Return the share of the budget that is used when round `version` begins; later rounds are as long as the last."""
    budget = member.run.budget
    if budget.rounds:
        return (version - 1) / budget.rounds
    past = member.past.get(version)
    if past is not None:
        samples = past.samples_before
    else:
        newest = max(known for known in member.past if known < version)
        before = member.past[newest]
        samples = before.samples_before + (version - newest) * before.round_samples
    return samples * member.engine.tokens_per_sample / budget.tokens


def free_steps(member: Member, stint: Stint) -> int:
    """Return how many steps of a lease can be taken before the anchor is there that it is to start from."""
    match member.channel_of(stint.key.version - 1).overlap:
        case Block():
            return 0
        case Delay(steps=steps):
            return min(steps, len(stint.steps))
        case OneRound():
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
        stint.slice = max(1, min(2 * stint.slice, round(stint.slice * SLICE_S / max(took_s, 1e-3))))
        member.box.journal.write(
            events.WorkProgressed(
                channel=stint.key.channel,
                version=stint.key.version,
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
    if private.local is None and goes_on(member.channel_of(stint.key.version - 1)):
        private.local = await member.job(member.anchor.weights.copy)
    start = member.anchor.weights if private.local is None else private.local
    await member.job(lambda: member.engine.assign(start))
    stint.started = True


async def _slice(member: Member, stint: Stint, steps: Sequence[Step]) -> Trained:
    """Work through some steps; gradients add up one by one, so that the sum does not depend on how work was sliced."""
    engine = member.engine
    cost = engine.cost(sum(len(step.samples) for step in steps))
    match member.channel.what:
        case Delta() | Params():
            return await member.box.compute.run(lambda: engine.train(steps), cost)
        case Grad():
            trained, stint.gradient = await member.box.compute.run(
                lambda: _add_gradients(engine, steps, stint.gradient), cost
            )
            return trained


def _add_gradients(engine: Engine, steps: Sequence[Step], total: Vector | None) -> tuple[Trained, Vector | None]:
    parts = []
    for step in steps:
        trained, gradient = engine.gradient([step])
        total = gradient if total is None else total + gradient
        parts.append(trained)
    return Trained(
        steps=len(parts),
        samples=sum(t.samples for t in parts),
        tokens=sum(t.tokens for t in parts),
        loss_sum=sum(t.loss_sum for t in parts),
    ), total


async def reconcile(member: Member, stint: Stint) -> None:
    """Take in what changed in the anchor that a stint is to start from: that is there now, and some steps are taken."""
    await _start(member, stint)
    stint.reconciled = True
    how = _reconciles(member.channel_of(stint.key.version - 1))
    if how is None or stint.key.version == 1:
        return
    unit = member.unit_of(stint.key.version - 1)
    anchor, local, engine = member.anchor.weights, member.private.local, member.engine
    assert local is not None, "there is somewhere that it starts from"

    def take_in() -> None:
        for _, run in unit.runs(0, unit.grid.size):
            weights = engine.weights(run.start, run.stop)
            match how:
                case Blend(keep=keep):
                    blend(weights, anchor[run], keep)
                case Shift():
                    shift(weights, anchor[run], local[run])
            engine.assign(weights, run.start)

    await member.job(take_in, vectors=4 / len(member.units))


def _reconciles(channel: Channel) -> Blend | Shift | None:
    """Return how a result is taken in by weights that are a peer's own; None: nothing is, or a whole round later."""
    match channel.overlap:
        case Delay(reconcile=reconcile):
            return reconcile
        case Block():
            return Blend() if isinstance(channel.when, Fragments) else None
        case OneRound():
            return None


def contribution_of(member: Member, stint: Stint) -> Contribution:
    """Return what the work on a lease came to."""
    member.samples_s = lease.size(stint.lease) / max(stint.worked_s, 1e-6)
    if stint.gradient is not None:
        return partial(_mean, stint.gradient, np.float32(len(stint.steps)))
    if member.sends_weights(stint.key):
        return partial(_weights, member.engine, member.unit_of(stint.key.version))
    start = member.private.local if isinstance(member.channel.overlap, OneRound) else member.anchor.weights
    assert start is not None, "there have been steps from somewhere"
    return partial(_delta, member.engine, start, member.unit_of(stint.key.version))


def _mean(gradient: Vector, steps: np.float32, first: int, end: int) -> Vector:
    return gradient[first:end] / steps


def _weights(engine: Engine, unit: Unit, first: int, end: int) -> Vector:
    weights = np.empty(end - first, np.float32)
    for at, run in unit.runs(first, end):
        weights[at : at + run.stop - run.start] = engine.weights(run.start, run.stop)
    return weights


def _delta(engine: Engine, start: Vector, unit: Unit, first: int, end: int) -> Vector:
    delta = np.empty(end - first, np.float32)
    for at, run in unit.runs(first, end):
        weights = engine.weights(run.start, run.stop)
        np.subtract(start[run], weights, out=delta[at : at + weights.size])
    return delta
