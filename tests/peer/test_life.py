"""A peer's life in virtual time: coming, working, going, and coming back."""

from __future__ import annotations

import pytest

from atoll import journal
from atoll.errors import LocalError, PeerRefused, SpecError
from atoll.net.identity import short
from atoll.peer.store import anchor_from_bytes
from atoll.sim.faults import Crash, FullDisk, Leave, Partition, Pause, SlowCompute
from atoll.sim.scenario import Entrance, World, start
from atoll.spec.run import AllowList
from atoll.swarm.log import RosterChanged, RoundAnnounced, RoundCommitted
from tests.peer.world import (
    anchor_of,
    assert_sound,
    counting_run,
    events,
    lines,
    log_of,
    name,
    play,
)


@pytest.mark.parametrize("peers", [1, 2, 5])
def test_a_run_ends_with_everybody_on_one_anchor_that_the_log_explains(peers: int) -> None:
    run = counting_run(rounds=4, start_with=peers)
    outcome = play(run, peers)
    assert_sound(run, outcome, version=4)
    assert len(events(outcome, journal.RunFinished)) == 1
    assert [event.why for event in events(outcome, journal.PeerStopped)] == ["the run is finished"] * peers
    assert all(event.contributors == sorted(map(name, outcome.hosts)) for event in events(outcome, journal.RoundCommitted))


@pytest.mark.parametrize("recipe", ["diloco", "ddp", "fedavg"])
def test_every_exact_recipe_keeps_its_promises_in_simulation(recipe: str) -> None:
    run = counting_run(recipe, rounds=6, start_with=3)
    assert_sound(run, play(run, 3), version=6)


def test_with_sixteen_bits_all_peers_still_hold_the_same_bits() -> None:
    run = counting_run("opendiloco", rounds=4, start_with=3)
    outcome = play(run, 3)
    assert len({anchor_of(host.disk).digest() for host in outcome.hosts}) == 1
    assert anchor_of(outcome.hosts[0].disk).version == 4


def test_a_token_budget_ends_the_run_at_the_first_round_that_reaches_it() -> None:
    from msgspec.structs import replace

    from atoll.spec.run import Budget

    run = replace(counting_run(start_with=2), budget=Budget(tokens=2 * 4 * 16 * 3 - 1))
    outcome = play(run, 2)
    assert [event.tokens for event in events(outcome, journal.RunFinished)] == [2 * 4 * 16 * 3]
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
    counted = [event.version for event in events(outcome, journal.RoundCommitted) if joiner in event.contributors]
    assert counted == list(range(counted[0], 11))
    assert fetched.version < counted[0] <= fetched.version + 3
    others = [event.version for event in events(outcome, journal.RoundCommitted) if joiner not in event.contributors]
    assert others == list(range(1, counted[0]))


def test_nobody_waits_for_a_joiner_that_downloads() -> None:
    run = counting_run(rounds=10, start_with=3)
    alone = [line.at_s for line in lines(play(run, 3), journal.RoundCommitted)]
    joined = play(run, 4, entrances=[Entrance(3, round=5)])
    (fetched,) = lines(joined, journal.StateFetched, peer=3)
    during = [line.at_s for line in lines(joined, journal.RoundCommitted) if line.at_s <= fetched.at_s]
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
    assert [len(roster.members) for roster in rosters][-1] == 2
    assert [event.why for event in events(outcome, journal.PeerStopped, peer=2)] == ["its owner wants the machine"]
    gaps = [line.at_s for line in lines(outcome, journal.RoundCommitted)]
    assert max(b - a for a, b in zip(gaps, gaps[1:], strict=False)) < 3.0
    assert {anchor_of(host.disk).version for host in outcome.hosts[:2]} == {12}


def test_who_left_comes_back_to_its_own_files_and_catches_up() -> None:
    run = counting_run(rounds=20, start_with=3)
    outcome = play(run, 3, faults=[Leave(at_s=1.0, peer=2, restart_after_s=0.8)])
    assert_sound(run, outcome, version=20)
    resumed = [event.resumed_version for event in events(outcome, journal.PeerStarted, peer=2)]
    assert resumed[0] is None
    assert resumed[1] is not None and resumed[1] > 0


def test_a_peer_that_crashes_is_replaced_as_owner_and_its_lease_goes_back() -> None:
    run = counting_run(rounds=6, start_with=3)
    outcome = play(run, 3, faults=[Crash(at_s=0.6, peer=2)])
    assert any("is gone" in event.why or "cannot reach" in event.why for event in events(outcome, journal.RoundReplanned))
    assert {anchor_of(host.disk).version for host in outcome.hosts[:2]} == {6}
    committed = [entry.record for entry in log_of(outcome) if isinstance(entry.record, RoundCommitted)]
    assert len(committed[-1].contributors) == 2
    used = [
        position
        for announced, commit in zip(
            [entry.record for entry in log_of(outcome) if isinstance(entry.record, RoundAnnounced)], committed, strict=True
        )
        for peer, lease in zip(announced.members, announced.leases, strict=True)
        if peer in commit.contributors
        for one in lease
        for position in one.positions
    ]
    assert sorted(used) == list(range(len(used))), "what the dead peer had leased was given to others"


