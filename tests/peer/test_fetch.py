"""Getting what others have: as fast as the links allow, from all at once; who lies, vanishes or falls silent costs
a little time and is named where it did wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random

import numpy as np
import pytest
from blake3 import blake3
from msgspec.structs import replace

from atoll import journal
from atoll.errors import PeerError, PeerLost
from atoll.journal import Journal, parse
from atoll.model.compute import Cost, Engine
from atoll.net.identity import Identity, short
from atoll.net.transport import PeerId, Stream
from atoll.net.wire import encode
from atoll.peer import desk as of_round
from atoll.peer.box import Box
from atoll.peer.desk import Reduction
from atoll.peer.fetch import ANSWER_S, fetch_result, fetch_state
from atoll.peer.follow import BrokerTalk
from atoll.peer.life import Start, live
from atoll.peer.messages import (
    AskTalk,
    Chunk,
    Declined,
    FetchMessage,
    FetchPieces,
    FetchState,
    FetchTalk,
    Have,
    Offer,
    Snapshot,
    Snapshots,
    Want,
)
from atoll.peer.pieces import WINDOW_MAX, Listing, piece_bytes
from atoll.peer.results import Result
from atoll.peer.store import Store, anchor_from_bytes, anchor_to_bytes
from atoll.sim.check import violations
from atoll.sim.compute import CountingEngine, SimCompute
from atoll.sim.disk import SimDisk
from atoll.sim.faults import Crash, Leave
from atoll.sim.links import Link
from atoll.sim.network import SimTransport
from atoll.sim.scenario import Entrance, Outcome, Scenario, World, simulate, start
from atoll.spec.axes.codec import Fp16
from atoll.spec.run import PROTOCOL, Run, identity
from atoll.swarm.log import ClosedRound, Key, OpenRound
from atoll.swarm.messages import Hello, Redirect, Welcome
from atoll.sync.grid import Grid, grid_of
from atoll.sync.merge import Anchor
from tests.peer import desks
from tests.peer.desks import VERSION, Desk, Office, anchor, digest, fetch
from tests.peer.stranger import STRANGER, WHO, Stranger
from tests.peer.world import (
    DELAYS_S,
    Visit,
    anchor_of,
    counting_run,
    events,
    lines,
    machines,
    name,
    once,
    play,
    sized,
)

SIZE = 256
RATE = 2e6
FAST = Link(up_bytes_s=RATE, down_bytes_s=RATE)
STATE_BYTES = len(anchor_to_bytes(anchor()))
PIECE_BYTES = piece_bytes(STATE_BYTES)


def all_fast(count: int) -> dict[int, Link]:
    return dict.fromkeys(range(count), FAST)


def named(desk: Desk) -> list[str]:
    """Return whom a desk's journal blames."""
    return [line.event.who for line in desk.lines if isinstance(line.event, journal.MessageRefused)]


# how fast


@pytest.mark.parametrize("donors", [1, 2, 4])
def test_a_joiner_whose_downlink_is_the_limit_fills_it(donors: int) -> None:
    async def scene(office: Office) -> None:
        for place in range(donors):
            await office.sit(place, anchor())
        joiner = await office.sit(donors)
        fetched, took_s = await fetch(joiner)
        assert took_s <= 1.15 * STATE_BYTES / RATE
        assert len(fetched.donors) == donors
        assert joiner.received_bytes() < 1.01 * STATE_BYTES, "nothing came twice"

    desks.play(all_fast(donors + 1), scene)


def test_donors_add_up_and_the_slow_ones_hold_nothing_up() -> None:
    ups = (4e5, 2e5, 1e5, 0.2e5)

    async def scene(office: Office) -> None:
        for place in range(len(ups)):
            await office.sit(place, anchor())
        joiner = await office.sit(len(ups))
        fetched, took_s = await fetch(joiner)
        assert took_s <= 1.25 * STATE_BYTES / sum(ups)
        assert len(fetched.donors) == len(ups)
        assert joiner.received_bytes() < STATE_BYTES + 6 * PIECE_BYTES

    links = {place: Link(up_bytes_s=up, down_bytes_s=RATE) for place, up in enumerate(ups)}
    desks.play({**links, len(ups): FAST}, scene)


