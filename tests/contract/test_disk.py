"""One suite for both disks, and what only a simulated one can show: every crash, at every step."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from atoll.disk import Disk, FileDisk, save
from atoll.errors import LocalError
from atoll.sim.disk import Drive, SimDisk
from atoll.sim.loop import VirtualLoop

Check = Callable[[Disk], Awaitable[None]]
World = Callable[[Check], None]


@pytest.fixture(params=["file", "sim"])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Run a check on a fresh disk of each kind."""

    async def checked(check: Check, disk: Disk) -> None:
        await check(disk)

    def run(check: Check) -> None:
        if request.param == "file":
            asyncio.run(checked(check, FileDisk(tmp_path)))
        else:
            VirtualLoop().run(checked(check, SimDisk(Random(1))))

    return run


def test_what_is_written_can_be_read(on_disk: World) -> None:
    async def check(disk: Disk) -> None:
        await disk.write("a", b"one")
        await disk.write("deep/er/b", b"")
        assert await disk.read("a") == b"one"
        assert await disk.read("deep/er/b") == b""
        assert (await disk.size("a"), await disk.size("deep/er/b")) == (3, 0)

    on_disk(check)


def test_a_part_of_a_file_can_be_read(on_disk: World) -> None:
    async def check(disk: Disk) -> None:
        await disk.write("a", b"0123456789")
        assert await disk.read("a", 3) == b"3456789"
        assert await disk.read("a", 3, 4) == b"3456"
        assert await disk.read("a", 8, 4) == b"89"
        assert await disk.read("a", 20, 4) == b""
        assert await disk.read("a", 3, 0) == b""
        with pytest.raises(FileNotFoundError):
            await disk.read("none", 3, 4)

    on_disk(check)


def test_writing_replaces_and_appending_adds(on_disk: World) -> None:
    async def check(disk: Disk) -> None:
        await disk.write("a", b"one and more")
        await disk.write("a", b"two")
        await disk.write("a", b"three", append=True)
        await disk.write("new", b"four", append=True)
        assert await disk.read("a") == b"twothree"
        assert await disk.read("new") == b"four"

    on_disk(check)


def test_a_missing_file_is_named(on_disk: World) -> None:
    async def check(disk: Disk) -> None:
        for work in (
            disk.read("none"),
            disk.size("none"),
            disk.sync("none"),
            disk.rename("none", "other"),
            disk.sync("none/"),
        ):
            with pytest.raises(FileNotFoundError):
                await work

    on_disk(check)


def test_names_are_sorted_and_a_missing_folder_is_empty(on_disk: World) -> None:
    async def check(disk: Disk) -> None:
        for path in ("c", "a", "rounds/2/x", "rounds/10/y", "rounds/notes"):
            await disk.write(path, b"")
        assert await disk.names("rounds") == ["10", "2", "notes"]
        assert await disk.names("rounds/") == ["10", "2", "notes"]
        assert await disk.names("rounds/2") == ["x"]
        assert await disk.names("nowhere") == []
        assert {"a", "c", "rounds"} <= set(await disk.names(""))

    on_disk(check)


def test_a_rename_replaces_its_target(on_disk: World) -> None:
    async def check(disk: Disk) -> None:
        await disk.write("a", b"new")
        await disk.write("b", b"old")
        await disk.rename("a", "b")
        await disk.rename("b", "deep/c")
        assert await disk.names("") == ["deep"]
        assert await disk.read("deep/c") == b"new"

    on_disk(check)


def test_a_folder_can_be_renamed(on_disk: World) -> None:
    async def check(disk: Disk) -> None:
        await disk.write("from/in/a", b"1")
        await disk.write("from/b", b"2")
        await disk.rename("from", "to")
        assert await disk.read("to/in/a") == b"1"
        assert await disk.names("to") == ["b", "in"]
        assert await disk.names("from") == []
        await disk.write("more/c", b"3")
        with pytest.raises(OSError, check=lambda error: error.errno in (errno.ENOTEMPTY, errno.EEXIST)):
            await disk.rename("more", "to")

    on_disk(check)


