"""Peers that do not wait for each other: what that saves, whose work counts how, and that nothing is lost by it."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.net.identity import short
from atoll.sim.case import play as play_case
from atoll.sim.faults import Crash, Fault, Leave, Pause, SlowCompute
from atoll.sim.retell import commits
from atoll.sim.scenario import Entrance, Outcome
from atoll.sim.skies import case_of
from atoll.spec.axes.pace import Block, Full, Quorum
from atoll.spec.axes.when import Fragments
from atoll.spec.axes.whom import All
from atoll.spec.axes.work import Same
from atoll.spec.run import Membership, Run
from atoll.swarm.log import History, apply
from tests.peer.world import assert_sound, counting_run, events, log_of, name, once, play, sized

PEERS, STEPS, SLOW, ROUNDS = 4, 8, 4.0, 60


def asynchronous(rounds: int = 40, *, by_speed: bool = True) -> Run:
    run = counting_run("async-local-sgd", steps=STEPS, rounds=rounds, start_with=PEERS, patience_s_max=60.0)
    quota = run.recipe.work.quota if by_speed else Same()
    return replace(run, recipe=replace(run.recipe, work=replace(run.recipe.work, quota=quota)))


def decoupled(rounds: int = 48, *, full: bool = False, waits: bool = False) -> Run:
    """Return a run in four fragments, one every two steps."""
    run = counting_run("decoupled", steps=2, rounds=rounds, start_with=PEERS, patience_s_max=60.0)
    channel = run.recipe.channel["outer"]
    assert isinstance(channel.when, Fragments)
    channel = replace(channel, when=replace(channel.when, steps=8, count=4))
    channel = replace(channel, barrier=Full()) if full else channel
    channel = replace(channel, overlap=Block()) if waits else channel
    return replace(run, recipe=replace(run.recipe, channel={"outer": channel}))


def slow(place: int = 3, factor: float = SLOW) -> Fault:
    return SlowCompute(at_s=0.0, peer=place, for_s=1e6, factor=factor)


def rounds_s(outcome: Outcome) -> list[float]:
    """Return how long it was from each commit to the next, once all have found their pace."""
    at_s = [at_s for at_s, _ in once(outcome, journal.RoundCommitted)]
    return [later - earlier for earlier, later in pairwise(at_s)][8:]


def samples_of(outcome: Outcome) -> Counter[str]:
    """Return how many samples of each peer were counted."""
    found: Counter[str] = Counter()
    for each in commits(log_of(outcome)):
        found.update({short(peer): len(each.announced.leases[peer]) for peer in each.contributors})
    return found


def stalenesses(outcome: Outcome, skip: int = 0) -> list[int]:
    return [stale for _, event in once(outcome, journal.RoundCommitted)[skip:] for stale in event.staleness]


def weights_of(outcome: Outcome) -> list[dict[bytes, int]]:
    """Return the samples by which each member's contribution would weigh, round by round."""
    history, found = History(), []
    for entry in log_of(outcome):
        before, history = history, apply(history, entry)
        if history.open is not None and history.open is not before.open:
            found.append(dict(zip(history.open.members, history.open.worked, strict=True)))
    return found


# nobody is waited for


@pytest.mark.long
def test_a_learner_four_times_slower_costs_the_others_nothing_and_weighs_less() -> None:
    even, uneven, waited_for = (
        play(decoupled(), PEERS),
        play(decoupled(), PEERS, faults=[slow()]),
        play(decoupled(full=True), PEERS, faults=[slow()]),
    )
    assert_sound(decoupled(), uneven, version=48)
    assert sum(rounds_s(uneven)) < 1.03 * sum(rounds_s(even)) < 0.4 * sum(rounds_s(waited_for))
    late, told = bytes(uneven.hosts[3].peer), commits(log_of(uneven))
    counted = samples_of(uneven)
    assert 1 / 6 < counted[short(late)] / counted[name(uneven.hosts[0])] < 1 / 3
    weights = [w for each, w in zip(told, weights_of(uneven), strict=True) if each.version > 12]
    ratio = sum(w[late] for w in weights) / sum(max(w.values()) for w in weights)
    assert 1 / 8 < ratio < 3 / 4, "what it did since a fragment last came, beside what the others did"
    assert all(max(w.values()) == 4 * 2 * 2 for w in weights), "four rounds of two steps of two samples"


GRACE = 1.5
"""Rounds that the longest may take: who is missed has half of the time until the next is due."""


@cache
def undisturbed(rounds: int) -> Outcome:
    return play(decoupled(rounds), PEERS)


@pytest.mark.parametrize("learner", [pytest.param(1, marks=pytest.mark.long), 3])
def test_a_learner_that_dies_costs_the_others_no_more_than_the_grace_of_a_round(learner: int) -> None:
    """One reduces for all: of who only trains nothing is waited for, whether it has a seat in the council or not."""
    run, calm = decoupled(ROUNDS), undisturbed(ROUNDS)
    outcome = play(run, PEERS, faults=[Crash(at_s=calm.took_s / 2, peer=learner, restart_after_s=5.0)])
    assert_sound(run, outcome, version=ROUNDS)
    assert max(rounds_s(outcome)) < GRACE * max(rounds_s(calm))
    assert outcome.took_s < calm.took_s + max(rounds_s(calm)), "it goes, and it comes back"


