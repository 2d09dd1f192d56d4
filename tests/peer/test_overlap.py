"""Peers that go on while a round is exchanged: what it saves, and that nothing is lost or counted twice by it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.sim.faults import Crash, Pause, SlowCompute
from atoll.sim.scenario import Entrance, Outcome
from atoll.spec.axes.pace import Block, Delay, OneRound, Overlap, Shift
from atoll.spec.axes.when import Fragments
from atoll.spec.run import Run
from tests.few import few_of
from tests.peer.world import assert_sound, counting_run, events, name, play, sized

STEPS, BATCH, SAMPLE_S = 8, 2, 0.05
WORK_S = STEPS * BATCH * SAMPLE_S
SIZE, SMALL = 100_000, 5_000
DELAYS = [Delay(steps=2), Delay(steps=STEPS, reconcile=Shift())]
OVERLAPS = [*DELAYS, OneRound(eager=False), OneRound()]


def overlapped(overlap: Overlap, recipe: str = "diloco", *, rounds: int = 8, start_with: int = 3) -> Run:
    run = counting_run(recipe, steps=STEPS, rounds=rounds, start_with=start_with, patience_s_max=60.0)
    ((channel, how),) = run.recipe.channel.items()
    return replace(run, recipe=replace(run.recipe, channel={channel: replace(how, overlap=overlap)}))


def in_fragments(run: Run, count: int) -> Run:
    """Return a run whose model travels in so many parts, one in each round."""
    ((channel, how),) = run.recipe.channel.items()
    when = Fragments(steps=STEPS * count, count=count)
    return replace(run, recipe=replace(run.recipe, channel={channel: replace(how, when=when)}))


def took_s(outcome: Outcome) -> float:
    """Return the time of a round in the middle of a play."""
    at_s = {e.version: line.at_s for line in outcome.lines if isinstance(e := line.event, journal.RoundCommitted)}
    return (at_s[7] - at_s[3]) / 4


@pytest.mark.parametrize("part", [pytest.param(0.2, marks=pytest.mark.long), 0.8])
def test_an_exchange_as_long_as_the_work_costs_no_time_where_peers_go_on_meanwhile(part: float) -> None:
    """Of the time in which a round's steps are taken, so much is what its bytes need on the wire."""
    rate_bytes_s = 2 * 2 / 3 * 4 * SIZE / (part * WORK_S)
    waits, goes_on = (
        took_s(play(overlapped(overlap), 3, build=sized(SIZE), rate_bytes_s=rate_bytes_s))
        for overlap in (Block(), OneRound())
    )
    assert waits > (1 + part) * WORK_S
    assert goes_on < 1.12 * WORK_S


