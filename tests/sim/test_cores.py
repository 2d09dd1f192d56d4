"""Cores as a limit: what is bound by them follows from arithmetic, and who says nothing of them is not bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from atoll import journal
from atoll.model.compute import Cost
from atoll.net.transport import ConnLost, PeerId, Traffic
from atoll.sim.compute import CountingEngine, Device, SimCompute
from atoll.sim.conns import SimConn
from atoll.sim.cores import GBIT_BYTES, TOLLS, Cores
from atoll.sim.faults import Crash, Fault
from atoll.sim.flows import UNLIMITED_BYTES_S, Fluid, share
from atoll.sim.links import Link, Links
from atoll.sim.loop import VirtualLoop
from atoll.sim.network import SimNetwork, SimTransport
from atoll.sim.scenario import Entrance, Outcome, Scenario, simulate
from atoll.spec.fleet import LinkName, Processor
from tests.peer.world import DELAYS_S, counting_run, events, lines, machines, sized

FAST_BYTES_S = 1e12
MB = 10**6


class World:
    """Peers by number, each with a processor or none."""

    def __init__(self, *processors: Processor | None, line_bytes_s: float = FAST_BYTES_S, delay_s: float = 0.0) -> None:
        self.loop = VirtualLoop()
        peers = {
            _id(number): Link(up_bytes_s=line_bytes_s, down_bytes_s=line_bytes_s, processor=processor)
            for number, processor in enumerate(processors)
        }
        self.network = SimNetwork(self.loop, Links(peers=peers, delay_s=delay_s), Random(1))
        self.lives = [self.loop.incarnation(f"peer {number}") for number in range(len(processors))]
        self.doors = [self.network.transport(_id(n), life) for n, life in enumerate(self.lives)]

    def run(self, work: Awaitable[None]) -> float:
        """Return how long some work takes."""

        async def timed() -> float:
            await work
            return self.loop.time()

        return self.loop.run(timed(), limit_s=1e5, event_budget=2e6)

    async def pour(self, sender: int, receiver: int, size_bytes: int = 10 * MB) -> float:
        """Send so much from one peer to another, and return when it was there."""
        here, there = await _join(self.doors[sender], self.doors[receiver])
        out = await here.open("bulk", Traffic.ROUND)
        _, into = await there.accept()

        async def send() -> None:
            for _ in range(size_bytes // MB):
                await out.send(bytes(MB))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            for _ in range(size_bytes // MB):
                await into.recv()
        return self.loop.time()


def _id(number: int) -> PeerId:
    return PeerId(bytes([number]) * 32)


async def _join(caller: SimTransport, called: SimTransport) -> tuple[SimConn, SimConn]:
    return await caller.connect(called.id, called.addresses()), await called.accept()


def _processor(cores: float = 1.0, cpu_s: float = 1.0, computer: str = "", receive_cpu_s: float = 1e-6) -> Processor:
    """Return cores to which sending 10 MB costs so many seconds."""
    gbit = 10 * MB / GBIT_BYTES
    return Processor(
        cores=cores, links="iroh", send_s_gbit=cpu_s / gbit, receive_s_gbit=receive_cpu_s / gbit, computer=computer
    )


def test_a_flow_takes_as_much_of_each_link_as_its_weight_says() -> None:
    links = np.array([(1, 2), (1, 3), (4, 3)], np.int64)
    weights = np.array([(1.0, 0.5), (1.0, 2.0), (1.0, 1.0)])
    capacity = np.array([1e18, 100.0, 10.0, 30.0, 100.0])
    rates = share(links, weights, np.full(3, UNLIMITED_BYTES_S), np.ones(3, np.int64), capacity)
    # The third link takes two for each of the second flow's bytes: 2 r + r = 30. The second link, half: r / 2 = 10.
    assert rates.tolist() == pytest.approx([20.0, 10.0, 10.0])


def test_a_flow_bound_by_its_senders_core_takes_what_that_costs() -> None:
    world = World(_processor(cpu_s=3.0), None)
    assert world.run(_only(world.pour(0, 1))) == pytest.approx(3.0, rel=1e-6)


def test_a_flow_bound_by_its_receivers_core_takes_what_that_costs() -> None:
    world = World(None, _processor(cpu_s=1e-6, receive_cpu_s=3.0))
    assert world.run(_only(world.pour(0, 1))) == pytest.approx(3.0, rel=1e-6)


def test_a_flow_bound_by_the_line_is_longer_by_its_headers_only() -> None:
    processor = _processor(cpu_s=0.5)
    world = World(processor, processor, line_bytes_s=10 * MB)
    assert world.run(_only(world.pour(0, 1))) == pytest.approx(TOLLS["iroh"].line, rel=1e-6)


@pytest.mark.parametrize(("awake", "took_s"), [(0.1, 1.0), (0.4, 1.0), (0.8, 1.6), (1.6, 3.2)])
def test_a_full_line_keeps_its_ends_awake_however_slow_it_is(awake: float, took_s: float) -> None:
    # Two receivers on one core: each line needs a second at its rate, and so much of that core meanwhile.
    here = replace(_processor(cpu_s=1e-6, computer="one"), awake=awake)
    line = TOLLS["iroh"].line
    world = World(None, None, here, here, line_bytes_s=10 * MB)

    async def work() -> None:
        ends = await asyncio.gather(world.pour(0, 2), world.pour(1, 3))
        assert ends == pytest.approx([max(line, took_s)] * 2, rel=1e-3)

    world.run(work())


def test_both_ends_on_one_computer_share_its_cores() -> None:
    processor = _processor(cores=1.0, cpu_s=1.0, receive_cpu_s=1.0, computer="one")
    world = World(processor, processor)
    assert world.run(_only(world.pour(0, 1))) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(("computers", "took_s"), [(("one", "one"), 2.0), (("one", "other"), 1.0), (("", ""), 1.0)])
def test_two_senders_share_cores_only_on_one_computer(computers: Sequence[str], took_s: float) -> None:
    world = World(*(_processor(computer=computer) for computer in computers), None, None)

    async def work() -> None:
        ends = await asyncio.gather(world.pour(0, 2), world.pour(1, 3))
        assert ends == pytest.approx([took_s, took_s], rel=1e-6)

    world.run(work())


def test_one_peer_moves_bytes_on_no_more_threads_than_its_links_have() -> None:
    threads = TOLLS["tls"].threads
    world = World(replace(_processor(cores=64.0), links="tls"), None, None, None, None)

    async def work() -> None:
        await asyncio.gather(*(world.pour(0, receiver) for receiver in (1, 2, 3, 4)))

    assert world.run(work()) == pytest.approx(4 / threads, rel=1e-6)


# jobs


def _compute(cores: Cores | None) -> SimCompute:
    return SimCompute(Device(flop_s=1.0, efficiency=1.0), cores=cores)


@pytest.mark.parametrize(("cores", "took_s"), [(1.0, 3.0), (2.0, 1.5), (3.0, 1.0), (64.0, 1.0)])
def test_jobs_of_several_peers_share_cores_and_one_uses_one(cores: float, took_s: float) -> None:
    loop = VirtualLoop()

    async def main() -> float:
        shared = Cores(Fluid(loop), cores)
        await asyncio.gather(*(_compute(shared).run(lambda: None, Cost(flop=1.0)) for _ in range(3)))
        return loop.time()

    assert loop.run(main()) == pytest.approx(took_s, rel=1e-6)


def test_a_job_and_a_flow_slow_each_other_down_on_one_core() -> None:
    world = World(_processor(cpu_s=1.0), None)

    async def work() -> None:
        compute = _compute(world.network.cores(_id(0)))
        flow = asyncio.create_task(world.pour(0, 1))
        await compute.run(lambda: None, Cost(flop=1.0))
        assert world.loop.time() > 1.2
        assert await flow > 1.2

    assert world.run(work()) == pytest.approx(2.0, rel=1e-6)


def test_a_job_and_a_flow_leave_each_other_alone_on_two_cores() -> None:
    world = World(replace(_processor(cores=2.0, cpu_s=1.0), links="tls"), None)

    async def work() -> None:
        compute = _compute(world.network.cores(_id(0)))
        await asyncio.gather(world.pour(0, 1), compute.run(lambda: None, Cost(flop=1.0)))

    assert world.run(work()) == pytest.approx(1.0, rel=1e-6)


def test_a_cancelled_job_keeps_its_core_and_the_next_one_waits() -> None:
    loop = VirtualLoop()

    async def main() -> float:
        compute = _compute(Cores(Fluid(loop), 4.0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await compute.run(lambda: None, Cost(flop=2.0))
        await compute.run(lambda: None, Cost(flop=1.0))
        return loop.time()

    assert loop.run(main()) == pytest.approx(3.0, rel=1e-6)


def test_a_dead_process_leaves_its_core_to_others() -> None:
    loop = VirtualLoop()

    async def main() -> float:
        cores = Cores(Fluid(loop), 1.0)
        doomed, survivor = _compute(cores), _compute(cores)
        killed = asyncio.create_task(doomed.run(lambda: None, Cost(flop=5.0)))
        job = asyncio.create_task(survivor.run(lambda: None, Cost(flop=1.0)))
        await asyncio.sleep(1.0)  # each had half a core
        doomed.stop()
        await job
        killed.cancel()
        return loop.time()

    assert loop.run(main()) == pytest.approx(1.5, rel=1e-6)


# death


@pytest.mark.parametrize(("links", "at_once"), [("tls", True), ("iroh", False)])
def test_a_dead_processs_machine_says_so_over_tls_alone(links: LinkName, at_once: bool) -> None:
    processor = replace(_processor(), links=links)
    world = World(processor, processor, delay_s=0.01)

    async def work() -> None:
        _, there = await _join(world.doors[0], world.doors[1])
        await asyncio.sleep(5.0)
        world.lives[0].crash()
        died_s = world.loop.time()
        with pytest.raises(ConnLost):
            await there.accept()
        assert (world.loop.time() - died_s < 0.02) is at_once

    world.run(work())


# whole runs


def _play(processor: Processor | None, faults: Sequence[Fault] = ()) -> Outcome:
    """Play three rounds of three peers with a model of 400 kB."""
    fleet = [replace(machine, processor=processor) for machine in machines(3)]
    run = counting_run(rounds=3, start_with=3)
    return simulate(Scenario(run=run, machines=fleet, delays_s=DELAYS_S, build=sized(100_000), faults=faults))


def _exchange_s(outcome: Outcome) -> float:
    """Return how long the last round's contributions took."""
    return max(event.took_s for event in events(outcome, journal.ContributionSent) if event.version == 3)


