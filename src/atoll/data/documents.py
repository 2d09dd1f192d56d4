"""Where text comes from: plain files and JSON lines, read as a stream of documents.

A document is the unit that is held out as a whole and that an end token closes. Files may be compressed
(.gz, .xz); line ends and byte-order marks are evened out, so that a copy made on another system reads the same.
Reading twice gives the same documents in the same order: preparation makes several passes.
"""

from __future__ import annotations

import gzip
import io
import lzma
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TextIO, cast

import msgspec

from atoll.errors import SpecError

Split = Literal["file", "blank-lines"]
_PACKED = {".gz", ".xz"}
_KINDS = {".txt", ".jsonl"}


class Document(NamedTuple):
    """One text; documents of the same group are never parted by the held-out split."""

    text: str
    group: str = ""


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Which files to read, and how."""

    paths: tuple[Path, ...]
    split: Split = "file"
    """What a document of a .txt file is: the whole file, or what stands between blank lines."""
    text_key: str = "text"
    group_key: str = ""

    @property
    def size_bytes(self) -> int:
        """Return the size of all files as they lie on disk."""
        return sum(path.stat().st_size for path in self.paths)


def find(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files meant by `paths`: files as they are, folders as all text in them, sorted."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and _kind(file) in _KINDS)
            if not inside:
                raise SpecError(f"{path}: no .txt or .jsonl file in this folder", hint="name files or another folder")
            found += inside
        elif not path.is_file():
            raise SpecError(f"{path}: no such file", hint="check the path")
        elif _kind(path) not in _KINDS:
            raise SpecError(
                f"{path}: neither .txt nor .jsonl", hint='rename it, or convert it to JSON lines with a "text" key'
            )
        else:
            found.append(path)
    if not found:
        raise SpecError("no input files", hint="name at least one .txt or .jsonl file, or a folder")
    return tuple(found)


def read(inputs: Inputs, progress: Callable[[int], None] = lambda done_bytes: None) -> Iterator[Document]:
    """Yield every non-empty document; `progress` hears how many bytes of the files were read."""
    before_bytes = 0
    for path in inputs.paths:
        with _opened(path) as (lines, raw):
            try:
                for document in _documents(path, lines, inputs):
                    if document.text.strip():
                        yield document
                    progress(before_bytes + raw.tell())
            except UnicodeDecodeError as error:
                raise SpecError(f"{path}: not UTF-8 text ({error.reason})", hint="convert the file to UTF-8") from error
            except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
                raise SpecError(f"{path}: damaged or incomplete ({error})", hint="get the file again") from error
        before_bytes += path.stat().st_size


def _kind(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in _PACKED else path.suffix


@contextmanager
def _opened(path: Path) -> Iterator[tuple[TextIO, BinaryIO]]:
    """Open a file as text, together with the raw file whose position tells the progress."""
    with path.open("rb") as raw, io.TextIOWrapper(_unpacked(path.suffix, raw), encoding="utf-8-sig") as lines:
        yield lines, raw


def _unpacked(suffix: str, raw: BinaryIO) -> BinaryIO:
    match suffix:
        case ".gz":
            return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
        case ".xz":
            return cast(BinaryIO, lzma.LZMAFile(raw))
        case _:
            return raw


def _documents(path: Path, lines: TextIO, inputs: Inputs) -> Iterator[Document]:
    if _kind(path) == ".jsonl":
        yield from _json_lines(path, lines, inputs)
    elif inputs.split == "file":
        yield Document(lines.read())
    else:
        yield from _paragraphs(lines)


def _paragraphs(lines: TextIO) -> Iterator[Document]:
    held: list[str] = []
    for line in lines:
        if line.strip():
            held.append(line)
        elif held:
            yield Document("".join(held))
            held = []
    yield Document("".join(held))


def _json_lines(path: Path, lines: TextIO, inputs: Inputs) -> Iterator[Document]:
    decoder = msgspec.json.Decoder(dict[str, object])
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise SpecError(f"{path}:{number}: not a JSON object: {error}", hint="one object per line") from error
        group = _field(path, number, record, inputs.group_key) if inputs.group_key else ""
        yield Document(_field(path, number, record, inputs.text_key), group)


def _field(path: Path, number: int, record: dict[str, object], key: str) -> str:
    value = record.get(key)
    if isinstance(value, str):
        return value
    known = ", ".join(sorted(name for name, held in record.items() if isinstance(held, str))) or "none"
    raise SpecError(f"{path}:{number}: no text under the key {key!r}", hint=f"keys with text in this line: {known}")
