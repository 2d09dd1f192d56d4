"""Recipes whose peers do not wait for each other, held against those that do and against plain loops by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from msgspec.structs import replace

from atoll.model.compute import Vector
from atoll.sim.faults import Pause, SlowCompute
from atoll.sim.retell import commits
from atoll.spec.axes.merge import Combine, Mean, Rda
from atoll.spec.axes.optimizer import AdamW, DelayedNesterov, Inner, Outer, Sgd
from atoll.spec.axes.pace import Blend, Carry, Delay, Late, Quorum, Slack
from atoll.spec.axes.whom import All, Star
from atoll.spec.axes.work import Constant, Schedule
from atoll.spec.run import Run
from atoll.spec.schedule import rate
from tests.few import few_of
from tests.identity.small import SAME, apart, digest_of, diloco, engine_of, steps_over, trained, weights_of
from tests.identity.test_overlap import fragment_of_each_element
from tests.peer.world import log_of

NESTEROV = Sgd(lr=0.7, momentum=0.9, nesterov=True)
ADAM = AdamW(lr=3e-3)
PEERS, STEPS, ROUNDS = 3, 3, 4
SLOW = 6000.0
"""So many times slower than these machines a model this small takes some of the others' rounds for its steps."""
ALL = Quorum(contributors=PEERS)


def hasty(run: Run, barrier: Quorum, late: Late | None = None, **merge: object) -> Run:
    """Return a run whose rounds wait for nobody beyond a quorum."""
    ((name, channel),) = run.recipe.channel.items()
    channel = replace(channel, barrier=barrier, late=late or Carry(), merge=replace(channel.merge, **merge))
    return replace(run, recipe=replace(run.recipe, channel={name: channel}))


def by_star(run: Run) -> Run:
    """Return a run in which one peer reduces for all."""
    ((name, channel),) = run.recipe.channel.items()
    return replace(run, recipe=replace(run.recipe, channel={name: replace(channel, whom=All(route=Star()))}))


def diloco_of(outer: Outer, inner: Inner = ADAM, schedule: Schedule | None = None, rounds: int = ROUNDS) -> Run:
    return diloco(inner=inner, outer=outer, steps=STEPS, rounds=rounds, start_with=PEERS, schedule=schedule)


def test_where_all_are_equally_fast_and_waited_for_async_is_diloco_to_the_bit() -> None:
    delayed = DelayedNesterov(lr=0.7, momentum=0.9, every=PEERS)
    free = trained(hasty(diloco_of(NESTEROV), ALL, outer=delayed), PEERS)
    assert weights_of(free).tobytes() == weights_of(trained(diloco_of(NESTEROV), PEERS)).tobytes()


def test_where_nobody_may_be_ahead_everybody_is_waited_for_however_slow_one_is() -> None:
    slow = [SlowCompute(at_s=0.0, peer=1, for_s=1e6, factor=SLOW)]
    delayed = DelayedNesterov(lr=0.7, momentum=0.9, every=PEERS)
    one_is_enough, bound = Quorum(contributors=1), Quorum(contributors=1, lag_max=0)
    held = trained(hasty(diloco_of(NESTEROV), bound, outer=delayed), PEERS, faults=slow)
    assert weights_of(held).tobytes() == weights_of(trained(diloco_of(NESTEROV), PEERS)).tobytes()
    free = trained(hasty(diloco_of(NESTEROV), one_is_enough, outer=delayed), PEERS, faults=slow)
    assert weights_of(free).tobytes() != weights_of(held).tobytes()


@pytest.mark.parametrize("late", few_of((0, 2), (2,)))
def test_where_all_are_waited_for_and_weigh_the_same_decoupled_is_streaming_to_the_bit(late: int) -> None:
    overlap = Delay(steps=late, reconcile=Blend()) if late else None
    streaming = diloco(inner=ADAM, outer=NESTEROV, steps=4, rounds=7, start_with=PEERS, overlap=overlap, fragments=2)
    decoupled = by_star(hasty(streaming, ALL, combine=Mean(weights="tokens^2/steps")))
    assert digest_of(trained(decoupled, PEERS)) == digest_of(trained(streaming, PEERS))


def radial_directional(
    mean: Vector, deltas: dict[bytes, Vector], weights: dict[bytes, int], layout: Mapping[str, int]
) -> Vector:
    """Return the mean with each tensor that embeds nothing merged by directions and lengths apart."""
    merged, first, total = mean.copy(), 0, sum(weights.values())
    for name, size in layout.items():
        where, first = slice(first, first + size), first + size
        if "embed" in name:
            continue
        lengths = {peer: float(np.linalg.norm(delta[where])) for peer, delta in deltas.items()}
        direction = np.zeros(size)
        for peer, weight in weights.items():
            direction += weight * deltas[peer][where] / max(lengths[peer], 1e-30)
        length = sum(weight * lengths[peer] for peer, weight in weights.items()) / total
        merged[where] = length * direction / max(float(np.linalg.norm(direction)), 1e-30)
    return merged