@pytest.mark.long
def test_some_steps_hide_an_exchange_that_is_as_short() -> None:
    part = 0.25
    rate_bytes_s = 2 * 2 / 3 * 4 * SIZE / (part * WORK_S)
    waits, goes_on = (
        took_s(play(overlapped(overlap), 3, build=sized(SIZE), rate_bytes_s=rate_bytes_s))
        for overlap in (Block(), Delay(steps=STEPS // 2, reconcile=Shift()))
    )
    assert waits > (1 + part) * WORK_S
    assert goes_on < 1.12 * WORK_S


@pytest.mark.long
def test_of_fragments_only_one_is_on_the_line_at_a_time_and_together_they_are_the_model() -> None:
    """At most 1/4 of the bytes at any time, and the same in all: what four fragments are for."""
    whole, parts = (
        [e.sent_bytes for e in events(play(run, 3, build=sized(SIZE)), journal.ContributionSent, peer=0)]
        for run in (overlapped(Block(), rounds=2), in_fragments(overlapped(Delay(steps=2), rounds=8), 4))
    )
    assert max(parts) <= 1.1 * whole[0] / 4
    assert abs(sum(parts[:4]) - whole[0]) <= 0.02 * whole[0]


@pytest.mark.long
def test_a_fragment_that_takes_as_long_as_the_delay_costs_no_time() -> None:
    part, count = 0.25, 4
    rate_bytes_s = 2 * 2 / 3 * 4 * SIZE / count / (part * WORK_S)
    runs = (in_fragments(overlapped(overlap), count) for overlap in (Block(), Delay(steps=STEPS // 2)))
    waits, goes_on = (took_s(play(run, 3, build=sized(SIZE), rate_bytes_s=rate_bytes_s)) for run in runs)
    assert waits > (1 + part) * WORK_S
    assert goes_on < 1.12 * WORK_S


@pytest.mark.long
@pytest.mark.parametrize(("fragments", "part", "overlap"), [(4, 0.45, Delay(steps=STEPS // 2)), (0, 0.9, OneRound())])
def test_where_steps_take_a_second_peers_compute_all_the_time(fragments: int, part: float, overlap: Overlap) -> None:
    """What bytes need on the wire is this part of a round's work: nine tenths of the delay, or of all of it.

    The rest is for settling and committing, which take some round trips.
    """
    work_s, size = 10 * WORK_S, SIZE * max(1, fragments)
    rate_bytes_s = 2 * 2 / 3 * 4 * SIZE / (part * work_s)

    def computing(overlap: Overlap) -> float:
        run = overlapped(overlap)
        run = in_fragments(run, fragments) if fragments else run
        return work_s / took_s(play(run, 3, build=sized(size, flop=6e10), rate_bytes_s=rate_bytes_s))

    assert computing(overlap) > 0.98
    assert computing(Block()) < 1 / (1 + part)


@pytest.mark.parametrize("overlap", few_of(OVERLAPS, (OVERLAPS[0], OVERLAPS[3])))
@pytest.mark.parametrize("at_s", few_of((1.0, 2.3, 3.1), (2.3,)))
def test_whenever_a_peer_crashes_nothing_is_lost_or_counted_twice(overlap: Overlap, at_s: float) -> None:
    run = overlapped(overlap)
    faults = [Crash(at_s=at_s, peer=1, restart_after_s=0.7), Crash(at_s=at_s + 0.4, peer=2, restart_after_s=0.3)]
    assert_sound(run, play(run, 3, faults=faults, build=sized(SMALL), rate_bytes_s=2e5), version=8)


@pytest.mark.parametrize("overlap", few_of(OVERLAPS, (OVERLAPS[3],)))
def test_who_misses_a_round_takes_its_work_back_and_is_in_a_later_one(overlap: Overlap) -> None:
    run = overlapped(overlap, rounds=60)
    outcome = play(run, 3, faults=[Pause(at_s=2.5, peer=2, for_s=30.0)])
    assert_sound(run, outcome, version=60)
    late = name(outcome.hosts[2])
    committed = {e.version: e.contributors for e in events(outcome, journal.RoundCommitted, peer=0)}
    missed = [version for version, who in committed.items() if late not in who]
    assert missed, "it was away for longer than a round waits"
    assert late in committed[60]


@pytest.mark.parametrize("overlap", [OneRound(), Delay(steps=STEPS, reconcile=Shift())])
def test_who_joins_is_waited_for_though_the_others_were_done_when_the_round_was_announced(overlap: Overlap) -> None:
    run = overlapped(overlap, rounds=14, start_with=3)
    outcome = play(run, 4, entrances=[Entrance(3, 3)], faults=[SlowCompute(at_s=0.0, peer=3, for_s=1e6, factor=2.5)])
    assert_sound(run, outcome, version=14)
    who = name(outcome.hosts[3])
    counted = [e.version for e in events(outcome, journal.RoundCommitted, peer=0) if who in e.contributors]
    assert len(counted) > 5, "twice as slow as the others, it is within their patience"


@pytest.mark.parametrize(
    ("overlap", "fragments"),
    few_of([(each, 0) for each in OVERLAPS] + [(each, 4) for each in DELAYS], ((OVERLAPS[3], 0), (DELAYS[1], 4))),
)
def test_in_calm_no_step_is_taken_twice(overlap: Overlap, fragments: int) -> None:
    run = overlapped(overlap, rounds=12)
    run = in_fragments(run, fragments) if fragments else run
    outcome = play(run, 3)
    assert_sound(run, outcome, version=12)
    assert not events(outcome, journal.InnerStateRestored)
    steps = sum(e.tokens for e in events(outcome, journal.WorkProgressed)) / run.data.context / BATCH
    assert steps == 3 * 12 * STEPS


def test_a_peer_that_goes_on_tells_of_the_work_and_takes_the_lease_when_its_round_comes() -> None:
    outcome = play(overlapped(OneRound()), 3)
    for place in range(3):
        lines = [line.event for line in outcome.lines if line.peer == name(outcome.hosts[place])]
        taken = {e.version: at for at, e in enumerate(lines) if isinstance(e, journal.LeaseTaken)}
        worked = {e.version: at for at, e in reversed(list(enumerate(lines))) if isinstance(e, journal.WorkProgressed)}
        assert taken.keys() == worked.keys() == set(range(1, 9))
        assert any(worked[version] < taken[version] for version in range(2, 9))
