"""Knobs that are turned while peers work: all switch at one round, whoever is slow, joins, crashes or leads."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.sim.faults import Crash, SlowLink
from atoll.sim.links import Link
from atoll.sim.scenario import Entrance, Outcome
from atoll.spec.axes.codec import E3m0, Fp16, Fp32, Stochastic, TopK
from atoll.spec.axes.control import Auto, Knobs, Rung
from atoll.spec.axes.pace import Delay
from atoll.spec.axes.what import Feedback
from atoll.spec.axes.when import Every
from atoll.spec.axes.whom import AllGather
from atoll.spec.run import Run
from atoll.swarm.log import BadLog, Entry, KnobsTurned
from tests.peer import desks
from tests.peer.world import assert_sound, counting_run, events, lines, log_of, once, play, sized

SIZE = 4_000
RATE = 2e5
SPARSE = TopK(keep=8, block=64, values=Stochastic(bits=4, block=64))
LADDER = (
    Rung(codec=Fp16(), steps=8),
    Rung(codec=E3m0(), steps=20),
    Rung(codec=SPARSE, result=Fp32(), route=AllGather(), steps=20),
    Rung(codec=E3m0(), steps=200, overlap=Delay(steps=3)),
)
LATE = (Rung(codec=E3m0(), steps=8, overlap=Delay(steps=3)),)
SHARE = 0.15


def steered(*, rounds: int, start_with: int = 3, ladder: tuple[Rung, ...] = LADDER) -> Run:
    """Return a run that begins with two steps and fp32, and may climb a ladder."""
    run = counting_run(rounds=rounds, start_with=start_with)
    ((key, channel),) = run.recipe.channel.items()
    channel = replace(channel, when=Every(steps=2), what=replace(channel.what, residual=Feedback()))
    rates = ((1, 0.5), (3, 0.75))
    control = Auto(ladder=ladder, share=SHARE, least=2, outer_lr=rates)
    return replace(run, recipe=replace(run.recipe, channel={key: channel}, control=control))


def turns(outcome: Outcome) -> list[journal.KnobsTurned]:
    """Return how the knobs were turned; everybody who was there tells the same."""
    told: dict[int, journal.KnobsTurned] = {}
    for event in events(outcome, journal.KnobsTurned):
        assert told.setdefault(event.version, event) == event
    return [told[version] for version in sorted(told)]


def shares(outcome: Outcome) -> dict[int, float]:
    """Return which part of each round was not work, from one announcement to the next."""
    began = {event.version: at_s for at_s, event in once(outcome, journal.RoundAnnounced)}
    worked: dict[tuple[int, str], float] = {}
    for line in lines(outcome, journal.WorkProgressed):
        assert isinstance(line.event, journal.WorkProgressed)
        key = (line.event.version, line.peer)
        worked[key] = worked.get(key, 0.0) + line.event.took_s
    longest = {v: max(s for (version, _), s in worked.items() if version == v) for v in began}
    return {v: 1 - longest[v] / (began[v + 1] - began[v]) for v in sorted(began) if v + 1 in began}


def test_all_switch_at_the_same_round_and_exchanges_then_take_no_more_than_they_may() -> None:
    run = steered(rounds=12)
    outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=RATE)
    assert_sound(run, outcome, version=12)
    (turn, *_) = turns(outcome)
    assert turn.version == 4
    assert [event.version for event in events(outcome, journal.KnobsTurned)].count(4) == 3, "everybody tells of it"
    before, after = shares(outcome)[3], shares(outcome)[max(shares(outcome))]
    assert before > SHARE >= after
    assert turn.lr == 0.75


@pytest.mark.long
@pytest.mark.parametrize(
    "ladder",
    [
        pytest.param(LADDER, marks=pytest.mark.long),
        LATE,
        pytest.param(LADDER[:2], marks=pytest.mark.long),
        pytest.param(LADDER[2:3], marks=pytest.mark.long),
    ],
    ids=["all", "late", "dense", "sparse"],
)
def test_a_line_that_falls_to_a_tenth_is_answered_within_a_few_rounds(ladder: tuple[Rung, ...]) -> None:
    run = steered(rounds=26, ladder=ladder)
    fall = SlowLink(at_s=7.0, peer=1, for_s=1e6, factor=10.0)
    outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=RATE, faults=[fall])
    assert_sound(run, outcome, version=26)
    fell = next(event.version for at_s, event in once(outcome, journal.RoundAnnounced) if at_s >= fall.at_s)
    settings = [turn.version for turn in turns(outcome)]
    assert any(fell < version <= fell + 5 for version in settings), (fell, settings)
    assert not any(version > fell + 12 for version in settings), "and then it is calm"
    share = shares(outcome)
    if ladder in (LADDER, LATE):
        assert max(share[version] for version in range(23, 26)) <= 1.2 * SHARE


@pytest.mark.long
def test_who_joins_or_restarts_reads_from_the_log_how_the_knobs_stand() -> None:
    run = steered(rounds=16)
    faults = [Crash(at_s=9.0, peer=2, restart_after_s=2.0), Crash(at_s=16.0, peer=1, restart_after_s=1.0)]
    entrances = [Entrance(3, 7)]
    outcome = play(run, 4, build=sized(SIZE), rate_bytes_s=RATE, faults=faults, entrances=entrances)
    assert_sound(run, outcome, version=16)
    assert turns(outcome)[0].version < 7
    joined = [event.version for event in events(outcome, journal.KnobsTurned, peer=3)]
    assert joined == [turn.version for turn in turns(outcome)], "also of those that were before it came"


@pytest.mark.long
def test_a_broker_that_dies_leaves_the_knobs_to_the_next() -> None:
    run = steered(rounds=18)
    once_turned = play(run, 3, build=sized(SIZE), rate_bytes_s=RATE)
    at_s = next(line.at_s for line in lines(once_turned, journal.KnobsTurned))
    for late_s in (0.0, 0.05):
        faults = [Crash(at_s=at_s + late_s, peer=0, restart_after_s=4.0)]
        outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=RATE, faults=faults)
        assert_sound(run, outcome, version=18)
        assert len({event.epoch for event in events(outcome, journal.EpochStarted)}) > 1
        assert turns(outcome)
        assert max(shares(outcome)[version] for version in (16, 17)) <= 1.2 * SHARE


@pytest.mark.long
def test_a_run_that_starts_again_from_its_disks_goes_on_as_it_was_turned() -> None:
    run = steered(rounds=20)
    faults = [Crash(at_s=15.0, peer=place, restart_after_s=1.0 + place) for place in range(3)]
    outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=RATE, faults=faults)
    assert_sound(run, outcome, version=20)
    turned = [entry.record.version for entry in log_of(outcome) if isinstance(entry.record, KnobsTurned)]
    assert turned == [turn.version for turn in turns(outcome)]


@pytest.mark.long
def test_results_may_come_late_and_work_that_was_begun_ahead_is_kept_while_nobody_turns_knobs() -> None:
    run = steered(rounds=20, ladder=LATE)
    fall = SlowLink(at_s=5.0, peer=1, for_s=1e6, factor=10.0)
    outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=RATE, faults=[fall])
    assert_sound(run, outcome, version=20)
    assert any(turn.delay for turn in turns(outcome))
    assert shares(outcome)[19] <= SHARE
    taken_back = events(outcome, journal.InnerStateRestored)
    assert len(taken_back) <= 3 * len(turns(outcome))


# what no policy could have said


def at_a_desk(record: KnobsTurned, run: Run) -> None:
    """Let a member that is at a version hear a record from its broker."""

    async def scene(office: desks.Office) -> None:
        office.run = run
        desk = await office.sit(0, desks.anchor())
        desk.member.check((Entry(1, record),))
        await asyncio.sleep(0)

    desks.play({0: Link(up_bytes_s=1e6, down_bytes_s=1e6)}, scene)


@pytest.mark.parametrize(
    ("knobs", "problem"),
    [
        (Knobs(rung=4, steps=8, lr=0.75), "no rung 4"),
        (Knobs(rung=-1, steps=8, lr=0.75), "no rung -1"),
        (Knobs(rung=0, steps=1, lr=0.75), "1 steps are not between"),
        (Knobs(rung=0, steps=9, lr=0.75), "9 steps are not between"),
        (Knobs(rung=0, steps=8, delay=1, lr=0.75), "a delay of 1"),
        (Knobs(rung=3, steps=8, delay=4, lr=0.75), "a delay of 4"),
        (Knobs(rung=3, steps=2, delay=2, lr=0.75), "a delay of 2"),
        (Knobs(rung=0, steps=8, lr=0.7), "an outer rate of 0.7"),
        (Knobs(rung=0, steps=8), "an outer rate of 0.0"),
    ],
)
def test_a_record_that_no_policy_of_the_run_could_have_written_is_refused(knobs: Knobs, problem: str) -> None:
    version = desks.VERSION + 1
    with pytest.raises(BadLog, match=problem):
        at_a_desk(KnobsTurned("outer", version, knobs, ""), steered(rounds=9))
    with pytest.raises(BadLog, match="nobody turns knobs"):
        at_a_desk(KnobsTurned("outer", version, knobs, ""), counting_run())


def test_a_record_that_a_policy_could_have_written_is_taken() -> None:
    good = Knobs(rung=3, steps=8, delay=3, lr=0.5)
    at_a_desk(KnobsTurned("outer", desks.VERSION + 1, good, ""), steered(rounds=9))
    with pytest.raises(BadLog, match="no such channel"):
        at_a_desk(KnobsTurned("inner", desks.VERSION + 1, good, ""), steered(rounds=9))
