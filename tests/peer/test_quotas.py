"""Unequal machines in one run: work by speed, and a batch of all together that is the same whoever is there."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Step
from atoll.sim.check import violations
from atoll.sim.faults import Crash, SlowCompute
from atoll.sim.scenario import Outcome
from atoll.spec.axes.merge import Mean
from atoll.spec.axes.optimizer import AdamW, Lamb
from atoll.spec.axes.pace import OneRound, Overlap
from atoll.spec.axes.when import TargetBatch
from atoll.spec.axes.work import ByRate, BySpeed, Cosine, Cyclic, Growing, Same
from atoll.spec.load import load_recipe
from atoll.spec.run import Budget, Run
from atoll.spec.schedule import rate
from tests.few import few_of
from tests.identity.small import BATCH, SAME, apart, ddp, engine_of, trained, weights_of
from tests.peer.world import assert_sound, counting_run, events, name, once, play

SLOW = [SlowCompute(at_s=0.0, peer=1, for_s=1e6, factor=2.0), SlowCompute(at_s=0.0, peer=2, for_s=1e6, factor=4.0)]
STEPS = 8
ADAM = AdamW(lr=3e-3, weight_decay=0.0)
"""Without decay: a peer's own AdamW spares vectors from it, the common one knows no tensors."""


def unequal(*, by_speed: bool, rounds: int = 8, overlap: Overlap | None = None) -> Run:
    run = counting_run(steps=STEPS, rounds=rounds, start_with=3)
    ((channel, how),) = run.recipe.channel.items()
    merge = replace(how.merge, combine=Mean(weights="uniform" if overlap else "samples"))
    how = replace(how, merge=merge, overlap=overlap or how.overlap)
    work = replace(run.recipe.work, quota=BySpeed() if by_speed else Same())
    return replace(run, recipe=replace(run.recipe, work=work, channel={channel: how}))


def round_s(outcome: Outcome) -> float:
    at_s = {e.version: line.at_s for line in outcome.lines if isinstance(e := line.event, journal.RoundCommitted)}
    return (at_s[7] - at_s[3]) / 4


def test_a_round_of_unequal_machines_takes_as_long_as_the_fastest_one_works() -> None:
    outcomes = []
    for by_speed in (False, True):
        run = unequal(by_speed=by_speed)
        outcomes.append(play(run, 3, faults=SLOW))
        assert_sound(run, outcomes[-1], version=8)
    same, by_speeds = outcomes
    assert round_s(by_speeds) < 0.3 * round_s(same)
    told = events(by_speeds, journal.QuotasChanged)
    assert [told[-1].quotas[name(host)] for host in by_speeds.hosts] == [16, 8, 4]


def test_quotas_follow_a_machine_that_becomes_slower() -> None:
    run = unequal(by_speed=True, rounds=16)
    outcome = play(run, 3, faults=[SlowCompute(at_s=4.0, peer=2, for_s=1e6, factor=4.0)])
    assert_sound(run, outcome, version=16)
    told = events(outcome, journal.QuotasChanged)
    assert [told[-1].quotas[name(host)] for host in outcome.hosts] == [16, 16, 4]


@pytest.mark.parametrize("overlap", [OneRound(), pytest.param(OneRound(eager=False), marks=pytest.mark.long)])
def test_who_goes_on_meanwhile_keeps_its_samples_while_quotas_stay(overlap: Overlap) -> None:
    run = unequal(by_speed=True, rounds=16, overlap=overlap)
    outcome = play(run, 3, faults=SLOW)
    assert_sound(run, outcome, version=16)
    begun_anew = events(outcome, journal.InnerStateRestored)
    assert len(begun_anew) <= 2 * 3, "only when the quotas changed"


# a batch of all together


def together(samples: int, *, rounds: int, start_with: int) -> Run:
    run = ddp(outer=ADAM, rounds=rounds, start_with=start_with)
    ((channel, how),) = run.recipe.channel.items()
    how = replace(how, when=TargetBatch(samples=samples))
    return replace(run, recipe=replace(run.recipe, channel={channel: how}))


