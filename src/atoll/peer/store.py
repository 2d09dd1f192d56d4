"""What a peer keeps on disk, and how it comes back after a crash.

    run.json                 the run, canonical
    boots                    how often this peer has started: its serial number
    log                      the log as far as it is known, appended
    ballot                   the council's term and whom we voted for in it
    checkpoint/V.safetensors anchor and outer state of version V, with their digest
    snapshot/V.safetensors   the same, made because somebody asked for it between two checkpoints
    private/V.safetensors    inner optimizer state that goes with version V (never sent)
    left/V.NAME.safetensors  a contribution to a try at V, one of several open rounds, and what it left out
    results/V                encoded chunks of round V, and their digests (V.draft while they come)
    partial/ROOT/            a snapshot on its way here: `listing`, and the pieces that came, by number

The newest checkpoint plus the results after it give the newest anchor. Everything is plain data with
a digest; a file that does not match it is refused with its name, never repaired in silence.

Checkpoints and snapshots are what joiners get: read piece by piece, and kept while somebody reads them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import numpy as np
from blake3 import blake3
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.numpy import load, save

from atoll import disk as disks
from atoll.disk import Disk
from atoll.errors import LocalError
from atoll.model.compute import Compute, Cost
from atoll.peer.pieces import PIECE_BYTES, Listing, piece_bytes
from atoll.peer.results import Draft, Result, ResultChunks, find_chunks, sound_result
from atoll.swarm.log import Entry, from_bytes, to_bytes
from atoll.sync.merge import BASIS, Anchor

T = TypeVar("T")

RESULTS_KEPT = 8
"""Rounds whose results are kept for members that lag behind."""
CHECKPOINTS_KEPT = 2
READ_KEPT = 2
"""Older checkpoints and snapshots that are kept because others read them."""
LINGER_S = 300.0
"""How long after the last read: who was cut off finds it again."""
HEADER_BYTES_MAX = 2**16
"""The largest header of an anchor file."""


UNREADABLE = (SafetensorError, msgspec.MsgspecError, RecursionError, KeyError, ValueError, TypeError, OverflowError)
"""What reading a state's bytes may raise when they are none."""


class Ballot(Struct, frozen=True):
    """The last term of the council we took part in, and whom we voted for in it."""

    term: int = 0
    vote: bytes = b""


class _About(Struct, frozen=True):
    """What an anchor file says of itself."""

    version: int
    digest: str


def anchor_to_bytes(anchor: Anchor) -> bytes:
    """Return an anchor as safetensors bytes that carry its version and digest."""
    return _file(anchor, anchor.digest())


def _file(anchor: Anchor, digest: str) -> bytes:
    about = msgspec.json.encode(_About(version=anchor.version, digest=digest)).decode()
    # One key: safetensors writes several in no fixed order, and donors must offer equal bytes.
    return save({name: np.ascontiguousarray(v) for name, v in anchor.vectors().items()}, {"atoll": about})


def anchor_from_bytes(data: bytes, where: str) -> Anchor:
    """Return the anchor in safetensors bytes; raises `LocalError` when they are damaged."""
    return read_anchor(data, where)[0]


def read_anchor(data: bytes, where: str) -> tuple[Anchor, str]:
    """Return the anchor in safetensors bytes and its digest; raises `LocalError` when they are damaged."""
    try:
        header = msgspec.json.decode(data[8 : 8 + int.from_bytes(data[:8], "little")])
        about = msgspec.json.decode(header["__metadata__"]["atoll"], type=_About)
        vectors = {name: np.require(vector, requirements="W") for name, vector in load(data).items()}
        anchor = Anchor(about.version, vectors.pop("weights"), vectors, vectors.pop(BASIS, None))
    except UNREADABLE as error:
        raise _damaged(where, str(error)[:200]) from error
    if anchor.digest() != about.digest:
        raise _damaged(where, "its digest does not match its contents")
    return anchor, about.digest