@pytest.mark.long
@pytest.mark.parametrize("learner", [1, 3])
def test_a_learner_that_sleeps_for_a_second_does_not_hold_the_others_up_for_as_long(learner: int) -> None:
    run, calm = decoupled(ROUNDS), undisturbed(ROUNDS)
    outcome = play(run, PEERS, faults=[Pause(at_s=calm.took_s / 2, peer=learner, for_s=1.0)])
    assert_sound(run, outcome, version=ROUNDS)
    assert outcome.took_s < calm.took_s + 0.25


@pytest.mark.long
def test_where_learners_own_parts_all_wait_for_one_that_dies_or_sleeps() -> None:
    run = decoupled(ROUNDS)
    channel = replace(run.recipe.channel["outer"], whom=All())
    run = replace(run, recipe=replace(run.recipe, channel={"outer": channel}))
    at_s = undisturbed(ROUNDS).took_s / 2
    dies = play(run, PEERS, faults=[Crash(at_s=at_s, peer=1, restart_after_s=5.0)])
    sleeps = play(run, PEERS, faults=[Pause(at_s=at_s, peer=1, for_s=1.0)])
    assert max(rounds_s(dies)) > 3.0 and max(rounds_s(sleeps)) > 1.0


@pytest.mark.long
def test_when_the_one_that_reduces_for_all_dies_whoever_leads_next_does() -> None:
    run, calm = decoupled(ROUNDS), undisturbed(ROUNDS)
    outcome = play(run, PEERS, faults=[Crash(at_s=calm.took_s / 2, peer=0, restart_after_s=5.0)])
    assert_sound(run, outcome, version=ROUNDS)
    assert max(rounds_s(outcome)) < max(rounds_s(calm)) + 5.0, "until that is noticed and another one is chosen"


def test_each_contributes_when_it_is_done_however_slow_the_others_are() -> None:
    run = asynchronous(by_speed=False)
    outcome = play(run, PEERS, faults=[slow()])
    assert_sound(run, outcome, version=40)
    counted = samples_of(outcome)
    last, *others = (counted[name(outcome.hosts[place])] for place in (3, 0, 1, 2))
    assert len({*others}) <= 2, "the quick keep pace with each other"
    assert 1 / 6 < last / max(others) < 1 / 3
    assert not events(outcome, journal.ContributionDropped), "nothing that was done is lost"
    assert not events(outcome, journal.InnerStateRestored)


@pytest.mark.long
def test_work_by_speed_brings_the_age_of_contributions_to_the_number_of_peers() -> None:
    alike, by_speed = (
        play(asynchronous(rounds=60, by_speed=by_speed), PEERS, faults=[slow()]) for by_speed in (False, True)
    )
    assert max(stalenesses(alike, skip=20)) >= 2 * PEERS
    assert max(stalenesses(by_speed, skip=20)) <= PEERS


# or nobody is too far ahead


def bounded(lag_max: int, rounds: int = 40, *, patience_s_max: float = 60.0) -> Run:
    """Return a run in which each contributes when it is done, but nobody is ahead of anybody by more."""
    run = asynchronous(rounds, by_speed=False)
    ((key, channel),) = run.recipe.channel.items()
    assert isinstance(channel.barrier, Quorum)
    channel = replace(channel, barrier=replace(channel.barrier, lag_max=lag_max))
    upkeep = replace(run.upkeep, patience_s_max=patience_s_max)
    return replace(run, upkeep=upkeep, recipe=replace(run.recipe, channel={key: channel}))


def test_nobody_is_ahead_of_anybody_by_more_rounds_than_it_may_be() -> None:
    runs = bounded(0, 24), bounded(3, 24), asynchronous(24, by_speed=False)
    outcomes = [play(run, PEERS, faults=[slow(factor=8.0)]) for run in runs]
    for run, outcome in zip(runs, outcomes, strict=True):
        assert_sound(run, outcome, version=24)
        assert not events(outcome, journal.ContributionDropped)
    none, three, free = (max(stalenesses(outcome), default=0) for outcome in outcomes)
    assert (none, three) == (0, 3), "it is used, and kept to"
    assert free >= 3 * PEERS
    assert outcomes[0].took_s > outcomes[1].took_s > outcomes[2].took_s


def test_who_sleeps_is_waited_for_no_longer_than_the_patience_of_the_run() -> None:
    run = bounded(2, patience_s_max=10.0)
    outcome = play(run, PEERS, faults=[slow(factor=1e4)])
    assert_sound(run, outcome, version=40)
    waits = [event.why for event in events(outcome, journal.RoundSettled) if "10 s after the first" in event.why]
    assert len(waits) == 1, "and once, not in every round"
    assert max(rounds_s(outcome)[3:]) < 5.0


