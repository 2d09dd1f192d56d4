"""Every door through which bytes of others, or of a disk that lies, come in: what it takes, and how it may say no.

A door has valid inputs to begin with, one decoder, and the one family of errors that its documentation names.
Whatever goes in, out comes a value or that error, said in few words.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
import numpy as np
from blake3 import blake3

from atoll import journal
from atoll.data.shards import decode_manifest
from atoll.errors import AtollError, LocalError, PeerError, SpecError
from atoll.net import frame, mux
from atoll.net.ticket import Contact, Ticket, parse_ticket, print_ticket
from atoll.net.transport import PeerId
from atoll.observe.book import parse_book
from atoll.observe.ledger import audit
from atoll.observe.verdict import text
from atoll.peer.pieces import PIECE_BYTES_MIN, Listing
from atoll.peer.results import Result
from atoll.peer.store import Store, anchor_from_bytes, anchor_to_bytes
from atoll.spec.axes.codec import Codec, Fp16, Fp32, Int8
from atoll.spec.load import decode_run, load_recipe
from atoll.spec.run import Budget, Data, Run, canonical
from atoll.swarm import log
from atoll.sync.codec import decode as decode_chunk
from atoll.sync.codec import encode as encode_chunk
from atoll.sync.merge import Anchor
from tests.fuzz.grow import Grower, kinds_of, pack, sealed, wires
from tests.fuzz.mutate import Mutator

T = TypeVar("T")
Fill = Sequence[Callable[[Store], Coroutine[Any, Any, object]]]

SEEDS = 8
FRAME_LIMIT = 4096
WORDS_MAX = 1000
"""What is wrong with some bytes is said in fewer characters than this, whoever chose the bytes."""


@dataclass(frozen=True)
class Door:
    """One way in."""

    name: str
    decode: Callable[[bytes], object]
    refuses: type[Exception]
    seeds: Sequence[bytes]
    trees: Sequence[Any] = ()
    """The same inputs as plain trees, where there is a structure to spoil."""
    seal: Callable[[Any], bytes] = field(default=sealed)
    """How a tree becomes an input, checksums made right."""
    foreign: bool = True
    """Its bytes come from another peer, which must not choose how much we write about it into our journal."""

    def spoiled(self, mutator: Mutator, rng: Random) -> bytes:
        """Return an input that is probably wrong in some way."""
        if self.trees and rng.random() < 0.3:
            return self.seal(mutator.spoil_tree(self.trees[int(rng.random() * len(self.trees))], self.trees))
        return mutator.spoil(self.seeds)

    def judge(self, data: bytes) -> str:
        """Return what is wrong with how the door took some bytes; nothing, if all is well."""
        try:
            self.decode(data)
        except self.refuses as error:
            return "" if not self.foreign or len(str(error)) <= WORDS_MAX else "an endless error"
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
        return ""


@cache
def doors() -> dict[str, Door]:
    """Return all of them by name."""
    return {
        door.name: door
        for door in (
            *_wire_doors(),
            _frame_door(),
            _mux_door(),
            _log_door(),
            _history_door(),
            _ticket_door(),
            _anchor_door(),
            *_store_doors(),
            _journal_door(),
            _book_door(),
            _run_door(),
            _manifest_door(),
            *_chunk_doors(),
        )
    }


def _wire_doors() -> list[Door]:
    found = []
    for name, wire in wires().items():
        trees = _grown(kinds_of(wire))
        found.append(Door(f"wire {name}", wire.decode, PeerError, [sealed(tree) for tree in trees], trees))
    return found


def _grown(kinds: Any, count: int = SEEDS) -> list[Any]:
    grower = Grower(kinds, Random(1))
    return [grower.grow(member) for member in grower.members for _ in range(count)]


def _frame_door() -> Door:
    """Frames come in pieces: where they are cut is drawn from the bytes themselves."""

    def decode(data: bytes) -> object:
        inbox, got, rng = frame.Inbox(), 0, Random(len(data))
        try:
            while data:
                cut = rng.randint(1, inbox.lacks)
                inbox.feed(data[:cut])
                data = data[cut:]
                while (message := inbox.pop(FRAME_LIMIT)) is not None:
                    assert len(message) <= FRAME_LIMIT
                    got += 1
        except frame.Ended:
            return got
        except frame.TooLong as error:
            raise PeerError(str(error)) from error
        return got

    messages = [b"", b"x", b"hello" * 20, b"\xff" * FRAME_LIMIT]
    seeds = [b"".join(frame.header(m) + m for m in messages[:n]) + frame.END_MARK for n in range(1, 5)]
    return Door("frame", decode, PeerError, seeds)


def _mux_door() -> Door:
    """A TLS line's frames, in pieces too; there are streams of ours open that they may speak of."""
    loop = asyncio.new_event_loop()
    loop.close()  # it makes futures and tells the time; nothing runs on it

    def decode(data: bytes) -> object:
        line = mux.Mux(dialled=True, loop=loop, wake=lambda: None, round_trip_s=lambda: 0.01)
        halves = [line._make(id) for id in (1, 3)]
        line._next_id = 5
        rng, view = Random(len(data)), memoryview(data)
        try:
            while view:
                cut = rng.randint(1, len(view))
                line.feed(view[:cut])
                view = view[cut:]
                taken = [recv.take(2**20) for _, recv in halves]
                assert sum(len(each or b"") for each in taken) <= len(data)
        except mux.Garbled as error:
            raise PeerError(str(error)) from error
        finally:
            line.fail("over")
        return line.answers

    def spoken(*frames: tuple[int, mux.Kind, bytes]) -> bytes:
        return b"".join(mux.frame(id, kind, said) for id, kind, said in frames)

    kind = mux.Kind
    seeds = [
        spoken((2, kind.DATA, b"hello"), (4, kind.DATA, b"there"), (2, kind.END, b""), (4, kind.CUT, b"")),
        spoken((1, kind.DATA, b"an answer"), (1, kind.END, b""), (1, kind.STOP, b""), (3, kind.DONE, b"")),
        mux.frame(3, kind.GRANT, size=1000) + spoken((6, kind.DATA, bytes(3000)), (0, kind.KNOCK, b"")),
        spoken((0, kind.ANSWER, b""), (0, kind.BYE, b"the peer left")),
    ]
    return Door("mux", decode, PeerError, seeds)


