"""Exchanges that hide behind work: everybody switches at one step, whatever lines do and whoever crashes."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.sim.case import play as play_case
from atoll.sim.faults import Crash, SlowLink
from atoll.sim.scenario import Entrance, Outcome, Scenario, simulate
from atoll.sim.skies import case_of
from atoll.spec.axes.codec import CacheLines, Fp32, TopK
from atoll.spec.axes.control import Form, Hide, Nobody
from atoll.spec.axes.pace import Block, RoundsLate
from atoll.spec.axes.what import Feedback, Grad
from atoll.spec.axes.when import TargetBatch
from atoll.spec.axes.whom import AllGather
from atoll.spec.fleet import Device, Machine
from atoll.spec.recipe import Recipe
from atoll.spec.run import Run
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


@pytest.mark.long
def test_one_round_is_exchanged_at_a_time_so_a_longer_delay_hides_no_more() -> None:
    took_s = {}
    for overlap in (Block(), RoundsLate(rounds=1), RoundsLate(rounds=2), RoundsLate(rounds=4)):
        run = counting_run("ddp", rounds=12, start_with=3)
        ((key, channel),) = run.recipe.channel.items()
        run = replace(run, recipe=replace(run.recipe, channel={key: replace(channel, overlap=overlap)}))
        outcome = play(run, 3, build=sized(SIZE))
        assert_sound(run, outcome, version=12)
        took_s[overlap] = rounds_s(outcome)[9]
    assert took_s[RoundsLate(rounds=1)] < 0.7 * took_s[Block()]
    assert took_s[RoundsLate(rounds=4)] == pytest.approx(took_s[RoundsLate(rounds=1)], rel=0.02)
    assert took_s[RoundsLate(rounds=2)] == pytest.approx(took_s[RoundsLate(rounds=1)], rel=0.02)


@pytest.mark.long
def test_where_links_are_long_a_round_is_a_dozen_trips_however_late_results_are() -> None:
    """Of a tenth of a second each, as long as the work: four are the council's, for its two records."""
    trip_s, middle_s = 0.1, []
    for late in (0, 1, 4):
        run = counting_run("deco", rounds=14, start_with=3, checkpoint_every=100)
        overlap = RoundsLate(rounds=late) if late else Block()
        channel = replace(run.recipe.channel["outer"], overlap=overlap)
        run = replace(run, recipe=replace(run.recipe, control=Nobody(), channel={"outer": channel}))
        world = Scenario(
            run=run, machines=machines(3), delays_s={("here", "here"): trip_s}, seed=0, build=sized(SIZE // 20)
        )
        took_s = rounds_s(simulate(world))
        middle_s.append(sorted(took_s.values())[len(took_s) // 2])
    assert [round(s / trip_s) for s in middle_s] == [13, 12, 12]


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


def _unequal() -> list[tuple[Machine, float]]:
    return list(zip(machines(2), (1.0, 2.0), strict=True))


SPARSE = TopK(keep=8, block=64)
LATE = ("dense", "sparse", "lines", "policy")


def stormy(recipe: Recipe, kind: str, seed: int) -> Recipe:
    """Return a recipe of gradients that come late: by some rounds, of everything or of little, or as a policy says."""
    ((name, channel),) = recipe.channel.items()
    what, route = Grad(), channel.whom.route
    if kind == "sparse":
        what, route = Grad(codec=SPARSE, result=Fp32(), residual=Feedback()), AllGather()
    if kind == "lines":
        what, route = Grad(codec=CacheLines(keep=0.1), result=Fp32(), residual=Feedback()), AllGather()
    if kind == "policy":
        ladder = (Form(codec=Fp32()), Form(codec=SPARSE, result=Fp32(), route=AllGather()))
        channel = replace(channel, what=Grad(residual=Feedback()))
        return replace(recipe, channel={name: channel}, control=Hide(ladder=ladder, every=1, penalty=0.001))
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