def test_removing_takes_files_and_folders_and_forgives_the_missing(on_disk: World) -> None:
    async def check(disk: Disk) -> None:
        for path in ("a", "rounds/1/x", "rounds/1/deep/y", "rounds/11/z"):
            await disk.write(path, b"")
        for path in ("a", "rounds/1", "never"):
            await disk.remove(path)
        assert await disk.names("") == ["rounds"]
        assert await disk.names("rounds") == ["11"]
        await disk.write("rounds/1/x", b"again")
        assert await disk.names("rounds/1") == ["x"]

    on_disk(check)


def test_save_replaces_a_file(on_disk: World) -> None:
    async def check(disk: Disk) -> None:
        for data in (b"one", b"two"):
            await save(disk, "state/log", data)
            assert await disk.read("state/log") == data
            assert await disk.names("state") == ["log"]

    on_disk(check)


def test_reading_a_folder_is_an_error(on_disk: World) -> None:
    async def check(disk: Disk) -> None:
        await disk.write("folder/a", b"")
        with pytest.raises(OSError, check=lambda error: error.errno in (errno.EISDIR, errno.EACCES)):
            await disk.read("folder")

    on_disk(check)


# What only the simulated disk shows


def _in_time(work: Awaitable[None]) -> float:
    loop = VirtualLoop()

    async def main() -> float:
        await work
        return loop.time()

    return loop.run(main())


class _Crashed(Exception):
    pass


class _Doomed:
    """A disk whose power goes after so many operations."""

    def __init__(self, disk: SimDisk, operations: int) -> None:
        self._disk = disk
        self.left = operations

    def _step(self) -> None:
        if self.left == 0:
            raise _Crashed
        self.left -= 1

    async def read(self, path: str, first: int = 0, count: int | None = None) -> bytes:
        self._step()
        return await self._disk.read(path, first, count)

    async def size(self, path: str) -> int:
        self._step()
        return await self._disk.size(path)

    async def write(self, path: str, data: bytes | memoryview, *, append: bool = False) -> None:
        self._step()
        await self._disk.write(path, data, append=append)

    async def sync(self, path: str) -> None:
        self._step()
        await self._disk.sync(path)

    async def rename(self, old: str, new: str) -> None:
        self._step()
        await self._disk.rename(old, new)

    async def remove(self, path: str) -> None:
        self._step()
        await self._disk.remove(path)

    async def names(self, folder: str) -> list[str]:
        self._step()
        return await self._disk.names(folder)


async def _try(work: Awaitable[None]) -> bool:
    """Say whether the work got through before the power went."""
    try:
        await work
    except _Crashed:
        return False
    return True


def test_save_is_all_or_nothing_at_every_crash() -> None:
    seen = set()

    async def main() -> None:
        for operations in range(6):
            for seed in range(200):
                disk = SimDisk(Random(seed))
                await save(disk, "state/log", b"old bytes")
                saved = await _try(save(_Doomed(disk, operations), "state/log", b"the new bytes"))
                disk.crash()
                after = await disk.read("state/log")
                assert after == b"the new bytes" if saved else after in (b"old bytes", b"the new bytes")
                seen.add((operations, after))

    _in_time(main())
    # The rename is done but its folder is not synced: both ends must occur, or the disk is too kind.
    assert {(3, b"old bytes"), (3, b"the new bytes"), (4, b"the new bytes")} <= seen


def test_the_first_save_leaves_nothing_or_all() -> None:
    async def main() -> None:
        for operations in range(6):
            for seed in range(100):
                disk = SimDisk(Random(seed))
                saved = await _try(save(_Doomed(disk, operations), "state/log", b"bytes"))
                disk.crash()
                if saved or "log" in await disk.names("state"):
                    assert await disk.read("state/log") == b"bytes"

    _in_time(main())


async def _after_crashes(prepare: Check, look: Callable[[Disk], Awaitable[object]], seeds: int = 200) -> set[object]:
    """Return all that a crash after `prepare` may leave."""
    seen = set()
    for seed in range(seeds):
        disk = SimDisk(Random(seed))
        await prepare(disk)
        disk.crash()
        seen.add(await look(disk))
    return seen


async def _content(disk: Disk) -> object:
    return await disk.read("a") if "a" in await disk.names("") else None


