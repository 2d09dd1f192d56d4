"""A round's result as a file: chunks in the order in which they came, then what is where.

    | chunk 4 | chunk 0 | chunk 7 | ... | digests and spans, msgpack | their length (4) |

So it can be written while it comes, and most of it is durable before the last chunk is here. A chunk that came again,
for another set of contributions, is in the file again; the spans name the last of each.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from blake3 import blake3
from msgspec import Struct

from atoll.disk import Disk, put_in_place
from atoll.swarm.log import result_root

WRITE_BYTES = 2 * 2**20
"""A result is written about so much at a time."""
SYNC_BYTES = 16 * 2**20
"""And made durable so often: at the end little is left that anybody has to wait for."""
_LENGTH_BYTES = 4


class Result(Struct, frozen=True):
    """What a round produced: encoded chunks and their digests, in the order of the grid."""

    digests: tuple[bytes, ...]
    chunks: tuple[bytes | memoryview, ...]

    def root(self) -> str:
        return result_root(self.digests)

    def sound(self) -> bool:
        """Return whether every chunk matches its digest."""
        pairs = zip(self.chunks, self.digests, strict=True)
        return len(self.chunks) == len(self.digests) and all(blake3(c).digest() == d for c, d in pairs)


class _Contents(Struct, frozen=True):
    """The end of a result file: of each chunk its digest, its first byte and its length."""

    digests: tuple[bytes, ...]
    spans: tuple[tuple[int, int], ...]


class Draft:
    """A result on its way to the disk."""

    def __init__(self, disk: Disk, path: str, beside: str) -> None:
        """`beside` is where it grows; an earlier one there is overwritten."""
        self._disk = disk
        self._path = path
        self._beside = beside
        self._spans: dict[int, tuple[int, int]] = {}
        self._waiting: list[bytes | memoryview] = []
        self._size = self._written = self._synced = 0

    async def add(self, chunks: Mapping[int, bytes | memoryview]) -> None:
        """Take in some chunks, and write what has come together once it is enough."""
        for index, chunk in chunks.items():
            self._spans[index] = (self._size, len(chunk))
            self._waiting.append(chunk)
            self._size += len(chunk)
        if self._size - self._written >= WRITE_BYTES:
            await self._write()
        if self._written - self._synced >= SYNC_BYTES:
            await self._disk.sync(self._beside)
            self._synced = self._written

    async def close(self, digests: tuple[bytes, ...]) -> None:
        """Write the rest and the contents, and put the file in its place, durably."""
        spans = tuple(self._spans[index] for index in range(len(digests)))
        contents = msgspec.msgpack.encode(_Contents(digests, spans))
        self._waiting += [contents, len(contents).to_bytes(_LENGTH_BYTES, "little")]
        self._size += len(contents) + _LENGTH_BYTES
        await self._write()
        await put_in_place(self._disk, self._beside, self._path)

    async def _write(self) -> None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        await self._disk.write(self._beside, data, append=self._written > 0)
        self._written = self._size


class ResultChunks:
    """A kept result, read chunk by chunk."""

    def __init__(self, disk: Disk, path: str, contents: _Contents) -> None:
        self.digests = contents.digests
        self._spans = contents.spans
        self._disk = disk
        self._path = path

    async def piece(self, index: int) -> bytes | None:
        """Return one chunk, or None when the result was dropped meanwhile."""
        try:
            return await self._disk.read(self._path, *self._spans[index])
        except FileNotFoundError:
            return None


async def find_chunks(disk: Disk, path: str) -> ResultChunks | None:
    """Return a way to read a result file chunk by chunk, or None when there is none or its end is damaged."""
    try:
        size = await disk.size(path)
        body = size - _LENGTH_BYTES - _contents_bytes(await disk.read(path, max(0, size - _LENGTH_BYTES)))
        contents = _contents(await disk.read(path, max(0, body), size - _LENGTH_BYTES - body), body)
    except FileNotFoundError:
        return None
    return None if contents is None else ResultChunks(disk, path, contents)


def sound_result(data: bytes) -> Result | None:
    """Return the result in a file, or None when it is damaged."""
    end = len(data) - _LENGTH_BYTES
    body = end - _contents_bytes(data[max(0, end) :])
    contents = _contents(data[max(0, body) : max(0, end)], body)
    if contents is None:
        return None
    view = memoryview(data)
    result = Result(contents.digests, tuple(view[first : first + size] for first, size in contents.spans))
    return result if result.sound() else None


def _contents_bytes(length: bytes) -> int:
    return int.from_bytes(length, "little")


def _contents(data: bytes, body: int) -> _Contents | None:
    """Return what a file with a body of so many bytes says of itself, if that can be."""
    if body < 0:
        return None
    try:
        contents = msgspec.msgpack.decode(data, type=_Contents)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    within = all(first >= 0 and size >= 0 and first + size <= body for first, size in contents.spans)
    alike = len(contents.digests) == len(contents.spans)
    return contents if within and alike and sum(size for _, size in contents.spans) <= body else None
