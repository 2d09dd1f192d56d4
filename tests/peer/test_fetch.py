"""Getting what others have: donors that lie, vanish or fall silent cost time, and are named; nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random

import numpy as np
import pytest
from blake3 import blake3

from atoll import journal
from atoll.errors import PeerLost
from atoll.journal import Journal, parse
from atoll.model.compute import Cost, Engine
from atoll.net.identity import Identity, short
from atoll.net.transport import Conn, PeerId, Stream
from atoll.net.wire import encode
from atoll.peer.box import Box
from atoll.peer.fetch import PIECE_BYTES
from atoll.peer.follow import BrokerTalk
from atoll.peer.life import Start, live
from atoll.peer.messages import AskTalk, Chunk, Declined, FetchResult, FetchState, FetchTalk, Offer
from atoll.peer.store import anchor_from_bytes, anchor_to_bytes
from atoll.sim.compute import CountingEngine, SimCompute
from atoll.sim.disk import SimDisk
from atoll.sim.faults import Fault, Leave, Partition
from atoll.sim.network import DEAD_AFTER_S, SimTransport
from atoll.sim.scenario import Entrance, Outcome, World, start
from atoll.spec.run import PROTOCOL, Run, identity
from atoll.swarm.messages import Hello, Redirect, Welcome
from atoll.sync.merge import Anchor, first_anchor
from tests.peer.stranger import STRANGER, WHO, Spy, Stranger
from tests.peer.world import Visit, anchor_of, assert_sound, counting_run, events, lines, name, play, sized

SIZE = 256
JOINERS = (2, 3, 4)
ROUNDS = 16
SEEDS = range(4, 12)
"""Whom a joiner asks first is chance: seeds are tried until one asks the liar."""
Reply = Callable[[FetchResult | FetchState, Stream], Awaitable[None]]


def bad_state(run: Run, *, version: int, size: int = SIZE, spoil: bool = False) -> bytes:
    """Return the bytes of an anchor that is whole but not the run's."""
    channel = next(iter(run.recipe.channel.values()))
    anchor = first_anchor(channel.merge.outer, np.full(size, 7.0, np.float32))
    data = bytearray(anchor_to_bytes(Anchor(version, anchor.weights, anchor.outer)))
    if spoil:
        data[-1] ^= 1
    return bytes(data)


async def offer(stream: Stream, data: bytes, version: int) -> None:
    await stream.send(encode(Offer(version, (blake3(data).digest(),))))
    await stream.send(encode(Chunk(0, data)))


LIES: dict[str, Reply] = {}


def lie(function: Reply) -> Reply:
    LIES[function.__name__] = function
    return function


@lie
async def garbage(asked: FetchResult | FetchState, stream: Stream) -> None:
    await stream.send(b"\x01garbage")


@lie
async def another_answer(asked: FetchResult | FetchState, stream: Stream) -> None:
    await stream.send(encode(FetchState(0, 0)))


@lie
async def damaged(asked: FetchResult | FetchState, stream: Stream) -> None:
    await offer(stream, bad_state(counting_run(), version=_wanted(asked), spoil=True), _wanted(asked))


@lie
async def another_size(asked: FetchResult | FetchState, stream: Stream) -> None:
    await offer(stream, bad_state(counting_run(), version=_wanted(asked), size=SIZE + 1), _wanted(asked))


@lie
async def another_state(asked: FetchResult | FetchState, stream: Stream) -> None:
    # Of a version whose anchor the log names: one that differs is refused.
    await offer(stream, bad_state(counting_run(), version=2), 2)


@lie
async def wrong_digest(asked: FetchResult | FetchState, stream: Stream) -> None:
    await stream.send(encode(Offer(_wanted(asked), (b"d" * 32,))))
    await stream.send(encode(Chunk(0, b"something")))


@lie
async def wrong_order(asked: FetchResult | FetchState, stream: Stream) -> None:
    await stream.send(encode(Offer(_wanted(asked), (b"d" * 32,))))
    await stream.send(encode(Chunk(1, b"something")))


@lie
async def far_too_much(asked: FetchResult | FetchState, stream: Stream) -> None:
    await stream.send(encode(Offer(_wanted(asked), (b"d" * 32,) * 100_000)))


def _wanted(asked: FetchResult | FetchState) -> int:
    return asked.version if isinstance(asked, FetchState) else asked.key.version


