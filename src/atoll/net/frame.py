"""How messages lie in a byte stream: four bytes of length, then the message; a mark says "no more".

    | 00 00 00 05 | hello | 00 00 00 00 | | ff ff ff ff |
        length      message   (empty one)     end mark

QUIC ends a stream cleanly also when its owner was killed or forgot it, so an end counts only after the
mark; without it the stream was cut. The inbox takes nothing out before a message is whole: that is
what makes a cancelled `recv` harmless.
"""

from __future__ import annotations

import struct

LENGTH_BYTES = 4
_LENGTH = struct.Struct(">I")
_END = 0xFFFFFFFF
END_MARK = _LENGTH.pack(_END)


class TooLong(Exception):
    """The next message is longer than its reader allows."""


class Ended(Exception):
    """The end mark was reached: no message follows."""


def header(message: bytes) -> bytes:
    """Return what goes before `message`."""
    return _LENGTH.pack(len(message))


class Inbox:
    """Received bytes on their way to becoming messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def feed(self, chunk: bytes) -> None:
        """Add bytes as they came."""
        self._bytes += chunk

    def clear(self) -> None:
        """Drop what came: nobody wants it."""
        self._bytes.clear()

    @property
    def ended(self) -> bool:
        """Whether the end mark is next."""
        return self._bytes.startswith(END_MARK)

    def pop(self, limit: int) -> bytes | None:
        """Take out the next message if it is whole; raises `TooLong` or `Ended` and then takes nothing."""
        if len(self._bytes) < LENGTH_BYTES:
            return None
        if self.ended:
            raise Ended
        length = self._length()
        if length > limit:
            raise TooLong(f"a message of {length} bytes is over the limit of {limit}")
        if len(self._bytes) < LENGTH_BYTES + length:
            return None
        with memoryview(self._bytes) as view:
            message = bytes(view[LENGTH_BYTES : LENGTH_BYTES + length])
        del self._bytes[: LENGTH_BYTES + length]
        return message

    def _length(self) -> int:
        length: int = _LENGTH.unpack_from(self._bytes)[0]
        return length
