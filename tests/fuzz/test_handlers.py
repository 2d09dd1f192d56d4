"""A stranger says anything, on every stream, for as long as the run lasts: the run goes on as if nobody had come.

Nobody breaks, every refusal is laid at the stranger's door, rounds go on committing on one anchor, journals and logs
grow by a bounded amount, and what the stranger sends is not kept.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from itertools import cycle
from random import Random
from typing import Any

import msgspec
import pytest

from atoll import journal
from atoll.net.transport import PeerId
from atoll.net.wire import encode
from atoll.peer.links import TRAFFIC
from atoll.sim.network import SimTransport
from atoll.sim.scenario import Entrance, Outcome, World
from atoll.spec.run import PROTOCOL, identity
from atoll.swarm.log import Entry, RoundAnnounced, RunFinished
from atoll.swarm.raft import Replicate
from tests.few import few_of
from tests.fuzz.grow import Grower, Words, kinds_of, sealed, wires
from tests.fuzz.intruder import Intruder
from tests.fuzz.traitor import Traitor
from tests.peer.stranger import STRANGER, WHO, Spy, Stranger
from tests.peer.world import Visit, anchor_of, counting_run, events, play

PEERS = 3
LINE_BYTES_MAX = 2_000
"""A journal line, whoever chose what it is about."""
ENDLESS = "x" * 10_000
VARIANTS = 12
LOG_BYTES_MAX = 600
"""What one conversation can add to the log: an arrival and a departure."""

Enter = Callable[[World, SimTransport], Coroutine[Any, Any, None]]


def visited(
    enter: Enter, *, rounds: int, steps: int = 40, entrances: Sequence[Entrance] = (), patience_s_max: float = 3600.0
) -> Outcome:
    """Play a run of three with a visitor; all must get to its end on one anchor."""
    visit = Visit(STRANGER, enter)
    run = counting_run(rounds=rounds, steps=steps, start_with=PEERS - len(entrances), patience_s_max=patience_s_max)
    outcome = play(run, PEERS, enough=visit, entrances=entrances)
    visit.check()
    assert [host.failed for host in outcome.hosts] == [None] * PEERS
    assert {anchor_of(host.disk).version for host in outcome.hosts} == {rounds}
    assert len({anchor_of(host.disk).digest() for host in outcome.hosts}) == 1
    return outcome


def blamed(outcome: Outcome) -> Counter[PeerId]:
    """Return how often each peer refused a message, checking that it was the stranger's each time."""
    count: Counter[PeerId] = Counter()
    for place, host in enumerate(outcome.hosts):
        refused = events(outcome, journal.MessageRefused, peer=place)
        assert {event.who for event in refused} <= {WHO}
        count[host.peer] = len(refused)
    return count


def intruded(seed: int, *, rounds: int, at_once: int = 4) -> tuple[Outcome, Intruder]:
    """Play a run with an intruder at work nearly to its end."""
    intruders: list[Intruder] = []

    async def enter(world: World, door: SimTransport) -> None:
        intruders.append(Intruder(world, door, seed))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(intruders[0].intrude(pause_s=0.3, until=rounds - 8))
        await intruders[0].leave()

    return visited(enter, rounds=rounds, entrances=[Entrance(2, round=3)]), intruders[0]


def check_journals(outcome: Outcome) -> None:
    """Check that nobody else chose how long a line of a journal is."""
    longest = max(outcome.lines, key=lambda line: len(msgspec.json.encode(line)))
    assert len(msgspec.json.encode(longest)) <= LINE_BYTES_MAX, str(longest.event)[:500]


def check(outcome: Outcome, intruder: Intruder) -> None:
    """Check every promise about bad input."""
    refused = blamed(outcome)
    for victim, count in intruder.refused.items():
        assert refused[victim] >= count
    for place, host in enumerate(outcome.hosts):
        too_long = [e for e in events(outcome, journal.MessageRefused, peer=place) if "over the limit" in e.why]
        assert len(too_long) >= intruder.oversized[host.peer]
    check_journals(outcome)
    for host in outcome.hosts:
        assert len(host.disk.files()["log"]) < 100_000 + LOG_BYTES_MAX * intruder.conversations


@pytest.mark.parametrize("seed", few_of(range(2), (0,)))
def test_an_intruder_on_every_stream_disturbs_nobody_and_is_blamed_for_everything(seed: int) -> None:
    outcome, intruder = intruded(seed, rounds=30)
    assert intruder.conversations > 200
    assert sum(intruder.refused.values()) > 40
    assert sum(intruder.oversized.values()) > 3
    check(outcome, intruder)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_intruders_disturb_nobody(seed: int) -> None:
    outcome, intruder = intruded(seed, rounds=100)
    check(outcome, intruder)


