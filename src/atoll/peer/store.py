"""What a peer keeps on disk, and how it comes back after a crash.

    run.json                 the run, canonical
    boots                    how often this peer has started: its serial number
    log                      the log as far as it is known, appended
    checkpoint/V.safetensors anchor and outer state of version V, with their digest
    private/V.safetensors    inner optimizer state after the work of round V (never sent)
    results/V                chunk digests and encoded chunks of round V

The newest checkpoint plus the results after it give the newest anchor. Everything is plain data with
a digest; a file that does not match it is refused with its name, never repaired in silence.
"""

from __future__ import annotations

from collections.abc import Callable
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
from atoll.swarm.log import Entry, from_bytes, result_root, to_bytes
from atoll.sync.merge import Anchor

T = TypeVar("T")

RESULTS_KEPT = 8
"""Rounds whose results are kept for members that lag behind."""
CHECKPOINTS_KEPT = 2


class Result(Struct, frozen=True):
    """What a round produced: encoded chunks and their digests, in the order of the grid."""

    digests: tuple[bytes, ...]
    chunks: tuple[bytes, ...]

    def root(self) -> str:
        return result_root(self.digests)

    def sound(self) -> bool:
        """Return whether every chunk matches its digest."""
        pairs = zip(self.chunks, self.digests, strict=True)
        return len(self.chunks) == len(self.digests) and all(blake3(c).digest() == d for c, d in pairs)


def _sound_result(data: bytes) -> Result | None:
    try:
        result = msgspec.msgpack.decode(data, type=Result)
    except msgspec.MsgspecError:
        return None
    return result if result.sound() else None


class _About(Struct, frozen=True):
    """What an anchor file says of itself."""

    version: int
    digest: str


def anchor_to_bytes(anchor: Anchor) -> bytes:
    """Return an anchor as safetensors bytes that carry its version and digest."""
    about = msgspec.json.encode(_About(version=anchor.version, digest=anchor.digest())).decode()
    # One key: safetensors writes several in no fixed order, and donors must offer equal bytes.
    return save({name: np.ascontiguousarray(v) for name, v in anchor.vectors().items()}, {"atoll": about})


def anchor_from_bytes(data: bytes, where: str) -> Anchor:
    """Return the anchor in safetensors bytes; raises `LocalError` when they are damaged."""
    try:
        header = msgspec.json.decode(data[8 : 8 + int.from_bytes(data[:8], "little")])
        about = msgspec.json.decode(header["__metadata__"]["atoll"], type=_About)
        vectors = load(data)
        anchor = Anchor(about.version, vectors.pop("weights"), vectors)
    except (SafetensorError, msgspec.MsgspecError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise _damaged(where, str(error)) from error
    if anchor.digest() != about.digest:
        raise _damaged(where, "its digest does not match its contents")
    return anchor


def _damaged(where: str, what: str) -> LocalError:
    return LocalError(
        f"{where}: damaged ({what})",
        hint="delete this file and start again: the peer falls back to the checkpoint before it, "
        "or downloads the state from the others",
    )


class Store:
    """One peer's files."""

    def __init__(self, disk: Disk, compute: Compute | None = None) -> None:
        self.disk = disk
        self._compute = compute

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
            await self.disk.sync("log")
            await self.disk.sync("/")

    async def keep_result(self, version: int, result: Result) -> None:
        """Put a round's result on disk, durably."""
        data = await self._off_loop(lambda: msgspec.msgpack.encode(result), sum(map(len, result.chunks)))
        await disks.save(self.disk, f"results/{version}", data)

    async def result(self, version: int) -> Result | None:
        """Return a kept result, or None when there is none or it is damaged."""
        data = await self._read(f"results/{version}")
        if data is None:
            return None
        return await self._off_loop(lambda: _sound_result(data), len(data))

    async def keep_private(self, version: int, private: bytes) -> None:
        """Save the inner optimizer state as it is after the work of a round."""
        await disks.save(self.disk, f"private/{version}.safetensors", private)

    async def keep_checkpoint(self, anchor: Anchor) -> int:
        """Save an anchor, drop what is no longer needed, and return the bytes written; private state goes first."""
        data = await self._off_loop(lambda: anchor_to_bytes(anchor), 3 * anchor.weights.nbytes)
        await disks.save(self.disk, f"checkpoint/{anchor.version}.safetensors", data)
        versions = await self.checkpoints()
        for version in versions[:-CHECKPOINTS_KEPT]:
            await self.disk.remove(f"checkpoint/{version}.safetensors")
        for version in await self._versions("private"):
            if version < versions[-CHECKPOINTS_KEPT:][0]:
                await self.disk.remove(f"private/{version}.safetensors")
        oldest = min([*versions[-CHECKPOINTS_KEPT:], anchor.version - RESULTS_KEPT])
        for name in await self.disk.names("results"):
            if name.isdecimal() and int(name) <= oldest:
                await self.disk.remove(f"results/{name}")
        return len(data)

    async def checkpoints(self) -> list[int]:
        """Return the versions of the checkpoints on disk, oldest first."""
        return await self._versions("checkpoint")

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