def test_two_joiners_help_each_other() -> None:
    """With one donor whose uplink is the limit, both have it in little more time than one would.

    Neither is on the roster yet: they hear of each other from the donor.
    """
    slow = Link(up_bytes_s=5e5, down_bytes_s=RATE)

    async def scene(office: Office) -> None:
        donor = await office.sit(0, anchor())
        office.history = replace(office.history, members={donor.key.peer: office.history.members[donor.key.peer]})
        joiners = [await office.sit(place) for place in (1, 2)]
        took = await asyncio.gather(*(fetch(joiner) for joiner in joiners))
        assert max(took_s for _, took_s in took) <= 1.35 * STATE_BYTES / 5e5
        assert donor.sent_bytes() < 1.35 * STATE_BYTES, "most of it left the donor once"
        for joiner, (fetched, _) in zip(joiners, took, strict=True):
            assert len(fetched.donors) == 2
            assert joiner.sent_bytes() > 0.3 * STATE_BYTES

    desks.play({0: slow, 1: FAST, 2: FAST}, scene)


# donors that go


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_a_donor_that_dies_costs_what_was_on_its_way(part: float) -> None:
    async def scene(office: Office) -> None:
        donors = [await office.sit(place, anchor()) for place in range(3)]
        joiner = await office.sit(3)
        loop = asyncio.get_running_loop()
        loop.call_later(part * STATE_BYTES / RATE, donors[1].life.crash)
        fetched, took_s = await fetch(joiner)
        assert joiner.received_bytes() <= STATE_BYTES + WINDOW_MAX * PIECE_BYTES
        assert joiner.received_bytes() < 1.1 * STATE_BYTES
        assert len(fetched.donors) == 3
        assert took_s <= 1.15 * STATE_BYTES / RATE + 2.0, "nobody waits until the dead one is declared dead"
        assert named(joiner) == [], "to die is no wrong"

    desks.play(all_fast(4), scene)


def test_a_donor_that_stops_sending_is_worked_around() -> None:
    async def scene(office: Office) -> None:
        donors = [await office.sit(place, anchor()) for place in range(2)]

        async def begin(peer: PeerId, stream: Stream) -> None:
            asked = FetchTalk.decode(await stream.recv())
            if isinstance(asked, FetchPieces):
                listing = await donors[1].member.store.listing(VERSION)
                assert listing is not None
                await stream.send(encode(Offer(listing.digests)))
                await asyncio.sleep(1e6)
            await stream.send(encode(await honest_list(donors[1])))

        office.serve(donors[1], begin)
        joiner = await office.sit(2)
        fetched, took_s = await fetch(joiner)
        assert fetched.donors == [donors[0].name]
        assert took_s <= 1.15 * STATE_BYTES / RATE + 3.0

    desks.play(all_fast(3), scene)


def test_when_every_donor_is_gone_that_is_said_and_what_came_is_kept() -> None:
    async def scene(office: Office) -> None:
        donor = await office.sit(0, anchor())
        joiner = await office.sit(1)
        asyncio.get_running_loop().call_later(0.5 * STATE_BYTES / RATE, donor.life.crash)
        with pytest.raises(PeerLost):
            await fetch(joiner)
        assert joiner.member.store.partial is not None
        kept = len(joiner.member.store.partial.have)
        assert kept > 10
        await office.sit(0, anchor())
        _, took_s = await fetch(joiner)
        assert took_s < 0.75 * STATE_BYTES / RATE

    desks.play(all_fast(2), scene)


def test_a_joiner_that_crashes_goes_on_where_it_stopped() -> None:
    async def scene(office: Office) -> None:
        for place in range(2):
            await office.sit(place, anchor())
        joiner = await office.sit(2)
        joiner.life.start(fetch_state(joiner.member, newer_than=0))
        await asyncio.sleep(0.75 * STATE_BYTES / RATE)
        for path in [path for path in joiner.disk.files() if path.startswith("partial/")]:
            await joiner.disk.sync(path)
        await joiner.disk.sync(
            next(p for p in joiner.disk.files() if p.startswith("partial/")).rpartition("/")[0] + "/"
        )
        spoilt = next(p for p in joiner.disk.files() if p.startswith("partial/") and p[-1].isdecimal())
        joiner.life.crash()
        await joiner.disk.write(spoilt, b"torn")
        again = await office.sit(2, disk=joiner.disk)
        _, took_s = await fetch(again)
        assert again.received_bytes() < 0.45 * STATE_BYTES
        assert took_s < 0.6 * STATE_BYTES / RATE

    desks.play(all_fast(3), scene)


