"""Links: one door for everybody, ourselves included."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from random import Random

import pytest

from atoll import journal
from atoll.errors import PeerError, PeerLost
from atoll.journal import Journal, Line, parse
from atoll.net.frame import header
from atoll.net.identity import Identity, short
from atoll.net.stream import LineBroken
from atoll.net.transport import MESSAGE_BYTES_MAX, Malformed, PeerId, Stream, StreamClosed, Traffic
from atoll.peer.links import Links, hear, say, together
from atoll.peer.messages import Accepted, AskRun, AskTalk, Declined, PartTalk
from atoll.sim.links import Links as Wires
from atoll.sim.loop import VirtualLoop
from atoll.sim.network import SimNetwork
from tests.fuzz.intruder import Swollen
from tests.net.loopback import bind
from tests.peer.world import virtual

A, B = (Identity.from_seed(bytes([x]) * 32).peer for x in (1, 2))


def framed(*messages: bytes) -> bytes:
    return b"".join(header(message) + message for message in messages)


class Clock:
    def now_s(self) -> float:
        return 0.0


class Pair:
    """Two peers' links, running, with what they wrote."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.network = SimNetwork(loop, Wires(), Random(0))
        self.written: list[Line] = []
        self.a, self.b = (self._links(peer) for peer in (A, B))
        self.a.contacts[B] = (self.network.address(B),)
        self.b.contacts[A] = (self.network.address(A),)
        self._running = [asyncio.ensure_future(links.run()) for links in (self.a, self.b)]

    def _links(self, peer: PeerId) -> Links:
        book = Journal(short(peer), Clock(), lambda line: self.written.append(parse(line)))
        return Links(self.network.transport(peer), book)

    def events(self) -> list[journal.Event]:
        return [line.event for line in self.written]


async def echo(peer: PeerId, stream: Stream) -> None:
    await stream.send(peer + await stream.recv())


@pytest.mark.parametrize("to", [A, B])
def test_a_stream_to_ourselves_is_a_stream_like_any_other(to: PeerId) -> None:
    async def main() -> None:
        pair = Pair()
        await asyncio.sleep(0)
        pair.a.serve({"part": echo})
        pair.b.serve({"part": echo})
        async with pair.a.talk(to, "part") as stream:
            await stream.send(b"hello")
            assert await stream.recv() == A + b"hello"
            with pytest.raises(StreamClosed):
                await stream.recv()

    virtual(main())


def told(links: Links) -> tuple[int, int]:
    """Return how many bytes went out and came in."""
    counts = links.transport.counts
    return sum(counts.sent_bytes.values()), sum(counts.received_bytes.values())


def test_talking_to_ourselves_is_no_traffic() -> None:
    async def main() -> None:
        pair = Pair()
        await asyncio.sleep(0)
        pair.a.serve({"part": echo})
        async with pair.a.talk(A, "part") as stream:
            await stream.send(b"x" * 1000)
            await stream.recv()
        assert told(pair.a) == (0, 0)
        pair.b.serve({"part": echo})
        async with pair.a.talk(B, "part") as stream:
            await stream.send(b"x" * 1000)
            await stream.recv()
        assert told(pair.a) == (1000, 1032)
        assert told(pair.b) == (1032, 1000)

    virtual(main())


@pytest.mark.parametrize("to", [A, B])
def test_what_a_handler_refuses_is_written_down_and_the_stream_ends(to: PeerId) -> None:
    async def refuse(peer: PeerId, stream: Stream) -> None:
        await stream.recv()
        raise PeerError("I do not like it")

    async def main() -> None:
        pair = Pair()
        await asyncio.sleep(0)
        pair.a.serve({"part": refuse})
        pair.b.serve({"part": refuse})
        async with pair.a.talk(to, "part") as stream:
            await stream.send(b"hello")
            with pytest.raises(PeerLost):
                await stream.recv()
        assert pair.events() == [journal.MessageRefused(who=short(A), why="part: I do not like it")]

    virtual(main())