def _log_seal(tree: Any) -> bytes:
    """Return an entry as it stands in a log file, its checksum right."""
    body = tree if isinstance(tree, bytes) else pack(tree)
    return len(body).to_bytes(4, "little") + blake3(body).digest(length=8) + body


def _log_door() -> Door:
    trees = _grown(log.Entry, 4 * SEEDS)
    for index, tree in enumerate(trees):
        tree["index"] = index
    entries = [msgspec.msgpack.decode(pack(tree), type=log.Entry) for tree in trees]
    assert [log.to_bytes(entry) for entry in entries] == [_log_seal(msgspec.msgpack.encode(entry)) for entry in entries]
    files = [b"".join(map(log.to_bytes, entries[:count])) for count in (1, 2, 5)]
    return Door(
        "log file", lambda data: log.from_bytes(data, "log"), LocalError, files, trees[:12], _log_seal, foreign=False
    )


def _history_door() -> Door:
    """What a log adds up to, when its broker says whatever it likes: entries that are well formed and nonsense."""
    trees = _grown(log.Entry, 4 * SEEDS)
    decoder = msgspec.msgpack.Decoder(list[log.Entry])

    def decode(data: bytes) -> object:
        history = log.History()
        try:
            entries = decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PeerError("no entries") from error
        for index, entry in enumerate(entries):
            try:
                history = log.apply(history, msgspec.structs.replace(entry, index=history.next_index))
            except PeerError:
                assert index >= 0
        return history

    some = [trees[i : i + 12] for i in range(0, len(trees), 12)]
    return Door("history", decode, PeerError, [pack(each) for each in some], some, pack)


def _ticket_seal(tree: Any) -> bytes:
    body = pack(tree)
    data = len(body).to_bytes(2, "big") + body
    data += hashlib.sha256(b"atoll ticket" + data).digest()[:4]
    return b"atoll1" + base64.b32encode(data).rstrip(b"=").lower()