def betrayed(seed: int, *, rounds: int) -> tuple[Outcome, Traitor]:
    """Play a run of three with a fourth member that lies nearly to its end."""
    traitors: list[Traitor] = []

    async def enter(world: World, door: SimTransport) -> None:
        traitors.append(Traitor(world, door, seed))
        await traitors[0].betray(until=rounds - 8)

    return visited(enter, rounds=rounds, patience_s_max=20.0), traitors[0]


@pytest.mark.parametrize("seed", range(2))
def test_a_member_that_lies_all_the_time_neither_stops_the_others_nor_gets_anybody_else_blamed(seed: int) -> None:
    outcome, traitor = betrayed(seed, rounds=20)
    assert traitor.sessions > 0
    assert traitor.lies > 20
    assert sum(blamed(outcome).values()) > 0
    check_journals(outcome)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_lying_members_disturb_nobody(seed: int) -> None:
    outcome, _ = betrayed(seed, rounds=40)
    blamed(outcome)
    check_journals(outcome)


def test_a_member_without_a_seat_in_the_council_cannot_write_into_the_log() -> None:
    """It claims to lead in a far later term and ends the run for everybody: nobody may believe it."""

    def opened(spy: Spy, after: int) -> bool:
        """Return whether the newest entry opens a round: for a while nothing else will be written."""
        last = spy.log[-1].record if spy.log else None
        return isinstance(last, RoundAnnounced) and last.key.version > after

    async def enter(world: World, door: SimTransport) -> None:
        spy = Spy(world, door)
        await asyncio.sleep(10.0)  # the council's seats are taken by then
        holder = max(world.hosts, key=lambda host: host.version)
        joined_at = holder.version
        await spy.join(holder.anchor, version=joined_at)
        await spy.until(lambda: opened(spy, joined_at + 1))
        last, term = spy.log[-1], 10**6
        end = Entry(last.index + 1, RunFinished(), term)
        for host in world.hosts[1:]:
            stream = await spy.open("council", host.peer)
            await stream.send(encode(Replicate(term, last.index, last.term, (end,), end.index + 1)))
            await asyncio.sleep(1.0)
            stream.reset()
        await spy.leave()

    outcome = visited(enter, rounds=12, patience_s_max=20.0)
    blamed(outcome)
    assert len(events(outcome, journal.BrokerElected)) == 1


def test_what_a_stranger_sends_is_not_kept() -> None:
    """Eight messages of a megabyte on every stream there is: a peer holds what is in flight and no more."""
    size, tags, times = 2**20, [*TRAFFIC, "gossip"], 8

    async def enter(world: World, door: SimTransport) -> None:
        stranger = Stranger(world, door)

        async def pour(tag: str) -> None:
            for number in range(times):
                filler = b"\xc6" + size.to_bytes(4, "big") + bytes([number]) * size
                assert await stranger.send(tag, b"\x01\x81\xa4type" + filler)

        async with asyncio.TaskGroup() as tasks:
            for tag in tags:
                tasks.create_task(pour(tag))

    quiet = peak_bytes(lambda: visited(_nothing, rounds=4))
    poured = peak_bytes(lambda: visited(enter, rounds=4, steps=200))
    assert poured - quiet < 4 * len(tags) * size < times * len(tags) * size


async def _nothing(world: World, door: SimTransport) -> None:
    pass


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("tag", few_of(TRAFFIC, ("control",)))
def test_a_stranger_does_not_choose_how_long_a_line_of_our_journal_is(tag: str) -> None:
    """Every text of every message, one at a time, is ten thousand characters long."""

    async def enter(world: World, door: SimTransport) -> None:
        stranger = Stranger(world, door)
        for message in long_winded(stranger.run_id):
            async with asyncio.timeout(60.0):
                await stranger.send(tag, message)

    check_journals(visited(enter, rounds=30))


def test_a_member_does_not_choose_how_long_a_line_of_our_journal_is() -> None:
    async def enter(world: World, door: SimTransport) -> None:
        words = cycle(long_winded(identity(world.scenario.run)))
        await Traitor(world, door, 0, lambda tag: next(words)).betray(until=52)

    check_journals(visited(enter, rounds=60, patience_s_max=20.0))


def long_winded(run_id: str) -> list[bytes]:
    """Return well formed messages of every kind with one endless text each, and one that has an endless name."""
    words = Words(texts=(run_id,), numbers=(PROTOCOL, 0))
    growers = [Grower(kinds_of(wire), Random(0), words) for wire in wires().values()]
    trees = [[grower.grow(member) for _ in range(VARIANTS)] for grower in growers for member in grower.members]
    spoiled = [
        tree | {key: ENDLESS}
        for some in trees
        for tree in some
        for key in tree
        if key != "type" and tree[key] == run_id
    ]
    return [sealed(tree) for tree in [*spoiled, {"type": ENDLESS}, *(some[0] | {ENDLESS: 1} for some in trees)]]
