"""A scenario is data: who comes when, what goes wrong when, when it ends; and a broken peer is never quiet."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.journal import Line
from atoll.model.compute import Step, Trained
from atoll.model.folder import layout_of
from atoll.model.moments import travelling
from atoll.model.shape import step_cost
from atoll.sim.compute import CountingEngine
from atoll.sim.faults import (
    Crash,
    Fault,
    FullDisk,
    Leave,
    LossyLink,
    Partition,
    Pause,
    Skew,
    SlowCompute,
    SlowDisk,
    SlowLink,
)
from atoll.sim.loop import OutOfTime
from atoll.sim.scenario import (
    COUNTING_SIZE,
    Entrance,
    Outcome,
    PeerBroke,
    Scenario,
    World,
    key_of,
    on_fleet,
    simulate,
    somebody_failed,
    stand_in,
)
from atoll.spec.fleet import Churn, Machine, load_fleet
from atoll.spec.load import demo_run, load_recipe
from atoll.spec.run import Run
from atoll.sync.units import units_of
from tests.peer.world import DELAYS_S, counting_run, events, lines, machines, name, once, play


def test_peers_start_together_and_the_first_one_organises() -> None:
    outcome = play(counting_run(rounds=2, start_with=3), 3)
    started = events(outcome, journal.PeerStarted)
    assert [event.organiser for event in started] == [True, False, False]
    assert [event.device for event in started] == ["machine-0", "machine-1", "machine-2"]


def test_keys_follow_from_seed_and_place() -> None:
    assert key_of(0, 1) == key_of(0, 1)
    assert len({key_of(seed, place).peer for seed in range(3) for place in range(3)}) == 9
    assert [host.peer for host in play(counting_run(rounds=1), 2, seed=5).hosts] == [
        key_of(5, place).peer for place in range(2)
    ]


def test_a_late_peer_enters_when_its_round_is_announced() -> None:
    outcome = play(counting_run(rounds=8, start_with=2), 3, entrances=[Entrance(2, round=4)])
    (entered,) = lines(outcome, journal.PeerStarted, peer=2)
    announced = {event.version: at_s for at_s, event in once(outcome, journal.RoundAnnounced)}
    assert announced[4] <= entered.at_s < announced[5]


def test_every_line_is_seen_as_it_is_written_and_kept_in_order() -> None:
    seen: list[Line] = []
    scenario = Scenario(
        run=counting_run(rounds=2, start_with=2), machines=machines(2), delays_s=DELAYS_S, sees=seen.append
    )
    outcome = simulate(scenario)
    assert seen == outcome.lines
    assert [line.at_s for line in seen] == sorted(line.at_s for line in seen)


def test_the_same_scenario_has_the_same_trace_and_another_seed_another() -> None:
    run = counting_run(rounds=3, start_with=3)
    assert play(run).trace == play(run).trace != play(run, seed=1).trace


def test_a_play_may_end_early() -> None:
    outcome = play(counting_run(rounds=100, start_with=2), 2, enough=lambda world: world.committed >= 3)
    assert len(once(outcome, journal.RoundCommitted)) == 3


def test_a_play_that_does_not_end_in_time_fails() -> None:
    with pytest.raises(OutOfTime):
        play(counting_run(rounds=1000, start_with=2), 2, limit_s=5.0)


def test_a_peer_that_breaks_an_invariant_ends_the_play_with_its_traceback() -> None:
    class Broken(CountingEngine):
        def train(self, steps: Sequence[Step]) -> Trained:
            assert self.steps < 3, "this engine has a bug"
            return super().train(steps)

    def build(run: Run) -> CountingEngine:
        return Broken(seed=0, size=64, tokens_per_sample=16)

    with pytest.raises(PeerBroke, match="this engine has a bug"):
        play(counting_run(rounds=5, start_with=2), 2, build=build)


def test_a_peer_that_stopped_for_a_full_disk_is_started_again_when_there_is_room() -> None:
    run = counting_run(rounds=30, start_with=2)
    outcome = play(run, 2, faults=[FullDisk(at_s=0.8, peer=1, for_s=1.0)])
    assert outcome.hosts[1].lives == 2
    assert outcome.hosts[1].failures == [], "it was right to stop"
    assert {host.version for host in outcome.hosts} == {30}


# faults


def test_a_crash_takes_the_process_and_what_it_left_is_remembered() -> None:
    run = counting_run(rounds=8, start_with=2)
    outcome = play(run, 2, faults=[Crash(at_s=1.0, peer=0, restart_after_s=4.0)])
    (left,) = outcome.remains
    assert left.place == 0
    assert left.logs[0]
    assert outcome.hosts[0].disk.files()["log"].startswith(left.logs[0])
    assert all(line.at_s <= 1.0 for line in outcome.lines[: left.lines] if line.peer == name(outcome.hosts[0]))
    assert [line.at_s for line in lines(outcome, journal.PeerStarted, peer=0)][1] == pytest.approx(5.0, abs=0.1)


def test_a_leaver_says_goodbye_and_comes_back_when_it_said() -> None:
    outcome = play(counting_run(rounds=20, start_with=2), 2, faults=[Leave(at_s=1.0, peer=1, restart_after_s=3.0)])
    stopped = lines(outcome, journal.PeerStopped, peer=1)
    assert stopped[0].at_s == pytest.approx(1.5, abs=0.1)
    assert [line.at_s for line in lines(outcome, journal.PeerStarted, peer=1)][1] == pytest.approx(4.0, abs=0.1)


def test_a_paused_peer_writes_nothing() -> None:
    outcome = play(counting_run(rounds=60, steps=10, start_with=2), 2, faults=[Pause(at_s=2.0, peer=1, for_s=20.0)])
    written = [line.at_s for line in outcome.lines if line.peer == name(outcome.hosts[1])]
    assert not [at_s for at_s in written if 2.0 < at_s < 22.0]
    assert [at_s for at_s in written if at_s >= 22.0]


def test_a_wrong_clock_changes_what_is_displayed_and_nothing_else() -> None:
    run = counting_run(rounds=5, start_with=3)
    right, wrong = play(run), play(run, faults=[Skew(at_s=0.5, peer=1, by_s=-3600.0)])
    assert [line.event for line in right.lines] == [line.event for line in wrong.lines]
    assert min(line.at_s for line in wrong.lines) < -3000


@pytest.mark.parametrize(
    "fault",
    [
        SlowCompute(at_s=0.0, peer=1, for_s=8.0, factor=10.0),
        SlowDisk(at_s=0.0, peer=1, for_s=8.0, factor=200.0),
        SlowLink(at_s=0.0, peer=1, for_s=8.0, factor=1e5),
        pytest.param(LossyLink(at_s=0.0, peer=1, for_s=8.0, loss=0.3), marks=pytest.mark.long),
        Partition(at_s=1.0, side=(1,), for_s=8.0),
        Partition(at_s=1.0, side=(1,), for_s=8.0, one_way=True),
    ],
    ids=lambda fault: f"{type(fault).__name__}{'-one-way' if getattr(fault, 'one_way', False) else ''}",
)
def test_a_hampered_machine_slows_the_run_and_recovers(fault: Fault) -> None:
    run = counting_run(rounds=20, start_with=2, contributors_min=2)
    smooth, hampered = play(run, 2), play(run, 2, faults=[fault])
    done = [sum(at_s < 8.0 for at_s, _ in once(o, journal.RoundCommitted)) for o in (smooth, hampered)]
    assert done[1] < done[0]
    assert {host.version for host in hampered.hosts} == {20}


def test_machines_of_a_fleet_come_and_go_as_their_owners_do() -> None:
    def at_home(machine: Machine, place: int) -> Machine:
        return machine if place == 0 else replace(machine, availability=Churn(up_s=6.0, down_s=3.0))

    fleet = [at_home(machine, place) for place, machine in enumerate(machines(3))]

    def outcome(seed: int) -> Outcome:
        run = counting_run(rounds=30, steps=10, start_with=1)
        over = Scenario(run=run, machines=fleet, delays_s=DELAYS_S, seed=seed, enough=lambda world: world.finished)
        return simulate(over)

    stopped = [event.why for event in events(outcome(1), journal.PeerStopped)]
    assert stopped.count("its owner wants the machine") > 2
    assert outcome(1).trace == outcome(1).trace


# fleets and models


def test_delays_between_all_regions_of_a_fleet_are_known() -> None:
    fleet, delays_s = on_fleet(load_fleet("homes"))
    regions = {machine.region for machine in fleet}
    assert set(delays_s) == {(a, b) for a in regions for b in regions}
    assert delays_s["us-west", "eu"] == delays_s["eu", "us-west"] == pytest.approx(0.085)


def test_a_stand_in_costs_what_the_real_model_costs() -> None:
    run = demo_run()
    build, scale = stand_in(run, 1024)
    engine = build(run)
    parameters = scale * engine.size
    assert 1e6 < parameters < 3e6
    assert engine.cost(1).flop == pytest.approx(6 * parameters * run.data.context, rel=0.5)


def test_a_stand_in_steps_as_long_as_the_optimizer_takes() -> None:
    run = demo_run()
    with_muon = replace(run, recipe=load_recipe("held-bit"))
    build, _ = stand_in(with_muon, 1024)
    assert stand_in(run, 1024)[0](run).cost(0, steps=3).flop == 0
    muon = step_cost(layout_of(with_muon, 1024)[1], with_muon.recipe.work.inner).flop
    assert build(with_muon).cost(0, steps=3).flop == 3 * muon > 0


@pytest.mark.parametrize("inner", ["desloc", "held-bit"])
def test_moments_weigh_in_a_stand_in_what_they_weigh_in_the_model(inner: str) -> None:
    """Of Muon's matrices there are no second ones."""
    run = demo_run()
    recipe = load_recipe("desloc")
    run = replace(run, recipe=replace(recipe, work=replace(recipe.work, inner=load_recipe(inner).work.inner)))
    build, scale = stand_in(run, 1024)
    stands, real = build(run), {name: prod(s) for name, s in travelling(run.recipe, layout_of(run, 1024)[1]).items()}
    codec = run.recipe.channel["outer"].what.codec
    units = [units_of(run.recipe.channel["outer"].when, layout, codec) for layout in (stands.layout, real)]
    for imagined, meant in zip(*units, strict=True):
        assert imagined.size * scale == pytest.approx(meant.size, rel=2e-3)


