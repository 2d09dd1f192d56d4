"""A peer's life in virtual time: coming, working, going, and coming back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.errors import PeerRefused
from atoll.net.identity import short
from atoll.net.ticket import parse_ticket
from atoll.sim.faults import Crash, Leave, Partition, Pause, SlowCompute
from atoll.sim.retell import commits
from atoll.sim.scenario import Entrance, Outcome, World, start
from atoll.spec.load import recipe_names
from atoll.spec.run import AllowList, Budget, identity
from atoll.swarm.log import RosterChanged
from tests.few import few_of
from tests.peer.world import (
    anchor_of,
    assert_sound,
    counting_run,
    events,
    lines,
    log_of,
    name,
    once,
    play,
    sized,
)


@pytest.mark.parametrize("peers", [1, 2, 5])
def test_a_run_ends_with_everybody_on_one_anchor_that_the_log_explains(peers: int) -> None:
    run = counting_run(rounds=4, start_with=peers)
    outcome = play(run, peers)
    assert_sound(run, outcome, version=4)
    assert len(events(outcome, journal.RunFinished, peer=0)) == 1
    assert [event.why for event in events(outcome, journal.PeerStopped)] == ["the run is finished"] * peers
    assert all(
        event.contributors == sorted(map(name, outcome.hosts)) for _, event in once(outcome, journal.RoundCommitted)
    )


@pytest.mark.parametrize("recipe", few_of(recipe_names(), recipe_names()[1::3]))
def test_every_recipe_keeps_its_promises_in_simulation(recipe: str) -> None:
    run = counting_run(recipe, rounds=6, start_with=3)
    assert_sound(run, play(run, 3), version=6)


def test_with_sixteen_bits_all_peers_still_hold_the_same_bits() -> None:
    run = counting_run("opendiloco", rounds=4, start_with=3)
    outcome = play(run, 3)
    assert len({anchor_of(host.disk).digest() for host in outcome.hosts}) == 1
    assert anchor_of(outcome.hosts[0].disk).version == 4


def test_a_token_budget_ends_the_run_at_the_first_round_that_reaches_it() -> None:
    run = replace(counting_run(start_with=2), budget=Budget(tokens=2 * 4 * 16 * 3 - 1))
    outcome = play(run, 2)
    assert [event.tokens for event in events(outcome, journal.RunFinished, peer=0)] == [2 * 4 * 16 * 3]
    assert_sound(run, outcome, version=3)


# coming


def test_a_joiner_in_the_middle_downloads_the_state_and_counts_from_a_later_round() -> None:
    run = counting_run(rounds=10, start_with=3)
    outcome = play(run, 4, entrances=[Entrance(3, round=5)])
    assert_sound(run, outcome, version=10)
    joiner = name(outcome.hosts[3])
    (fetched,) = events(outcome, journal.StateFetched, peer=3)
    assert fetched.version >= 4
    assert set(fetched.donors) <= {name(host) for host in outcome.hosts[:3]}
    counted = [event.version for _, event in once(outcome, journal.RoundCommitted) if joiner in event.contributors]
    assert counted == list(range(counted[0], 11))
    assert fetched.version < counted[0] <= fetched.version + 3
    others = [event.version for _, event in once(outcome, journal.RoundCommitted) if joiner not in event.contributors]
    assert others == list(range(1, counted[0]))


def test_nobody_waits_for_a_joiner_that_downloads() -> None:
    run = counting_run(rounds=10, start_with=3)
    alone = [at_s for at_s, _ in once(play(run, 3), journal.RoundCommitted)]
    joined = play(run, 4, entrances=[Entrance(3, round=5)])
    (fetched,) = lines(joined, journal.StateFetched, peer=3)
    during = [at_s for at_s, _ in once(joined, journal.RoundCommitted) if at_s <= fetched.at_s]
    assert during == pytest.approx(alone[: len(during)], abs=0.05)


def test_a_peer_that_is_not_listed_is_told_how_to_get_in() -> None:
    run = counting_run(rounds=2, start_with=1, who=AllowList(peers=("ab" * 32,)))
    outcome = play(run, 2)
    failed = outcome.hosts[1].failed
    assert isinstance(failed, PeerRefused)
    assert outcome.hosts[1].peer.hex() in failed.hint
    assert [event.who for event in events(outcome, journal.JoinRefused)] == [name(outcome.hosts[1])]
    assert events(outcome, journal.RunFinished)


def test_who_finds_nobody_tries_again_until_the_organiser_is_there() -> None:
    run = counting_run(rounds=3, start_with=2)
    outcome = play(run, 2, faults=[Crash(at_s=0.001, peer=0, restart_after_s=120.0)])
    assert_sound(run, outcome, version=3)


# going


def test_who_leaves_is_off_the_roster_and_the_others_go_on_without_waiting() -> None:
    run = counting_run(rounds=12, start_with=3)
    outcome = play(run, 3, faults=[Leave(at_s=1.0, peer=2)])
    leaver = name(outcome.hosts[2])
    (left,) = lines(outcome, journal.PeerLeft)
    assert left.event.who == leaver  # type: ignore[union-attr]
    assert left.at_s < 1.0 + 1.0
    rosters = [entry.record for entry in log_of(outcome) if isinstance(entry.record, RosterChanged)]
    assert [roster.left for roster in rosters if roster.left] == [(outcome.hosts[2].peer,)]
    assert [event.why for event in events(outcome, journal.PeerStopped, peer=2)] == ["its owner wants the machine"]
    gaps = [at_s for at_s, _ in once(outcome, journal.RoundCommitted)]
    assert max(b - a for a, b in pairwise(gaps)) < 3.0
    assert {anchor_of(host.disk).version for host in outcome.hosts[:2]} == {12}


def test_who_left_comes_back_to_its_own_files_and_catches_up() -> None:
    run = counting_run(rounds=20, start_with=3)
    outcome = play(run, 3, faults=[Leave(at_s=1.0, peer=2, restart_after_s=0.8)])
    assert_sound(run, outcome, version=20)
    resumed = [event.resumed_version for event in events(outcome, journal.PeerStarted, peer=2)]
    assert resumed[0] is None
    assert resumed[1] is not None and resumed[1] > 0


def used_samples(outcome: Outcome) -> list[int]:
    """Return the positions of all samples in committed contributions."""
    return [position for committed in commits(log_of(outcome)) for position in committed.positions]


def test_a_peer_that_crashes_is_replaced_as_owner_and_its_lease_goes_back() -> None:
    run = counting_run(rounds=6, start_with=3)
    outcome = play(run, 3, faults=[Crash(at_s=0.6, peer=2)])
    assert any(
        "is gone" in event.why or "cannot reach" in event.why for event in events(outcome, journal.RoundReplanned)
    )
    assert {anchor_of(host.disk).version for host in outcome.hosts[:2]} == {6}
    assert len(commits(log_of(outcome))[-1].contributors) == 2
    used = used_samples(outcome)
    assert sorted(used) == list(range(len(used))), "what the dead peer had leased was given to others"


def test_when_everybody_crashes_the_run_goes_on_from_disk() -> None:
    run = counting_run(rounds=6, start_with=3)
    for seed in range(5):
        crashes = [Crash(at_s=0.8 + 0.09 * seed, peer=peer, restart_after_s=2.0 + peer) for peer in range(3)]
        outcome = play(run, 3, faults=crashes, seed=seed)
        assert_sound(run, outcome, version=6)
        assert len(events(outcome, journal.PeerStarted)) == 6
        versions = [event.version for _, event in once(outcome, journal.RoundCommitted)]
        assert versions == [1, 2, 3, 4, 5, 6], "no version is called committed twice"


def test_when_everybody_leaves_in_good_order_the_run_goes_on_from_disk() -> None:
    run = counting_run(rounds=8, start_with=3)
    outcome = play(run, 3, faults=[Leave(at_s=1.0, peer=peer, restart_after_s=3.0) for peer in (2, 1, 0)])
    assert_sound(run, outcome, version=8)


def test_a_finished_run_that_is_started_again_ends_at_once() -> None:
    run = counting_run(rounds=2, start_with=1)
    again: list[float] = []

    def enough(world: World) -> bool:
        host = world.hosts[0]
        if world.finished and not host.alive and not again:
            again.append(world.now_s())
            start(world, host)
        return False

    outcome = play(run, 1, enough=enough)
    assert len(events(outcome, journal.PeerStarted)) == 2
    assert len(once(outcome, journal.RoundCommitted)) == 2
    assert outcome.took_s < again[0] + 30


@pytest.mark.parametrize("peer", few_of((0, 2), (0,)))
def test_a_sleeping_machine_does_not_end_the_run(peer: int) -> None:
    run = counting_run(rounds=40, steps=20, start_with=3)
    outcome = play(run, 3, faults=[Pause(at_s=5.0, peer=peer, for_s=30.0)])
    assert_sound(run, outcome, version=40)


def test_a_side_without_the_organiser_waits_and_rejoins() -> None:
    run = counting_run(rounds=30, steps=20, start_with=4)
    outcome = play(run, 4, faults=[Partition(at_s=5.0, side=(2, 3), for_s=20.0)])
    assert_sound(run, outcome, version=30)
    assert any(event.fetched for event in events(outcome, journal.RoundApplied, peer=3))


def test_a_slow_member_misses_its_round_gives_its_lease_back_and_is_told() -> None:
    run = counting_run(rounds=14, start_with=3)
    outcome = play(run, 3, faults=[SlowCompute(at_s=1.0, peer=2, for_s=25.0, factor=400.0)])
    assert_sound(run, outcome, version=14)
    dropped = [event for event in events(outcome, journal.RoundSettled) if len(event.contributors) == 2]
    assert dropped and "median" in dropped[0].why


def test_a_round_whose_exchange_takes_minutes_commits_without_a_new_plan() -> None:
    run = counting_run(rounds=2, start_with=3)
    outcome = play(run, 3, build=sized(200_000), rate_bytes_s=5000.0)
    assert_sound(run, outcome, version=2)
    assert events(outcome, journal.RoundReplanned) == []
    assert events(outcome, journal.RoundCommitted)[0].round_s > 100


# what others may rely on


def test_any_peer_prints_a_ticket_that_names_the_organiser() -> None:
    run = counting_run(rounds=1, start_with=3)
    outcome = play(run, 3)
    for peer in range(3):
        ticket = parse_ticket(events(outcome, journal.TicketPrinted, peer=peer)[-1].ticket)
        assert ticket.run == identity(run)
        assert outcome.hosts[0].peer in {contact.peer for contact in ticket.peers}


def test_a_journal_names_peers_by_the_first_digits_of_their_key() -> None:
    outcome = play(counting_run(rounds=1), 2)
    assert {line.peer for line in outcome.lines} == {short(host.peer) for host in outcome.hosts}