@pytest.mark.long
def test_who_pauses_where_all_are_waited_for_comes_to_the_same_model() -> None:
    run = hasty(diloco_of(NESTEROV), ALL)
    calm = trained(run, PEERS)
    assert digest_of(trained(run, PEERS, faults=[Pause(at_s=calm.took_s * 0.4, peer=1, for_s=1.5)])) == digest_of(calm)


@pytest.mark.parametrize(
    ("every", "spread"),
    few_of([(3, 0.25), (1, 0.0), (1, 0.25), (3, 0.0)], ((3, 0.25),)),
)
def test_each_contribution_is_the_way_from_the_anchor_its_lease_began_at(every: int, spread: float) -> None:
    """Asynchronous Local-SGD by hand, in the order in which the log says that contributions came."""
    outer = DelayedNesterov(lr=0.7, momentum=0.9, every=every, spread=spread)
    schedule = Constant(warmup_steps=9)
    run = hasty(diloco_of(outer, schedule=schedule, rounds=12), Quorum())
    outcome = trained(run, PEERS, faults=[SlowCompute(at_s=0.0, peer=2, for_s=1e6, factor=SLOW)])
    told = commits(log_of(outcome))
    assert max(stale for each in told for stale in each.staleness) > 2, "the slow one's start is several versions old"
    assert len({each.contributors for each in told}) > 1
    engines = {bytes(host.peer): engine_of(run) for host in outcome.hosts}
    anchors = [next(iter(engines.values())).weights()]
    momentum, buffer = np.zeros_like(anchors[0]), np.zeros_like(anchors[0])
    done = dict.fromkeys(engines, 0)
    pushes = 0
    for each in told:
        deltas = []
        for peer, stale in zip(each.contributors, each.staleness, strict=True):
            start = anchors[each.version - 1 - stale]
            rates = [rate(schedule, done[peer] + step, 0.0, 0.0) for step in range(STEPS)]
            done[peer] += STEPS
            engines[peer].assign(start)
            engines[peer].train(steps_over(each.announced.leases[peer][0], STEPS, rates))
            deltas.append(start - engines[peer].weights())
        delta, anchor = np.mean(deltas, axis=0), anchors[-1]
        for _ in deltas:
            pushes += 1
            buffer = buffer + delta / every
            step = spread * 0.9 * momentum + delta / every
            if pushes % every == 0:
                momentum, buffer = 0.9 * momentum + buffer, np.zeros_like(buffer)
                step = (1 - spread * every + spread) * 0.9 * momentum + delta / every
            anchor = anchor - 0.7 * step
        anchors.append(anchor.astype(np.float32))
    assert apart(weights_of(outcome), anchors[-1]) < 3 * SAME


@pytest.mark.parametrize(
    "combine", [Rda(weights="tokens^2/steps"), pytest.param(Mean(weights="tokens^2/steps"), marks=pytest.mark.long)]
)
def test_a_learner_that_is_behind_weighs_what_it_has_done_and_takes_in_what_came_meanwhile(combine: Combine) -> None:
    """Decoupled DiLoCo by hand, without delay, in the order in which the log says that contributions came."""
    fragments, rounds = 2, 14
    run = diloco(inner=ADAM, outer=NESTEROV, steps=fragments, rounds=rounds, start_with=PEERS, fragments=fragments)
    run = hasty(run, Quorum(contributors=2, grace=Slack(part=0.2)), combine=combine)
    outcome = trained(run, PEERS, faults=[SlowCompute(at_s=0.0, peer=2, for_s=1e6, factor=SLOW)])
    told = commits(log_of(outcome))
    slow = bytes(outcome.hosts[2].peer)
    assert 2 <= sum(slow in each.contributors for each in told) <= 0.6 * rounds
    engines = {bytes(host.peer): engine_of(run) for host in outcome.hosts}
    anchor = next(iter(engines.values())).weights()
    momentum = np.zeros_like(anchor)
    home = fragment_of_each_element(next(iter(engines.values())).layout)
    worked = dict.fromkeys(engines, 0)
    before = [dict(worked) for _ in range(fragments)]
    for each in told:
        part = (each.version - 1) % fragments
        for peer, since in each.announced.since.items():
            if (
                since == each.version
            ):  # a step is taken on what is there when it begins; what comes meanwhile is put over it
                engines[peer].train(steps_over(each.announced.leases[peer][0], 1))
        for peer in each.contributors:
            worked[peer] += 1
        weights = {peer: worked[peer] - before[part][peer] for peer in sorted(each.contributors)}
        before[part] = dict(worked)
        deltas = {peer: anchor - engines[peer].weights() for peer in weights}
        mean = np.average(list(deltas.values()), axis=0, weights=list(weights.values()))
        if isinstance(combine, Rda):
            mean = radial_directional(mean, deltas, weights, next(iter(engines.values())).layout)
        back = home == part
        momentum = np.where(back, 0.9 * momentum + mean, momentum)
        anchor = np.where(back, anchor - 0.7 * (mean + 0.9 * momentum), anchor).astype(np.float32)
        for engine in engines.values():
            engine.assign(np.where(back, anchor, engine.weights()))
    assert apart(weights_of(outcome), anchor) < 10 * SAME
