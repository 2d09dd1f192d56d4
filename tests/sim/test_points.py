"""Faults tied to a single send or sync, to the leader, or to a stranger: each happens as it says."""

from __future__ import annotations

import asyncio

import pytest

from atoll import journal
from atoll.errors import PeerLost
from atoll.net.identity import short
from atoll.net.transport import Traffic
from atoll.sim.check import violations
from atoll.sim.disk import SimDisk
from atoll.sim.faults import LEADER, Crash, CrashAt, Lie, Vandal, stream
from atoll.sim.links import Links
from atoll.sim.loop import VirtualLoop
from atoll.sim.network import SimNetwork
from atoll.sim.points import Points, Trap, When
from atoll.sim.scenario import Outcome, World, key_of
from tests.peer.world import counting_run, play

A, B = key_of(0, 0).peer, key_of(0, 1).peer


@pytest.mark.parametrize(("when", "arrived"), [("before", [b"one"]), ("after", [b"one", b"two"])])
def test_what_is_sent_just_before_a_crash_arrives_and_nothing_after_it(when: When, arrived: list[bytes]) -> None:
    loop = VirtualLoop()
    heard: list[bytes] = []

    async def main() -> None:
        network = SimNetwork(loop, Links(), stream(0, "test"))
        life = loop.incarnation("a")
        near, far = network.transport(A, life), network.transport(B)
        points = Points()
        network.watch(A, points)
        points.set(Trap("send:talk/raw", when, 2, life.crash))

        async def speak() -> None:
            conn = await near.connect(B, far.addresses())
            out = await conn.open("talk", Traffic.CONTROL)
            for message in (b"one", b"two", b"three"):
                await out.send(message)
                await asyncio.sleep(1.0)

        task = life.start(speak())
        _, stream_in = await (await far.accept()).accept()
        try:
            while True:
                heard.append(await stream_in.recv())
        except PeerLost:
            pass  # the silence was noticed
        assert not task.done(), "a crash is not an end: the process never runs again"
        assert points.seen["send:talk/raw"] == 2

    loop.run(main(), limit_s=100.0)
    assert heard == arrived


@pytest.mark.parametrize(("when", "kept"), [("before", b""), ("after", b"data")])
def test_what_is_synced_just_before_a_crash_is_kept(when: When, kept: bytes) -> None:
    for seed in range(20):  # whether what was not synced survives is left to chance: mostly not
        loop = VirtualLoop()
        disk = SimDisk(stream(seed, "disk"))

        async def main(loop: VirtualLoop = loop, disk: SimDisk = disk) -> None:
            life = loop.incarnation("a")
            life.watch(crash=disk.crash)
            await disk.write("log", b"")
            await disk.sync("log")
            await disk.sync("/")
            disk.points = Points()
            disk.points.set(Trap("fsync:log", when, 1, life.crash))

            async def keep() -> None:
                await disk.write("log", b"data")
                await disk.sync("log")

            life.start(keep())
            await asyncio.sleep(1.0)

        loop.run(main())
        if when == "after":
            assert disk.file("log") == kept
        elif disk.file("log") == kept:
            return
    assert when == "after", "not once was an unsynced write lost"


def test_a_crash_point_strikes_once_at_its_number_and_the_peer_comes_back() -> None:
    run = counting_run(rounds=8, start_with=3)
    crash = CrashAt(at_s=0.0, peer=1, what="send:contributed", when="after", nth=3, restart_after_s=2.0)
    outcome = play(run, 3, faults=[crash])
    started = [line for line in outcome.lines if isinstance(line.event, journal.PeerStarted)]
    assert sorted(line.peer for line in started).count(short(outcome.hosts[1].peer)) == 2
    assert violations(run, outcome) == []


def test_a_crash_point_that_is_never_reached_does_nothing() -> None:
    run = counting_run(rounds=3, start_with=2)
    idle = CrashAt(at_s=0.0, peer=1, what="send:no-such-message", for_s=1.0, restart_after_s=2.0)
    assert play(run, 2, faults=[idle]).lines == play(run, 2).lines


def test_the_leader_is_found_when_its_time_comes() -> None:
    led: list[int] = []

    def enough(world: World) -> bool:
        if world.now_s() > 3.0 and not led:
            led.append(world.leader())
        return False

    run = counting_run(rounds=40, start_with=5)
    outcome = play(run, 5, faults=[Crash(at_s=4.0, peer=LEADER, restart_after_s=8.0)], enough=enough)
    (left,) = outcome.remains
    assert left.place == led[0]
    assert violations(run, outcome) == []


def spoken(outcome: Outcome) -> set[str]:
    refusals = (line.event for line in outcome.lines)
    return {e.who for e in refusals if isinstance(e, journal.MessageRefused | journal.JoinRefused)}


def test_a_stranger_that_says_nothing_true_is_blamed_and_stops_nobody() -> None:
    run = counting_run(rounds=40, start_with=3)
    outcome = play(run, 3, faults=[Vandal(at_s=0.5, for_s=20.0, pause_s=0.1)])
    ((name, said),) = outcome.vandals.items()
    assert said > 20
    assert spoken(outcome) == {name}
    assert violations(run, outcome) == []
    assert {host.version for host in outcome.hosts} == {40}


def test_a_member_whose_memory_lies_is_blamed_and_stops_nobody() -> None:
    run = counting_run(rounds=12, start_with=4)
    lie = Lie(at_s=1.0, peer=2, what="send:part/chunk", for_s=1.5)
    outcome = play(run, 4, faults=[lie], enough=lambda world: world.committed >= 8 or world.now_s() > 300)
    assert max(host.version for host in outcome.hosts) >= 7
    assert short(outcome.hosts[2].peer) in spoken(outcome)
    assert violations(run, outcome) == []