def speeds(peers: int) -> list[SlowCompute]:
    """Return that everybody but the first is slower, each by a factor of its own."""
    chance = np.random.default_rng(peers)
    factors = chance.uniform(2.0, 5.0, peers)
    return [SlowCompute(at_s=0.0, peer=at, for_s=1e6, factor=float(factors[at])) for at in range(1, peers)]


@pytest.mark.parametrize("peers", few_of((2, 3, 4, 8), (3,)))
def test_whoever_takes_part_at_whatever_speed_it_is_one_machine_with_that_batch(peers: int) -> None:
    batch, rounds = 2 * max(3, peers) * BATCH, 5
    run = together(batch, rounds=rounds, start_with=peers)
    outcome = trained(run, peers, faults=speeds(peers))
    plain = engine_of(
        replace(run, recipe=replace(run.recipe, work=replace(run.recipe.work, inner=AdamW(lr=3e-3, weight_decay=0.0))))
    )
    plain.train([Step(samples=tuple(range(at, at + batch))) for at in range(0, rounds * batch, batch)])
    assert apart(weights_of(outcome), plain.weights()) < SAME
    told = events(outcome, journal.QuotasChanged)
    assert told[-1].quotas[name(outcome.hosts[1])] < told[-1].quotas[name(outcome.hosts[0])]


def test_a_round_goes_on_when_some_of_its_members_die_and_the_next_batch_is_whole_again() -> None:
    run = counting_run("ddp", rounds=12, start_with=5)
    ((channel, how),) = run.recipe.channel.items()
    run = replace(run, recipe=replace(run.recipe, channel={channel: replace(how, when=TargetBatch(samples=40))}))
    outcome = play(run, 5, faults=[Crash(at_s=2.0, peer=3), Crash(at_s=2.1, peer=4)])
    assert not violations(run, outcome)
    samples = {e.version: e.samples for e in events(outcome, journal.RoundCommitted, peer=0)}
    assert min(samples.values()) >= 16, "of those who stayed"
    assert [samples[version] for version in (1, 10, 11, 12)] == [40, 40, 40, 40]


@pytest.mark.parametrize("at_s", [1.0, *(pytest.param(at_s, marks=pytest.mark.long) for at_s in (1.3, 1.6, 1.9, 2.2))])
def test_a_batch_in_which_one_of_eight_dies_lacks_what_it_worked_on_and_the_next_lacks_nothing(at_s: float) -> None:
    run = counting_run("ddp", rounds=6, start_with=8)
    ((channel, how),) = run.recipe.channel.items()
    run = replace(run, recipe=replace(run.recipe, channel={channel: replace(how, when=TargetBatch(samples=80))}))
    outcome = play(run, 8, faults=[Crash(at_s=at_s, peer=5)])
    assert not violations(run, outcome)
    assert sorted(event.samples for _, event in once(outcome, journal.RoundCommitted)) == [70, *[80] * 5]


# as shipped: LAMB, and gradients in fp16


def dedloc(peers: int, *, rounds: int = 40) -> Run:
    """Return a run of the shipped recipe with batches of 48 samples, whose loss is looked at after every round."""
    run = together(48, rounds=rounds, start_with=peers)
    shipped = load_recipe("dedloc").channel["outer"]
    assert isinstance(shipped.merge.outer, Lamb)
    merge = replace(shipped.merge, outer=replace(shipped.merge.outer, lr=2e-2), scheduled=False)
    channel = replace(shipped, when=TargetBatch(samples=48), merge=merge)
    upkeep = replace(run.upkeep, evaluate_every=1, patience_s_max=30.0)
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}), upkeep=upkeep)


def losses(outcome: Outcome) -> dict[int, float]:
    """Return the held-out loss after every round."""
    return {e.version: e.loss for e in events(outcome, journal.Evaluated) if e.loss is not None}