def test_when_everybody_crashes_the_run_goes_on_from_disk() -> None:
    run = counting_run(rounds=12, start_with=3)
    for seed in range(6):
        crashes = [Crash(at_s=0.9 + 0.13 * seed, peer=peer, restart_after_s=2.0 + peer) for peer in range(3)]
        outcome = play(run, 3, faults=crashes, seed=seed)
        assert_sound(run, outcome, version=12)
        assert len(events(outcome, journal.PeerStarted)) == 6
        versions = [event.version for event in events(outcome, journal.RoundCommitted)]
        assert versions == sorted(set(versions)), "no version is called committed twice"


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
    assert len(events(outcome, journal.RoundCommitted)) == 2
    assert outcome.took_s < again[0] + 30


@pytest.mark.parametrize("peer", [0, 2])
def test_a_sleeping_machine_does_not_end_the_run(peer: int) -> None:
    run = counting_run(rounds=15, start_with=3)
    outcome = play(run, 3, faults=[Pause(at_s=1.0, peer=peer, for_s=40.0)])
    assert_sound(run, outcome, version=15)


def test_a_side_without_the_organiser_waits_and_rejoins() -> None:
    run = counting_run(rounds=15, start_with=4)
    outcome = play(run, 4, faults=[Partition(at_s=1.0, side=(2, 3), for_s=30.0)])
    assert_sound(run, outcome, version=15)
    assert any(event.fetched for event in events(outcome, journal.RoundApplied, peer=3))


def test_a_slow_member_misses_its_round_gives_its_lease_back_and_is_told() -> None:
    run = counting_run(rounds=14, start_with=3)
    outcome = play(run, 3, faults=[SlowCompute(at_s=1.0, peer=2, for_s=25.0, factor=400.0)])
    assert_sound(run, outcome, version=14)
    dropped = [event for event in events(outcome, journal.RoundSettled) if len(event.contributors) == 2]
    assert dropped and "median" in dropped[0].why


# this machine's own troubles


def test_a_full_disk_says_so_and_after_space_is_freed_nothing_is_lost() -> None:
    run = counting_run(rounds=12, start_with=3)
    freed: list[float] = []
    said: list[str] = []

    def enough(world: World) -> bool:
        host = world.hosts[1]
        if host.failed is not None and not freed:
            freed.append(world.now_s())
            said.append(f"{host.failed} / {host.failed.hint}")
            host.disk.capacity_bytes = 2**62
            start(world, host)
        return False

    outcome = play(run, 3, faults=[FullDisk(at_s=1.0, peer=1, for_s=1000.0)], enough=enough)
    assert "the disk is full" in said[0]
    assert "free some space" in said[0]
    assert [type(error) for error in outcome.hosts[1].failures] == [LocalError]
    assert len({anchor_of(host.disk).digest() for host in outcome.hosts}) == 1
    assert anchor_of(outcome.hosts[1].disk).version == 12
    resumed = events(outcome, journal.PeerStarted, peer=1)[1].resumed_version
    applied = [event.version for event in lines_before(outcome, freed[0])]
    assert resumed is not None and resumed >= max(applied) - 1


def lines_before(outcome, at_s: float) -> list[journal.RoundApplied]:  # type: ignore[no-untyped-def]
    applied = lines(outcome, journal.RoundApplied, peer=1)
    return [line.event for line in applied if line.at_s <= at_s]  # type: ignore[misc]


def test_a_full_disk_of_the_organiser_stops_the_run_and_it_goes_on_when_there_is_space() -> None:
    run = counting_run(rounds=8, start_with=2)
    freed: list[float] = []

    def enough(world: World) -> bool:
        host = world.hosts[0]
        if host.failed is not None and not freed:
            freed.append(world.now_s())
            host.disk.capacity_bytes = 2**62
            start(world, host)
        return False

    outcome = play(run, 2, faults=[FullDisk(at_s=1.0, peer=0, for_s=1000.0)], enough=enough)
    assert freed
    assert {anchor_of(host.disk).version for host in outcome.hosts} == {8}
    assert len({anchor_of(host.disk).digest() for host in outcome.hosts}) == 1


def damaged_and_restarted(damage, rounds: int = 8):  # type: ignore[no-untyped-def]
    """Play a run in which peer 1 crashes, has its disk damaged by `damage`, and is started again."""
    run = counting_run(rounds=rounds, start_with=2)

    def enough(world: World) -> bool:
        host = world.hosts[1]
        if host.life is not None and not host.life.alive and not done:
            done.append(True)
            damage(host.disk)
            start(world, host)
        return host.failed is not None

    done: list[bool] = []
    return play(run, 2, faults=[Crash(at_s=1.5, peer=1)], enough=enough)