def _listed(anchor: Anchor) -> tuple[bytes, Listing]:
    """Return an anchor's file and what it is made of."""
    digest = anchor.digest()
    data = _file(anchor, digest)
    step, view = piece_bytes(len(data)), memoryview(data)
    pieces = (view[first : first + step] for first in range(0, len(data), step))
    digests = tuple(blake3(piece, max_threads=blake3.AUTO).digest() for piece in pieces)
    return data, Listing(anchor.version, digest, len(data), digests)


def _damaged(where: str, what: str) -> LocalError:
    return LocalError(
        f"{where}: damaged ({what})",
        hint="delete this file and start again: the peer falls back to the checkpoint before it, "
        "or downloads the state from the others",
    )


class _Head(Struct, frozen=True):
    """What the beginning of an anchor file says of it: itself, its size, and where its vectors are."""

    about: _About
    size_bytes: int
    spans: dict[str, tuple[int, int]]


def _head(data: bytes) -> _Head | None:
    try:
        body = 8 + int.from_bytes(data[:8], "little")
        header = msgspec.json.decode(data[8:body])
        about = msgspec.json.decode(header.pop("__metadata__")["atoll"], type=_About)
        spans = {name: (body + first, body + end) for name, (first, end) in _offsets(header).items()}
        return _Head(about, max(end for _, end in spans.values()), spans)
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _offsets(header: dict[str, dict[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """Return where the vectors are, in the order in which an anchor's digest takes them."""
    names = ["weights", *sorted(name for name in header if name != "weights")]
    return {name: header[name]["data_offsets"] for name in names}


class Partial:
    """What has come of a snapshot, one file per piece: nothing is synced, since every piece is checked again."""

    def __init__(self, disk: Disk, listing: Listing) -> None:
        self.listing = listing
        self.folder = f"partial/{listing.root()[:16]}/"
        self.have: dict[int, None] = {}
        """In the order in which they came."""
        self.watchers: list[Callable[[], None]] = []
        """Told of each piece that comes."""
        self._disk = disk

    async def find(self) -> None:
        """Look at what an earlier life left."""
        for name in await self._disk.names(self.folder):
            if name.isdecimal() and int(name) < len(self.listing.digests):
                piece = await self._disk.read(self.folder + name)
                if blake3(piece).digest() == self.listing.digests[int(name)]:
                    self.have[int(name)] = None

    async def put(self, index: int, data: bytes | memoryview) -> None:
        """Keep a piece that was checked."""
        await self._disk.write(f"{self.folder}{index}", data)
        self.have[index] = None
        for tell in self.watchers:
            tell()

    async def piece(self, index: int) -> bytes | None:
        return await self._disk.read(f"{self.folder}{index}") if index in self.have else None

    async def whole(self) -> bytes:
        """Return the file, once all of it is here."""
        return b"".join([await self._disk.read(f"{self.folder}{i}") for i in range(len(self.listing.digests))])


class Store:
    """One peer's files."""

    def __init__(self, disk: Disk, compute: Compute | None = None) -> None:
        self.disk = disk
        self.partial: Partial | None = None
        """The snapshot that is on its way here."""
        self._swept = False
        """True once nothing of such a one is left on disk."""
        self._compute = compute
        self._listing = asyncio.Lock()
        self._listings: dict[int, Listing] = {}
        self._readers: Counter[int] = Counter()
        self._read_s: dict[int, float] = {}

    async def boot(self) -> int:
        """Count this start and return its number."""
        kept = await self._read("boots") or b"0"
        if not kept.isdigit():
            raise LocalError(
                "boots: damaged (it is no number)",
                hint="write a number into it that is larger than this peer has had starts, for example 1000",
            )
        boots = int(kept) + 1
        await disks.save(self.disk, "boots", str(boots).encode())
        return boots

    async def run(self) -> bytes | None:
        return await self._read("run.json")

    async def keep_run(self, canonical: bytes) -> None:
        await disks.save(self.disk, "run.json", canonical)

    async def log(self) -> list[Entry]:
        """Return the entries known from before, cutting a torn tail off."""
        data = await self._read("log") or b""
        entries, sound = from_bytes(data, "log")
        if sound < len(data):
            await disks.save(self.disk, "log", data[:sound])
        return entries

    async def append(self, entries: list[Entry], *, durable: bool) -> None:
        """Add entries to the log; with `durable` they are on disk when this returns."""
        await self.disk.write("log", b"".join(to_bytes(e) for e in entries), append=True)
        if durable:
            await self.sync_log()

    async def sync_log(self) -> None:
        """Return once everything appended to the log is on disk."""
        await self.disk.sync("log")
        await self.disk.sync("/")

    async def ballot(self) -> Ballot:
        """Return the last term we know to have taken part in, and our vote."""
        data = await self._read("ballot")
        if data is None:
            return Ballot()
        try:
            return msgspec.json.decode(data, type=Ballot)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            hint = "move this peer's folder away and join again: it might vote twice otherwise"
            raise LocalError(f"ballot: damaged ({error})", hint=hint) from error

    async def keep_ballot(self, term: int, vote: bytes) -> None:
        """Put term and vote on disk, durably."""
        await disks.save(self.disk, "ballot", msgspec.json.encode(Ballot(term, vote)))

    def draft(self, version: int) -> Draft:
        """Return where a round's result can be put down as it comes."""
        return Draft(self.disk, f"results/{version}", f"results/{version}.draft")

    async def keep_result(self, version: int, result: Result) -> None:
        """Put a round's result on disk, durably."""
        draft = Draft(self.disk, f"results/{version}", f"results/{version}.new")
        for index, chunk in enumerate(result.chunks):
            await draft.add({index: chunk})
        await draft.close(result.digests)

    async def result(self, version: int) -> Result | None:
        """Return a kept result, or None when there is none or it is damaged."""
        data = await self._read(f"results/{version}")
        if data is None:
            return None
        return await self._off_loop(lambda: sound_result(data), len(data))

    async def result_chunks(self, version: int) -> ResultChunks | None:
        """Return a way to read a kept result chunk by chunk, or None when there is none."""
        return await find_chunks(self.disk, f"results/{version}")

    async def keep_private(self, version: int, private: bytes) -> None:
        """Save the inner optimizer state that goes with a version."""
        await disks.save(self.disk, f"private/{version}.safetensors", private)

    async def keep_left(self, version: int, name: str, left: bytes) -> None:
        """Save one of several contributions under way, to a try at a version, and what it left with us."""
        await disks.save(self.disk, f"left/{version}.{name}.safetensors", left)

    async def left(self, version: int, name: str) -> bytes | None:
        """Return a contribution and what it left with us, if that is kept."""
        return await self._read(f"left/{version}.{name}.safetensors")

    async def drop_private(self, version: int) -> None:
        """Forget the inner optimizer state of a version: it does not go with it."""
        if await self.has_private(version):
            await self.disk.remove(f"private/{version}.safetensors")

    async def move_private(self, version: int, later: int) -> None:
        """Let the inner optimizer state kept for one version be that of a later one, if there is any."""
        if await self.has_private(version):
            await self.disk.rename(f"private/{version}.safetensors", f"private/{later}.safetensors")
            await self.disk.sync("private/")

    async def keep_only_private(self, version: int) -> None:
        """Drop older inner state that goes with no checkpoint."""
        kept = await self.checkpoints()
        for old in await self._versions("private"):
            if old < version and old not in kept:
                await self.disk.remove(f"private/{old}.safetensors")

    async def keep_checkpoint(self, anchor: Anchor) -> int:
        """Save an anchor, drop what is no longer needed, and return the bytes written; private state goes first."""
        data, listing = await self._off_loop(lambda: _listed(anchor), 4 * anchor.weights.nbytes)
        await self._keep_checkpoint(listing, data)
        return len(data)

    async def adopt(self, listing: Listing, data: bytes) -> None:
        """Save a downloaded anchor as our newest checkpoint, and drop what the download left."""
        for newer in [v for v in await self.checkpoints() if v > listing.version]:
            await self.disk.remove(f"checkpoint/{newer}.safetensors")
        await self._keep_checkpoint(listing, data)
        await self.drop_partial()

    async def _keep_checkpoint(self, listing: Listing, data: bytes) -> None:
        """Save an anchor's file; what it is made of is remembered, so that whoever asks need not wait for it."""
        self._listings.pop(listing.version, None)
        await disks.save(self.disk, f"checkpoint/{listing.version}.safetensors", data)
        self._listings[listing.version] = listing
        await self._prune(listing.version)

    async def _prune(self, newest: int) -> None:
        """Drop what neither a restart nor anybody who reads it needs any more."""
        checkpoints, snapshots = await self.checkpoints(), await self._versions("snapshot")
        own = checkpoints[-CHECKPOINTS_KEPT:]
        read = self._being_read([*checkpoints[:-CHECKPOINTS_KEPT], *snapshots])
        for folder, versions in (("checkpoint", checkpoints), ("snapshot", snapshots)):
            for version in versions:
                if version not in read and (folder == "snapshot" or version not in own):
                    self._listings.pop(version, None)
                    await self.disk.remove(f"{folder}/{version}.safetensors")
        for version in await self._versions("private"):
            if version < own[0]:
                await self.disk.remove(f"private/{version}.safetensors")
        await self._drop_numbered("left", own[0])
        oldest = min([*own, *read, newest - RESULTS_KEPT])
        await self._drop_numbered("results", oldest)  # a draft that came to nothing goes too

    def _being_read(self, versions: list[int]) -> list[int]:
        """Return those of some versions that others read now or did lately: the newest few."""
        now_s = asyncio.get_running_loop().time()
        read = [v for v in sorted(versions) if self._readers[v] or now_s < self._read_s.get(v, -LINGER_S) + LINGER_S]
        return read[-READ_KEPT:]

    async def checkpoints(self) -> list[int]:
        """Return the versions of the checkpoints on disk, oldest first."""
        return await self._versions("checkpoint")

    async def _drop_numbered(self, folder: str, last: int) -> None:
        """Remove files whose names begin with a version, up to one."""
        for name in await self.disk.names(folder):
            number = name.partition(".")[0]
            if number.isdecimal() and int(number) <= last:
                await self.disk.remove(f"{folder}/{name}")

    async def has_private(self, version: int) -> bool:
        """Return whether the private state after a round's work is kept."""
        return version in await self._versions("private")

    async def _versions(self, folder: str) -> list[int]:
        names = await self.disk.names(folder)
        return sorted(int(n.removesuffix(".safetensors")) for n in names if n.endswith(".safetensors"))

    async def anchor(self) -> Anchor | None:
        """Return the newest checkpoint's anchor; raises `LocalError` when it is damaged."""
        versions = await self.checkpoints()
        if not versions:
            return None
        path = f"checkpoint/{versions[-1]}.safetensors"
        data = await self.disk.read(path)
        return await self._off_loop(lambda: anchor_from_bytes(data, path), 2 * len(data))

    async def private(self, version: int) -> bytes | None:
        """Return the private state as it was after a round's work, if it is kept."""
        return await self._read(f"private/{version}.safetensors")

    # what others read

    async def snapshots(self) -> list[int]:
        """Return the versions that others can have, oldest first."""
        return sorted(dict.fromkeys([*await self.checkpoints(), *await self._versions("snapshot")]))

    async def keep_snapshot(self, anchor: Anchor, digest: str) -> bool:
        """Save an anchor for others to read, unless it is there already; return False when it is being stepped."""
        async with self._listing:
            if anchor.version not in await self.snapshots():
                data, listing = await self._off_loop(lambda: _listed(anchor), 4 * anchor.weights.nbytes)
                if listing.state != digest:
                    return False
                await disks.save(self.disk, f"snapshot/{anchor.version}.safetensors", data)
                self._listings[anchor.version] = listing
                self._read_s[anchor.version] = asyncio.get_running_loop().time()
        return True

    async def listing(self, version: int) -> Listing | None:
        """Return what the snapshot of a version is made of; None when there is none or it is damaged."""
        async with self._listing:  # one at a time: whoever comes second finds it ready
            if version not in self._listings:
                try:
                    made = await self._list(version)
                except FileNotFoundError:
                    return None
                if made is None:
                    return None
                self._listings[version] = made
            self._read_s[version] = asyncio.get_running_loop().time()
            return self._listings[version]

    def is_listed(self, version: int) -> bool:
        """Return whether it is known already what a snapshot is made of."""
        return version in self._listings

    async def _list(self, version: int) -> Listing | None:
        """Read through a snapshot, a piece at a time; hashing a piece is too short to be sent off the loop."""
        path = await self._path(version)
        head = _head(await self.disk.read(path, 0, HEADER_BYTES_MAX))
        if (
            head is None
            or head.about.version != version
            or version < 0
            or await self._digest(path, head) != head.about.digest
        ):
            return None
        step = piece_bytes(head.size_bytes)
        firsts = range(0, head.size_bytes, step)
        digests = [blake3(await self.disk.read(path, first, step)).digest() for first in firsts]
        return Listing(version, head.about.digest, head.size_bytes, tuple(digests))

    async def _digest(self, path: str, head: _Head) -> str:
        """Return the anchor's digest as its file gives it, without holding the anchor."""
        hasher = blake3(head.about.version.to_bytes(8, "little"))
        for name, (first, end) in head.spans.items():
            hasher.update(name.encode() + b"\0")
            for at in range(first, end, PIECE_BYTES):
                hasher.update(await self.disk.read(path, at, min(PIECE_BYTES, end - at)))
        return hasher.hexdigest()

    async def piece(self, listing: Listing, index: int) -> bytes | None:
        """Return one piece of a snapshot, from the file or from what has come of it; None when it is not here."""
        try:
            if self.partial is not None and self.partial.listing == listing:
                return await self.partial.piece(index)
            if self._listings.get(listing.version) == listing:
                return await self.disk.read(await self._path(listing.version), *listing.span(index))
        except FileNotFoundError:
            pass
        return None

    async def _path(self, version: int) -> str:
        folder = "checkpoint" if version in await self.checkpoints() else "snapshot"
        return f"{folder}/{version}.safetensors"

    @contextmanager
    def reading(self, version: int) -> Iterator[None]:
        """Keep a snapshot, and the results after it, while it is read."""
        self._readers[version] += 1
        try:
            yield
        finally:
            self._readers[version] -= 1
            self._read_s[version] = asyncio.get_running_loop().time()

    # a snapshot on its way here

    async def begin_partial(self, listing: Listing) -> Partial:
        """Start to keep the pieces of a snapshot, or go on where an earlier life stopped."""
        kept = await self.resume_partial()
        if kept is not None and kept.listing == listing:
            return kept
        await self.drop_partial()
        self.partial, self._swept = Partial(self.disk, listing), False
        await disks.save(self.disk, self.partial.folder + "listing", msgspec.msgpack.encode(listing))
        return self.partial

    async def resume_partial(self) -> Partial | None:
        """Return what is here of a snapshot, each piece checked; an earlier life's where this one has not begun."""
        if self.partial is None:
            for root in await self.disk.names("partial"):
                data = await self._read(f"partial/{root}/listing")
                try:
                    listing = msgspec.msgpack.decode(data or b"", type=Listing)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    continue
                if listing.fits():
                    self.partial = Partial(self.disk, listing)
                    await self.partial.find()
                    break
        return self.partial

    async def drop_partial(self) -> None:
        """Forget what has come of a snapshot, in this life or in an earlier one."""
        self.partial = None
        if not self._swept and await self.disk.names("partial"):
            await self.disk.remove("partial")
        self._swept = True

    async def _off_loop(self, work: Callable[[], T], moved_bytes: float) -> T:
        """Do what takes long for a large model where it stops nobody."""
        if self._compute is None:
            return work()
        return await self._compute.run(work, Cost(moved_bytes=float(moved_bytes)))

    async def _read(self, path: str) -> bytes | None:
        try:
            return await self.disk.read(path)
        except FileNotFoundError:
            return None