# donors that lie


async def honest_list(desk: Desk) -> Snapshots:
    listing = await desk.member.store.listing(VERSION)
    assert listing is not None
    return Snapshots((Snapshot(VERSION, listing.state, listing.size_bytes, listing.root(), True),))


Lie = Callable[[Desk, FetchMessage, Stream], Awaitable[None]]
LIES: dict[str, Lie] = {}


def lie(function: Lie) -> Lie:
    LIES[function.__name__] = function
    return function


@lie
async def garbage(desk: Desk, asked: FetchMessage, stream: Stream) -> None:
    await stream.send(b"\x01garbage")


@lie
async def another_answer(desk: Desk, asked: FetchMessage, stream: Stream) -> None:
    await stream.send(encode(FetchState(0)))


@lie
async def another_state_than_the_log_names(desk: Desk, asked: FetchMessage, stream: Stream) -> None:
    await stream.send(encode(Snapshots((Snapshot(VERSION, "0" * 64, STATE_BYTES, "1" * 64, True),))))


@lie
async def far_too_large(desk: Desk, asked: FetchMessage, stream: Stream) -> None:
    await stream.send(encode(Snapshots((Snapshot(VERSION, digest(), 10**12, "1" * 64, True),))))


@lie
async def far_too_many(desk: Desk, asked: FetchMessage, stream: Stream) -> None:
    await stream.send(encode(Snapshots((Snapshot(VERSION, digest(), STATE_BYTES, "1" * 64, True),) * 1000)))


@lie
async def other_digests(desk: Desk, asked: FetchMessage, stream: Stream) -> None:
    if isinstance(asked, FetchState):
        await stream.send(encode(await honest_list(desk)))
    else:
        await stream.send(encode(Offer((b"d" * 32,) * 64)))


async def lie_in_pieces(desk: Desk, asked: FetchMessage, stream: Stream, spoil: Callable[[int], Chunk | Have]) -> None:
    if isinstance(asked, FetchState):
        await stream.send(encode(await honest_list(desk)))
        return
    listing = await desk.member.store.listing(VERSION)
    assert listing is not None
    await stream.send(encode(Offer(listing.digests)))
    wanted = FetchTalk.decode(await stream.recv())
    assert isinstance(wanted, Want)
    await stream.send(encode(spoil(wanted.pieces[0])))
    await stream.recv()


@lie
async def wrong_piece(desk: Desk, asked: FetchMessage, stream: Stream) -> None:
    await lie_in_pieces(desk, asked, stream, lambda index: Chunk(index, memoryview(bytes(PIECE_BYTES))))


@lie
async def piece_that_was_not_wanted(desk: Desk, asked: FetchMessage, stream: Stream) -> None:
    await lie_in_pieces(desk, asked, stream, lambda index: Chunk(-index - 1, memoryview(bytes(PIECE_BYTES))))


@lie
async def pieces_that_do_not_exist(desk: Desk, asked: FetchMessage, stream: Stream) -> None:
    await lie_in_pieces(desk, asked, stream, lambda index: Have((10**6,)))


@pytest.mark.parametrize("what", LIES)
def test_a_donor_that_lies_is_named_once_and_the_state_comes_from_another(what: str) -> None:
    async def scene(office: Office) -> None:
        for place in range(2):
            await office.sit(place, anchor())
        liar = await office.sit(2, anchor())
        asked = []

        async def answer(peer: PeerId, stream: Stream) -> None:
            asked.append(FetchTalk.decode(await stream.recv()))
            await LIES[what](liar, asked[-1], stream)

        office.serve(liar, answer)
        joiner = await office.sit(3)
        fetched, _ = await fetch(joiner)
        assert liar.name not in fetched.donors
        assert named(joiner) == [liar.name]
        count = len(asked)
        await fetch(joiner)
        assert len(asked) == count, "it is not asked again"

    desks.play(all_fast(4), scene)


