"""The simulated disk: keeps what was synced, and takes every liberty with the rest.

There are two views of a peer's folder. The present one is what the running process sees. The durable one changes
only by `sync`: of a file, its bytes; of a folder, the names in it. A crash brings the durable view back and decides
about everything unsynced by chance: mostly all of it is lost, sometimes each change of a name is kept or lost on
its own and bytes are torn. So "rename without sync" really leaves an empty file now and then.

A crash never takes a folder away: making one is durable at once, as the contract's real disk means it to be.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from random import Random

from msgspec import Struct

from atoll.errors import LocalError
from atoll.sim.loop import VirtualLoop
from atoll.sim.points import Points

LOSE_ALL = 0.5
"""Part of the crashes that lose everything unsynced; the others decide case by case."""


class Drive(Struct, frozen=True, kw_only=True):
    """How fast and how large a simulated disk is."""

    write_bytes_s: float = 500e6
    read_bytes_s: float = 1e9
    sync_s: float = 0.002
    capacity_bytes: int = 2**62


class _Content:
    """The bytes of a file, as they were written: nothing is copied before it is read, and then once.

    Bytes never change, so what a process gives a disk need not be copied to be kept: worlds of real models are large.
    """

    __slots__ = ("_parts", "size")

    def __init__(self, data: bytes = b"") -> None:
        self._parts = [data]
        self.size = len(data)

    def add(self, data: bytes | memoryview) -> None:
        kept = bytes(data)  # of bytes that is no copy
        if self.size:
            self._parts.append(kept)
        else:
            self._parts = [kept]
        self.size += len(data)

    def first(self, count: int) -> bytes:
        """Return so many bytes from the beginning."""
        return self.whole()[:count]

    def whole(self) -> bytes:
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def cut(self, size: int) -> None:
        """Keep the first bytes only."""
        self._parts = [self.first(size)]
        self.size = size


class _File:
    """Bytes with a durable past: the first `base` bytes of `now`, or `old` since the file was overwritten."""

    __slots__ = ("base", "now", "old")

    def __init__(self) -> None:
        self.now = _Content()
        self.base = 0
        self.old: bytes | None = None

    def unsynced_bytes(self) -> int:
        return self.now.size - self.base

    def empty(self) -> None:
        """Begin to overwrite."""
        if self.old is None:
            self.old = self.now.first(self.base)
        self.now = _Content()
        self.base = 0

    def settle(self, synced: _Content, length: int) -> None:
        """Make the first `length` bytes of what was `now` when the sync began durable."""
        if synced is self.now:
            self.base = max(self.base, length)
            self.old = None
        else:
            self.old = synced.first(length)

    def crash(self, rng: Random | None) -> None:
        """Go back to the durable bytes, or (with `rng`) perhaps to a torn form of the present ones."""
        if rng is not None and rng.random() < 0.5:
            self.now.cut(rng.randint(self.base, self.now.size))
        elif self.old is not None:
            self.now = _Content(self.old)
        else:
            self.now.cut(self.base)
        self.base = self.now.size
        self.old = None


Names = dict[str, _File]


class _Change:
    """One unsynced change of names, as its effect on a view; `folder` must be synced to make it durable."""

    __slots__ = ("apply", "folder", "removed")

    def __init__(self, folder: str, apply: Callable[[Names], None], removed: str | None = None) -> None:
        self.folder = folder
        self.apply = apply
        self.removed = removed
        """The folder, removed since, in which it was."""


class SimDisk:
    """One peer's disk; it outlives the peer's crashes. The owner of the world calls `crash` at each."""

    def __init__(self, rng: Random, drive: Drive | None = None, *, name: str = "disk") -> None:
        self.slow = 1.0
        """How many times slower than the drive's own speed."""
        self.capacity_bytes = (drive or Drive()).capacity_bytes
        """May be lowered while running: that is how a disk fills up."""
        self.points: Points | None = None
        """Who looks at its syncs, if anybody does."""
        self._name = name
        self._rng = rng
        self._drive = drive or Drive()
        self._free_s = 0.0
        self._names: Names = {}
        self._durable: Names = {}
        self._changes: list[_Change] = []
        self._folders: dict[str, None] = {"": None}

    async def read(self, path: str, first: int = 0, count: int | None = None) -> bytes:
        _loop().check_open()
        data = self._file(path).now.whole()[first : None if count is None else first + count]
        await self._take_s(len(data) / self._drive.read_bytes_s)
        return data

    async def size(self, path: str) -> int:
        _loop().check_open()
        return self._file(path).now.size

    async def write(self, path: str, data: bytes | memoryview, *, append: bool = False) -> None:
        _loop().check_open()
        if path in self._folders:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        file = self._create(path)
        if not append:
            file.empty()
        room = max(0, self.capacity_bytes - self.used_bytes())
        file.now.add(data if len(data) <= room else data[:room])
        if room < len(data):
            raise LocalError(
                f"{self._name}: the disk is full",
                hint="free some space and start again: everything saved before is intact",
            )
        await self._take_s(len(data) / self._drive.write_bytes_s)

    async def sync(self, path: str) -> None:
        _loop().check_open()
        points = self.points
        what = points.syncs(path) if points is not None else ""
        if points is not None:
            await points.reach("before", what)
        if path.endswith("/") or path == "":
            await self._sync_folder(path.strip("/"))
        else:
            await self._sync_file(self._file(path))
        if points is not None:
            await points.reach("after", what)

    async def rename(self, old: str, new: str) -> None:
        _loop().check_open()
        if old in self._folders:
            self._rename_folder(old, new)
        else:
            file = self._file(old)
            if new in self._folders:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), new)
            self._make_folders(_parent(new))
            self._move({old: (new, file)}, _parent(old), _parent(new))
        await self._take_s(0.0)

    async def remove(self, path: str) -> None:
        _loop().check_open()
        gone = path.strip("/")
        parent = _parent(gone)
        # Names under a removed folder have no folder of their own left to sync: its parent's sync settles them.
        self._changes = [
            _Change(parent, change.apply, gone) if _within(change.folder, gone) else change for change in self._changes
        ]
        for name in [name for name in self._names if _within(name, gone)]:
            self._change(parent, lambda names, name=name: names.pop(name, None), gone)  # type: ignore[misc]
        for folder in [folder for folder in self._folders if _within(folder, gone)]:
            del self._folders[folder]
        await self._take_s(0.0)

    async def names(self, folder: str) -> list[str]:
        _loop().check_open()
        start = folder.strip("/") + "/" if folder.strip("/") else ""
        inside = [path for path in (*self._names, *self._folders) if path.startswith(start) and path != start]
        return sorted({path[len(start) :].partition("/")[0] for path in inside} - {""})

    def crash(self) -> None:
        """Lose power: only the durable view remains, and of the rest what chance keeps."""
        rng = None if self._rng.random() < LOSE_ALL else self._rng
        for change in self._changes:
            if rng is not None and rng.random() < 0.5:
                change.apply(self._durable)
        self._changes.clear()
        for file in self._durable.values():
            file.crash(rng)
        self._names = dict(self._durable)
        for path in self._names:
            self._make_folders(_parent(path))
        self._free_s = 0.0

    def files(self) -> dict[str, bytes]:
        """Return every present file: for those who look at a disk from outside."""
        return {path: file.now.whole() for path, file in sorted(self._names.items())}

    def file(self, path: str) -> bytes:
        """Return one present file, or nothing: for those who look from outside."""
        file = self._names.get(path)
        return file.now.whole() if file is not None else b""

    def durable(self, path: str) -> bytes:
        """Return what would be left of a file if the power went now and chance kept nothing."""
        file = self._durable.get(path)
        if file is None:
            return b""
        return file.now.first(file.base) if file.old is None else file.old

    def used_bytes(self) -> int:
        """Return how many bytes the present files have."""
        return sum(file.now.size for file in self._names.values())

    def _file(self, path: str) -> _File:
        if path in self._folders:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._names[path]

    def _create(self, path: str) -> _File:
        if path not in self._names:
            self._make_folders(_parent(path))
            file = _File()
            self._change(_parent(path), lambda names: names.__setitem__(path, file))
        return self._names[path]

    def _change(self, folder: str, apply: Callable[[Names], None], removed: str | None = None) -> None:
        """Change the present names, and remember how to change the durable ones."""
        apply(self._names)
        self._changes.append(_Change(folder, apply, removed))

    def _move(self, moves: dict[str, tuple[str, _File]], source: str, target: str) -> None:
        """Rename in one change within a folder; between two folders each keeps its half until it is synced."""

        def add(names: Names) -> None:
            names.update(dict(moves.values()))

        def drop(names: Names) -> None:
            for old in moves:
                names.pop(old, None)

        def both(names: Names) -> None:
            drop(names)
            add(names)

        if source == target:
            self._change(source, both)
        else:
            self._change(target, add)
            self._change(source, drop)

    def _rename_folder(self, old: str, new: str) -> None:
        if any(path.startswith(new + "/") for path in (*self._names, *self._folders)):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
        if new in self._names:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), new)
        self._make_folders(_parent(new))
        for folder in [folder for folder in self._folders if _within(folder, old)]:
            del self._folders[folder]
            self._folders[new + folder[len(old) :]] = None
        inside = {path: file for path, file in self._names.items() if path.startswith(old + "/")}
        self._changes = [_Change(_moved(change.folder, old, new), change.apply) for change in self._changes]
        self._move({path: (new + path[len(old) :], file) for path, file in inside.items()}, _parent(old), _parent(new))

    def _make_folders(self, folder: str) -> None:
        while folder not in self._folders:
            if folder in self._names:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
            self._folders[folder] = None
            # It is durable at once, so what happened to the one of its name before it is too.
            self._settle([change for change in self._changes if change.removed == folder])
            folder = _parent(folder)

    async def _sync_file(self, file: _File) -> None:
        """Make the bytes of this moment durable, once the time for it has passed."""
        synced, length = file.now, file.now.size
        await self._take_s(self._drive.sync_s + file.unsynced_bytes() / self._drive.write_bytes_s)
        file.settle(synced, length)

    async def _sync_folder(self, folder: str) -> None:
        if folder not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        due = [change for change in self._changes if change.folder == folder]
        await self._take_s(self._drive.sync_s)
        self._settle(due)

    def _settle(self, changes: list[_Change]) -> None:
        for change in changes:
            if change in self._changes:  # another sync of the same folder may have been faster
                change.apply(self._durable)
                self._changes.remove(change)

    async def _take_s(self, took_s: float) -> None:
        """Wait until the drive has done this after all that came before."""
        now_s = _loop().time()
        self._free_s = max(self._free_s, now_s) + took_s * self.slow
        if self._free_s > now_s:
            await asyncio.sleep(self._free_s - now_s)


def _loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "a simulated disk lives in virtual time"
    return loop


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _moved(path: str, old: str, new: str) -> str:
    return new + path[len(old) :] if _within(path, old) else path
