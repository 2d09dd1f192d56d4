"""Follow journal files while they are written.

Peers of one machine write below one folder (`HOME/peers/*/journal.jsonl`); files appear as peers start. Only whole
lines are read, so a line caught half-written is read when it is whole. A line that is no event of this version is
counted and passed over: a view must not die of a newer peer.
"""

from __future__ import annotations

import heapq
from pathlib import Path

from atoll.errors import LocalError
from atoll.journal import Line, parse


class Tail:
    """New lines of every journal below a folder, or of one journal file."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._read_bytes: dict[Path, int] = {}
        self.unknown = 0
        """Lines that were no event of this version."""

    def files(self) -> list[Path]:
        """Return the journals there are now."""
        if self._home.is_file():
            return [self._home]
        return sorted([*self._home.glob("journal.jsonl"), *self._home.glob("peers/*/journal.jsonl")])

    def lines(self) -> list[Line]:
        """Return what was written since the last call, oldest first."""
        fresh = [self._lines_of(file) for file in self.files()]
        return list(heapq.merge(*fresh, key=lambda line: line.at_s))  # keeps each file's own order

    def _lines_of(self, file: Path) -> list[Line]:
        """Return the new lines of one file."""
        start = self._read_bytes.get(file, 0)
        try:
            if file.stat().st_size < start:  # replaced by a shorter one: begin again
                start = 0
            with file.open("rb") as stream:
                stream.seek(start)
                data = stream.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes[file] = start + len(whole)
        return [line for raw in whole.splitlines() if (line := self._parse(raw)) is not None]

    def _parse(self, raw: bytes) -> Line | None:
        try:
            return parse(raw)
        except LocalError:
            self.unknown += 1
            return None
