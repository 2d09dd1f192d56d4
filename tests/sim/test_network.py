"""The simulated network: shares by hand, all-reduce by formula, and every way a link can die."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from random import Random

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as some

from atoll.net.transport import ConnectFailed, ConnLost, PeerId, StreamClosed, StreamReset, Traffic
from atoll.net.wire import bulk_bytes, encode
from atoll.peer.messages import Chunk, Done, Returned
from atoll.sim.conns import SimConn
from atoll.sim.flows import NO_LINK, RESERVED, UNLIMITED_BYTES_S, share
from atoll.sim.links import Link, Links
from atoll.sim.loop import Incarnation, VirtualLoop
from atoll.sim.network import SimNetwork, SimTransport
from atoll.sim.streams import SimStream
from tests.sim.hashed import said_under_hash_seeds

BIG = UNLIMITED_BYTES_S


def _rates(flows: list[tuple[int, int]], capacity: list[float], limits: list[float] | None = None) -> list[float]:
    """Return the shares of flows given as (uplink, downlink); links count from one."""
    links = np.array([(up, down, NO_LINK) for up, down in flows], np.int64)
    limit = np.array(limits or [BIG] * len(flows))
    rates = share(links, np.ones(links.shape), limit, np.ones(len(flows), np.int64), np.array([1e18, *capacity]))
    return [float(rate) for rate in rates]


def test_two_flows_share_an_uplink_alike() -> None:
    assert _rates([(1, 2), (1, 3)], [10.0, 100.0, 100.0]) == [5.0, 5.0]


def test_what_a_slow_receiver_leaves_goes_to_the_others() -> None:
    assert _rates([(1, 2), (1, 3)], [10.0, 4.0, 100.0]) == [4.0, 6.0]
    assert _rates([(1, 2), (1, 3), (1, 4)], [12.0, 1.0, 3.0, 100.0]) == [1.0, 3.0, 8.0]


def test_a_chain_of_bottlenecks_is_filled_from_the_tightest() -> None:
    # Sender 1 (10) feeds 4 and 5, sender 2 (6) feeds 5, sender 3 (100) feeds 5 and 6; receiver 5 takes 9.
    flows = [(1, 4), (1, 5), (2, 5), (3, 5), (3, 6)]
    assert _rates(flows, [10.0, 6.0, 100.0, 50.0, 9.0, 20.0]) == [7.0, 3.0, 3.0, 3.0, 20.0]


def test_a_flows_own_limit_frees_the_rest() -> None:
    assert _rates([(1, 2), (1, 3), (1, 4)], [9.0, 50.0, 50.0, 50.0], [1.0, BIG, BIG]) == [1.0, 4.0, 4.0]
    assert _rates([(1, 2), (1, 3)], [9.0, 50.0, 50.0], [0.0, BIG]) == [0.0, 9.0]


def test_round_goes_before_state_but_leaves_it_a_little() -> None:
    links = np.array([(1, 2, NO_LINK), (1, 3, NO_LINK), (4, 5, NO_LINK)], np.int64)
    traffic = np.array([1, 2, 1], np.int64)
    capacity = np.array([1e18, 10.0, 10.0, 10.0, 10.0, 10.0])
    rates = share(links, np.ones(links.shape), np.full(3, BIG), traffic, capacity)
    assert rates.tolist() == pytest.approx([10 * (1 - RESERVED), 10 * RESERVED, 10.0])


@settings(max_examples=100)
@given(
    some.lists(some.tuples(some.integers(1, 5), some.integers(6, 10), some.floats(0.5, 50)), min_size=1, max_size=30),
    some.lists(some.floats(0.5, 100), min_size=10, max_size=10),
)
def test_shares_are_max_min_fair(flows: list[tuple[int, int, float]], capacity: list[float]) -> None:
    rates = _rates([(up, down) for up, down, _ in flows], capacity, [limit for *_, limit in flows])
    for link in range(1, 11):
        assert sum(r for r, flow in zip(rates, flows, strict=True) if link in flow[:2]) <= capacity[link - 1] * (
            1 + 1e-9
        )
    for rate, flow in zip(rates, flows, strict=True):
        assert rate <= flow[2] * (1 + 1e-9)
        assert rate >= flow[2] * (1 - 1e-9) or any(
            _is_bottleneck(link, rate, flows, rates, capacity) for link in flow[:2]
        )


def _is_bottleneck(
    link: int, rate: float, flows: list[tuple[int, int, float]], rates: list[float], capacity: list[float]
) -> bool:
    """Say whether a link is full and nobody on it has more."""
    there = [r for r, flow in zip(rates, flows, strict=True) if link in flow[:2]]
    return sum(there) >= capacity[link - 1] * (1 - 1e-9) and rate >= max(there) * (1 - 1e-9)


# A world with peers in it


class World:
    """A loop, a network and peers by name."""

    def __init__(self, links: Links | None = None, **options: float) -> None:
        self.loop = VirtualLoop()
        self.network = SimNetwork(self.loop, links or Links(), Random(1), **options)
        self.lives: dict[str, Incarnation] = {}

    def peer(self, name: str) -> SimTransport:
        """Start a new life of a peer."""
        self.lives[name] = self.loop.incarnation(name)
        return self.network.transport(named(name), self.lives[name])

    async def pair(self) -> tuple[SimConn, SimConn]:
        """Return both ends of a connection between ann and bob."""
        return await join(self.peer("ann"), self.peer("bob"))

    def run(self, main: Awaitable[None]) -> float:
        async def timed() -> float:
            await main
            return self.loop.time()

        return self.loop.run(timed(), limit_s=1e5, event_budget=2e6)


def named(name: str) -> PeerId:
    return PeerId(blake3(name.encode()).digest())


async def join(caller: SimTransport, called: SimTransport) -> tuple[SimConn, SimConn]:
    return await caller.connect(called.id, called.addresses()), await called.accept()


async def talk(here: SimConn, there: SimConn, traffic: Traffic = Traffic.ROUND) -> tuple[SimStream, SimStream]:
    return await here.open("talk", traffic), (await there.accept())[1]


def rates(up: float, down: float | None = None, *, delay_s: float = 0.001) -> Links:
    return Links(default=Link(up_bytes_s=up, down_bytes_s=down or up), delay_s=delay_s)


async def pour(out: SimStream, into: SimStream, messages: int, size: int) -> None:
    """Send and read so many messages."""

    async def send() -> None:
        for _ in range(messages):
            await out.send(bytes(size))

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        for _ in range(messages):
            assert len(await into.recv()) == size


def test_one_stream_takes_size_over_rate_plus_the_delay() -> None:
    world = World(rates(1e6, delay_s=0.05))

    async def main() -> None:
        out, into = await talk(*await world.pair())
        started_s = world.loop.time()
        await pour(out, into, 10, 500_000)
        assert world.loop.time() - started_s == pytest.approx(5.0 + 0.05, rel=1e-6)

    world.run(main())


def test_a_small_message_takes_delay_plus_size_over_rate() -> None:
    world = World(rates(1e6, delay_s=0.05))

    async def main() -> None:
        out, into = await talk(*await world.pair())
        started_s = world.loop.time()
        await out.send(bytes(1000))
        assert world.loop.time() == started_s, "the window takes it at once"
        await into.recv()
        assert world.loop.time() - started_s == pytest.approx(0.051)

    world.run(main())


def test_regions_decide_the_delay() -> None:
    eu, us = Link(region="eu"), Link(region="us")
    links = Links(
        peers={named("ann"): eu, named("bob"): us, named("cat"): us},
        delays_s={("eu", "us"): 0.045, ("us", "us"): 0.001},
    )
    assert links.between_s(named("bob"), named("ann")) == links.between_s(named("ann"), named("bob")) == 0.045
    assert links.between_s(named("cat"), named("bob")) == 0.001
    assert links.between_s(named("ann"), named("dan")) == links.delay_s


def test_who_stands_behind_a_router_calls_and_cannot_be_called() -> None:
    world = World(Links(peers={named("ann"): Link(nat=True)}, delay_s=0.01))

    async def main() -> None:
        ann, bob = world.peer("ann"), world.peer("bob")
        with pytest.raises(ConnectFailed):
            await bob.connect(ann.id, ann.addresses())
        conn = await ann.connect(bob.id, bob.addresses())
        there = await bob.accept()
        assert (conn.peer, there.peer) == (bob.id, ann.id)
        stream = await there.open("answer", Traffic.CONTROL)
        await stream.send(b"what one side began serves both")

    world.run(main())


def test_a_stream_is_held_to_its_window_per_round_trip_and_four_are_not() -> None:
    world = World(rates(1e9, delay_s=0.05))

    async def main() -> None:
        here, there = await world.pair()
        streams = [await talk(here, there) for _ in range(4)]
        started_s = world.loop.time()
        await pour(*streams[0], 25, 1_000_000)
        assert world.loop.time() - started_s == pytest.approx(25e6 / 12.5e6, rel=0.03)
        started_s = world.loop.time()
        async with asyncio.TaskGroup() as group:
            for out, into in streams:
                group.create_task(pour(out, into, 25, 1_000_000))
        assert world.loop.time() - started_s == pytest.approx(25e6 / 12.5e6, rel=0.03)

    world.run(main())


def test_loss_slows_a_connection_however_many_streams_it_has() -> None:
    lossy = Links(default=Link(up_bytes_s=1e9, down_bytes_s=1e9), peers={named("ann"): Link(loss=0.01)}, delay_s=0.02)
    world = World(lossy)

    async def main() -> None:
        here, there = await world.pair()
        streams = [await talk(here, there) for _ in range(4)]
        started_s = world.loop.time()
        async with asyncio.TaskGroup() as group:
            for out, into in streams:
                group.create_task(pour(out, into, 10, 100_000))
        rate = 4e6 / (world.loop.time() - started_s)
        assert 0.3e6 < rate < 0.5e6

    world.run(main())


@pytest.mark.parametrize(("peers", "quantum_s"), [(2, 0.0), (4, 0.0), (8, 0.0), (8, 0.1), (16, 0.1)])
def test_a_butterfly_all_reduce_takes_what_the_formula_says(peers: int, quantum_s: float) -> None:
    total_bytes, rate = 8_000_000, 1e6
    world = World(rates(rate), quantum_s=quantum_s)

    async def reduce(streams: list[tuple[SimStream, SimStream]]) -> None:
        """Send every other member its share, then every other member the reduced own one."""
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                for out, into in streams:
                    group.create_task(pour(out, into, 4, total_bytes // peers // 4))

    async def main() -> None:
        doors = [world.peer(f"p{number}") for number in range(peers)]
        streams: list[list[tuple[SimStream, SimStream]]] = [[] for _ in doors]
        for one in range(peers):
            for other in range(one):
                here, there = await join(doors[one], doors[other])
                streams[one].append(await talk(here, there))
                streams[other].append(await talk(there, here))
        started_s = world.loop.time()
        async with asyncio.TaskGroup() as group:
            for mine in streams:
                group.create_task(reduce(mine))
        bound_s = 2 * (peers - 1) / peers * total_bytes / rate
        assert bound_s <= world.loop.time() - started_s <= 1.02 * bound_s

    world.run(main())


def test_control_and_round_pass_a_state_download() -> None:
    world = World(rates(1e6))

    async def main() -> None:
        here, there = await world.pair()
        state, rounds, control = [await talk(here, there, t) for t in (Traffic.STATE, Traffic.ROUND, Traffic.CONTROL)]
        pouring = asyncio.create_task(pour(*state, 100, 100_000))
        await asyncio.sleep(1.0)
        started_s = world.loop.time()
        await control[0].send(b"ask")
        await control[1].recv()
        assert world.loop.time() - started_s < 0.002
        await pour(*rounds, 10, 100_000)
        assert world.loop.time() - started_s == pytest.approx(1.0, rel=0.04)
        await pouring

    assert world.run(main()) == pytest.approx(11.0, rel=0.02)


def test_a_slowed_link_is_slower_and_recovers() -> None:
    world = World(rates(1e6))

    async def main() -> None:
        out, into = await talk(*await world.pair())
        world.loop.call_at(world.loop.time() + 1.0, world.network.slow, named("bob"), 10.0)
        world.loop.call_at(world.loop.time() + 6.0, world.network.slow, named("bob"), 1.0)
        await pour(out, into, 4, 500_000)

    assert world.run(main()) == pytest.approx(1.0 + 5.0 + 0.5, abs=0.02)


def test_one_byte_may_stand_for_many() -> None:
    world = World(rates(1e6), scale=1000.0)
    message = encode(Chunk(7, memoryview(bytes(1000))))

    async def main() -> None:
        here, there = await world.pair()
        out, into = await talk(here, there)
        for _ in range(5):
            await out.send(message)
            assert await into.recv() == message
        weighs = 5 * (1000 * 1000 + len(message) - 1000)
        assert here.door.counts.sent_bytes[Traffic.ROUND] == there.door.counts.received_bytes[Traffic.ROUND] == weighs

    assert world.run(main()) == pytest.approx(5.0, abs=0.02)


def test_the_head_of_a_message_stands_for_itself() -> None:
    assert bulk_bytes(encode(Chunk(7, memoryview(bytes(1000))))) == 1000
    assert bulk_bytes(encode(Returned(7, b"of", b"digest", memoryview(bytes(70_000))))) == 70_000
    assert bulk_bytes(encode(Done())) == 0


def test_a_message_is_a_copy() -> None:
    world = World()

    async def main() -> None:
        out, into = await talk(*await world.pair())
        message = bytearray(b"first")
        await out.send(message)  # type: ignore[arg-type]
        message[:] = b"later"
        assert await into.recv() == b"first"

    world.run(main())


async def send_until_stuck(out: SimStream, size: int) -> int:
    """Send copies until one is not taken for a minute, and return how many bytes were."""
    sent = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            while True:
                await out.send(bytes(size))
                sent += size
    return sent


def test_a_reader_that_stops_reading_stops_the_sender() -> None:
    world = World(rates(1e9))

    async def main() -> None:
        for size in (1000, 100_000, 3_000_000):
            out, into = await talk(*await world.pair())
            sent = await send_until_stuck(out, size)
            assert 1_000_000 < sent < 10_000_000
            await asyncio.sleep(1.0)
            with pytest.raises(StreamReset):
                await into.recv()

    world.run(main())


def test_a_reset_after_the_end_takes_back_nothing() -> None:
    world = World()

    async def main() -> None:
        out, into = await talk(*await world.pair())
        await out.send(b"kept")
        await out.finish()
        out.reset()
        await asyncio.sleep(1.0)
        with pytest.raises(StreamReset):
            await into.send(b"nobody reads this")
        assert await into.recv() == b"kept"
        with pytest.raises(StreamClosed):
            await into.recv()

    world.run(main())


# Death


async def lost_after_s(world: World, conn: SimConn) -> float:
    """Return how long it took until the connection was found gone."""
    started_s = world.loop.time()
    async with asyncio.timeout(60):
        await conn.closed()
    return world.loop.time() - started_s


@pytest.mark.parametrize("moment_s", [0.0, 0.3, 0.99, 7.5])
@pytest.mark.parametrize("fault", ["crash", "cut", "pause"])
def test_silence_is_noticed_within_the_bound_and_not_before(fault: str, moment_s: float) -> None:
    world = World()

    async def main() -> None:
        _, there = await world.pair()
        await asyncio.sleep(moment_s)
        match fault:
            case "crash":
                world.lives["ann"].crash()
            case "pause":
                world.lives["ann"].pause()
            case _:
                world.network.cut(named("ann"), named("bob"))
        assert 3.4 <= await lost_after_s(world, there) <= 5.0 + 0.05

    world.run(main())


def lost_after_history_s(*gaps_s: float, links: Links | None = None, quiet_s: float = 60.0) -> float:
    """Return how long a cut lasts until it is noticed, on a link that was cut for so long before, a minute apart."""
    world = World(links, silence_s_max=30.0)
    took_s = 0.0

    async def main() -> None:
        nonlocal took_s
        _, there = await world.pair()
        ann, bob = named("ann"), named("bob")
        await asyncio.sleep(quiet_s)
        for gap_s in gaps_s:
            world.network.cut(ann, bob)
            await asyncio.sleep(gap_s)
            world.network.heal(ann, bob)
            await asyncio.sleep(quiet_s)
            assert there.why is None
        world.network.cut(ann, bob)
        took_s = await lost_after_s(world, there)
        assert "its longest silence lately was" in str(there.why)

    world.run(main())
    return took_s


def test_a_link_is_given_up_by_what_it_has_shown() -> None:
    quiet_s = lost_after_history_s()
    assert 2.4 <= quiet_s <= 3.1
    assert 2.4 <= lost_after_history_s(0.2) <= 3.6
    assert quiet_s < 5.0 < lost_after_history_s(2.0) < lost_after_history_s(2.0, 5.0) < 20.0
    assert lost_after_history_s(2.0, 5.0, 14.0) == pytest.approx(30.0, abs=0.6), "the ceiling"
    assert lost_after_history_s(quiet_s=0.1) > 3.9
    assert lost_after_history_s(links=Links(default=Link(loss=0.3))) > quiet_s
    assert lost_after_history_s(links=Links(delay_s=1.5)) > quiet_s + 2


def test_our_own_pause_is_not_the_others_silence() -> None:
    world = World()

    async def main() -> None:
        _, there = await world.pair()
        for _ in range(3):
            await asyncio.sleep(60.0)
            world.lives["bob"].pause()
            await asyncio.sleep(2.0)
            world.lives["bob"].resume()
        await asyncio.sleep(60.0)
        world.lives["bob"].pause()
        world.network.cut(named("ann"), named("bob"))
        await asyncio.sleep(100.0)
        world.lives["bob"].resume()
        assert 2.4 <= await lost_after_s(world, there) <= 3.6

    world.run(main())


def test_a_crash_drops_what_is_in_flight() -> None:
    world = World(rates(1e6, delay_s=0.05))

    async def main() -> None:
        out, into = await talk(*await world.pair())
        await out.send(b"small, sent, not arrived")
        big = world.lives["ann"].start(out.send(bytes(1_000_000)))
        await asyncio.sleep(0.01)
        world.lives["ann"].crash()
        with pytest.raises(ConnLost):
            await into.recv()
        assert not big.done(), "the dead hear nothing"

    world.run(main())


def test_a_short_pause_loses_nothing_and_a_long_one_the_connection() -> None:
    world = World(rates(1e6))

    async def main() -> None:
        here, there = await world.pair()
        out, into = await talk(here, there)
        pouring = asyncio.create_task(pour(out, into, 10, 100_000))
        await asyncio.sleep(0.5)
        world.lives["bob"].pause()
        await asyncio.sleep(3.0)
        world.lives["bob"].resume()
        await pouring
        assert world.loop.time() == pytest.approx(4.0, abs=0.05)
        world.lives["bob"].pause()
        await asyncio.sleep(20)
        assert here.why is not None
        assert there.why is None, "a stopped process notices nothing"
        world.lives["bob"].resume()
        assert await lost_after_s(world, there) < 0.1

    world.run(main())


def test_a_healed_cut_delivers_late_but_in_order() -> None:
    world = World(rates(1e6, delay_s=0.1))

    async def main() -> None:
        out, into = await talk(*await world.pair())
        ann, bob = named("ann"), named("bob")
        for number in range(40):
            await out.send(b"%d" % number)
            if number == 10:
                world.network.cut(ann, bob)
            if number == 20:
                world.network.heal(ann, bob)
            await asyncio.sleep(0.03)
        assert [await into.recv() for _ in range(40)] == [b"%d" % number for number in range(40)]

    world.run(main())


def test_a_transfer_waits_out_a_short_cut() -> None:
    world = World(rates(1e6))

    async def main() -> None:
        out, into = await talk(*await world.pair())
        loop, network = world.loop, world.network
        loop.call_at(loop.time() + 0.5, network.cut, named("bob"), named("ann"))
        loop.call_at(loop.time() + 2.5, network.heal, named("bob"), named("ann"))
        await pour(out, into, 10, 100_000)

    assert world.run(main()) == pytest.approx(3.0, abs=0.05)


def test_a_one_way_cut_ends_both_sides() -> None:
    world = World()

    async def main() -> None:
        here, there = await world.pair()
        world.network.cut(named("ann"), named("bob"), one_way=True)
        async with asyncio.TaskGroup() as group:
            deaf = group.create_task(lost_after_s(world, there))
            told = group.create_task(lost_after_s(world, here))
        assert 3.9 <= deaf.result() <= told.result() <= 5.1
        assert "heard nothing" in str(here.why)

    world.run(main())


def test_a_cut_needs_as_many_heals() -> None:
    world = World()

    async def main() -> None:
        ann, bob = world.peer("ann"), world.peer("bob")
        for _ in range(2):
            world.network.cut(ann.id, bob.id)
        world.network.heal(ann.id, bob.id)
        with pytest.raises(ConnectFailed):
            await ann.connect(bob.id, bob.addresses())
        world.network.heal(ann.id, bob.id)
        await ann.connect(bob.id, bob.addresses())
        world.network.cut(ann.id, bob.id)
        world.network.heal_all()
        await ann.connect(bob.id, bob.addresses())

    world.run(main())


def test_connecting_takes_a_round_trip_or_the_whole_deadline() -> None:
    world = World(rates(1e6, delay_s=0.1))

    async def main() -> None:
        ann, bob = world.peer("ann"), world.peer("bob")
        await ann.connect(bob.id, bob.addresses())
        assert world.loop.time() == pytest.approx(0.2)
        world.lives["bob"].crash()
        with pytest.raises(ConnectFailed):
            await ann.connect(bob.id, bob.addresses())
        assert world.loop.time() == pytest.approx(10.2)

    world.run(main())


def test_a_peer_that_comes_back_in_time_is_reached_at_its_old_address() -> None:
    world = World()

    async def main() -> None:
        ann, bob = world.peer("ann"), world.peer("bob")
        old, _ = await join(ann, bob)
        world.lives["bob"].crash()
        connecting = asyncio.create_task(ann.connect(bob.id, bob.addresses()))
        await asyncio.sleep(2.5)
        again = world.peer("bob")
        new = await connecting
        assert (await again.accept()).peer == ann.id
        assert old.why is None, "nothing tells of the death but silence"
        await old.closed()
        assert new.why is None

    world.run(main())


def test_healing_just_before_the_verdict_saves_the_connection_only_if_a_ping_still_passes() -> None:
    world = World(rates(1e6, delay_s=0.01), silence_s_max=5.0)

    async def main() -> None:
        ann, bob = named("ann"), named("bob")
        here, _ = await world.pair()
        await asyncio.sleep(2.5)
        world.network.cut(ann, bob)
        await asyncio.sleep(3.0)
        world.network.heal(ann, bob)
        await asyncio.sleep(30)
        assert here.why is None
        world.network.cut(ann, bob)
        await asyncio.sleep(4.985)  # a ping sent now comes 5 ms after the verdict
        world.network.heal(ann, bob)
        await asyncio.sleep(1.0)
        assert here.why is not None

    world.run(main())


# The same in every process

_SCRIPT = """
import asyncio, sys
from random import Random
from atoll.errors import PeerLost
from atoll.net.transport import PeerId, Traffic
from atoll.sim.faults import stream
from atoll.sim.loop import VirtualLoop
from atoll.sim.links import Link, Links
from atoll.sim.network import SimNetwork
from atoll.sim.trace import Trace