def test_a_stand_in_takes_the_time_of_its_bytes_on_the_wire() -> None:
    def outcome(scale: float) -> Outcome:
        run = counting_run(rounds=3, start_with=2)
        slow = machines(2, rate_bytes_s=1e5)
        return simulate(Scenario(run=run, machines=slow, delays_s=DELAYS_S, scale=scale))

    small, large = outcome(1.0), outcome(1000.0)
    values_bytes = 3 * 4 * COUNTING_SIZE  # in three rounds either sends half of its own and half of the result
    assert large.took_s - small.took_s == pytest.approx(values_bytes * 999 / 1e5, rel=0.02)


def test_the_world_knows_what_was_announced_and_committed() -> None:
    seen: list[tuple[int, int]] = []

    def enough(world: World) -> bool:
        seen.append((world.announced, world.committed))
        return False

    play(counting_run(rounds=3, start_with=2), 2, enough=enough)
    assert seen[-1] == (3, 3)
    assert all(0 <= announced - committed <= 1 for announced, committed in seen)


class Diverging(CountingEngine):
    """A model that one sample is too much for."""

    def train(self, steps: Sequence[Step]) -> Trained:
        trained = super().train(steps)
        if any(POISON in step.samples for step in steps):
            self._assigned[:] = float("nan")
        return trained


POISON = 20


def test_a_play_ends_when_a_peer_fails_by_itself_though_others_would_wait_for_it_for_ever() -> None:
    run = counting_run(rounds=12, start_with=4)
    outcome = play(run, 4, build=lambda run: Diverging(seed=run.seeds.data), enough=somebody_failed)
    (failed,) = [host for host in outcome.hosts if host.failures]
    assert "training diverged" in str(failed.failures[0])
    assert outcome.took_s < 60
    with pytest.raises(OutOfTime):
        play(run, 4, build=lambda run: Diverging(seed=run.seeds.data), limit_s=120.0)
