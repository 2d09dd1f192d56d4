"""What a journal tells about samples, read as plain JSON.

The audit must not trust the code it judges, so the few events it needs are declared here once more, from what a line
looks like and not from those who write it. Other events are passed over. A line that a crash cut off is passed over
too and said; anything else that is no journal line is an error with its file and line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from atoll.errors import LocalError, SpecError

Count = Annotated[int, Meta(ge=0, le=2**48)]
Ranges = tuple[tuple[Count, Count], ...]
T = TypeVar("T")
CHARS_MAX = 120
"""Of what a file holds, in an error."""


class Announced(Struct, frozen=True, tag="round_announced", tag_field="kind"):
    """Leases were handed out for a version."""

    channel: str
    version: Count
    members: tuple[str, ...]
    samples: Count
    handed: Ranges = ()
    ahead: Ranges = ()
    """Set apart for the next version."""


class Leased(Struct, frozen=True, tag="lease_taken", tag_field="kind"):
    """The writer of the journal began to work on its own lease."""

    channel: str
    version: Count
    ranges: Ranges


class Voided(Struct, frozen=True, tag="round_voided", tag_field="kind"):
    """A try at a version was given up."""

    channel: str
    version: Count
    returned: Ranges = ()


class Committed(Struct, frozen=True, tag="round_committed", tag_field="kind"):
    """A version came to be."""

    channel: str
    version: Count
    contributors: tuple[str, ...]
    samples: Count
    tokens: Count
    result: str
    counted: Ranges = ()
    returned: Ranges = ()
    carried: Ranges = ()
    """Kept by who works on: handed out again for the next version."""


class Finished(Struct, frozen=True, tag="run_finished", tag_field="kind"):
    """The run's own sum."""

    version: Count
    samples: Count
    tokens: Count


class Started(Struct, frozen=True, tag="peer_started", tag_field="kind"):
    """A life of the writer began."""

    run: str


OfRound = Announced | Leased | Voided | Committed
Told = OfRound | Finished | Started
_KINDS = {"round_announced", "lease_taken", "round_voided", "round_committed", "run_finished", "peer_started"}


class _Line(Struct, frozen=True):
    peer: str
    event: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.event.get("kind"))


class _Shard(Struct, frozen=True):
    split: str
    tokens: Count


class _Manifest(Struct, frozen=True):
    shards: tuple[_Shard, ...]


@dataclass(frozen=True)
class Book:
    """What one journal tells about samples, in its order."""

    path: Path
    peer: str
    told: tuple[Told, ...]
    torn: tuple[int, ...] = ()
    """Lines that a crash cut off."""

    def all(self, kind: type[T]) -> list[T]:
        return [each for each in self.told if isinstance(each, kind)]

    @cached_property
    def rounds(self) -> dict[int, list[OfRound]]:
        """What it tells of each round, in its order."""
        found: dict[int, list[OfRound]] = {}
        for each in self.told:
            if not isinstance(each, Finished | Started):
                found.setdefault(each.version, []).append(each)
        return found

    @cached_property
    def facts(self) -> set[tuple[str, int]]:
        """Beginnings and ends of rounds that it tells of."""
        told = [each for each in self.told if isinstance(each, Announced | Committed)]
        return {(type(each).__name__, each.version) for each in told}

    @cached_property
    def versions(self) -> set[int]:
        """Rounds that it tells of."""
        return {version for _, version in self.facts}


OfLog = Announced | Voided | Committed


def in_order(one: Book, other: Book) -> list[OfLog]:
    """Return what two journals tell of the log, each thing once, in the order of both.

    Where one tells something that the other missed, and the other likewise, the lower version comes first; where they
    contradict each other, what the one with more still to tell says.
    """
    sides = [dict.fromkeys(each for each in book.told if isinstance(each, OfLog)) for book in (one, other)]
    merged: list[OfLog] = []
    while any(sides):
        heads = [next(iter(side)) for side in sorted(sides, key=len, reverse=True) if side]
        free = [head for head in heads if all(head not in side or head == next(iter(side)) for side in sides)]
        first = min(free or heads, key=lambda each: each.version)
        merged.append(first)
        for side in sides:
            side.pop(first, None)
    return merged


_HINT = "give the journal.jsonl of one peer, or its folder (HOME/peers/*)"


def read_book(path: Path) -> Book:
    """Return what a journal file, or the one in a peer's folder, tells; raises errors that name file and line."""
    path = path / "journal.jsonl" if path.is_dir() else path
    return parse_book(_bytes_of(path, _HINT), path)


def parse_book(data: bytes, path: Path) -> Book:
    """Return what the bytes of a journal tell; `path` names them in errors."""
    lines = data.split(b"\n")
    told, torn, peers = [], [], set()
    for number, raw in enumerate(lines, start=1):
        line = _line(raw)
        if line is None and raw:
            torn.append(number)
            line = _line(raw[raw.rfind(b'{"at_s":') :])  # the next life wrote on behind what a crash had cut off
            if line is None and number < len(lines):
                what = clip(raw.decode(errors="replace"))
                raise LocalError(f"{path}: line {number}: not a journal line: {what!r}", hint=_HINT)
        if line is None:
            continue
        peers.add(line.peer)
        if line.kind in _KINDS:
            told.append(_told(line.event, f"{path}: line {number}"))
    if len(peers) != 1:
        whose = "nobody's: it is empty" if not peers else f"of {len(peers)}: {clip(', '.join(sorted(peers)))}"
        raise LocalError(f"{path}: one peer's journal is needed, this one is {whose}", hint=_HINT)
    return Book(path, peers.pop(), tuple(told), tuple(torn))


def _line(raw: bytes) -> _Line | None:
    try:
        return msgspec.json.decode(raw, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _told(event: dict[str, Any], where: str) -> Told:
    hint = "the journal was edited or written by another version of Atoll: use the `atoll` that wrote it"
    try:
        told: Told = msgspec.convert(event, Told)
    except msgspec.ValidationError as error:
        raise LocalError(f"{where}: {event['kind']}: {clip(str(error))}", hint=hint) from error
    silent = (isinstance(told, Announced) and not told.handed) or (isinstance(told, Committed) and not told.counted)
    if silent and told.samples:  # type: ignore[union-attr]
        raise LocalError(f"{where}: {event['kind']}: {told.samples} samples, but not which ones", hint=hint)  # type: ignore[union-attr]
    return told


def read_train_tokens(path: Path) -> int:
    """Return how many tokens a data manifest says the training split has, summed over its shards."""
    path = path / "manifest.json" if path.is_dir() else path
    hint = "give the folder that `atoll data prepare` made, or its manifest.json"
    try:
        manifest = msgspec.json.decode(_bytes_of(path, hint), type=_Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LocalError(f"{path}: not a data manifest: {clip(str(error))}", hint=hint) from error
    return sum(shard.tokens for shard in manifest.shards if shard.split == "train")


def _bytes_of(path: Path, hint: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file", hint=hint) from None
    except OSError as error:
        raise LocalError(f"{path}: cannot be read ({error.strerror})", hint="check the file's permissions") from error


def clip(text: str) -> str:
    """Return the beginning of a text that may be of any length."""
    return text if len(text) <= CHARS_MAX else text[: CHARS_MAX - 3] + "..."