@pytest.mark.long
def test_a_round_is_longer_where_its_members_share_a_slow_computer() -> None:
    slow = Processor(cores=1.0, links="tls", send_s_gbit=100.0, receive_s_gbit=100.0)
    apart, together = _play(slow), _play(replace(slow, computer="one"))
    assert _exchange_s(together) > 2 * _exchange_s(apart) > 4 * _exchange_s(_play(None))
    assert {host.version for host in together.hosts} == {3}


def test_where_cores_never_bind_only_headers_make_it_longer() -> None:
    free = Processor(cores=1e6, send_s_gbit=1e-9, receive_s_gbit=1e-9, pass_bytes_s=400e9)
    assert 1 < _exchange_s(_play(free)) / _exchange_s(_play(None)) <= TOLLS["iroh"].line


@pytest.mark.long
def test_whoever_says_nothing_of_cores_has_the_same_trace_beside_one_who_does() -> None:
    run = counting_run(rounds=3, start_with=3)

    def trace(processor: Processor | None) -> str:
        fleet = machines(4)
        fleet[3] = replace(fleet[3], processor=processor)  # it never comes
        return simulate(
            Scenario(
                run=run,
                machines=fleet,
                delays_s=DELAYS_S,
                build=sized(100_000),
                entrances=[Entrance(3, round=99)],
                enough=lambda world: world.committed >= 3,
            )
        ).trace

    assert trace(None) == trace(Processor(cores=1.0))


