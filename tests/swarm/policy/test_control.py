"""Who turns the knobs: what is chosen from what was measured, when it changes, and how little one's word counts.

The table's members work on four samples a round of two steps; its clock is the test's.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from atoll.spec.axes.codec import E3m0, Fp16, Fp32, Int8
from atoll.spec.axes.control import Auto, Knobs, Rung
from atoll.spec.axes.pace import Delay, Shift
from atoll.spec.axes.whom import AllGather, Butterfly
from atoll.spec.knobs import objection
from atoll.spec.load import load_recipe
from atoll.spec.run import Budget, Run
from atoll.swarm.log import KnobsTurned, RoundAnnounced
from atoll.swarm.messages import Standing
from atoll.swarm.policy.control import AIM, ROUNDS, choose, decide, split, turn
from atoll.swarm.policy.forecast import Line, View, wire_s
from atoll.swarm.routes.shares import Bulk
from tests.swarm.table import BULK, FOUNDING, A, B, C, Table, small_run

LATE = Delay(steps=5, reconcile=Shift())
LADDER = (
    Rung(codec=Fp16(), steps=30),
    Rung(codec=Int8(), steps=100),
    Rung(codec=E3m0(), steps=500, overlap=LATE),
)
AUTO = Auto(ladder=LADDER, share=0.1, least=10, outer_lr=((1, 0.4), (2, 0.6), (8, 0.8)))


def view(wire_s: float, rest_s: float = 0.0, members: int = 4) -> View:
    """Return a run of steps of a second whose bytes take so long in fp16."""
    return View(step_s=1.0, wire_s=wire_s, rest_s=rest_s, ratios=(1.0, 0.5, 0.25), members=members)


# choosing


@pytest.mark.parametrize(
    ("wire_s", "rest_s", "chosen"),
    [
        (0.1, 0.0, Knobs(rung=0, steps=10, lr=0.6)),
        (2.0, 0.0, Knobs(rung=0, steps=25, lr=0.6)),
        (8.0, 0.0, Knobs(rung=1, steps=50, lr=0.6)),
        (0.0, 5.0, Knobs(rung=1, steps=65, lr=0.6)),
        (40.0, 0.0, Knobs(rung=2, steps=150, lr=0.6)),
        (164.0, 0.0, Knobs(rung=2, steps=500, delay=5, lr=0.6)),
        (1000.0, 0.0, Knobs(rung=2, steps=500, delay=5, lr=0.6)),
    ],
)
def test_the_first_rung_that_keeps_the_limit_is_taken_with_the_fewest_steps(
    wire_s: float, rest_s: float, chosen: Knobs
) -> None:
    assert choose(AUTO, view(wire_s, rest_s), AIM * AUTO.share) == chosen


@given(some.floats(0, 1e6), some.floats(0, 1e6), some.floats(1e-6, 1e3), some.integers(1, 99), some.floats(0.02, 0.3))
def test_what_is_chosen_may_be_chosen_and_keeps_the_limit_where_anything_does(
    wire_s: float, rest_s: float, step_s: float, members: int, share: float
) -> None:
    auto, seen = replace(AUTO, share=share), replace(view(wire_s, rest_s, members), step_s=step_s)
    chosen = choose(auto, seen, share)
    recipe = replace(load_recipe("auto"), control=auto)
    assert objection(recipe, chosen) == ""
    most = [Knobs(rung=i, steps=r.steps, delay=5 if i == 2 else 0) for i, r in enumerate(LADDER)]
    best = min(seen.share(knobs) for knobs in most)
    assert seen.share(chosen) <= share * (1 + 1e-9) or seen.share(chosen) == pytest.approx(best)


@pytest.mark.parametrize(("members", "lr"), [(1, 0.4), (2, 0.6), (4, 0.6), (7, 0.6), (8, 0.8), (64, 0.8)])
def test_the_outer_rate_is_the_tables(members: int, lr: float) -> None:
    assert choose(AUTO, view(1.0, members=members), 0.1).lr == lr


# keeping to it


def test_a_setting_that_was_chosen_stays_while_measures_wander() -> None:
    now = choose(AUTO, view(8.0), AIM * AUTO.share)
    for wander in (0.8, 0.9, 1.0, 1.1, 1.25):
        there = View(step_s=1.0, wire_s=4.0 * wander, rest_s=0.0, ratios=(2.0, 1.0, 0.5), members=4)
        assert decide(AUTO, there, now, there.share(now)) == now


def test_a_broken_limit_is_mended_and_what_was_hard_is_undone_when_it_need_not_be() -> None:
    now = Knobs(rung=0, steps=25, lr=0.6)
    slow = view(20.0)
    mended = decide(AUTO, slow, now, slow.share(now))
    assert mended.rung > 0
    assert slow.share(mended) <= AUTO.share < slow.share(now)
    fast = View(step_s=1.0, wire_s=0.5, rest_s=0.0, ratios=(2.0, 1.0, 0.5), members=4)
    assert decide(AUTO, fast, mended, fast.share(mended)).rung == 0


def test_where_nothing_helps_nothing_changes() -> None:
    now = Knobs(rung=2, steps=500, delay=5, lr=0.6)
    hopeless = View(step_s=1.0, wire_s=0.0, rest_s=1e4, ratios=(1.0,) * 3, members=4)
    assert decide(AUTO, hopeless, now, hopeless.share(now)) == now


def test_other_rates_of_a_larger_fleet_are_a_reason_too() -> None:
    now = Knobs(rung=0, steps=25, lr=0.6)
    assert decide(AUTO, view(2.0, members=9), now, 0.08) == replace(now, lr=0.8)


# telling bytes from the rest


@pytest.mark.parametrize(
    ("exchange_s", "forecast", "before_s", "before", "bytes_s"),
    [
        (3.0, 1.0, 6.0, 2.0, 3.0),  # half the bytes in half the time: all of it
        (5.0, 1.0, 6.0, 2.0, 1.0),  # a second for each unit, four for the rest
        (6.0, 1.0, 6.0, 2.0, 0.0),  # fewer bytes did not help
        (9.0, 1.0, 6.0, 2.0, 7.0),  # fewer took longer: something else happened, nothing is told
        (5.0, 1.9, 6.0, 2.0, 4.0),  # too much alike: at most what was thought before
    ],
)
def test_two_forms_of_an_exchange_tell_bytes_from_the_rest(
    exchange_s: float, forecast: float, before_s: float, before: float, bytes_s: float
) -> None:
    thought_s = 4.0 if forecast == 1.9 else min(exchange_s, 7.0)
    assert split(thought_s, exchange_s, forecast, before_s, before) == pytest.approx(bytes_s)


def test_a_forecast_is_the_slowest_lines() -> None:
    fast, slow = Line(10.0), Line(1.0)
    assert wire_s(Butterfly(), 10.0, [fast, fast, slow]) == pytest.approx(10.0), "it owns nothing, and sends its own"
    assert wire_s(AllGather(), 10.0, [fast, fast, slow]) == pytest.approx(20.0)
    assert wire_s(Butterfly(), 10.0, [fast] * 4) == pytest.approx(1.5)
    hidden = [Line(10.0), Line(10.0, owns=False), Line(10.0, owns=False)]
    assert wire_s(Butterfly(), 10.0, hidden) == pytest.approx(2.0), "one owns everything for three"
    assert wire_s(Butterfly(), 10.0, [fast]) == 0.0
    assert wire_s(Butterfly(group=2), 10.0, [fast] * 4) == pytest.approx(1.5), "half a share, and sums between groups"


# at the table


def steered() -> Run:
    run = small_run(rounds=50, start_with=3)
    auto = Auto(ladder=(Rung(codec=Fp32(), steps=4), Rung(codec=Fp16(), steps=40)), share=0.1, least=2)
    return replace(run, recipe=replace(run.recipe, control=auto))


class Helm(Table):
    """A table whose members work for a while and exchange for a while, by the test's clock."""

    def __init__(self, run: Run | None = None, table: Table | None = None) -> None:
        super().__init__(run or steered(), table.log if table else None, table.now_s + 1.0 if table else 0.0)
        self.broker = replace(self.broker, rungs=(BULK, Bulk(BULK.chunks, BULK.chunk_bytes // 2)))

    def play(self, rounds: int, *, step_s: float, exchange_s: float, said: dict[bytes, float] | None = None) -> None:
        """Let rounds go by in which members take so long for a step and in fp32 so long for an exchange.

        Some may say that they are of another speed.
        """
        for _ in range(rounds):
            steps = self.broker.setting.when.round_steps
            self.tick(step_s * steps)
            half = exchange_s * self.broker.bulk.chunk_bytes / BULK.chunk_bytes
            self.contribute(A, B, C)
            self.now_s += half
            self.reduce(*self.round.owners)
            self.hold(A, B, C)
            for peer in (A, B, C):
                speed = (said or {}).get(peer, 2 / step_s)
                self.say(peer, Standing(self.version, f"anchor-{self.version}", 10**6, 10**6, samples_s=speed))

    @property
    def version(self) -> int:
        return self.broker.history.version

    @property
    def turns(self) -> list[KnobsTurned]:
        return [entry.record for entry in self.log if isinstance(entry.record, KnobsTurned)]


def begun() -> Helm:
    table = Helm()
    table.join(A, B, C)
    return table


def test_after_a_few_rounds_the_knobs_are_turned_and_the_reason_is_told() -> None:
    table = begun()
    table.play(ROUNDS - 1, step_s=1.0, exchange_s=2.0)
    assert not table.turns
    table.play(1, step_s=1.0, exchange_s=2.0)
    (turn,) = table.turns
    assert turn.version == ROUNDS + 1
    assert turn.knobs == Knobs(rung=1, steps=13)  # a second of bytes, and 13 to be below 7.5 %
    assert "50%" in turn.why
    announced = [entry.record for entry in table.log if isinstance(entry.record, RoundAnnounced)]
    assert [each.quotas for each in announced] == [(4,)] * ROUNDS + [(26,)]


def test_the_last_round_takes_no_more_steps_than_are_left_of_the_budget() -> None:
    table = Helm()
    of_last = 20
    samples = 3 * ROUNDS * 2 * 2 + 3 * 13 * 2 + of_last
    budget = Budget(tokens=samples * table.broker.tokens_per_sample)
    table = Helm(replace(steered(), budget=budget))
    table.join(A, B, C)
    table.play(ROUNDS + 1, step_s=1.0, exchange_s=2.0)
    assert [turn.knobs.steps for turn in table.turns] == [13, 4], "of three, with two samples a step"
    assert "left of the budget" in table.turns[-1].why
    table.play(1, step_s=1.0, exchange_s=2.0)
    assert table.broker.history.finished
    assert samples <= table.broker.history.samples < samples + 3 * 2


def test_a_new_broker_goes_on_with_the_knobs_as_they_stand_and_measures_anew() -> None:
    table = begun()
    table.play(ROUNDS, step_s=1.0, exchange_s=2.0)
    again = Helm(table.broker.run, table)
    again.join(A, B, C)
    again.tick(20.0)
    assert again.broker.setting.when.round_steps == 13
    again.play(ROUNDS, step_s=1.0, exchange_s=2.0)
    assert len(again.turns) == 1, "as they stand they are right"
    again.play(ROUNDS, step_s=1.0, exchange_s=20.0)
    assert len(again.turns) == 2
    assert again.turns[-1].knobs == Knobs(rung=1, steps=40)


def test_a_round_that_was_given_up_stays_what_it_was_announced_as() -> None:
    table = begun()
    table.play(ROUNDS - 1, step_s=1.0, exchange_s=2.0)
    between = replace(table.broker.history, under_way=())
    broker = replace(table.broker, rounds=(), measured=table.broker.measured[:1] * ROUNDS, history=between)
    assert turn(broker)[1] is None, "the next was announced already"
    never = replace(broker, history=replace(between, announced=between.version))
    assert turn(never)[1] is not None


@pytest.mark.parametrize("claim", [1e-300, 1e9, float("inf"), float("nan"), -1.0, 0.0])
def test_one_who_lies_about_its_speed_changes_little(claim: float) -> None:
    """It cannot have worked for longer than until it contributed, nor for less than the slowest of the others."""
    honest, lied = begun(), begun()
    honest.play(ROUNDS, step_s=1.0, exchange_s=2.0)
    lied.play(ROUNDS, step_s=1.0, exchange_s=2.0, said={B: claim})
    assert [turn.knobs for turn in lied.turns] == [turn.knobs for turn in honest.turns]


def test_nobody_turns_knobs_where_the_recipe_does_not_say_so() -> None:
    table = Helm(small_run(rounds=50, start_with=3))
    table.join(A, B, C)
    table.play(2 * ROUNDS, step_s=1.0, exchange_s=20.0)
    assert not table.turns
    assert table.log[0] == FOUNDING