def test_unsynced_appends_are_lost_or_torn_but_what_was_synced_stays() -> None:
    async def prepare(disk: Disk) -> None:
        await save(disk, "a", b"base")
        await disk.write("a", b"tail", append=True)

    async def main() -> None:
        seen = await _after_crashes(prepare, _content)
        assert seen == {b"base" + b"tail"[:kept] for kept in range(5)}

    _in_time(main())


def test_a_synced_append_stays() -> None:
    async def prepare(disk: Disk) -> None:
        await save(disk, "a", b"base")
        for _ in range(3):
            await disk.write("a", b"+", append=True)
            await disk.sync("a")

    async def main() -> None:
        assert await _after_crashes(prepare, _content) == {b"base+++"}

    _in_time(main())


def test_overwriting_in_place_can_lose_both_old_and_new() -> None:
    async def prepare(disk: Disk) -> None:
        await save(disk, "a", b"old")
        await disk.write("a", b"new")

    async def main() -> None:
        assert await _after_crashes(prepare, _content) == {b"old", b"", b"n", b"ne", b"new"}

    _in_time(main())


def test_a_synced_file_without_a_synced_name_may_be_gone() -> None:
    async def prepare(disk: Disk) -> None:
        await disk.write("a", b"bytes")
        await disk.sync("a")

    async def main() -> None:
        assert await _after_crashes(prepare, _content) == {None, b"bytes"}

    _in_time(main())


def test_a_name_without_synced_bytes_may_be_empty() -> None:
    async def prepare(disk: Disk) -> None:
        await save(disk, "a", b"old")
        await disk.write("a.new", b"new")
        await disk.rename("a.new", "a")
        await disk.sync("/")

    async def main() -> None:
        assert b"" in await _after_crashes(prepare, _content)

    _in_time(main())


def test_an_unsynced_removal_may_come_undone_and_a_synced_one_not() -> None:
    async def prepare(disk: Disk) -> None:
        await save(disk, "rounds/1/x", b"")
        await save(disk, "rounds/2/x", b"")
        await disk.write("rounds/2/unsynced", b"")
        await disk.remove("rounds/2")
        await disk.sync("rounds/")
        await disk.remove("rounds/1")

    async def look(disk: Disk) -> object:
        return tuple(await disk.names("rounds"))

    async def main() -> None:
        assert await _after_crashes(prepare, look) == {(), ("1",)}

    _in_time(main())


def test_a_disk_works_on_after_a_crash() -> None:
    async def main() -> None:
        for seed in range(50):
            disk = SimDisk(Random(seed))
            for number in range(5):
                await save(disk, "log", b"%d" % number)
                await disk.write("scratch", b"unsynced")
                disk.crash()
                assert await disk.read("log") == b"%d" % number

    _in_time(main())


def test_a_full_disk_is_this_machines_problem() -> None:
    async def main() -> None:
        disk = SimDisk(Random(1), Drive(capacity_bytes=100))
        await disk.write("a", bytes(60))
        with pytest.raises(LocalError, match="full"):
            await disk.write("b", bytes(60))
        await disk.remove("b")
        await disk.write("b", bytes(40))
        assert await disk.read("a") == bytes(60)

    _in_time(main())


def test_time_passes_as_the_drive_says() -> None:
    async def work(disk: SimDisk) -> None:
        await disk.write("a", bytes(1000))
        await disk.sync("a")

    drive = Drive(write_bytes_s=1000.0, sync_s=0.5)
    disk = SimDisk(Random(1), drive)
    assert _in_time(work(disk)) == pytest.approx(1.0 + 0.5 + 1.0)
    slow = SimDisk(Random(1), drive)
    slow.slow = 10.0
    assert _in_time(work(slow)) == pytest.approx(25.0)


def test_a_crash_in_the_middle_of_a_sync_is_a_crash_before_it() -> None:
    loop = VirtualLoop()
    disk = SimDisk(Random(4), Drive(sync_s=1.0))

    async def life() -> None:
        await disk.write("a", b"bytes")
        await disk.sync("a")
        await disk.sync("/")

    async def main() -> None:
        process = loop.incarnation("p")
        process.watch(crash=disk.crash)
        process.start(life())
        await asyncio.sleep(0.5)
        process.crash()
        await asyncio.sleep(10)
        seen = await _content(disk)
        assert seen is None or b"bytes".startswith(seen)  # type: ignore[arg-type]

    loop.run(main())
