"""Exchanges that hide behind work: everybody switches at one step, whatever lines do and whoever crashes.

What is turned is how late results are, how much is sent, and where a recipe says so of how large a batch.
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.journal import Line
from atoll.sim.case import play as play_case
from atoll.sim.faults import Crash, SlowLink
from atoll.sim.scenario import Entrance, Outcome, Scenario, simulate
from atoll.sim.skies import case_of
from atoll.spec.axes.codec import CacheLines, Fp32, TopK
from atoll.spec.axes.control import Batches, Form, Hide, Nobody
from atoll.spec.axes.merge import Mean
from atoll.spec.axes.pace import Block, RoundsLate
from atoll.spec.axes.what import Feedback, Grad
from atoll.spec.axes.when import Growth, TargetBatch
from atoll.spec.axes.whom import AllGather
from atoll.spec.fleet import Device, Machine
from atoll.spec.recipe import Recipe
from atoll.spec.run import Budget, Run
from tests.peer.test_control import turns
from tests.peer.world import DELAYS_S, assert_sound, counting_run, lines, machines, once, play, sized

SIZE, RATE = 20_000, 3e4
"""A whole gradient takes longer than a step."""
BATCH, STEP_S = 10, 0.5


def hiding(*, rounds: int, start_with: int = 3) -> Run:
    """Return a run as shipped, that decides after four rounds."""
    run = counting_run("deco", rounds=rounds, start_with=start_with)
    assert isinstance(run.recipe.control, Hide)
    control, work = replace(run.recipe.control, every=4), replace(run.recipe.work, batch=BATCH)
    return replace(run, recipe=replace(run.recipe, control=control, work=work))


def rounds_s(outcome: Outcome) -> dict[int, float]:
    """Return how long each round took, from one announcement to the next."""
    began = {event.version: at_s for at_s, event in once(outcome, journal.RoundAnnounced)}
    return {version: began[version + 1] - began[version] for version in began if version + 1 in began}


def test_what_was_lost_to_exchanges_is_hidden() -> None:
    run = hiding(rounds=20)
    outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=RATE)
    assert_sound(run, outcome, version=20)
    (turn, *_) = turns(outcome)
    assert (turn.version, turn.delay) == (5, 1)
    assert turn.rung > 0
    took_s = rounds_s(outcome)
    assert took_s[4] > 3 * STEP_S
    assert took_s[18] < 1.2 * STEP_S


def late_by(rounds: int, *, recipe: str = "ddp") -> Run:
    """Return a run whose results are so many rounds late, whatever its lines do."""
    run = counting_run(recipe, rounds=24, start_with=3, checkpoint_every=100)
    ((key, channel),) = run.recipe.channel.items()
    channel = replace(channel, overlap=RoundsLate(rounds=rounds) if rounds else Block())
    return replace(run, recipe=replace(run.recipe, control=Nobody(), channel={key: channel}))


def steady_s(run: Run, trip_s: float) -> float:
    """Return how long a round takes in the middle of a run, with so long a trip between any two."""
    build = sized(SIZE // 20)
    outcome = simulate(Scenario(run=run, machines=machines(3), delays_s={("here", "here"): trip_s}, build=build))
    assert_sound(run, outcome, version=24)
    return sum(took_s for version, took_s in rounds_s(outcome).items() if 8 <= version < 20) / 12


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["ddp", "deco"])
def test_the_later_results_may_be_the_more_rounds_are_under_way_and_the_less_each_takes(recipe: str) -> None:
    """Where a trip takes as long as the work a round is thirteen of them; at last two records and work are left."""
    trip_s = 0.1
    took = {late: steady_s(late_by(late, recipe=recipe), trip_s) / trip_s for late in (0, 1, 2, 4)}
    assert round(took[0]) == 13
    assert took[1] == pytest.approx(took[0] / 2, rel=0.02)
    assert took[2] == pytest.approx(took[0] / 2.7, rel=0.02)
    assert took[4] < took[0] / 4


@pytest.mark.long
def test_where_what_is_left_out_fades_a_longer_delay_hides_no_more() -> None:
    """What each contribution left could not be told apart after the next: so one round is exchanged at a time."""
    trip_s, took = 0.1, []
    for late in (0, 1, 4):
        run = late_by(late, recipe="deco")
        ((key, channel),) = run.recipe.channel.items()
        channel = replace(channel, what=replace(channel.what, residual=Feedback(decay=0.9)))
        took.append(round(steady_s(replace(run, recipe=replace(run.recipe, channel={key: channel})), trip_s) / trip_s))
    assert took == [13, 12, 12]  # four of them the council's, for its two records


@pytest.mark.long
@pytest.mark.parametrize(("trip_s", "late"), [(0.1, 3), (0.4, 5)])
def test_on_long_links_the_policy_goes_several_rounds_late(trip_s: float, late: int) -> None:
    run = counting_run("deco", rounds=40, start_with=3, checkpoint_every=100)
    assert isinstance(run.recipe.control, Hide)
    run = replace(run, recipe=replace(run.recipe, control=replace(run.recipe.control, every=4)))
    build = sized(SIZE // 20)
    outcome = simulate(Scenario(run=run, machines=machines(3), delays_s={("here", "here"): trip_s}, build=build))
    assert_sound(run, outcome, version=40)
    took_s, last = rounds_s(outcome), turns(outcome)[-1]
    assert last.delay == late
    assert last.rung == 0, "what takes long is not the bytes"
    assert took_s[35] < took_s[2] / late


def test_several_rounds_are_open_at_once_and_each_starts_from_the_anchor_of_so_many_before() -> None:
    run = late_by(3)
    outcome = play(run, 3, build=sized(SIZE // 20))
    assert_sound(run, outcome, version=24)
    (broker,) = {line.peer for line in lines(outcome, journal.RoundSettled)}
    open_, most, late = set[int](), 0, []
    for line in outcome.lines:
        if line.peer == broker and isinstance(line.event, journal.RoundAnnounced):
            late.append(len(open_))
            open_.add(line.event.version)
        if line.peer == broker and isinstance(line.event, journal.RoundCommitted):
            open_.remove(line.event.version)
        most = max(most, len(open_))
    assert most == 4
    assert late == [0, 1, 2, *[3] * 21]


@pytest.mark.long
def test_a_line_that_falls_to_a_tenth_is_answered_by_sending_less() -> None:
    run = hiding(rounds=40)
    fall = SlowLink(at_s=16.0, peer=1, for_s=1e6, factor=10.0)
    outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=RATE, faults=[fall])
    assert_sound(run, outcome, version=40)
    fell = next(event.version for at_s, event in once(outcome, journal.RoundAnnounced) if at_s >= fall.at_s)
    before = [turn for turn in turns(outcome) if turn.version <= fell]
    after = [turn for turn in turns(outcome) if turn.version > fell]
    assert after[0].version <= fell + 8
    assert after[0].rung > before[-1].rung
    assert max(rounds_s(outcome).values()) > 3 * STEP_S
    assert rounds_s(outcome)[38] < max(rounds_s(outcome).values()) / 3


@pytest.mark.long
def test_who_joins_or_restarts_reads_from_the_log_how_late_results_are() -> None:
    run = hiding(rounds=30)
    faults = [Crash(at_s=4.0, peer=2, restart_after_s=1.0), Crash(at_s=7.0, peer=0, restart_after_s=1.0)]
    outcome = play(run, 4, build=sized(SIZE), rate_bytes_s=RATE, faults=faults, entrances=[Entrance(3, 7)])
    assert_sound(run, outcome, version=30)
    assert any(turn.delay for turn in turns(outcome))


@pytest.mark.long
def test_machines_of_which_one_is_twice_as_fast_work_as_long_on_a_batch_that_is_shared_out() -> None:
    run = counting_run("stellatrain", rounds=16, start_with=3)
    samples = TargetBatch(samples=40)
    ((key, channel),) = run.recipe.channel.items()
    run = replace(run, recipe=replace(run.recipe, channel={key: replace(channel, when=samples)}))
    slow, quick = (replace(each, device=Device(flop_s=factor * each.device.flop_s)) for each, factor in _unequal())
    outcome = simulate(
        Scenario(run=run, machines=[slow, slow, quick], delays_s=DELAYS_S, build=sized(SIZE))  # one organises too
    )
    assert_sound(run, outcome, version=16)
    worked: dict[str, float] = {}
    for line in lines(outcome, journal.WorkProgressed):
        assert isinstance(line.event, journal.WorkProgressed)
        if line.event.version > 8:
            worked[line.peer] = worked.get(line.peer, 0.0) + line.event.took_s
    spread = float(np.std(list(worked.values())) / np.mean(list(worked.values())))
    assert spread < 0.1, worked


CRITICAL = 60.0
"""Of a batch of twelve samples an exchange takes as long as the work, and a batch of 24 is a sixth more to read."""


def batching(*, rounds: int, critical: float = CRITICAL) -> Run:
    """Return a run that may double its batches of twelve samples, and decides after four rounds."""
    run = counting_run("stellatrain", rounds=rounds, start_with=3)
    assert isinstance(run.recipe.control, Hide)
    control = replace(run.recipe.control, every=4, batch=Batches(times=(1, 2, 4, 8), critical=critical))
    return replace(run, recipe=replace(run.recipe, control=control))


def sample_s(outcome: Outcome, first: int) -> float:
    """Return how long a sample of all together took, from a round on."""
    samples = {event.version: event.samples for _, event in once(outcome, journal.RoundAnnounced)}
    took_s = {version: took_s for version, took_s in rounds_s(outcome).items() if version >= first}
    return sum(took_s.values()) / sum(samples[version] for version in took_s)


ALONE_S = 0.05 / 3
"""A sample's work, of which three are worked on at once."""