@pytest.mark.parametrize(
    ("family", "seeds"),
    [
        ("squall", 1),
        *(
            pytest.param(family, 12, marks=pytest.mark.long)
            for family in ("squall", "pair", "tide", "regent", "rift", "doubt", "blackout", "drag")
        ),
    ],
)
def test_no_storm_breaks_a_promise_though_some_rounds_wait_and_some_do_not(family: str, seeds: int) -> None:
    for seed in range(seeds):
        case = case_of(family, seed)
        verdict = play_case(replace(case, run=replace(case.run, recipe=bounded(1 + seed % 3).recipe)))
        assert verdict.broken == [], (family, seed)
        assert verdict.rounds > verdict.stormy_rounds


# nothing is lost or done twice


@pytest.mark.long
@pytest.mark.parametrize("run", [asynchronous(), decoupled(waits=True), decoupled()])
def test_in_calm_no_step_is_taken_twice_though_rounds_go_by(run: Run) -> None:
    outcome = play(run, PEERS, faults=[slow(factor=2.7), slow(place=1, factor=1.6)])
    assert_sound(run, outcome, version=run.budget.rounds)
    taken = sum(e.tokens for e in events(outcome, journal.WorkProgressed)) / run.data.context
    assert events(outcome, journal.LeaseCarried)
    assert not events(outcome, journal.InnerStateRestored)
    under_way = PEERS * STEPS * 2 * 2  # at the end everybody was at something, perhaps with one more lease behind it
    assert sum(samples_of(outcome).values()) <= taken <= sum(samples_of(outcome).values()) + under_way


@pytest.mark.long
def test_what_was_late_is_not_sent_again() -> None:
    """Owners keep it, and its maker says only that it holds for this round too."""
    run = asynchronous(rounds=24, by_speed=False)
    outcome = play(run, PEERS, build=sized(20_000))
    assert_sound(run, outcome, version=24)
    late = [e for e in events(outcome, journal.LeaseCarried) if e.steps == e.steps_of]
    assert late, "equally fast, they are done at the same time"
    sent = Counter[int]()
    for place in range(PEERS):
        for each in events(outcome, journal.ContributionSent, peer=place):
            sent[place] += each.sent_bytes
    pushes = Counter(who for _, event in once(outcome, journal.RoundCommitted) for who in event.contributors)
    for place, host in enumerate(outcome.hosts):
        whole = (1 - 1 / PEERS) * 4 * 20_000
        assert sent[place] <= 1.05 * whole * (pushes[name(host)] + 1)


@pytest.mark.parametrize("run", [pytest.param(asynchronous(), marks=pytest.mark.long), decoupled()])
@pytest.mark.parametrize("at_s", [2.1, *(pytest.param(at_s, marks=pytest.mark.long) for at_s in (1.3, 3.4, 4.0))])
def test_whenever_who_works_on_crashes_nothing_is_lost_or_counted_twice(run: Run, at_s: float) -> None:
    faults = [
        slow(),
        Crash(at_s=at_s, peer=3, restart_after_s=0.4),
        Crash(at_s=at_s + 0.3, peer=1, restart_after_s=0.5),
    ]
    assert_sound(run, play(run, PEERS, faults=faults), version=run.budget.rounds)


def test_who_leaves_gives_back_what_it_worked_on_and_others_get_it() -> None:
    run = asynchronous(rounds=60, by_speed=False)
    outcome = play(run, PEERS, faults=[slow(factor=40.0), Leave(at_s=3.0, peer=3)])
    told = commits(log_of(outcome))
    gone = bytes(outcome.hosts[3].peer)
    lease = told[0].announced.leases[gone]
    assert all(gone not in each.contributors for each in told)
    assert set(lease) <= {position for each in told for position in each.positions}


@pytest.mark.long
def test_who_joins_in_between_gets_the_part_of_the_momentum_that_has_not_moved_yet() -> None:
    run = replace(asynchronous(rounds=50), membership=Membership(start_with=PEERS - 1))
    outcome = play(run, PEERS, entrances=[Entrance(3, 10)])
    assert_sound(run, outcome, version=50)
    assert events(outcome, journal.StateFetched, peer=3)
    assert samples_of(outcome)[name(outcome.hosts[3])] > 0


@pytest.mark.long
def test_who_sleeps_through_many_rounds_contributes_what_it_had_begun() -> None:
    run = decoupled(rounds=60)
    outcome = play(run, PEERS, faults=[Pause(at_s=2.0, peer=3, for_s=1.0)])  # which owns nothing here
    assert_sound(run, outcome, version=60)
    who = name(outcome.hosts[3])
    missed = [event for _, event in once(outcome, journal.RoundCommitted) if who not in event.contributors]
    assert missed
    assert who in once(outcome, journal.RoundCommitted)[-1][1].contributors
