"""How messages lie in a byte stream: four bytes of length, then the message; a mark says "no more".

    | 00 00 00 05 | hello | 00 00 00 00 | | ff ff ff ff |
        length      message   (empty one)     end mark

QUIC ends a stream cleanly also when its owner was killed or forgot it, so an end counts only after the
mark; without it the stream was cut. The inbox says how much it lacks, so that whoever feeds it need not wake up
for every piece that comes, and keeps what it has until a message is whole: that makes a cancelled `recv` harmless.
"""

from __future__ import annotations

import struct
from collections import deque

LENGTH_BYTES = 4
_TOGETHER_BYTES = 16 * 1024
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


class Pieces:
    """Bytes in the pieces in which they came."""

    def __init__(self) -> None:
        self._pieces: deque[bytes | bytearray] = deque()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, piece: bytes) -> None:
        """Keep a piece; small ones together, or each would take many times its size."""
        last = self._pieces[-1] if self._pieces else b""
        if isinstance(last, bytearray) and len(last) + len(piece) <= _TOGETHER_BYTES:
            last += piece
        else:
            self._pieces.append(bytearray(piece) if len(piece) < _TOGETHER_BYTES // 4 else piece)
        self._size += len(piece)

    def take(self, limit: int) -> bytes:
        """Return as much as there is, up to a limit: what came in small pieces is handed on in one."""
        taken, room = [], limit
        while self._pieces and room:
            piece = self._pieces.popleft()
            if len(piece) > room:
                self._pieces.appendleft(piece[room:])
                piece = piece[:room]
            taken.append(piece)
            room -= len(piece)
        self._size -= limit - room
        return bytes(taken[0]) if len(taken) == 1 else b"".join(taken)

    def clear(self) -> None:
        self._pieces.clear()
        self._size = 0


class Inbox:
    """The message that is coming in: first its length, then itself."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._lacks = LENGTH_BYTES
        self._length: int | None = None

    @property
    def lacks(self) -> int:
        """How many bytes may be fed now."""
        return self._lacks

    @property
    def begun(self) -> bool:
        """Whether some of a message, or of the end mark, is here."""
        return self._length is not None or bool(self._pieces)

    @property
    def ended(self) -> bool:
        """Whether the end mark came."""
        return self._length == _END

    def feed(self, piece: bytes) -> None:
        """Add bytes as they came, not more than are lacking."""
        assert len(piece) <= self._lacks, "a message is fed no more than it lacks"
        self._pieces.append(piece)
        self._lacks -= len(piece)
        if self._length is None and not self._lacks:
            self._length = _LENGTH.unpack(self._joined())[0]
            self._lacks = 0 if self.ended else self._length

    def pop(self, limit: int) -> bytes | None:
        """Take out the message if it is whole; raises `TooLong` or `Ended` and then takes nothing."""
        if self._length is None:
            return None
        if self.ended:
            raise Ended
        if self._length > limit:
            raise TooLong(f"a message of {self._length} bytes is over the limit of {limit}")
        if self._lacks:
            return None
        self._length, self._lacks = None, LENGTH_BYTES
        return self._joined()

    def _joined(self) -> bytes:
        """Take out what came; a copy is made only of what came in pieces."""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