def test_on_slow_lines_batches_grow_until_they_hide_an_exchange() -> None:
    run = batching(rounds=16)
    outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=1e5)
    assert_sound(run, outcome, version=16)
    (turn, *_) = turns(outcome)
    assert (turn.version, turn.delay, turn.samples) == (5, 1, 24)
    assert "batches of 24 samples" in turn.why
    given = {event.version: event.samples for _, event in once(outcome, journal.RoundAnnounced)}
    assert [given[version] for version in range(1, 17)] == [12] * 4 + [24] * 12
    assert sample_s(outcome, 8) < 1.2 * ALONE_S


@pytest.mark.long
def test_batches_that_cost_much_to_read_stay_small() -> None:
    run = batching(rounds=8, critical=1.0)
    outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=1e5)
    assert_sound(run, outcome, version=8)
    assert {turn.samples for turn in turns(outcome)} == {12}


@pytest.mark.long
def test_a_last_batch_is_no_larger_than_what_is_left_of_the_budget() -> None:
    """108 samples: four rounds of 12, two of 24, and 12; a batch more than that was given out."""
    run = batching(rounds=1)
    run = replace(run, budget=Budget(tokens=108 * run.data.context))
    outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=1e5)
    assert_sound(run, outcome, version=7)
    given = [event.samples for _, event in once(outcome, journal.RoundAnnounced)]
    assert given == [12, 12, 12, 12, 24, 24, 12]
    assert turns(outcome)[-1].why == "no more than 12 samples fit into what is left of the budget"