def test_a_whole_false_state_is_laid_at_the_door_of_those_who_offered_it() -> None:
    """The log names the anchor, not its file: that the bytes are another's shows only at the end."""
    false = anchor_to_bytes(Anchor(VERSION, np.full(desks.SIZE, 7, np.float32), dict(anchor().outer)))
    step = piece_bytes(len(false))
    pieces = [false[first : first + step] for first in range(0, len(false), step)]
    listing = Listing(VERSION, digest(), len(false), tuple([blake3(piece).digest() for piece in pieces]))

    async def lie(peer: PeerId, stream: Stream) -> None:
        if isinstance(FetchTalk.decode(await stream.recv()), FetchState):
            snapshot = Snapshot(VERSION, listing.state, listing.size_bytes, listing.root(), True)
            await stream.send(encode(Snapshots((snapshot,))))
            return
        await stream.send(encode(Offer(listing.digests)))
        while True:
            wanted = FetchTalk.decode(await stream.recv())
            for index in wanted.pieces if isinstance(wanted, Want) else ():
                await stream.send(encode(Chunk(index, memoryview(pieces[index]))))

    async def scene(office: Office) -> None:
        honest = await office.sit(0, anchor())
        liars = [await office.sit(place, anchor()) for place in (1, 2)]
        for liar in liars:
            office.serve(liar, lie)
        joiner = await office.sit(3)
        with pytest.raises(PeerError, match="damaged|not the one the log names"):
            await fetch(joiner)
        assert sorted(named(joiner)) == sorted(liar.name for liar in liars)
        fetched, _ = await fetch(joiner)
        assert fetched.donors == [honest.name]

    desks.play(all_fast(4), scene)


def test_who_declines_or_says_nothing_is_not_blamed_and_hardly_waited_for() -> None:
    async def scene(office: Office) -> None:
        for place in range(3):
            await office.sit(place, anchor())
        decliner, silent = await office.sit(3, anchor()), await office.sit(4, anchor())

        async def decline(peer: PeerId, stream: Stream) -> None:
            await stream.recv()
            await stream.send(encode(Declined("I am at version 0")))

        async def wait(peer: PeerId, stream: Stream) -> None:
            await asyncio.sleep(1e6)

        office.serve(decliner, decline)
        office.serve(silent, wait)
        joiner = await office.sit(5)
        fetched, took_s = await fetch(joiner)
        assert len(fetched.donors) == 3
        assert took_s <= 1.15 * STATE_BYTES / RATE + ANSWER_S + 0.1
        assert named(joiner) == []

    desks.play(all_fast(6), scene)


# what a donor keeps and makes


def test_a_snapshot_is_kept_while_it_is_read_and_dropped_later() -> None:
    async def scene(office: Office) -> None:
        donor = await office.sit(0, anchor())
        joiner = await office.sit(1)
        store = donor.member.store

        async def go_on() -> None:
            for version in range(VERSION + 1, VERSION + 4):
                await store.keep_result(version, Result((), ()))
                await store.keep_checkpoint(anchor(version))

        loop = asyncio.get_running_loop()
        loop.call_later(1.0, lambda: donor.life.start(go_on()))
        fetched, _ = await fetch(joiner)
        assert fetched.anchor.version == VERSION
        assert VERSION in await store.checkpoints()
        assert await store.result_chunks(VERSION + 1) is not None, "the results since are kept with it"
        await asyncio.sleep(1000.0)
        await store.keep_checkpoint(anchor(VERSION + 4))
        assert await store.checkpoints() == [VERSION + 3, VERSION + 4]

    desks.play(all_fast(2), scene)