def test_a_run_on_counted_cores_outlives_a_crash_and_has_one_trace() -> None:
    processor = Processor(cores=1.0, links="tls", computer="one")
    crash = Crash(at_s=1.0, peer=2, restart_after_s=0.5)
    one, again = _play(processor, [crash]), _play(processor, [crash])
    assert one.trace == again.trace
    assert len(lines(one, journal.PeerStarted, peer=2)) == 2
    assert {host.version for host in one.hosts} == {3}


def test_a_crash_in_mid_job_gives_the_core_to_the_survivors() -> None:
    run = counting_run(rounds=1, start_with=3)
    step_s = 10.0
    processor = Processor(cores=1.0, links="tls", computer="one")
    fleet = [replace(machine, processor=processor) for machine in machines(3)]
    sample = Cost(flop=step_s * fleet[0].device.flop_s * fleet[0].device.efficiency / run.recipe.work.batch)

    def first_step_s(*faults: Fault) -> float:
        outcome = simulate(
            Scenario(
                run=run,
                machines=fleet,
                delays_s=DELAYS_S,
                build=lambda run: CountingEngine(seed=0, sample_cost=sample),
                faults=faults,
                enough=lambda world: any(isinstance(line.event, journal.WorkProgressed) for line in world.lines),
            )
        )
        return outcome.took_s

    together_s = first_step_s()
    assert together_s == pytest.approx(3 * step_s, rel=0.05)
    assert first_step_s(Crash(at_s=15.0, peer=2, restart_after_s=None)) == pytest.approx(together_s - 5.0, rel=0.05)


def test_a_vector_that_stands_for_a_larger_one_takes_the_larger_ones_time() -> None:
    fleet = [replace(machine, processor=Processor(cores=1.0, pass_bytes_s=1e9)) for machine in machines(1)]
    outcome = simulate(Scenario(run=counting_run(rounds=1), machines=fleet, delays_s=DELAYS_S, scale=10.0))
    assert outcome.hosts[0].compute.took_s(Cost(moved_bytes=1e9)) == pytest.approx(10.0)


async def _only(work: Awaitable[object]) -> None:
    await work
