"""Gradients over each link by itself: as much as it carries, batches by speed, and a teacher that all learn from."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from statistics import fmean, pstdev

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Step
from atoll.plan.lines import Line
from atoll.plan.traffic import traffic
from atoll.sim.check import violations
from atoll.sim.faults import Crash, SlowCompute
from atoll.sim.network import SimTransport
from atoll.sim.scenario import Outcome, Scenario, World, simulate
from atoll.spec.axes.codec import Fp32, MaxN
from atoll.spec.axes.merge import Mean
from atoll.spec.axes.optimizer import Sgd
from atoll.spec.axes.what import Feedback, Grad
from atoll.spec.axes.when import Growth, TargetBatch
from atoll.spec.axes.whom import Circles, Mesh
from atoll.spec.run import Run
from atoll.swarm.log import RoundAnnounced
from atoll.swarm.messages import Standing
from atoll.sync.merge import weighed_mean
from tests.identity.small import engine_of, mesh
from tests.identity.test_circles import own_weights
from tests.peer.stranger import WHO, Spy
from tests.peer.test_hostile import first_digest, refusals, visited
from tests.peer.test_ways import DELAY_S, loss_at
from tests.peer.world import DELAYS_S, assert_sound, counting_run, events, machines, name, once, play, sized


def run_of(*, rounds: int, peers: int, teach_every: int = 0, samples: int = 0, codec: MaxN | None = None) -> Run:
    run = counting_run("dlion", rounds=rounds, start_with=peers, checkpoint_every=100)
    channel = run.recipe.channel["outer"]
    channel = replace(
        channel,
        when=TargetBatch(samples=samples) if samples else channel.when,
        what=channel.what if codec is None else replace(channel.what, codec=codec),
        whom=Circles(pattern=Mesh(teach_every=teach_every)),
    )
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


# links


def filled(outcome: Outcome, giver: int, taker: int, since: int) -> list[float]:
    """Return which parts of its gradients one sent another, from a round on."""
    told = [e for e in events(outcome, journal.LinksFilled, peer=giver) if e.version >= since]
    return [event.parts[name(outcome.hosts[taker])] for event in told]


@pytest.mark.long
def test_a_link_of_a_tenth_of_the_rate_gets_about_a_tenth_of_the_values() -> None:
    """Lines of 1 and of 0.1 MB/s beside gradients of 0.8 MB and steps of 0.2 s."""
    rounds = 10
    run = run_of(rounds=rounds, peers=3, samples=12)
    fleet = machines(3, rate_bytes_s=1e6)
    fleet[2] = replace(fleet[2], up_bytes_s=1e5, down_bytes_s=1e5)
    outcome = simulate(Scenario(run=run, machines=fleet, delays_s=DELAYS_S, seed=1, build=sized(200_000)))
    assert_sound(run, outcome, version=rounds)
    fast, slow = fmean(filled(outcome, 0, 1, 5)), fmean(filled(outcome, 0, 2, 5))
    assert 0.07 < slow / fast < 0.13, (fast, slow)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_links_of_one_peer_differ_also_where_packets_are_lost(seed: int) -> None:
    """What a lossy link takes is mostly not for bytes: it gets far less, and never nothing."""
    rates = {(0, 1): 2e6, (0, 2): 2e5, (1, 2): 2e6}
    rounds = 14
    run = run_of(rounds=rounds, peers=3, samples=12)
    outcome = simulate(
        Scenario(
            run=run,
            machines=[replace(each, region=str(i)) for i, each in enumerate(machines(3, rate_bytes_s=1e9))],
            delays_s=dict.fromkeys([(str(a), str(b)) for a, b in rates], DELAY_S),
            losses={(str(a), str(b)): loss_at(rate) for (a, b), rate in rates.items()},
            seed=seed,
            build=sized(200_000),
        )
    )
    assert_sound(run, outcome, version=rounds)
    for giver, far, near in ((0, 2, 1), (2, 0, 1)):
        assert all(0.004 < part < 0.11 for part in filled(outcome, giver, far, 5))
        assert all(0.43 < part < 0.47 for part in filled(outcome, giver, near, 5))


# batches


SLOWER = [SlowCompute(at_s=0.0, peer=1, for_s=1e6, factor=2.0), SlowCompute(at_s=0.0, peer=2, for_s=1e6, factor=4.0)]


def test_batches_follow_speeds_and_steps_take_as_long_for_all() -> None:
    rounds = 8
    run = run_of(rounds=rounds, peers=3, samples=56)
    outcome = play(run, 3, faults=SLOWER)
    assert_sound(run, outcome, version=rounds)
    quotas = events(outcome, journal.QuotasChanged)[-1].quotas
    batches = [quotas[name(host)] for host in outcome.hosts]
    for batch, share in zip(batches, (4, 2, 1), strict=True):
        assert batch == pytest.approx(56 * share / 7, rel=0.1)
    each_s = [
        sum(e.took_s for e in events(outcome, journal.WorkProgressed, peer=place) if e.version == rounds - 1)
        for place in range(3)
    ]
    assert pstdev(each_s) < 0.1 * fmean(each_s), each_s


def test_the_batch_of_all_together_grows_evenly_and_then_twofold() -> None:
    growth = Growth(every=2, add=6, until=18, most=60)
    when = TargetBatch(samples=6, growth=growth)
    assert [when.samples_in(version) for version in range(1, 14)] == [6, 6, 12, 12, 18, 18, 36, 36, 60, 60, 60, 60, 60]
    run = run_of(rounds=10, peers=3)
    channel = replace(run.recipe.channel["outer"], when=when)
    run = replace(run, recipe=replace(run.recipe, channel={"outer": channel}))
    outcome = play(run, 3)
    assert_sound(run, outcome, version=10)
    samples = [event.samples for _, event in once(outcome, journal.RoundCommitted)]
    assert samples == [6, 6, 12, 12, 18, 18, 36, 36, 60, 0]


# bytes


@pytest.mark.parametrize("teach_every", [pytest.param(0, marks=pytest.mark.long), 2])
def test_predicted_bytes_are_those_that_are_sent(teach_every: int) -> None:
    """With everything sent, in all rounds but the last, which is of all."""
    size, peers, rounds = 60_000, 3, 3
    run = run_of(rounds=rounds, peers=peers, teach_every=teach_every, codec=MaxN(least=100.0, most=100.0))
    outcome = play(run, peers, build=sized(size), rate_bytes_s=1e9)
    predicted = traffic(run.recipe, size, [Line()] * peers)
    counts = [events(outcome, journal.TrafficCounted, peer=place)[-2].round_sent_bytes for place in range(peers)]
    told = (rounds - 1) * sum(moved.sent_bytes for moved in predicted.moved)
    assert told <= sum(counts) <= 1.02 * told


# what the log tells


def test_where_everything_is_sent_log_and_journals_tell_everybodys_weights() -> None:
    run = run_of(rounds=7, peers=3, teach_every=3, samples=56)
    channel = replace(run.recipe.channel["outer"], what=Grad())
    run = replace(run, recipe=replace(run.recipe, channel={"outer": channel}))
    outcome = play(run, 3, faults=[*SLOWER, Crash(at_s=4.0, peer=1, restart_after_s=0.5)])
    assert_sound(run, outcome, version=7)
    evenly = replace(channel, merge=replace(channel.merge, combine=Mean()))
    otherwise = replace(run, recipe=replace(run.recipe, channel={"outer": evenly}))
    assert any("away from what the log adds up to" in each for each in violations(otherwise, outcome))


# who teaches


def test_who_joins_or_crashes_is_with_the_others_in_the_end() -> None:
    run = run_of(rounds=9, peers=3, teach_every=3)
    faults = [Crash(at_s=at_s, peer=peer, restart_after_s=0.5) for at_s, peer in ((1.0, 2), (2.0, 0))]
    outcome = play(run, 3, faults=faults)
    assert violations(run, outcome) == []
    assert {host.version for host in outcome.hosts} == {9}


PEERS, EVERY = 3, 8


def sparse(percent: float) -> Grad:
    """Return gradients of which every link gets what is within so many percent of the largest."""
    return Grad(codec=MaxN(least=percent, most=percent), residual=Feedback(), result=Fp32())


def losses(run: Run, outcome: Outcome, version: int) -> list[float]:
    """Return the held-out losses of everybody's own weights after a round."""
    engine, found = engine_of(run), []
    for host in outcome.hosts:
        engine.assign(own_weights(host, version))
        total, tokens = engine.evaluate(0, engine.held_out())
        found.append(total / tokens)
    return found