@pytest.mark.parametrize("opener", ["the one who is blamed", "the one who blames"])
def test_bytes_that_are_no_message_are_blamed_on_their_sender_whoever_opened_the_stream(opener: str) -> None:
    """Both peers hear nonsense of the other's: as it comes from an answer, and as it comes from a question."""

    async def talk_nonsense(peer: PeerId, stream: Stream) -> None:
        await stream.send(b"nonsense")

    async def listen(peer: PeerId, stream: Stream) -> None:
        await hear(stream, PartTalk)

    async def main() -> None:
        pair = Pair()
        await asyncio.sleep(0)
        pair.a.serve({"part": talk_nonsense})
        pair.b.serve({"part": listen})
        if opener == "the one who is blamed":
            async with pair.a.talk(B, "part") as stream:
                await stream.send(b"nonsense")
                with pytest.raises(PeerLost):
                    await stream.recv()
        else:
            with pytest.raises(Malformed):
                async with pair.b.talk(A, "part") as stream:
                    await hear(stream, PartTalk)
        (line,) = pair.written
        assert isinstance(line.event, journal.MessageRefused)
        assert (line.peer, line.event.who) == (short(B), short(A))
        assert line.event.why.startswith("part: ")

    virtual(main())


@pytest.mark.parametrize("asked", [True, False])
def test_a_message_longer_than_any_may_be_is_blamed_on_its_sender(asked: bool) -> None:
    async def main() -> None:
        pair = Pair()
        await asyncio.sleep(0)
        swollen = Swollen()
        swollen.swells.append(b"grows")
        pair.network.watch(A, swollen)

        async def listen(peer: PeerId, stream: Stream) -> None:
            await stream.recv()

        async def answer(peer: PeerId, stream: Stream) -> None:
            await stream.send(b"grows")

        pair.a.serve({"part": answer})
        pair.b.serve({"part": listen})
        if asked:
            with pytest.raises(Malformed):
                async with pair.b.talk(A, "part") as stream:
                    await stream.recv()
        else:
            async with pair.a.talk(B, "part") as stream:
                await stream.send(b"grows")
                with pytest.raises(PeerLost):
                    await stream.recv()
        why = f"part: a message of {MESSAGE_BYTES_MAX + 1} bytes is over the limit of {MESSAGE_BYTES_MAX}"
        assert pair.events() == [journal.MessageRefused(who=short(A), why=why)]

    virtual(main())


RAW = {
    "a message of four billion bytes": (framed(b"\x01part") + b"\xff\xff\xff\xfe", "part: a message of 4294967294"),
    "a message one byte too long": (framed(b"\x01part") + (MESSAGE_BYTES_MAX + 1).to_bytes(4, "big"), "over the limit"),
    "no tag": (framed(b"\xff\xff\xff"), "does not begin with a tag"),
    "a tag that is too long": (framed(b"\x01" + b"x" * 300), "does not begin with a tag"),
    "no message of the protocol": (framed(b"\x01part", b"nonsense"), "part: "),
}


@pytest.mark.parametrize("kind", ["iroh", "tls"])
@pytest.mark.parametrize("raw", list(RAW))
def test_over_real_sockets_whoever_writes_bad_bytes_is_named_in_the_journal(raw: str, kind: str) -> None:
    data, why = RAW[raw]
    written: list[journal.Event] = []
    noted = asyncio.Event()

    def note(line: bytes) -> None:
        written.append(parse(line).event)
        noted.set()

    async def listen(peer: PeerId, stream: Stream) -> None:
        await hear(stream, PartTalk)

    async def main() -> None:
        ann, bob = [await bind(kind, os.urandom(32), host="127.0.0.1") for _ in range(2)]
        links = Links(bob, Journal(short(bob.id), Clock(), note))
        links.serve({"part": listen})
        running = asyncio.ensure_future(links.run())
        try:
            async with asyncio.timeout(20.0):
                conn = await ann.connect(bob.id, bob.addresses())
                send, recv = await conn.line.open()
                await send.write(data)
                await noted.wait()
                with pytest.raises(LineBroken):  # the stream was given up
                    await recv.wait(1)
                still = await conn.open("part", Traffic.ROUND)  # and the connection lives
                still.reset()
        finally:
            running.cancel()
            await asyncio.wait([running])
            await ann.close()
            await bob.close()
        (event,) = written
        assert isinstance(event, journal.MessageRefused)
        assert event.who == short(ann.id)
        assert why in event.why

    asyncio.run(main())