junk = [bytearray(int(sys.argv[1]) * 13 + n) for n in range(1000)]
loop = VirtualLoop()
trace = Trace(loop.time)
links = Links(default=Link(up_bytes_s=3e5, down_bytes_s=5e5, loss=0.01), delay_s=0.03)
network = SimNetwork(loop, links, stream(7, "network"))
ids = [PeerId(bytes([n]) * 32) for n in range(8)]

async def serve(conn, me):
    try:
        async with asyncio.TaskGroup() as group:
            while True:
                tag, s = await conn.accept()
                group.create_task(answer(s, me))
    except* PeerLost as lost:
        trace.add(b"%d lost %d" % (me, conn.peer[0]) + str(lost.exceptions[0]).encode())

async def answer(s, me):
    try:
        message = await s.recv()
        trace.add(b"%d got %d" % (me, len(message)))
        await s.send(message[: len(message) // 2])
        await s.finish()
    except PeerLost as lost:
        trace.add(b"%d broke %s" % (me, str(lost).encode()))

async def listen(door, me):
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(serve(await door.accept(), me))

async def ask(conn, me, rng, traffic):
    s = await conn.open("ask", traffic)
    async with asyncio.timeout(3.0):
        await s.send(bytes(rng.choice([10, 3000, 50_000, 400_000])))
        reply = await s.recv()
    await s.finish()
    trace.add(b"%d reply %d" % (me, len(reply)))

async def life(door, me, addresses):
    rng = stream(7, f"peer {me}")
    async with asyncio.TaskGroup() as group:
        group.create_task(listen(door, me))
        while True:
            other = rng.choice([n for n in range(8) if n != me])
            try:
                conn = await door.connect(ids[other], addresses[other])
                async with asyncio.TaskGroup() as asks:
                    for _ in range(3):
                        asks.create_task(ask(conn, me, rng, rng.choice(list(Traffic))))
                await conn.close("done")
            except* (PeerLost, TimeoutError) as failed:
                trace.add(b"%d failed %d" % (me, len(failed.exceptions)))

async def main():
    lives, doors = {}, {}
    for n in range(8):
        lives[n] = loop.incarnation(str(n))
        doors[n] = network.transport(ids[n], lives[n])
    addresses = {n: doors[n].addresses() for n in range(8)}
    for n in range(8):
        lives[n].start(life(doors[n], n, addresses))
    await asyncio.sleep(5)
    lives[3].crash()
    network.cut(ids[1], ids[2])
    await asyncio.sleep(4)
    lives[5].pause()
    lives[3] = loop.incarnation("3")
    lives[3].start(life(network.transport(ids[3], lives[3]), 3, addresses))
    await asyncio.sleep(7)
    lives[5].resume()
    network.heal_all()
    await asyncio.sleep(5)

loop.run(main())
print(trace.lines, trace.digest(), loop.callbacks, loop.complaints)
"""


def test_one_seed_gives_one_trace_in_every_process() -> None:
    traces = said_under_hash_seeds(_SCRIPT)
    assert len(traces) == 1
    lines, *_ = traces.pop().split()
    assert int(lines) > 300


def test_a_thousand_peers_can_keep_in_touch() -> None:
    peers, beats = 1000, 6
    world = World(Links(delay_s=0.03))
    heard = 0

    async def serve(conn: SimConn) -> None:
        nonlocal heard
        _, stream = await conn.accept()
        for _ in range(beats):
            await stream.send(await stream.recv())
            heard += 1

    async def life(door: SimTransport, broker: SimTransport, number: int) -> None:
        conn = await door.connect(broker.id, broker.addresses())
        stream = await conn.open("beat", Traffic.CONTROL)
        for _ in range(beats):
            await asyncio.sleep(10)
            await stream.send(b"%d" % number)
            await stream.recv()

    async def main() -> None:
        broker = world.peer("broker")
        async with asyncio.TaskGroup() as group:
            doors = [world.peer(f"p{number}") for number in range(peers)]
            lives = [world.lives[f"p{n}"].start(life(door, broker, n)) for n, door in enumerate(doors)]
            for _ in range(peers):
                group.create_task(serve(await broker.accept()))
        for task in lives:
            await task

    world.run(main())
    assert heard == peers * beats
    assert world.loop.callbacks < 12 * peers * beats