class Liar(Spy):
    """A member whose word is not to be taken: it answers whoever fetches from it."""

    asked = 0

    async def serve(self, reply: Reply) -> None:
        """Answer every fetch with a lie, as long as the world lasts."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._answer(await self.door.accept(), reply))

    async def _answer(self, conn: Conn, reply: Reply) -> None:
        while True:
            try:
                tag, stream = await conn.accept()
            except PeerLost:
                return
            if tag == "fetch":
                self.asked += 1
                asked = FetchTalk.decode(await stream.recv())
                assert isinstance(asked, FetchResult | FetchState)
                await reply(asked, stream)


def lied_to(reply: Reply, *, patience_s_max: float = 3600.0) -> tuple[Outcome, int]:
    """Play a run that three peers join while one of its members lies about the state; return how often it could."""
    for seed in SEEDS:
        outcome, asked = _lied_to(reply, patience_s_max, seed)
        if asked:
            return outcome, asked
    raise AssertionError("nobody ever asked the liar")


def _lied_to(reply: Reply, patience_s_max: float, seed: int) -> tuple[Outcome, int]:
    run = counting_run(rounds=ROUNDS, steps=4, start_with=2, patience_s_max=patience_s_max)
    liars: list[Liar] = []

    async def enter(world: World, door: SimTransport) -> None:
        liar = Liar(world, door)
        liars.append(liar)
        serving = asyncio.ensure_future(liar.serve(reply))
        await liar.join("anything", version=-10)  # on the roster, but too far behind to be in a round
        while world.committed < ROUNDS - 3:
            await asyncio.sleep(0.5)
        serving.cancel()
        await liar.leave()

    visit = Visit(STRANGER, enter)
    entrances = [Entrance(peer, round=6) for peer in JOINERS]
    outcome = play(run, 2 + len(JOINERS), entrances=entrances, enough=visit, seed=seed)
    visit.check()
    assert_sound(run, outcome, version=ROUNDS)
    return outcome, liars[0].asked


@pytest.mark.parametrize("what", LIES)
def test_a_donor_that_lies_is_named_and_the_state_comes_from_another(what: str) -> None:
    outcome, asked = lied_to(LIES[what])
    refused = [event for event in events(outcome, journal.MessageRefused) if event.who == WHO]
    assert len(refused) == asked
    assert all(event.why.startswith("fetch: ") for event in refused)
    for joiner in JOINERS:
        assert WHO not in events(outcome, journal.StateFetched, peer=joiner)[-1].donors[-1:]


def test_a_donor_that_does_not_have_it_is_not_blamed() -> None:
    async def decline(asked: FetchResult | FetchState, stream: Stream) -> None:
        await stream.send(encode(Declined("I am at version 0")))

    outcome, _ = lied_to(decline)
    assert events(outcome, journal.MessageRefused) == []


def test_a_donor_that_falls_silent_is_given_up() -> None:
    async def say_nothing(asked: FetchResult | FetchState, stream: Stream) -> None:
        pass

    outcome, _ = lied_to(say_nothing, patience_s_max=5.0)
    assert events(outcome, journal.MessageRefused) == []


def test_a_state_begun_with_one_donor_is_finished_with_another() -> None:
    """The pieces that arrived before a donor vanished are kept."""

    def build(run: Run) -> CountingEngine:
        return CountingEngine(seed=0, size=5 * PIECE_BYTES // 16, tokens_per_sample=16, sample_cost=Cost(flop=6e11))

    def joined(*faults: Fault) -> tuple[Outcome, journal.StateFetched, float]:
        outcome = play(
            counting_run(rounds=30, steps=2, start_with=3),
            4,
            build=build,
            entrances=[Entrance(3, round=5)],
            rate_bytes_s=5e5,
            faults=faults,
            enough=lambda world: world.hosts[3].version > 0,
        )
        (line,) = lines(outcome, journal.StateFetched, peer=3)
        assert isinstance(line.event, journal.StateFetched)
        return outcome, line.event, line.at_s

    outcome, smooth, end_s = joined()
    assert len(smooth.donors) == 1
    assert smooth.size_bytes > 2 * PIECE_BYTES
    donor = next(host.place for host in outcome.hosts if name(host) == smooth.donors[0])
    _, broken, _ = joined(Partition(at_s=end_s - smooth.took_s / 4, side=(donor,), for_s=500.0))
    assert broken.donors[0] == smooth.donors[0]
    assert len(broken.donors) == 2
    assert broken.took_s < 1.7 * smooth.took_s + DEAD_AFTER_S, "most of it did not have to come again"


# a peer whose state is not the run's


def with_another_anchor(odd: int, peers: int) -> Outcome:
    """Play a run in which a peer comes back with an anchor that differs from everybody else's."""
    run = counting_run(rounds=10, start_with=peers)
    began: list[asyncio.Task[None]] = []

    async def meddle(world: World) -> None:
        disk = world.hosts[odd].disk
        names = [int(file.partition(".")[0]) for file in await disk.names("checkpoint")]
        path = f"checkpoint/{max(names)}.safetensors"
        anchor = anchor_from_bytes(await disk.read(path), path)
        await disk.write(path, anchor_to_bytes(Anchor(anchor.version, anchor.weights + 1, anchor.outer)))
        await disk.remove("results")
        start(world, world.hosts[odd])

    def enough(world: World) -> bool:
        if not began and world.hosts[odd].task is not None and not world.hosts[odd].alive:
            began.append(asyncio.ensure_future(meddle(world)))
        return False

    return play(run, peers, faults=[Leave(at_s=1.2, peer=odd)], enough=enough)