def _ticket_door() -> Door:
    peers = tuple(Contact(PeerId(bytes([i]) * 32), ("10.0.0.1:4433", f"host-{i}:1")) for i in range(3))
    tickets = [Ticket(run="0f" * 16, peers=peers[:count]) for count in (1, 2, 3)]
    trees = [[bytes.fromhex(t.run), [[bytes(c.peer), list(c.addresses)] for c in t.peers]] for t in tickets]
    seeds = [print_ticket(ticket).encode() for ticket in tickets]
    assert seeds == [_ticket_seal(tree) for tree in trees]

    def short_seal(tree: Any) -> bytes:
        return _ticket_seal(tree if len(pack(tree)) < 2048 else None)

    return Door("ticket", lambda data: parse_ticket(data.decode("latin-1")), SpecError, seeds, trees, short_seal)


def _anchor_door() -> Door:
    values = np.arange(8, dtype=np.float32)
    anchors = [Anchor(3, values, {"momentum": values * 2}), Anchor(0, values[:1], {}), Anchor(2**40, values, {})]
    seeds = [anchor_to_bytes(anchor) for anchor in anchors]
    trees = [_header_of(seed) for seed in seeds]

    def seal(tree: Any) -> bytes:
        header = _json(tree)
        return len(header).to_bytes(8, "little") + header + values.tobytes() * 2

    return Door("anchor", lambda data: anchor_from_bytes(data, "anchor"), LocalError, seeds, trees, seal)


def _header_of(data: bytes) -> Any:
    return msgspec.json.decode(data[8 : 8 + int.from_bytes(data[:8], "little")])


def _json(tree: Any) -> bytes:
    """Return a tree as JSON, with what JSON cannot say left to msgpack: bytes that are surely wrong."""
    try:
        return msgspec.json.encode(tree)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return b"[" * 3000 + pack(tree)


class Shelf:
    """A disk whose every call is over at once."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    async def read(self, path: str, first: int = 0, count: int | None = None) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][first : None if count is None else first + count]

    async def size(self, path: str) -> int:
        if path not in self.files:
            raise FileNotFoundError(path)
        return len(self.files[path])

    async def write(self, path: str, data: bytes | memoryview, *, append: bool = False) -> None:
        self.files[path] = (self.files.get(path, b"") if append else b"") + data

    async def sync(self, path: str) -> None:
        pass

    async def rename(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)

    async def remove(self, path: str) -> None:
        for name in [each for each in self.files if each == path or each.startswith(path.rstrip("/") + "/")]:
            del self.files[name]

    async def names(self, folder: str) -> list[str]:
        start = folder.rstrip("/") + "/"
        return sorted({name.removeprefix(start).partition("/")[0] for name in self.files if name.startswith(start)})


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns that never has to wait."""
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("it waits")


def _store_door(name: str, fill: Fill, look: Callable[[Store], Coroutine[Any, Any, object]]) -> Door:
    """Return the door of one file that a store keeps: `fill` writes it, `look` reads it back."""
    seeds, before = [], Shelf()
    for keep in fill:
        before = Shelf()
        _at_once(keep(Store(before)))
        seeds.append(next(data for path, data in before.files.items() if path.startswith(name)))
    path = next(path for path in before.files if path.startswith(name))

    def decode(data: bytes) -> object:
        shelf = Shelf()
        shelf.files = before.files | {path: data}
        return _at_once(look(Store(shelf)))

    return Door(f"file {name}", decode, LocalError, seeds, foreign=False)


def _store_doors() -> list[Door]:
    """Return the doors of what a peer keeps: None is how some say that a file is damaged."""
    chunks = (b"c" * 40, b"", b"d" * 7)
    results = [Result(tuple(blake3(c).digest() for c in chunks[:n]), chunks[:n]) for n in range(4)]
    keeps = [partial(Store.keep_result, version=1, result=result) for result in results]
    ballots = [partial(Store.keep_ballot, term=term, vote=b"v" * 32) for term in (0, 1, 2**40)]
    listing = Listing(3, "ab" * 32, 3 * PIECE_BYTES_MIN, (b"d" * 32,) * 3)

    async def listed(store: Store) -> object:
        return await store.result_chunks(1)

    return [
        _store_door("results/", keeps, partial(Store.result, version=1)),
        replace(_store_door("results/", keeps, listed), name="file results/ in pieces"),
        _store_door("ballot", ballots, Store.ballot),
        _store_door("boots", [Store.boot], Store.boot),
        _store_door("partial/", [partial(Store.begin_partial, listing=listing)], Store.resume_partial),
    ]


