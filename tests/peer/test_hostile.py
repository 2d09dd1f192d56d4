"""Bad input is a fact, not a crash: whatever a stranger sends is refused and laid at its door, and the run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from msgspec.structs import replace

from atoll import journal
from atoll.errors import PeerLost
from atoll.net.transport import MESSAGE_BYTES_MAX
from atoll.net.wire import encode
from atoll.peer.messages import (
    Accepted,
    AskRun,
    AskTalk,
    Chunk,
    Declined,
    Done,
    FetchPieces,
    FetchResult,
    FetchState,
    FetchTalk,
    Kept,
    Missing,
    Offer,
    PartHead,
    PartTalk,
    ResultHead,
    ResultTalk,
    Returned,
    Snapshots,
    Superseded,
    Want,
)
from atoll.sim.network import SimTransport
from atoll.sim.scenario import Outcome, World
from atoll.spec.axes.codec import Fp32
from atoll.spec.axes.merge import Combine, Rda
from atoll.spec.run import PROTOCOL, Run
from atoll.swarm.log import Key
from atoll.swarm.messages import Contributed, Hello, Holding, Leave, Reduced, Refused, Spoiled, Standing, Stuck, Welcome
from atoll.swarm.routes.shares import chunks_of
from atoll.sync.codec import encode as encode_chunk
from atoll.sync.grid import grid_of
from atoll.sync.merge import first_anchor
from tests.peer.stranger import STRANGER, WHO, Spy, Stranger
from tests.peer.world import Visit, anchor_of, counting_run, events, once, play, sized

SIZE = 256
GRID = grid_of(SIZE)
TAGS = ("ask", "control", "part", "result", "fetch")
KEY = Key("outer", 1)


def attacked(
    visit: Callable[[Stranger], Coroutine[Any, Any, None]], *, rounds: int = 12, steps: int = 2, peers: int = 2
) -> Outcome:
    """Play a run that a stranger visits; it must end as if nobody had come."""

    async def enter(world: World, door: SimTransport) -> None:
        await visit(Stranger(world, door))

    return visited(enter, counting_run(rounds=rounds, steps=steps, start_with=peers), peers)


def visited(enter: Callable[[World, SimTransport], Coroutine[Any, Any, None]], run: Run, peers: int = 2) -> Outcome:
    """Play a run with a visitor; check that both got to their ends."""
    visit = Visit(STRANGER, enter)
    outcome = play(run, peers, enough=visit)
    visit.check()
    undisturbed(outcome, run.budget.rounds)
    return outcome


def undisturbed(outcome: Outcome, rounds: int) -> None:
    """Check that every honest peer got to the end, on one anchor."""
    assert [host.failed for host in outcome.hosts] == [None] * len(outcome.hosts)
    assert {anchor_of(host.disk).version for host in outcome.hosts} == {rounds}
    assert len({anchor_of(host.disk).digest() for host in outcome.hosts}) == 1


def refusals(outcome: Outcome, peer: int = 0) -> list[str]:
    """Return why a peer refused something, checking that it blames the stranger each time."""
    refused = events(outcome, journal.MessageRefused, peer=peer)
    assert {event.who for event in refused} <= {WHO}
    return [event.why for event in refused]


# bytes that are no message


GARBAGE = {
    "nothing": b"",
    "another version": b"\x07" + encode(AskRun("x", 1))[1:],
    "no msgpack": b"\x01\xc1\xff\xfe",
    "cut short": encode(AskRun("x" * 40, 1))[:20],
    "more than a message": encode(AskRun("x", 1)) + b"\x00",
    "a plain number": b"\x01\x07",
    "an unknown kind": b"\x01" + msgspec.msgpack.encode({"type": "gossip"}),
    "a field too many": b"\x01" + msgspec.msgpack.encode({"type": "ask-run", "run": "x", "protocol": 1, "more": 1}),
    "a number for a text": b"\x01" + msgspec.msgpack.encode({"type": "ask-run", "run": 7, "protocol": 1}),
    "a bottomless list": b"\x01" + b"\x91" * 100_000,
    "a map of maps": b"\x01" + b"\x81\xa1a" * 50_000,
    "as large as can be": b"\x01" + b"\xff" * (MESSAGE_BYTES_MAX - 1),
    "bad unicode": b"\x01\x81\xa4type\xa2\xff\xfe",
}


@pytest.mark.parametrize("tag", TAGS)
def test_bytes_that_are_no_message_are_refused_on_every_protocol(tag: str) -> None:
    async def visit(stranger: Stranger) -> None:
        for data in GARBAGE.values():
            assert await stranger.send(tag, data)

    why = refusals(attacked(visit))
    assert len(why) == len(GARBAGE)
    assert all(each.startswith(f"{tag}: ") for each in why)


def test_a_protocol_that_does_not_exist_is_refused() -> None:
    async def visit(stranger: Stranger) -> None:
        assert await stranger.send("gossip", b"hello")
        assert await stranger.send("", b"hello")

    assert refusals(attacked(visit)) == ["no such protocol: 'gossip'", "a stream that does not begin with a tag"]


@pytest.mark.parametrize("tag", TAGS)
def test_a_message_of_another_protocol_is_refused(tag: str) -> None:
    wrong = {
        "ask": Hello("x", PROTOCOL, 0, 0, ()),
        "control": AskRun("x", PROTOCOL),
        "part": ResultHead(KEY, 1, 0),
        "result": PartHead(KEY, 1, 0, 1),
        "fetch": Accepted(),
    }

    async def visit(stranger: Stranger) -> None:
        assert await stranger.send(tag, wrong[tag])

    (why,) = refusals(attacked(visit))
    assert why.startswith(f"{tag}: not a message of this protocol")


@pytest.mark.parametrize("tag", TAGS)
def test_a_conversation_that_begins_in_the_middle_is_refused(tag: str) -> None:
    middle = {
        "ask": Welcome(b"{}"),
        "control": Standing(0, "anchor"),
        "part": Chunk(0, memoryview(b"data")),
        "result": Done(),
        "fetch": Offer(()),
    }

    async def visit(stranger: Stranger) -> None:
        assert await stranger.send(tag, middle[tag])

    (why,) = refusals(attacked(visit))
    assert why.startswith(f"{tag}: ")
    assert "must" in why


def test_random_bytes_and_torn_messages_never_disturb_anybody() -> None:
    honest = [
        encode(message)
        for message in (
            AskRun("x", PROTOCOL),
            Hello("x", PROTOCOL, 0, 0, ("a:1",)),
            PartHead(KEY, 1, 0, 1),
            ResultHead(KEY, 1, 0),
            Returned(0, b"s" * 16, b"d" * 32, memoryview(b"data")),
            FetchResult(KEY, "root"),
            FetchState(0),
            FetchPieces(1, "root"),
        )
    ]

    async def visit(stranger: Stranger) -> None:
        rng = Random(5)
        for _ in range(150):
            data = bytearray(rng.choice(honest) if rng.random() < 0.7 else rng.randbytes(rng.randint(0, 200)))
            for _ in range(rng.randint(0, 3)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
            stream = await stranger.open(rng.choice(TAGS))
            try:
                await stream.send(bytes(data))
            except PeerLost:
                pass
            stream.reset()

    attacked(visit)


def test_streams_that_are_opened_and_left_silent_hold_nobody_up() -> None:
    async def visit(stranger: Stranger) -> None:
        for i in range(60):
            await stranger.open(TAGS[i % len(TAGS)])

    assert refusals(attacked(visit)) == []


# messages that are out of place


def test_a_newcomer_with_the_ticket_of_another_run_is_told_so() -> None:
    async def visit(stranger: Stranger) -> None:
        answer = await stranger.ask("ask", AskRun("0" * 32, PROTOCOL), AskTalk)  # type: ignore[arg-type]
        assert isinstance(answer, Refused)
        assert stranger.run_id in answer.why
        assert "ticket" in answer.hint
        answer = await stranger.ask("ask", AskRun(stranger.run_id, PROTOCOL + 1), AskTalk)  # type: ignore[arg-type]
        assert isinstance(answer, Refused)
        assert "same version" in answer.hint

    attacked(visit)


def test_a_greeting_for_another_run_version_or_history_is_refused_and_noted() -> None:
    async def visit(stranger: Stranger) -> None:
        run, here = stranger.run_id, ("a:1",)
        for hello in (
            Hello("0" * 32, PROTOCOL, 0, 0, here),
            Hello(run, 99, 0, 0, here),
            Hello(run, PROTOCOL, 10**6, 0, here),
        ):
            await stranger.send("control", hello)

    outcome = attacked(visit)
    refused = events(outcome, journal.JoinRefused)
    assert {event.who for event in refused} == {WHO}
    assert ["this is run" in refused[0].why, "protocol" in refused[1].why, "log" in refused[2].why] == [True] * 3


@pytest.mark.parametrize(
    "hello",
    [
        Hello("run", PROTOCOL, 0, 0, ("a:1",) * 100_000),
        Hello("run", PROTOCOL, 0, 0, ("a" * 1_000_000,)),
        Hello("run", PROTOCOL, 0, 0, ("a:1",), "n" * 1_000_000),
        Hello("run", PROTOCOL, -5, 0, ("a:1",)),
    ],
    ids=["addresses", "address", "name", "index"],
)
def test_an_immodest_greeting_is_refused_and_never_gets_into_the_log(hello: Hello) -> None:
    async def visit(stranger: Stranger) -> None:
        assert await stranger.send("control", msgspec.structs.replace(hello, run=stranger.run_id))

    outcome = attacked(visit)
    assert len(refusals(outcome)) == 1
    assert len(outcome.hosts[0].disk.files()["log"]) < 20_000


def test_a_part_for_a_round_that_is_not_open_or_not_ours_is_declined() -> None:
    async def visit(stranger: Stranger) -> None:
        for key in (KEY, Key("outer", 3), Key("outer", -1), Key("outer", 10**9), Key("other", 2), Key("outer", 2, "x")):
            answer = await stranger.ask("part", PartHead(key, 1, 0, 1), PartTalk)  # type: ignore[arg-type]
            assert isinstance(answer, Declined), key

    attacked(visit, rounds=30, steps=80)


def test_a_result_of_another_plan_is_declined() -> None:
    async def visit(stranger: Stranger) -> None:
        for key in (Key("outer", 1), Key("outer", -1), Key("outer", 10**9), Key("other", 1)):
            head = ResultHead(key, 7, 7)
            answer = await stranger.ask("result", head, ResultTalk)  # type: ignore[arg-type]
            assert isinstance(answer, Declined | Superseded), key

    attacked(visit, rounds=20, steps=80)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_result_from_a_peer_that_does_not_own_the_shard_is_refused(victim: int) -> None:
    async def visit(stranger: Stranger) -> None:
        assert await stranger.send("result", ResultHead(KEY, 1, 0), to=stranger.world.hosts[victim].peer)

    why = refusals(attacked(visit), victim)
    assert why == ["result: a result came from a peer that owns nothing of this plan"]


def test_a_fetch_of_what_nobody_has_is_declined() -> None:
    async def visit(stranger: Stranger) -> None:
        for wanted in (
            FetchResult(Key("outer", 10**9), "root"),
            FetchResult(Key("outer", -1), "root"),
            FetchResult(Key("outer", 0), "root"),
            FetchPieces(10**9, "root"),
            FetchPieces(-1, "root"),
        ):
            answer = await stranger.ask("fetch", wanted, FetchTalk)  # type: ignore[arg-type]
            assert isinstance(answer, Declined), wanted
        assert await stranger.ask("fetch", FetchState(10**9), FetchTalk) == Snapshots(())  # type: ignore[arg-type]

    attacked(visit)


@pytest.mark.parametrize("wanted", [(-1,), (10**9,), tuple(range(1000))])
def test_wanting_what_does_not_exist_or_too_much_at_once_is_refused(wanted: tuple[int, ...]) -> None:
    async def visit(stranger: Stranger) -> None:
        answer = await stranger.ask("fetch", FetchState(-1), FetchTalk)  # type: ignore[arg-type]
        assert isinstance(answer, Snapshots)
        snapshot = answer.snapshots[-1]
        stream = await stranger.open("fetch")
        await stream.send(encode(FetchPieces(snapshot.version, snapshot.root)))
        assert isinstance(FetchTalk.decode(await stream.recv()), Offer)
        await stream.send(encode(Want(wanted)))
        with pytest.raises(PeerLost):
            await stream.recv()

    (why,) = refusals(attacked(visit))
    assert why == "fetch: it wants pieces that do not exist, or too many at once"


# a member that lies


def first_digest(run: Run) -> str:
    """Return the digest of the anchor that a counting run begins with."""
    channel = next(iter(run.recipe.channel.values()))
    return first_anchor(channel.merge.outer, sized(SIZE)(run).weights()).digest()


def lied_to(
    mischief: Callable[[Spy], Coroutine[Any, Any, None]],
    *,
    rounds: int = 6,
    recipe: str = "diloco",
    patience_s_max: float = 3600.0,
    takes_parts: bool = True,
    combine: Combine | None = None,
) -> Outcome:
    """Play a run of two with a third member that does what `mischief` says and then hangs up."""
    run = counting_run(recipe, rounds=rounds, start_with=3, patience_s_max=patience_s_max)
    if combine is not None:
        channel = run.recipe.channel["outer"]
        channel = replace(channel, merge=replace(channel.merge, combine=combine))
        run = replace(run, recipe=replace(run.recipe, channel={"outer": channel}))

    async def enter(world: World, door: SimTransport) -> None:
        spy = Spy(world, door)
        await spy.join(first_digest(run))
        if takes_parts:
            spy.take_parts()
        await mischief(spy)
        await spy.leave()

    return visited(enter, run)


def chunk_of(value: float, index: int) -> bytes:
    first, end = GRID.bounds(index)
    return bytes(encode_chunk(Fp32(), np.full(end - first, value, np.float32)))


async def bring(spy: Spy, value: float) -> None:
    """Contribute a constant vector to every owner of the present plan but ourselves."""
    await bring_chunks(spy, lambda index: chunk_of(value, index))


async def bring_chunks(spy: Spy, chunk: Callable[[int], bytes]) -> None:
    """Contribute something to every owner of the present plan but ourselves."""
    _, plan = await spy.counted_in()
    for owner in plan.owners:
        if owner == STRANGER:
            continue
        stream = await spy.open("part", owner)
        await stream.send(encode(PartHead(plan.key, plan.epoch, plan.attempt, 1)))
        missing = PartTalk.decode(await stream.recv())
        assert isinstance(missing, Missing)
        for index in missing.chunks:
            await stream.send(encode(Chunk(index, memoryview(chunk(index)))))
        assert isinstance(PartTalk.decode(await stream.recv()), Accepted)
        stream.reset()
    await spy.say(Contributed(plan.key, plan.epoch, plan.attempt, 1))


def test_a_member_that_behaves_is_counted_so_the_tests_below_mean_something() -> None:
    async def mischief(spy: Spy) -> None:
        announced, plan = await spy.counted_in()
        assert STRANGER in announced.members
        assert STRANGER in plan.owners

    outcome = lied_to(mischief)
    assert refusals(outcome) == []
    assert WHO in events(outcome, journal.RoundAnnounced)[0].members


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_contribution_that_is_not_finite_is_left_out_and_laid_at_its_makers_door(value: float) -> None:
    async def mischief(spy: Spy) -> None:
        await bring(spy, value)
        await spy.until(lambda: spy.plan is not None and spy.plan.attempt > 0)

    outcome = lied_to(mischief)
    blamed = [event for peer in (0, 1) for event in events(outcome, journal.MessageRefused, peer=peer)]
    assert {event.who for event in blamed} == {WHO}
    assert all("not finite" in event.why for event in blamed)
    assert any("refused" in event.why for event in events(outcome, journal.RoundReplanned))
    assert all(WHO not in event.contributors for _, event in once(outcome, journal.RoundCommitted))


def test_contributions_too_large_to_be_averaged_are_left_out() -> None:
    async def mischief(spy: Spy) -> None:
        await bring(spy, 3.4e38)
        await spy.until(lambda: spy.plan is not None and (spy.plan.attempt > 0 or spy.plan.settled is not None))

    outcome = lied_to(mischief, recipe="fedavg")
    blamed = events(outcome, journal.MessageRefused)
    assert {event.who for event in blamed} == {WHO}
    assert all("too large" in event.why for event in blamed)


LAYERS = 8
"""Tensors of a counting model, whose lengths come after their directions."""


@pytest.mark.parametrize(
    ("direction", "length", "said"),
    [(1.0, -1e-3, "no values have"), (1.0, 1e38, "no values have"), (5.0, 1e-3, "longer than a direction")],
)
def test_lengths_and_directions_that_no_values_have_are_left_out(direction: float, length: float, said: str) -> None:
    told = np.concatenate([np.full(SIZE, direction), np.full(LAYERS, length)]).astype(np.float32)
    grid = grid_of(told.size)

    async def mischief(spy: Spy) -> None:
        await bring_chunks(spy, lambda index: bytes(encode_chunk(Fp32(), told[slice(*grid.bounds(index))])))
        await spy.until(lambda: spy.plan is not None and spy.plan.attempt > 0)

    outcome = lied_to(mischief, combine=Rda())
    blamed = [event for peer in (0, 1) for event in events(outcome, journal.MessageRefused, peer=peer)]
    assert {event.who for event in blamed} == {WHO}
    assert all(said in event.why for event in blamed)
    assert all(WHO not in event.contributors for _, event in once(outcome, journal.RoundCommitted))


BAD_PARTS: dict[str, tuple[int, bytes]] = {
    "another chunk than the first": (1, chunk_of(0.0, 1)),
    "a chunk before the grid": (-1, chunk_of(0.0, 0)),
    "a chunk far beyond the grid": (2**62, chunk_of(0.0, 0)),
    "a chunk too short": (0, chunk_of(0.0, 0)[:-4]),
    "a chunk too long": (0, chunk_of(0.0, 0) * 2),
    "a chunk of another codec": (0, chunk_of(0.0, 0)[::2]),
    "a huge chunk": (0, bytes(4_000_000)),
    "an empty chunk": (0, b""),
}


BAD_LENGTHS: dict[str, bytes] = {
    "nothing": b"",
    "less than a number": b"\x01\x00\x00",
    "more values than come": (2).to_bytes(4, "little") + bytes(5),
    "fewer values than come": (0).to_bytes(4, "little") + bytes(5),
    "more values than a chunk has elements": (65).to_bytes(4, "little") + bytes(4 * 65 + 8),
    "more values than there are": b"\xff" * 4 + bytes(4_000_000),
}


@pytest.mark.parametrize("what", BAD_LENGTHS)
def test_a_part_that_is_not_as_long_as_it_says_is_refused(what: str) -> None:
    why = refusals(lied_to(partial(send_part, 0, BAD_LENGTHS[what]), recipe="fedht"))
    assert why == ["part: chunk 0 was announced, something else came"]


@pytest.mark.parametrize("what", BAD_PARTS)
def test_a_part_that_does_not_fit_the_grid_is_refused(what: str) -> None:
    why = refusals(lied_to(partial(send_part, *BAD_PARTS[what])))
    assert len(why) == 1
    assert why[0].startswith("part: ")


async def send_part(off: int, data: bytes, spy: Spy) -> None:
    """Send an owner something in the place of the first chunk that it lacks, and see the stream end."""
    _, plan = await spy.counted_in()
    stream = await spy.open("part")
    await stream.send(encode(PartHead(plan.key, plan.epoch, plan.attempt, 1)))
    missing = PartTalk.decode(await stream.recv())
    assert isinstance(missing, Missing)
    owned = set(chunks_of(plan.shards, spy.victim))
    assert set(missing.chunks) == owned, "it asks for what it owns, no more"
    await stream.send(encode(Chunk(missing.chunks[0] + off, memoryview(data))))
    with pytest.raises(PeerLost):
        await stream.recv()


@pytest.mark.parametrize(("serial", "stripe", "stripes"), [(-1, 0, 1), (1, 0, 0), (1, 1, 1), (1, -1, 2), (1, 0, 2**40)])
def test_a_part_with_an_impossible_head_is_refused(serial: int, stripe: int, stripes: int) -> None:
    async def mischief(spy: Spy) -> None:
        _, plan = await spy.counted_in()
        stream = await spy.open("part")
        await stream.send(encode(PartHead(plan.key, plan.epoch, plan.attempt, serial, stripe, stripes)))
        with pytest.raises(PeerLost):
            await stream.recv()

    assert refusals(lied_to(mischief)) == ["part: a contribution with an impossible number"]


@pytest.mark.parametrize("lie", ["digest", "nan", "length", "another's chunk", "no chunk of the grid", "not a chunk"])
def test_an_owner_that_returns_a_bad_result_is_refused_and_replaced(lie: str) -> None:
    async def mischief(spy: Spy) -> None:
        await bring(spy, 0.0)
        await spy.until(lambda: spy.plan is not None and spy.plan.settled is not None)
        assert spy.plan is not None
        mine = chunks_of(spy.plan.shards, STRANGER)
        chunks = [chunk_of(float("nan") if lie == "nan" else 0.0, index) for index in mine]
        if lie == "length":
            chunks = [data + data for data in chunks]
        index = {"another's chunk": (mine[0] + len(mine)) % GRID.chunks, "no chunk of the grid": -1}.get(lie, mine[0])
        plan = (spy.plan.key, spy.plan.epoch, spy.plan.attempt)
        digest = blake3(chunks[0] + b"!" * (lie == "digest")).digest()
        said = Accepted() if lie == "not a chunk" else Returned(index, b"s" * 16, digest, memoryview(chunks[0]))
        for host in spy.world.hosts:
            stream = await spy.open("result", host.peer)
            await stream.send(encode(ResultHead(*plan)))
            assert isinstance(ResultTalk.decode(await stream.recv()), Kept)
            await stream.send(encode(said))
            with pytest.raises(PeerLost):
                await stream.recv()
        await spy.say(Reduced(*plan, tuple(blake3(data).digest() for data in chunks)))

    outcome = lied_to(mischief)
    for peer in (0, 1):
        why = refusals(outcome, peer)
        assert len(why) == 1
        assert why[0].startswith("result: ")


def test_an_owner_that_stays_but_takes_nothing_is_replaced_when_patience_ends() -> None:
    async def mischief(spy: Spy) -> None:
        await spy.counted_in()
        while spy.world.committed < 3:
            await asyncio.sleep(1.0)

    outcome = lied_to(mischief, patience_s_max=8.0, takes_parts=False)
    assert WHO in events(outcome, journal.RoundAnnounced)[0].members
    assert any("cannot reach" in event.why for event in events(outcome, journal.RoundReplanned))
    assert events(outcome, journal.RoundCommitted)[0].round_s < 30


def test_a_member_that_says_nonsense_about_the_round_changes_nothing() -> None:
    async def mischief(spy: Spy) -> None:
        _, plan = await spy.counted_in()
        key, epoch, attempt = plan.key, plan.epoch, plan.attempt
        for message in (
            Contributed(key, epoch, attempt + 1, 1),
            Contributed(Key("outer", 99), epoch, attempt, 1),
            Reduced(key, epoch + 1, attempt, (b"d" * 32,)),
            Holding(key, epoch, attempt + 9, "root"),
            Holding(key, epoch, attempt, "not the root"),
            Spoiled(Key("outer", 99), spy.victim, "I do not like it"),
            Stuck(key, epoch, attempt, b"nobody"),
            Standing(10**9, "from the future"),
            Standing(-1, "from the past"),
            Hello(spy.run_id, PROTOCOL, 0, 0, ()),
        ):
            await spy.say(message)

    outcome = lied_to(mischief)
    assert refusals(outcome) == []
    assert all(WHO not in event.contributors for _, event in once(outcome, journal.RoundCommitted))


def test_a_member_that_claims_another_anchor_does_not_make_the_others_download_it() -> None:
    async def enter(world: World, door: SimTransport) -> None:
        spy = Spy(world, door)
        await spy.join("f" * 64)
        await spy.counted_in()
        await spy.leave()

    outcome = visited(enter, counting_run(rounds=6, start_with=2), peers=1)
    assert events(outcome, journal.StateHealed) == []


def test_garbage_in_the_middle_of_a_session_ends_the_session_and_blames_its_member() -> None:
    async def mischief(spy: Spy) -> None:
        await spy.counted_in()
        await spy.control.send(b"\x01garbage")
        with pytest.raises(PeerLost):
            await spy.until(lambda: False)

    why = refusals(lied_to(mischief))
    assert len(why) == 1
    assert why[0].startswith("control: ")


def test_a_member_that_leaves_and_comes_back_again_and_again_does_no_harm() -> None:
    async def mischief(spy: Spy) -> None:
        await spy.counted_in()
        for _ in range(10):
            await spy.say(Leave("bored"))
            await spy.leave()
            spy._conns.clear()
            await spy.join(first_digest(counting_run()))

    lied_to(mischief, rounds=40)
