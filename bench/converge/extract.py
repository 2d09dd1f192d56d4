"""Running prose out of documentation: HTML, DocBook, plain text, info and dictionary files of a Debian package.

What is kept is paragraphs of English sentences. Code, tables, menus, signatures and other languages fall to one test of
a paragraph (`is_prose`), the same for all formats, so that markup is only taken off, never understood.
"""

from __future__ import annotations

import gzip
import html
import re
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

Parse = Callable[[str], Iterator[str]]

FILE_BYTES_MAX = 20_000_000
SHORT_CHARS, LONG_CHARS = 80, 4000
"""Shorter paragraphs are mostly labels, longer ones mostly lists or data."""
WORD_CHARS = (3.2, 7.5)
"""Between these the mean word of English prose is long."""
LETTERS_MIN = 0.78
"""Part of a paragraph that is letters or blanks."""
COMMON_MIN = 0.2
"""Part of a paragraph's words that are among the commonest of English."""
_COMMON = (
    "the of and to a in is that it for as with be this on are or by an not can if from which will you have has at but "
    "was all when one any may there their its they more other used then so he his were we do your no"
)
COMMON = frozenset(_COMMON.split())
_DROP = re.compile(r"(?is)<(script|style|head|nav|pre|programlisting|screen|svg|math)\b.*?</\1\s*>|<!--.*?-->")
_BLOCK = re.compile(
    r"(?i)</?(?:p|div|li|d[dtl]|h\d|t[dhr]|table|br|hr|section|blockquote|[uo]l|body|(?:sim)?para|title|"
    r"listitem|term|item|note|page|media|figure|sect\d|chapter)\b[^>]*>"
)
_TAG = re.compile(r"<[^>]*>")
_BLANK_LINE = re.compile(r"\n[ \t\f\r]*\n\s*")
_PAGE_EDGE = re.compile(r"(?m)^.*\[Page \d+\]\s*$|^RFC \d+ .*\d{4}\s*$|\f")
_POD = re.compile(r"\b[BCEFILSX]<([^<>]*)>")
_WORD = re.compile(r"[A-Za-z']+")
_LICENCE = re.compile(r"(?m)^License: *(\S[^\n]*)")


def paragraphs_of_markup(text: str) -> Iterator[str]:
    """Yield what stands between block elements, unescaped."""
    for part in _BLOCK.split(_DROP.sub("\n", text)):
        yield html.unescape(_TAG.sub("", part))


def paragraphs_of_text(text: str) -> Iterator[str]:
    """Yield what stands between blank lines, without page edges."""
    yield from _BLANK_LINE.split(_POD.sub(r"\1", _PAGE_EDGE.sub("", text)))


def is_prose(text: str) -> bool:
    """Return whether a paragraph is made of English sentences."""
    if not SHORT_CHARS <= len(text) <= LONG_CHARS:
        return False
    words = _WORD.findall(text)
    if len(words) < 12 or not WORD_CHARS[0] <= sum(map(len, words)) / len(words) <= WORD_CHARS[1]:
        return False
    plain = sum(map(str.isalpha, text)) + text.count(" ")
    return plain >= LETTERS_MIN * len(text) and sum(w.lower() in COMMON for w in words) >= COMMON_MIN * len(words)


def prose(text: str, parse: Parse) -> list[str]:
    """Return a file's paragraphs of prose, blanks evened out."""
    joined = (" ".join(part.split()) for part in parse(text))
    return [part for part in joined if is_prose(part)]


def parser_for(path: str) -> Parse | None:
    """Return how to read a file by its name; None for what holds no prose, or a second copy of it."""
    name = PurePosixPath(path.removesuffix(".gz").removesuffix(".dz"))
    if "_sources" in name.parts or name.name in ("copyright", "changelog", "changelog.Debian"):
        return None
    if name.suffix in (".html", ".htm", ".xhtml", ".page", ".docbook"):
        return paragraphs_of_markup
    if name.suffix in (".txt", ".md", ".pod", ".dict", ".text", ".rst") or ".info" in name.suffixes:
        return paragraphs_of_text
    return None


def documents(deb: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the files of a package that hold prose: path and paragraphs, in the order of their paths."""
    found = []
    for path, data in _files(deb, lambda path: parser_for(path) is not None):
        parse = parser_for(path)
        assert parse is not None
        found.append((path, prose(data.decode("utf-8", "replace"), parse)))
    yield from sorted((path, kept) for path, kept in found if kept)


def licences(deb: Path) -> str:
    """Return the licences that a package's copyright file names."""
    for _, data in _files(deb, lambda path: path.endswith("/copyright")):
        names = {" ".join(name.split())[:40] for name in _LICENCE.findall(data.decode("utf-8", "replace"))}
        return ", ".join(sorted(names)[:8]) or "see its copyright file"
    return "see its copyright file"


def _files(deb: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    command = ["dpkg-deb", "--fsys-tarfile", str(deb)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive,
    ):
        for entry in archive:
            if not entry.isfile() or entry.size > FILE_BYTES_MAX or not wanted(entry.name):
                continue
            file = archive.extractfile(entry)
            assert file is not None
            data = file.read()
            if entry.name.endswith((".gz", ".dz")):
                try:
                    data = gzip.decompress(data)[: 4 * FILE_BYTES_MAX]
                except (OSError, EOFError, zlib.error):
                    continue
            yield entry.name.removeprefix("."), data
