"""Points in a peer's life that a fault can be tied to: each send by kind of message, each sync by kind of file.

    send:control/hello    the message with tag "hello" on a stream with tag "control"
    fsync:results         a file in the folder results; `fsync:results/` is the folder itself, `fsync:/` the root

A pattern may leave the stream's tag out ("send:hello"), or the message's ("send:part/"), or everything after the
colon ("send:", "fsync:": any).
A machine has no points unless somebody looks: then sends and syncs cost one comparison with None.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Literal

When = Literal["before", "after"]
Hear = Callable[[str, bytes, bool], None]
"""Told of each message: the stream's tag, the bytes, and whether they open the stream."""


def message_kind(stream: str, message: bytes) -> str:
    """Return the kind of a wire message, `stream/tag`: read off its first bytes, without decoding it."""
    return f"{stream}/{_tag(message) or 'raw'}"


def _tag(message: bytes) -> str:
    """Return the tag of a record in msgpack after one version byte: a map that begins with it, or a list."""
    if len(message) < 3:
        return ""
    head = message[1]
    if 0x80 < head <= 0x8F or head == 0xDE:
        at = 2 if head != 0xDE else 4
        name = _text(message, at)
        return _text(message, at + 1 + len(name)) if name in ("type", "kind") else ""
    return _text(message, 2) if 0x90 < head <= 0x9F else ""


def _text(message: bytes, at: int) -> str:
    """Return the short text at a place of a msgpack message, or nothing."""
    if at >= len(message) or not 0xA0 < message[at] <= 0xBF:
        return ""
    text = message[at + 1 : at + 1 + (message[at] & 0x1F)]
    return text.decode("ascii") if text.isascii() else ""


def file_kind(path: str) -> str:
    """Return the kind of a file: its folder, or its name without endings; of a folder, its name with the slash."""
    if path.endswith("/") or not path:
        return path.strip("/").partition("/")[0] + "/"
    first, slash, _ = path.partition("/")
    return first if slash else first.partition(".")[0]


def fits(pattern: str, what: str) -> bool:
    """Return whether a pattern names a point: wholly, by stream or message alone, or by `send:` or `fsync:` alone."""
    sort, _, kind = what.partition(":")
    if pattern in (what, f"{sort}:"):
        return True
    stream, _, tag = kind.partition("/")
    return sort == "send" and pattern in (f"send:{tag}", f"send:{stream}/")


class Trap:
    """Something that happens at the `nth` point that fits, once."""

    def __init__(self, pattern: str, when: When, nth: int, spring: Callable[[], None]) -> None:
        self.pattern = pattern
        self.when = when
        self.left = nth
        self.spring = spring


class Points:
    """What looks at one machine's sends and syncs; outlives its processes, as the machine does."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        """How often each point was reached."""
        self.hear: Hear | None = None
        self.lies: list[str] = []
        """Patterns of what is sent with its second half overwritten."""
        self._traps: list[Trap] = []

    def set(self, trap: Trap) -> None:
        self._traps.append(trap)

    def clear(self, trap: Trap) -> None:
        """Take a trap away, sprung or not."""
        if trap in self._traps:
            self._traps.remove(trap)

    def sends(self, stream: str, message: bytes, opens: bool) -> str:
        """Return the point that a message is about to be."""
        if self.hear is not None:
            self.hear(stream, message, opens)
        what = f"send:{message_kind(stream, message)}"
        self.seen[what] += 1
        return what

    def said(self, what: str, message: bytes) -> bytes:
        """Return what is really sent: the message, or a lie of the same length."""
        if self.lies and any(fits(pattern, what) for pattern in self.lies):
            return message[: len(message) // 2] + b"\xff" * (len(message) - len(message) // 2)
        return message

    def syncs(self, path: str) -> str:
        """Return the point that a sync is about to be."""
        what = f"fsync:{file_kind(path)}"
        self.seen[what] += 1
        return what

    async def reach(self, when: When, what: str, last: Callable[[], None] | None = None) -> None:
        """Go past a point; where a trap springs, `last` is called first and this never returns."""
        for trap in self._traps:
            if trap.when == when and fits(trap.pattern, what):
                trap.left -= 1
                if trap.left == 0:
                    if last is not None:
                        last()
                    trap.spring()
                    await asyncio.get_running_loop().create_future()  # the process is dead: it never runs again
