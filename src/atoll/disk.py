"""What survives a crash: one peer's folder, as an opening of the box.

The contract says only what a real file system promises: bytes are durable after `sync`, a new name is
durable after `sync` of its folder, and a crash before that may lose or tear either. The simulated disk
takes every liberty this leaves; so code that survives there survives here. `save` is the one safe way
to replace a file: write beside it, sync, rename, sync the folder.

Paths are relative, with forward slashes ("rounds/12/result").
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from atoll.errors import LocalError

T = TypeVar("T")


class Disk(Protocol):
    """One peer's durable folder. Missing files raise `FileNotFoundError`; a full disk raises `LocalError`."""

    async def read(self, path: str, first: int = 0, count: int | None = None) -> bytes:
        """Return a file's bytes, or `count` of them from byte `first` on: fewer where the file ends before."""

    async def size(self, path: str) -> int:
        """Return how long a file is."""

    async def write(self, path: str, data: bytes | memoryview, *, append: bool = False) -> None:
        """Put `data` at `path` (parents are made); durable only after `sync(path)`."""

    async def sync(self, path: str) -> None:
        """Make a file's bytes, or a folder's names (path ending in "/"; "/" is the whole folder), durable."""

    async def rename(self, old: str, new: str) -> None: ...

    async def remove(self, path: str) -> None:
        """Delete a file, or a whole folder."""

    async def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty when there is none."""


async def save(disk: Disk, path: str, data: bytes) -> None:
    """Replace the file at `path` so that a crash leaves either the old bytes or the new."""
    await disk.write(path + ".new", data)
    await put_in_place(disk, path + ".new", path)


async def put_in_place(disk: Disk, beside: str, path: str) -> None:
    """Put a file that was written beside the one at `path` in its place, durably."""
    await disk.sync(beside)
    await disk.rename(beside, path)
    await disk.sync(path.rpartition("/")[0] + "/")


class FileDisk:
    """The real disk: a folder of this machine, touched only in worker threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ready: set[Path] = set()

    async def read(self, path: str, first: int = 0, count: int | None = None) -> bytes:
        def get() -> bytes:
            with (self.root / path).open("rb") as file:
                file.seek(first)
                return file.read() if count is None else file.read(count)

        return await self._off_loop(get)

    async def size(self, path: str) -> int:
        return await self._off_loop(lambda: (self.root / path).stat().st_size)

    async def write(self, path: str, data: bytes | memoryview, *, append: bool = False) -> None:
        def put() -> None:
            nonlocal data
            target = self.root / path
            self._make(target.parent)
            with target.open("ab" if append else "wb") as file:
                file.write(data)
            data = b""  # a worker thread keeps what it last ran until it has something else to run

        await self._off_loop(put)

    async def sync(self, path: str) -> None:
        def flush() -> None:
            if path.endswith("/") and os.name == "nt":
                return  # Windows makes names durable by itself and cannot open a folder
            _sync(self.root / path.strip("/"))

        await self._off_loop(flush)

    async def rename(self, old: str, new: str) -> None:
        def move() -> None:
            self._ready.clear()
            self._make((self.root / new).parent)
            os.replace(self.root / old, self.root / new)

        await self._off_loop(move)

    async def remove(self, path: str) -> None:
        def clear() -> None:
            self._ready.clear()
            _remove(self.root / path)

        await self._off_loop(clear)

    async def names(self, folder: str) -> list[str]:
        def look() -> list[str]:
            target = self.root / folder
            return sorted(entry.name for entry in target.iterdir()) if target.is_dir() else []

        return await self._off_loop(look)

    def _make(self, folder: Path) -> None:
        """Create a folder and make its name durable, once."""
        if folder not in self._ready:
            folder.mkdir(parents=True, exist_ok=True)
            if os.name != "nt":
                _sync(folder.parent)
            self._ready.add(folder)

    async def _off_loop(self, call: Callable[[], T]) -> T:
        work = asyncio.ensure_future(asyncio.to_thread(call))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])  # a thread cannot be stopped: leave no write behind that goes on by itself
            raise
        except OSError as error:
            if is_full(error):
                raise full(self.root, error, "everything saved before is intact") from error
            raise


def is_full(error: OSError) -> bool:
    """Return whether there is no room for what was to be written."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def full(folder: Path, error: OSError, solace: str) -> LocalError:
    """Return what to tell a person whose disk is full."""
    hint = f"free some space and start again: {solace}"
    return LocalError(f"{folder}: the disk is full ({error.strerror})", hint=hint)


def _sync(target: Path) -> None:
    handle = os.open(target, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(target: Path) -> None:
    if target.is_dir():
        for child in target.iterdir():
            _remove(child)
        target.rmdir()
    else:
        target.unlink(missing_ok=True)