def test_a_donor_whose_disk_is_damaged_offers_nothing_wrong() -> None:
    async def scene(office: Office) -> None:
        donors = [await office.sit(place, anchor()) for place in range(3)]
        path = f"checkpoint/{VERSION}.safetensors"

        async def damage(desk: Desk) -> None:
            data = bytearray(await desk.disk.read(path))
            data[STATE_BYTES // 2 : STATE_BYTES // 2 + 10] = bytes(10)
            await desk.disk.write(path, bytes(data))

        await damage(donors[0])
        donors[0].member.store = Store(donors[0].disk)  # it has started again: what it saved is to be read through
        await damage(donors[1])  # it knows what it saved, and looks at each piece before it sends it
        joiner = await office.sit(3)
        fetched, _ = await fetch(joiner)
        assert donors[0].name not in fetched.donors
        assert named(joiner) == []

    desks.play(all_fast(4), scene)


def test_where_the_last_checkpoint_is_far_back_a_snapshot_is_made_once() -> None:
    async def scene(office: Office) -> None:
        donor = await office.sit(0, anchor())
        donor.member.anchor = newer = anchor(VERSION + 10)
        donor.member.digest = newer.digest()
        office.history = replace(office.history, version=VERSION + 10)
        for place in (1, 2):
            fetched, _ = await fetch(await office.sit(place))
            assert fetched.anchor.version == VERSION + 10
        assert await donor.disk.names("snapshot") == [f"{VERSION + 10}.safetensors"]
        assert await donor.member.store.checkpoints() == [VERSION], "a restart does not take it for its own"

    desks.play(all_fast(3), scene)


def test_an_anchor_that_is_stepped_meanwhile_is_never_offered_half_old_half_new() -> None:
    async def scene(office: Office) -> None:
        donor = await office.sit(0, anchor())
        old, new = anchor(VERSION + 10), anchor(VERSION + 11)
        donor.member.anchor, donor.member.digest = old, old.digest()
        office.history = replace(office.history, version=VERSION + 11)
        half = len(old.weights) // 2
        old.weights[:half] = new.weights[:half]  # the step is under way, in the old one's memory

        async def stepped() -> None:
            await asyncio.sleep(1.0)
            donor.member.anchor, donor.member.digest = new, new.digest()
            donor.member.changes.notify()

        step = asyncio.ensure_future(stepped())
        fetched, _ = await fetch(await office.sit(1))
        await step
        assert fetched.digest == new.digest()
        assert await donor.disk.names("snapshot") == [f"{VERSION + 11}.safetensors"]

    desks.play(all_fast(2), scene)


def spans(grid: Grid) -> list[tuple[int, int]]:
    return [grid.bounds(index) for index in range(grid.chunks)]


def some_result() -> Result:
    grid = grid_of(desks.SIZE)
    chunks = tuple([bytes([index]) * 4 * (end - first) for index, (first, end) in enumerate(spans(grid))])
    return Result(tuple([blake3(chunk).digest() for chunk in chunks]), chunks)


def test_a_result_comes_from_many_holders() -> None:
    result = some_result()
    size_bytes = sum(map(len, result.chunks))

    async def scene(office: Office) -> None:
        holders = [await office.sit(place, anchor()) for place in range(4)]
        for holder in holders[1:]:
            await holder.member.store.keep_result(VERSION, result)
        desk = await office.sit(4)
        committed = ClosedRound(Key("outer", VERSION), tuple(h.key.peer for h in holders), result.root())
        began_s = asyncio.get_running_loop().time()
        assert await fetch_result(desk.member, committed) == result
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s <= 1.2 * size_bytes / RATE
        assert all(holder.sent_bytes() > size_bytes / 6 for holder in holders[1:])
        with pytest.raises(PeerLost, match="do not keep"):
            await fetch_result(desk.member, ClosedRound(Key("outer", VERSION - 1), (), result.root()))

    desks.play(all_fast(5), scene)


def test_chunks_that_came_before_the_commit_do_not_come_again() -> None:
    result = some_result()

    async def scene(office: Office) -> None:
        holder = await office.sit(0, anchor())
        await holder.member.store.keep_result(VERSION, result)
        desk = await office.sit(1)
        here = range(0, len(result.chunks), 4)
        missing_bytes = sum(len(chunk) for index, chunk in enumerate(result.chunks) if index not in here)
        committed = ClosedRound(Key("outer", VERSION), (holder.key.peer,), result.root())
        over = of_round.Desk(OpenRound(committed.key, (), (), (), "", 0))
        over.incoming = {
            index: Reduction(of=b"", digest=result.digests[index], data=memoryview(result.chunks[index]))
            for index in here
        }
        desk.member.closed[VERSION] = over
        assert await fetch_result(desk.member, committed) == result
        assert missing_bytes <= desk.received_bytes() < 1.01 * missing_bytes

    desks.play(all_fast(2), scene)


# in a run


def large(run: Run) -> CountingEngine:
    """Return a model whose exchange takes about as long as its work: with `SCALE` its state has 3.3 MB."""
    return CountingEngine(seed=0, size=8192, tokens_per_sample=16, sample_cost=Cost(flop=6e10))


SCALE = 50.0


def joined(joiners: int, enough: Callable[[World], bool], *, down_bytes_s: float = 1e6) -> Outcome:
    """Play a run of three that others join in its fifth round."""
    run = counting_run(rounds=100, steps=2, start_with=3)
    fleet = machines(3 + joiners, rate_bytes_s=1e6)
    fleet[3:] = [replace(machine, down_bytes_s=down_bytes_s, up_bytes_s=down_bytes_s) for machine in fleet[3:]]
    return simulate(
        Scenario(
            run=run,
            machines=fleet,
            delays_s=DELAYS_S,
            build=large,
            scale=SCALE,
            entrances=[Entrance(3 + place, round=5) for place in range(joiners)],
            limit_s=86400.0,
            enough=enough,
        )
    )


def round_times_s(outcome: Outcome) -> dict[int, float]:
    """Return how long each round of the run took."""
    ended = {event.version: at_s for at_s, event in once(outcome, journal.RoundCommitted)}
    return {version: at_s - ended[version - 1] for version, at_s in ended.items() if version - 1 in ended}


@pytest.mark.long
def test_training_is_not_slowed_while_others_join() -> None:
    alone, together = (joined(joiners, lambda world: world.committed >= 7) for joiners in (0, 3))
    usual_s = round_times_s(alone)[6]
    times_s = round_times_s(together)
    fetched = {peer: lines(together, journal.StateFetched, peer=peer)[0].at_s for peer in (3, 4, 5)}
    ended = {event.version: at_s for at_s, event in once(together, journal.RoundCommitted)}
    meanwhile = [version for version, at_s in ended.items() if version >= 5 and at_s < max(fetched.values())]
    assert meanwhile, "a round was committed while they were downloading"
    assert max(times_s[version] for version in meanwhile) <= 1.03 * usual_s
    assert len(once(together, journal.RoundCommitted)[-1][1].contributors) == 6, "they are counted in"


def test_a_joiner_that_cannot_catch_up_is_told_so_with_the_arithmetic() -> None:
    def enough(world: World) -> bool:
        return sum(isinstance(line.event, journal.StateFetched) for line in world.lines) >= 2

    outcome = joined(1, enough, down_bytes_s=1e5)
    told = events(outcome, journal.CatchUpTooSlow, peer=3)
    assert len(told) == 1, "once is enough while nothing has changed; it goes on trying"
    assert told[0].behind > 0
    assert "The state has 65.5 kB" in told[0].why
    assert "finish a round every 4 s, and each adds a result of 32.8 kB" in told[0].why
    assert told[0].why.endswith("a second are needed")


@pytest.mark.long
def test_results_that_nobody_keeps_any_more_are_not_waited_for_though_somebody_who_had_them_is_gone() -> None:
    """Results of fragments are small: all that a joiner lacks are fewer bytes than the state. The first are gone."""
    run = counting_run("streaming", rounds=10**6, start_with=3, codec=Fp16(), checkpoint_every=3)
    outcome = play(
        run,
        4,
        faults=[Crash(at_s=2.0, peer=1, restart_after_s=None)],
        entrances=[Entrance(3, 14)],
        enough=lambda world: world.hosts[3].version > 15 or world.now_s() > 150.0,
        limit_s=200.0,
    )
    assert events(outcome, journal.StateFetched, peer=3)
    assert not violations(run, outcome)


# a peer whose state is not the run's


def with_another_anchor(odd: int, peers: int) -> Outcome:
    """Play a run in which a peer comes back with an anchor that differs from everybody else's."""
    run = counting_run(rounds=10, steps=8, start_with=peers)  # few rounds pass while it is away
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
        beside=SimCompute(),
        disk=SimDisk(Random(0)),
        journal=Journal(short(door.id), Clock(), lambda line: written.append(parse(line).event)),
        random=Random(0),
        sign=Identity.from_seed(b"\xff" * 32).sign,
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
        answer = await stranger.ask("control", Hello(stranger.run_id, PROTOCOL, 0, 0, ()), BrokerTalk)  # type: ignore[arg-type]
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