@pytest.mark.long
def test_the_curves_of_two_four_and_eight_are_that_of_one_machine_with_that_batch() -> None:
    alone = losses(play(dedloc(1), 1, build=engine_of))
    assert alone[40] < 0.92 * alone[0]
    for peers in (2, 4, 8):
        found = losses(play(dedloc(peers), peers, build=engine_of, faults=speeds(peers)))
        assert [found[version] for version in alone] == pytest.approx(list(alone.values()), rel=0.005)


@pytest.mark.long
def test_two_of_eight_that_die_in_mid_round_hold_up_nobody_for_long_and_leave_no_mark_on_the_loss() -> None:
    run = dedloc(8)
    calm = play(run, 8, build=engine_of)
    began_s = next(at_s for at_s, event in once(calm, journal.RoundAnnounced) if event.version == 20)
    ended_s = next(at_s for at_s, event in once(calm, journal.RoundCommitted) if event.version == 20)
    at_s = (began_s + ended_s) / 2
    outcome = play(run, 8, build=engine_of, faults=[Crash(at_s=at_s, peer=6), Crash(at_s=at_s, peer=7)])
    commits_s = [at_s for at_s, _ in once(outcome, journal.RoundCommitted)]
    assert max(later - earlier for earlier, later in pairwise(commits_s)) < 30.0
    samples = [event.samples for _, event in once(outcome, journal.RoundCommitted)]
    assert sum(count < 48 for count in samples) <= 2, "of the round they died in those of six are left"
    before, after = losses(calm), losses(outcome)
    assert [after[version] for version in before] == pytest.approx(list(before.values()), rel=0.02)


# rounds that grow


def test_rounds_that_move_little_are_followed_by_longer_ones_up_to_the_most() -> None:
    run = counting_run("co-learning", rounds=8, steps=2, start_with=3)
    work = replace(run.recipe.work, quota=Growing(below=10.0, factor=2, most=16))
    run = replace(run, recipe=replace(run.recipe, work=work))
    outcome = play(run, 3, faults=[Crash(at_s=2.0, peer=0, restart_after_s=0.5)])
    assert_sound(run, outcome, version=8)
    steps = [e.samples // len(e.contributors) // 2 for e in events(outcome, journal.RoundCommitted, peer=1)]
    assert steps[0] == 2
    assert steps[-1] > 4, "it doubled at least twice"
    assert all(after in (before, min(16, 2 * before)) for before, after in pairwise(steps)), "a new broker goes on"


def test_rounds_grow_as_the_rate_falls_and_end_with_the_budget() -> None:
    run = counting_run(steps=2, start_with=3)
    work = replace(run.recipe.work, quota=ByRate(power=1.0, most=8), schedule=Cosine(warmup_steps=4, floor=0.05))
    batch, tokens = run.recipe.work.batch, 60 * 3 * run.recipe.work.batch * run.data.context
    run = replace(run, recipe=replace(run.recipe, work=work), budget=Budget(tokens=tokens))
    outcome = play(run, 3, faults=[Crash(at_s=4.0, peer=0, restart_after_s=0.5)])
    rounds = events(outcome, journal.RoundCommitted, peer=1)
    assert_sound(run, outcome, version=rounds[-1].version)
    assert {len(e.contributors) for e in rounds} == {2, 3}, "one was away for a while, who had led"
    steps = [e.samples // len(e.contributors) // batch for e in rounds]
    assert (steps[0], max(steps)) == (2, 8)
    assert steps[:-1] == sorted(steps[:-1]), "a new broker goes on where the old one was"
    assert sum(e.samples for e in rounds) * run.data.context == tokens, "the last takes what is left"


def test_the_rate_falls_within_each_round_and_is_back_at_the_next() -> None:
    schedule = Cyclic(floor=0.25)
    assert [rate(schedule, 7, 0.5, within) for within in (0.0, 0.5, 1.0)] == [1.0, 0.5, 0.25]
    assert rate(Cyclic(floor=0.25, warmup_steps=10), 4, 0.5, 0.5) == 0.25
