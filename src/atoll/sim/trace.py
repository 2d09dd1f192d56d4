"""The fingerprint of a simulated run: BLAKE3 over everything all peers wrote, in order, with the virtual time.

Two runs of one seed must give the same digest, in any process and on any day. Where they do not, something in
the peers listens to memory addresses, hash seeds or the real clock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from blake3 import blake3


class Trace:
    """Hashes journal lines as they are written."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.lines = 0
        self._now_s = now_s
        self._hash = blake3()

    def add(self, line: bytes) -> None:
        """Take one line, of whichever peer."""
        self.lines += 1
        self._hash.update(struct.pack("<dQ", self._now_s(), len(line)) + line)

    def digest(self) -> str:
        """Return the fingerprint so far, in hex."""
        return self._hash.hexdigest()