def flip(disk, path: str) -> None:  # type: ignore[no-untyped-def]
    """Flip one bit in the middle of a file, as a dying drive does."""
    file = disk._names[path]
    file.now[len(file.now) // 2] ^= 1


def newest(disk, folder: str) -> str:  # type: ignore[no-untyped-def]
    names = [path for path in disk.files() if path.startswith(folder) and not path.endswith(".new")]
    return max(names, key=lambda path: int(path.partition("/")[2].partition(".")[0]))


def test_a_checkpoint_with_a_flipped_byte_ends_the_peer_with_its_name_and_harms_nothing() -> None:
    outcome = damaged_and_restarted(lambda disk: flip(disk, newest(disk, "checkpoint/")))
    failed = outcome.hosts[1].failed
    assert isinstance(failed, LocalError)
    path = newest(outcome.hosts[1].disk, "checkpoint/")
    assert str(failed).startswith(f"{path}: damaged")
    older = sorted(p for p in outcome.hosts[1].disk.files() if p.startswith("checkpoint/") and p != path)
    assert all(anchor_from_bytes(outcome.hosts[1].disk.files()[p], p) for p in older)


def test_a_damaged_private_state_starts_from_zero_and_the_journal_says_so() -> None:
    def damage(disk) -> None:  # type: ignore[no-untyped-def]
        disk._names[newest(disk, "private/")].now[:] = b"spoiled"

    outcome = damaged_and_restarted(damage)
    (reset,) = events(outcome, journal.PrivateStateReset, peer=1)
    assert "private/" in reset.why
    assert anchor_of(outcome.hosts[1].disk).version == 8


def test_a_damaged_log_ends_the_peer_with_its_name() -> None:
    def damage(disk) -> None:  # type: ignore[no-untyped-def]
        disk._names["log"].now[3] ^= 0x40

    outcome = damaged_and_restarted(damage)
    failed = outcome.hosts[1].failed
    assert isinstance(failed, LocalError)
    assert "log is damaged" in str(failed)


def test_damaged_results_are_fetched_from_others() -> None:
    def damage(disk) -> None:  # type: ignore[no-untyped-def]
        for path in list(disk.files()):
            if path.startswith("results/"):
                flip(disk, path)

    outcome = damaged_and_restarted(damage)
    assert outcome.hosts[1].failed is None
    assert anchor_of(outcome.hosts[1].disk).version == 8


def test_the_folder_of_another_run_is_not_overwritten() -> None:
    from msgspec.structs import replace

    from atoll.spec.run import Seeds, canonical

    run = counting_run(rounds=2)
    other = canonical(replace(run, seeds=Seeds(data=5)))

    def enough(world: World) -> bool:
        if world.announced == 0 and not done:
            done.append(True)
            from atoll.sim.disk import _File

            file = _File()
            file.now += other
            world.hosts[0].disk._names["run.json"] = file
        return world.hosts[0].failed is not None

    done: list[bool] = []
    outcome = play(run, 1, enough=enough)
    failed = outcome.hosts[0].failed
    assert isinstance(failed, SpecError)
    assert "--home" in failed.hint
    assert outcome.hosts[0].disk.files() == {"run.json": other}


def test_a_peer_whose_training_diverges_says_so_and_leaves_while_the_others_go_on() -> None:
    import numpy as np

    from tests.peer.world import sized

    built = []

    def build(run):  # type: ignore[no-untyped-def]
        engine = sized(256)(run)
        built.append(engine)
        if len(built) == 3:
            honest = engine.train

            def train(steps):  # type: ignore[no-untyped-def]
                trained = honest(steps)
                if engine.steps > 4:
                    engine.assign(np.full(256, np.nan, np.float32))
                return trained

            engine.train = train  # type: ignore[method-assign]
        return engine

    run = counting_run(rounds=6, start_with=3)
    outcome = play(run, 3, build=build)
    (host,) = [host for host in outcome.hosts if host.failed is not None]
    assert isinstance(host.failed, LocalError)
    assert "diverged" in str(host.failed) and "learning rate" in host.failed.hint
    assert {anchor_of(h.disk).version for h in outcome.hosts if h is not host} == {6}


# what others may rely on


def test_any_peer_prints_a_ticket_that_names_the_organiser() -> None:
    from atoll.net.ticket import read_ticket
    from atoll.spec.run import identity

    run = counting_run(rounds=1, start_with=3)
    outcome = play(run, 3)
    for peer in range(3):
        ticket = read_ticket(events(outcome, journal.TicketPrinted, peer=peer)[-1].ticket)
        assert ticket.run == identity(run)
        assert outcome.hosts[0].peer in {contact.peer for contact in ticket.peers}


def test_a_journal_names_peers_by_the_first_digits_of_their_key() -> None:
    outcome = play(counting_run(rounds=1), 2)
    assert {line.peer for line in outcome.lines} == {short(host.peer) for host in outcome.hosts}