def _journal_door() -> Door:
    trees = _grown(journal.Line, 60)
    for tree in trees:
        tree["at_s"], tree["peer"] = 1.5, "aaaa1111"
    return Door("journal", journal.parse, LocalError, [_json(tree) for tree in trees], trees, _json, foreign=False)


def _book_door() -> Door:
    """The audit's own reader, and the audit of whatever it took."""
    trees = [_book(peer) for peer in ("aaaa1111", "bbbb2222")]

    def seal(tree: Any) -> bytes:
        return b"".join(_json(line) + b"\n" for line in tree) if isinstance(tree, list) else _json(tree)

    other = parse_book(seal(trees[1]), Path("other"))

    def decode(data: bytes) -> object:
        return text(audit(parse_book(data, Path("one")), other, 1000))

    return Door("ledger", decode, AtollError, [seal(trees[0])], trees[:1], seal)


def _book(peer: str) -> list[Any]:
    def line(kind: str, version: int, **fields: Any) -> Any:
        return {"at_s": 1.0, "peer": peer, "event": {"kind": kind, "channel": "outer", "version": version, **fields}}

    who, lines = ["aaaa1111", "bbbb2222"], []
    for version in (1, 2, 3):
        first = 4 * version - 4
        lease = [[first, 2]] if peer == who[0] else [[first + 2, 2]]
        lines += [
            line("round_announced", version, members=who, samples=4, first=first, handed=[[first, 4]]),
            line("lease_taken", version, ranges=lease),
            line("round_committed", version, contributors=who, samples=4, tokens=64, result="", counted=[[first, 4]]),
        ]
    return lines


def _run_door() -> Door:
    """A newcomer is told the run by somebody it does not know yet."""
    runs = [Run(name="r", recipe=load_recipe(name), budget=Budget(rounds=4), data=Data()) for name in ("diloco", "ddp")]
    seeds = [canonical(run) for run in runs]
    trees = [msgspec.json.decode(seed) for seed in seeds]
    return Door("run", decode_run, SpecError, seeds, trees, _json, foreign=False)


def _manifest_door() -> Door:
    tree = {
        "format": 1,
        "source": {"name": "n", "origin": "", "licence": "", "text_hash": "a" * 64},
        "tokenizer": {"name": "b", "file": "t.json", "hash": "b" * 64, "vocab_size": 9, "end": 1, "end_token": "e"},
        "made": {"version": 1, "tokenizer": "b", "documents": "file", "held_out": 0.1, "seed": 0, "shard_tokens": 9},
        "dtype": "uint16",
        "train": {"tokens": 7, "documents": 1, "text_bytes": 7},
        "held_out": {"tokens": 2, "documents": 1, "text_bytes": 2},
        "shards": [
            {"file": "a.bin", "split": "train", "tokens": 7, "hash": "c" * 64},
            {"file": "b.bin", "split": "held-out", "tokens": 2, "hash": "d" * 64},
        ],
    }
    return Door(
        "manifest", lambda data: decode_manifest(data, "manifest"), LocalError, [_json(tree)], [tree], _json, False
    )


def _chunk_doors() -> list[Door]:
    codecs: dict[str, Codec] = {"fp32": Fp32(), "fp16": Fp16(), "int8": Int8(block=16)}
    return [_chunk_door(name, codec) for name, codec in codecs.items()]


def _chunk_door(name: str, codec: Codec) -> Door:
    values = np.arange(20, dtype=np.float32)
    seed = bytes(encode_chunk(codec, values))
    return Door(f"chunk {name}", lambda data: decode_chunk(codec, data, values.size), PeerError, [seed])
