"""The council in a world: leaders die, members are replaced, cuts heal, and there is one history in the end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.sim.check import settled, violations
from atoll.sim.faults import Crash, Leave, Partition, Reform
from atoll.sim.promises.disks import log_of_record
from atoll.sim.scenario import Outcome, Scenario, simulate
from atoll.spec.run import Budget, Run
from atoll.swarm.log import CouncilChanged, CouncilReformed, EpochStarted
from tests.peer.world import DELAYS_S, anchor_of, counting_run, events, lines, machines, name, play, sized


def epochs(outcome: Outcome) -> list[EpochStarted]:
    return [entry.record for entry in log_of_record(outcome) if isinstance(entry.record, EpochStarted)]


def assert_one_history(run: Run, outcome: Outcome, alive: set[int], version: int) -> None:
    """Check every promise, and that those alive ended at one anchor of `version`."""
    assert violations(run, outcome) == []
    assert settled(outcome) == []
    assert {(h.version, h.anchor) for h in outcome.hosts if h.place in alive} == {
        (version, outcome.hosts[min(alive)].anchor)
    }


@pytest.mark.parametrize(
    "at_s", [0.3, 1.37, 3.05, *(pytest.param(at_s, marks=pytest.mark.long) for at_s in (0.9, 2.0, 2.21))]
)
def test_when_the_organiser_is_lost_for_good_another_peer_leads_the_run_to_its_end(at_s: float) -> None:
    run = counting_run(rounds=20, start_with=4)
    outcome = play(run, 4, faults=[Crash(at_s=at_s, peer=0)])
    assert_one_history(run, outcome, {1, 2, 3}, 20)
    first, second = epochs(outcome)
    assert first.broker == outcome.hosts[0].peer
    assert second.broker != outcome.hosts[0].peer
    (elected,) = [event for event in events(outcome, journal.BrokerElected) if event.epoch == second.epoch]
    assert elected.why == "2 of 3 council members chose it"
    assert any("silent for" in event.why or "link" in event.why for event in events(outcome, journal.BrokerLost))


def test_the_round_that_was_open_when_the_leader_died_is_committed_by_its_successor() -> None:
    run = counting_run(rounds=20, steps=20, start_with=4)
    outcome = play(run, 4, faults=[Crash(at_s=3.0, peer=0)])
    announced = {line.event.version: line.at_s for line in lines(outcome, journal.RoundAnnounced, peer=1)}  # type: ignore[union-attr]
    open_ = max(version for version, at_s in announced.items() if at_s < 3.0)
    committed = {e.version: e for e in events(outcome, journal.RoundCommitted, peer=1)}
    assert len(committed[open_].contributors) == 3
    assert events(outcome, journal.RoundVoided) == []


def test_a_leader_that_leaves_is_succeeded_at_once() -> None:
    run = counting_run(rounds=30, start_with=4)
    outcome = play(run, 4, faults=[Leave(at_s=2.0, peer=0)])
    assert_one_history(run, outcome, {1, 2, 3}, 30)
    (left,) = lines(outcome, journal.PeerStopped, peer=0)
    again = min(line.at_s for line in lines(outcome, journal.EpochStarted) if line.event.epoch > 1)  # type: ignore[union-attr]
    assert again - left.at_s < 5.0


def test_leaders_may_die_one_after_the_other_while_the_council_is_refilled() -> None:
    run = counting_run(rounds=44, steps=24, start_with=6)
    outcome = play(run, 6, faults=[Crash(at_s=2.0, peer=0), Crash(at_s=40.0, peer=1), Crash(at_s=80.0, peer=2)])
    assert_one_history(run, outcome, {3, 4, 5}, 44)
    councils = [e.record.members for e in log_of_record(outcome) if isinstance(e.record, CouncilChanged)]
    assert set(councils[-1]) == {outcome.hosts[place].peer for place in (3, 4, 5)}


@pytest.mark.parametrize(
    "side",
    [pytest.param(side, marks=pytest.mark.long if 0 not in side else ()) for side in ((0, 1), (3, 4), (0, 4), (1, 2))],
)
def test_a_cut_of_three_and_two_heals_into_one_history(side: tuple[int, ...]) -> None:
    run = counting_run(rounds=20, steps=24, start_with=5)
    outcome = play(run, 5, faults=[Partition(at_s=3.0, side=side, for_s=25.0)])
    assert_one_history(run, outcome, {0, 1, 2, 3, 4}, 20)
    during = [line.event for line in outcome.lines if 10.0 < line.at_s < 28.0]
    assert any(isinstance(event, journal.RoundCommitted) for event in during), "the side of the majority went on"


@pytest.mark.parametrize("side", [(0, 1), *(pytest.param(side, marks=pytest.mark.long) for side in ((0, 2), (0, 3)))])
def test_a_cut_of_two_and_two_heals_into_one_history(side: tuple[int, ...]) -> None:
    run = counting_run(rounds=17, steps=24, start_with=4)
    outcome = play(run, 4, faults=[Partition(at_s=3.0, side=side, for_s=25.0)])
    assert_one_history(run, outcome, {0, 1, 2, 3}, 17)


def test_a_leader_without_a_majority_says_so_and_steps_down() -> None:
    run = counting_run(rounds=34, steps=12, start_with=5)
    outcome = play(run, 5, faults=[Partition(at_s=3.0, side=(0,), for_s=25.0)])
    assert_one_history(run, outcome, {0, 1, 2, 3, 4}, 34)
    (down,) = events(outcome, journal.BrokerSteppedDown, peer=0)
    assert down.why.startswith("only 1 of 3 council members answer: without a majority nothing can be committed")


def test_a_leader_that_hears_all_but_is_heard_by_nobody_does_not_hold_the_run_up() -> None:
    run = counting_run(rounds=34, steps=12, start_with=5)
    outcome = play(run, 5, faults=[Partition(at_s=3.0, side=(0,), for_s=25.0, one_way=True)])
    assert_one_history(run, outcome, {0, 1, 2, 3, 4}, 34)
    during = [line.event for line in outcome.lines if 12.0 < line.at_s < 28.0]
    assert any(isinstance(event, journal.RoundCommitted) for event in during)


def test_without_a_majority_of_the_council_nothing_commits_until_it_is_re_formed() -> None:
    run = counting_run(rounds=20, steps=12, start_with=5)
    lost = [Crash(at_s=3.0, peer=1), Crash(at_s=3.0, peer=2)]
    outcome = play(run, 5, faults=[*lost, Reform(at_s=60.0)])
    assert_one_history(run, outcome, {0, 3, 4}, 20)
    quiet = [line for line in lines(outcome, journal.RoundCommitted) if 10.0 < line.at_s < 60.0]
    assert quiet == []
    complaints = {line.peer: line.event.hint for line in lines(outcome, journal.BrokerMissing) if line.at_s < 60.0}  # type: ignore[union-attr]
    assert {who for who, hint in complaints.items() if "--reform" in hint} == {name(outcome.hosts[0])}
    assert {who for who, hint in complaints.items() if "organises" in hint} == {name(outcome.hosts[p]) for p in (3, 4)}
    (reformed,) = events(outcome, journal.CouncilReformed)
    assert sorted(reformed.told) == sorted(name(outcome.hosts[place]) for place in (3, 4))
    records = [entry.record for entry in log_of_record(outcome)]
    (record,) = [r for r in records if isinstance(r, CouncilReformed)]
    assert (record.members, record.generation) == ((outcome.hosts[0].peer,), 1)
    councils = [r.members for r in records if isinstance(r, CouncilChanged)]
    assert set(councils[-1]) == {outcome.hosts[place].peer for place in (0, 3, 4)}


@pytest.mark.long
def test_a_re_forming_takes_the_log_that_knows_most() -> None:
    """The organiser is away while the others go on; then the council is lost but for one that knows it all."""
    run = counting_run(rounds=200, steps=4, start_with=5)
    away = Crash(at_s=3.0, peer=0, restart_after_s=30.0)
    lost = [Crash(at_s=32.0, peer=place) for place in (1, 2)]
    outcome = play(run, 5, faults=[away, *lost, Reform(at_s=90.0)])
    assert_one_history(run, outcome, {0, 3, 4}, 200)


def test_an_organiser_that_no_longer_leads_can_still_change_the_settings() -> None:
    run = counting_run(rounds=14, steps=12, start_with=4)
    longer = replace(run, budget=Budget(rounds=20))
    outcome = simulate(
        Scenario(
            run=run,
            machines=machines(4),
            delays_s=DELAYS_S,
            faults=[Crash(at_s=3.0, peer=0, restart_after_s=15.0)],
            build=sized(256),
            resumes_with=longer,
            limit_s=86400.0,
        )
    )
    assert {anchor_of(host.disk).version for host in outcome.hosts} == {20}
    assert epochs(outcome)[-1].broker != outcome.hosts[0].peer