@pytest.mark.long
def test_a_batch_that_grows_has_its_size_in_every_round_though_several_are_under_way() -> None:
    run = batching(rounds=12)
    ((key, channel),) = run.recipe.channel.items()
    assert isinstance(run.recipe.control, Hide)
    growth = Growth(every=1, add=6, until=48, most=96)
    when, control = TargetBatch(samples=12, growth=growth), replace(run.recipe.control, batch=None, late_max=2)
    run = replace(run, recipe=replace(run.recipe, control=control, channel={key: replace(channel, when=when)}))
    outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=1e5)
    assert_sound(run, outcome, version=12)
    assert any(turn.delay for turn in turns(outcome)), "else only one is under way"
    given = {event.version: event.samples for _, event in once(outcome, journal.RoundAnnounced)}
    assert given == {version: when.samples_in(version) for version in range(1, 13)}


@pytest.mark.long
@pytest.mark.parametrize(("factor", "asks"), [(2.0, False), (4.0, True)])
def test_when_a_line_gets_slower_less_is_sent_or_of_more_and_work_is_the_limit_again(factor: float, asks: bool) -> None:
    """What work no longer hides is answered within ten rounds; at last a sample takes a fifth more at most."""
    run = batching(rounds=44)
    fall = SlowLink(at_s=8.0, peer=1, for_s=1e6, factor=factor)
    outcome = play(run, 3, build=sized(SIZE), rate_bytes_s=1e5, faults=[fall])
    assert_sound(run, outcome, version=44)
    fell = next(event.version for at_s, event in once(outcome, journal.RoundAnnounced) if at_s >= fall.at_s)
    before = [turn for turn in turns(outcome) if turn.version <= fell][-1]
    answers = [turn for turn in turns(outcome) if fell < turn.version <= fell + 10]
    assert bool(answers) == asks
    assert all(turn.rung > before.rung or turn.samples > before.samples for turn in answers[:1])
    assert sample_s(outcome, 36) < 1.2 * ALONE_S


