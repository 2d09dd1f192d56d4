"""The simulated disk under any order of operations: what was made durable stays, whatever chance does to the rest."""

from __future__ import annotations

import contextlib
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as some

from atoll.sim.disk import SimDisk
from atoll.sim.loop import VirtualLoop

PATHS = ["a", "b", "x/a", "x/b", "x/y/a"]
FOLDERS = ["/", "x/", "x/y/"]

Operation = tuple[str, str, str]

operations = some.lists(
    some.one_of(
        some.tuples(some.sampled_from(["write", "append", "sync", "remove"]), some.sampled_from(PATHS), some.just("")),
        some.tuples(some.just("rename"), some.sampled_from(PATHS), some.sampled_from(PATHS)),
        some.tuples(some.just("sync"), some.sampled_from(FOLDERS), some.just("")),
        some.tuples(some.just("remove"), some.sampled_from(["x", "x/y"]), some.just("")),
    ),
    max_size=25,
)


async def _do(disk: SimDisk, operation: Operation, data: bytes) -> None:
    kind, path, other = operation
    with contextlib.suppress(OSError):  # a missing file is the caller's affair
        match kind:
            case "write" | "append":
                await disk.write(path, data, append=kind == "append")
            case "sync":
                await disk.sync(path)
            case "rename":
                await disk.rename(path, other)
            case _:
                await disk.remove(path)


async def _all(disk: SimDisk) -> dict[str, bytes]:
    """Return every file there is."""
    found = {}
    for path in PATHS:
        with contextlib.suppress(OSError):
            found[path] = await disk.read(path)
    return found


async def _sync_all(disk: SimDisk) -> None:
    for path in [*PATHS, *FOLDERS]:
        with contextlib.suppress(OSError):
            await disk.sync(path)


MADE_ANEW: list[Operation] = [("write", "x/y/a", ""), ("remove", "x", ""), ("write", "x/y/a", ""), ("sync", "x/y/", "")]


@settings(max_examples=150)
@given(operations, operations, some.integers(0, 2**16))
@example(MADE_ANEW, [], 0)
def test_all_that_was_synced_is_there_after_a_crash(before: list[Operation], after: list[Operation], seed: int) -> None:
    async def main() -> None:
        disk = SimDisk(Random(seed))
        for number, operation in enumerate(before):
            await _do(disk, operation, b"<%d>" % number)
        await _sync_all(disk)
        kept = await _all(disk)
        touched = set()
        for number, operation in enumerate(after):
            if operation[0] != "sync":
                touched |= {path for path in PATHS for name in operation[1:] if name and path.startswith(name)}
            await _do(disk, operation, b"[%d]" % number)
        disk.crash()
        left = await _all(disk)
        for path in PATHS:
            if path not in touched:
                assert left.get(path) == kept.get(path), path

    VirtualLoop().run(main())


@settings(max_examples=150)
@given(operations, some.integers(0, 2**16))
def test_what_a_crash_leaves_is_durable_from_then_on(done: list[Operation], seed: int) -> None:
    async def main() -> None:
        disk = SimDisk(Random(seed))
        for number, operation in enumerate(done):
            await _do(disk, operation, b"<%d>" % number)
        disk.crash()
        left = await _all(disk)
        disk.crash()
        assert await _all(disk) == left

    VirtualLoop().run(main())