@pytest.mark.long
@pytest.mark.parametrize("percent", [2.0, 10.0])
def test_a_transfer_halves_the_spread_of_losses_between_workers(percent: float) -> None:
    """Where little goes over links models come apart; each transfer brings them together again."""
    ratios = []
    for version in (8, 16, 24):
        run = mesh(sparse(percent), outer=Sgd(lr=0.3), rounds=100, start_with=PEERS, teach_every=EVERY)
        path = f"checkpoint/{version}.safetensors"
        outcome = play(run, PEERS, build=engine_of, enough=partial(_all_have, path))
        before, after = (np.ptp(losses(run, outcome, each)) for each in (version - 1, version))
        ratios.append(float(after / before))
    assert all(0.15 < ratio <= 0.5 for ratio in ratios), ratios


def _all_have(path: str, world: World) -> bool:
    return all(host.disk.file(path) for host in world.hosts)


@pytest.mark.long
def test_gradients_that_count_by_their_samples_come_nearer_to_that_of_many_than_ones_that_count_alike() -> None:
    """Of batches of 4, 2 and 1 the mean by samples has 1/7 of a sample's variance, the even mean 7/36."""
    run = mesh(Grad(), outer=Sgd(lr=0.3), rounds=2, start_with=PEERS)
    engine, draws = engine_of(run), 24
    _, true = engine.gradient([Step(samples=tuple(range(256)))])
    off = {"samples": 0.0, "uniform": 0.0}
    for draw in range(draws):
        firsts = [7 * draw + first for first in (0, 4, 6, 7)]
        came = [engine.gradient([Step(samples=tuple(range(a, b)))])[1] for a, b in pairwise(firsts)]
        off["samples"] += float(np.square(weighed_mean(came, [4.0, 2.0, 1.0]) - true).sum())
        off["uniform"] += float(np.square(weighed_mean(came, [1.0, 1.0, 1.0]) - true).sum())
    assert off["samples"] / off["uniform"] == pytest.approx((1 / 7) / (7 / 36), rel=0.15), off


@pytest.mark.parametrize("lie", [-math.inf, pytest.param(math.nan, marks=pytest.mark.long)])
def test_who_says_an_impossible_loss_teaches_nobody_and_is_named(lie: float) -> None:
    run = counting_run("dlion", rounds=6, start_with=2, patience_s_max=5.0)
    channel = replace(run.recipe.channel["outer"], whom=Circles(pattern=Mesh(teach_every=2)))
    run = replace(run, recipe=replace(run.recipe, channel={"outer": channel}))

    async def enter(world: World, door: SimTransport) -> None:
        spy = Spy(world, door)
        await spy.join(first_digest(run))
        await spy.say(Standing(0, first_digest(run), loss=lie))
        await spy.until(lambda: announced(spy, 2))
        await spy.leave()

    outcome = visited(enter, run)
    assert refusals(outcome) == [f"a loss of {lie}"]
    taught = events(outcome, journal.TeacherChosen)
    assert {event.version for event in taught} == {2, 4}
    assert all(event.who != WHO for event in taught)


def announced(spy: Spy, version: int) -> bool:
    records = (entry.record for entry in spy.log)
    return any(isinstance(record, RoundAnnounced) and record.key.version == version for record in records)