def _unequal() -> list[tuple[Machine, float]]:
    return list(zip(machines(2), (1.0, 2.0), strict=True))


SPARSE = TopK(keep=8, block=64)
LATE = ("dense", "sparse", "lines", "policy", "batch")


def stormy(recipe: Recipe, kind: str, seed: int) -> Recipe:
    """Return a recipe of gradients that come late: by some rounds, of everything or of little, or as a policy says."""
    ((name, channel),) = recipe.channel.items()
    what, route = Grad(), channel.whom.route
    if kind == "sparse":
        what, route = Grad(codec=SPARSE, result=Fp32(), residual=Feedback()), AllGather()
    if kind == "lines":
        what, route = Grad(codec=CacheLines(keep=0.1), result=Fp32(), residual=Feedback()), AllGather()
    if kind == "batch":
        channel = replace(channel, when=TargetBatch(samples=24))
        channel = replace(channel, merge=replace(channel.merge, combine=Mean(weights="samples")))
        batch = Batches(times=(1, 2, 3), critical=2.0 ** (seed % 10))
        control = Hide(ladder=(Form(codec=Fp32()),), every=1, late_max=seed % 3, batch=batch)
        return replace(recipe, channel={name: channel}, control=control)
    if kind == "policy":
        ladder = (Form(codec=Fp32()), Form(codec=SPARSE, result=Fp32(), route=AllGather()))
        channel = replace(channel, what=Grad(residual=Feedback()))
        return replace(
            recipe, channel={name: channel}, control=Hide(ladder=ladder, every=1, penalty=0.001, late_max=1 + seed % 4)
        )
    overlap = RoundsLate(rounds=2 + seed % 3)
    channel = replace(channel, what=what, whom=replace(channel.whom, route=route), overlap=overlap)
    return replace(recipe, channel={name: channel})


@pytest.mark.parametrize(
    ("kind", "family", "seeds"),
    [
        ("sparse", "pair", 1),
        *(
            pytest.param(kind, family, 12, marks=pytest.mark.long)
            for kind in LATE
            for family in ("squall", "pair", "tide", "regent", "rift", "rot", "doubt", "blackout")
        ),
    ],
)
def test_no_storm_breaks_a_promise_though_results_are_late(kind: str, family: str, seeds: int) -> None:
    for seed in range(seeds):
        case = case_of(family, seed)
        from_gradients = counting_run("ddp").recipe
        recipe = stormy(replace(from_gradients, work=replace(from_gradients.work, batch=8)), kind, seed)
        verdict = play_case(replace(case, run=replace(case.run, recipe=recipe)))
        assert verdict.broken == [], (family, seed)
        assert verdict.rounds > verdict.stormy_rounds


def test_batches_are_turned_while_a_storm_blows() -> None:
    from_gradients, case = counting_run("ddp").recipe, case_of("squall", 7)
    recipe = stormy(replace(from_gradients, work=replace(from_gradients.work, batch=8)), "batch", 7)
    said: list[Line] = []
    verdict = play_case(replace(case, run=replace(case.run, recipe=recipe)), sees=said.append)
    assert verdict.broken == []
    assert verdict.rounds > verdict.stormy_rounds
    assert len({line.event.samples for line in said if isinstance(line.event, journal.KnobsTurned)}) > 1


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        ("ebb", 66),  # given up, and announced again without a peer that had worked for it
        pytest.param("ebb", 126, marks=pytest.mark.long),  # who is about to lose its seat is chosen once more
    ],
)
def test_what_storms_found_while_several_rounds_were_open_stays_mended(family: str, seed: int) -> None:
    verdict = play_case(case_of(family, seed))
    assert verdict.broken == []
    assert verdict.rounds > verdict.stormy_rounds


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_rounds_that_are_given_up_together_leave_nothing_behind(first: int) -> None:
    verdicts = [play_case(case_of("ebb", seed)) for seed in range(first, first + 50)]
    assert [(verdict.seed, verdict.broken) for verdict in verdicts if verdict.broken] == []
    assert all(verdict.rounds > verdict.stormy_rounds for verdict in verdicts)