@pytest.mark.parametrize(("odd", "peers"), [(1, 2), (2, 3), (0, 3)])
def test_a_peer_that_differs_heals_itself_by_download_and_says_so(odd: int, peers: int) -> None:
    outcome = with_another_anchor(odd, peers)
    healed = events(outcome, journal.StateHealed)
    assert len(healed) >= 1
    assert {line.peer for line in outcome.lines if isinstance(line.event, journal.StateHealed)} == {
        name(outcome.hosts[odd])
    }
    assert healed[0].had != healed[0].wanted
    assert {anchor_of(host.disk).version for host in outcome.hosts} == {10}
    assert len({anchor_of(host.disk).digest() for host in outcome.hosts}) == 1


# finding the run


class Clock:
    def now_s(self) -> float:
        return 0.0


async def guest(world: World, door: SimTransport, contacts: Mapping[PeerId, tuple[str, ...]]) -> list[journal.Event]:
    """Live as one more peer that knows only these contacts; return what it wrote."""
    written: list[journal.Event] = []
    run = world.scenario.run

    async def build(run: Run) -> Engine:
        return sized(SIZE)(run)

    box = Box(
        transport=door,
        compute=SimCompute(),
        disk=SimDisk(Random(0)),
        journal=Journal(short(door.id), Clock(), lambda line: written.append(parse(line).event)),
        random=Random(0),
        build=build,
    )
    await live(box, Start(run_id=identity(run), contacts=contacts, name="guest"))
    return written


def test_a_ticket_of_any_member_leads_to_the_broker() -> None:
    written: list[journal.Event] = []

    async def enter(world: World, door: SimTransport) -> None:
        while world.committed < 2:
            await asyncio.sleep(0.1)
        member = world.hosts[1].peer
        written.extend(await guest(world, door, {member: (world.network.address(member),)}))

    run = counting_run(rounds=12, start_with=2)
    visit = Visit(STRANGER, enter)
    outcome = play(run, 2, enough=visit)
    visit.check()
    assert any(isinstance(event, journal.PeerStopped) and event.version == 12 for event in written)
    assert WHO in events(outcome, journal.RoundCommitted)[-1].contributors


def test_a_member_that_is_not_the_broker_says_who_is() -> None:
    async def enter(world: World, door: SimTransport) -> None:
        stranger = Stranger(world, door, victim=1)
        while world.committed < 2:
            await asyncio.sleep(0.1)
        answer = await stranger.ask("control", Hello(stranger.run_id, PROTOCOL, 0, ()), BrokerTalk)  # type: ignore[arg-type]
        organiser = world.hosts[0].peer
        assert answer == Redirect(organiser, (world.network.address(organiser),))

    visit = Visit(STRANGER, enter)
    play(counting_run(rounds=6, start_with=2), 2, enough=visit)
    visit.check()


@pytest.mark.parametrize(
    "answer",
    [b"\x01garbage", encode(Welcome(b"{}")), encode(Welcome(b"\xff" * 2_000_000)), None],
    ids=["garbage", "no run", "a huge run", "silence"],
)
def test_a_contact_that_tells_nonsense_is_passed_over(answer: bytes | None) -> None:
    async def enter(world: World, door: SimTransport) -> None:
        false = Identity.from_seed(b"\xfe" * 32).peer
        life = world.loop.incarnation("false contact")
        other = world.network.transport(false, life)
        life.start(tell(other))
        organiser = world.hosts[0].peer
        contacts = {peer: (world.network.address(peer),) for peer in (false, organiser)}
        written.extend(await guest(world, door, contacts))

    async def tell(door: SimTransport) -> None:
        while True:
            conn = await door.accept()
            _, stream = await conn.accept()
            assert AskTalk.decode(await stream.recv())
            if answer is not None:
                await stream.send(answer)

    written: list[journal.Event] = []
    visit = Visit(STRANGER, enter)
    play(counting_run(rounds=40, steps=40, start_with=1), 1, enough=visit)
    visit.check()
    assert any(isinstance(event, journal.PeerStopped) and event.version == 40 for event in written)