def test_more_messages_than_a_queue_holds_wait_for_the_reader() -> None:
    async def count(peer: PeerId, stream: Stream) -> None:
        got = 0
        try:
            while True:
                await stream.recv()
                got += 1
                await asyncio.sleep(0.01)
        except PeerLost:
            counted.append(got)

    counted: list[int] = []

    async def main() -> None:
        pair = Pair()
        await asyncio.sleep(0)
        pair.a.serve({"part": count})
        async with pair.a.talk(A, "part") as stream:
            for _ in range(300):
                await stream.send(b"x")
            await stream.finish()
            with pytest.raises(PeerLost):
                await stream.recv()
        assert counted == [300]

    virtual(main())


def test_two_that_dial_at_once_need_one_connection() -> None:
    async def main() -> None:
        pair = Pair()
        await asyncio.sleep(0)
        pair.b.serve({"part": echo})

        async def once() -> bytes:
            async with pair.a.talk(B, "part") as stream:
                await stream.send(b"x")
                return await stream.recv()

        assert await asyncio.gather(*(once() for _ in range(5))) == [A + b"x"] * 5
        assert len(pair.a._conns[B]) == 1

    virtual(main())


def test_a_dead_link_is_dialled_again() -> None:
    async def main() -> None:
        pair = Pair()
        await asyncio.sleep(0)
        pair.b.serve({"part": echo})
        async with pair.a.talk(B, "part") as stream:
            await stream.send(b"x")
            await stream.recv()
        await pair.b._conns[A][0].close("enough")
        await asyncio.sleep(1.0)
        async with pair.a.talk(B, "part") as stream:
            await stream.send(b"y")
            assert await stream.recv() == A + b"y"

    virtual(main())


def test_nobody_home_is_a_lost_peer() -> None:
    async def main() -> None:
        pair = Pair()
        await asyncio.sleep(0)
        nobody = Identity.from_seed(b"\x09" * 32).peer
        with pytest.raises(PeerLost):
            async with pair.a.talk(nobody, "part"):
                raise AssertionError("there is nobody to talk to")

    virtual(main())


def test_messages_are_said_and_heard_whole() -> None:
    async def answer(peer: PeerId, stream: Stream) -> None:
        asked = await hear(stream, AskTalk)
        assert asked == AskRun("run", 1)
        await say(stream, Declined("no"))
        await say(stream, Accepted())

    async def main() -> None:
        pair = Pair()
        await asyncio.sleep(0)
        pair.a.serve({"ask": answer})
        async with pair.a.talk(A, "ask") as stream:
            await say(stream, AskRun("run", 1))
            assert await hear(stream, PartTalk) == Declined("no")
            assert await hear(stream, PartTalk) == Accepted()

    virtual(main())


class Large:
    """Something that ought to go when who has it does."""


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
def test_what_ran_together_keeps_nothing_when_it_ends_early(end: str) -> None:
    went: list[weakref.ref[Large]] = []

    async def side() -> None:
        here = Large()
        went.append(weakref.ref(here))
        await asyncio.sleep(1.0 if end == "fails" else 10.0)
        raise PeerError(f"{here} is of no use")

    async def main() -> None:
        with pytest.raises(PeerError if end == "fails" else TimeoutError):
            async with asyncio.timeout(5.0):
                await together(side(), side())

    gc.disable()
    try:
        virtual(main())
        assert [ref() for ref in went] == [None, None]
    finally:
        gc.enable()
