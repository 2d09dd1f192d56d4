"""Each paragraph once, and nothing held out that was trained on.

Sources that the split holds out are read last. A paragraph is dropped when it was there before letter for letter (case,
figures and punctuation aside), or when half of its runs of 13 words were, as in manuals of two versions. A held-out
paragraph is dropped when any run of 13 words in it occurs anywhere in training: what is left overlaps nowhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from bench.converge.archive import Package
from blake3 import blake3
from numpy.typing import NDArray

from atoll.data.documents import Document
from atoll.data.prepare import side_of

Grams = NDArray[np.uint64]

RUN_WORDS = 13
NEAR = 0.5
"""A paragraph is as good as known when so much of it is."""
ONE_IN = np.uint64(8)
"""For nearness every eighth run is looked at, chosen by its hash."""
SOURCE_BYTES_MAX = 16_000_000
"""No source is more than so much of the text: what would go beyond is left out."""
DOCUMENT_CHARS_MIN = 400
_WORD = re.compile(r"[a-z]+")
_NONE, _LAST = np.empty(0, np.uint64), np.array([2**64 - 1], np.uint64)
"""No run, and one that is after all others."""
_POWERS = np.array([pow(0x9E3779B97F4A7C15, i, 2**64) for i in range(RUN_WORDS)], np.uint64)


class Paper(msgspec.Struct, frozen=True):
    """A file and its paragraphs."""

    path: str
    paragraphs: list[str]


class Row(msgspec.Struct, frozen=True):
    """What became of one package."""

    package: str
    source: str
    version: str
    licence: str
    blake3: str
    held_out: bool
    found_bytes: int
    kept_bytes: int
    text_blake3: str
    overlapping: float = 0.0
    """Of a held-out package, the part of its runs of words that training has too, before those were dropped."""


class Text(msgspec.Struct, frozen=True):
    """A document as `atoll data prepare` reads it."""

    text: str
    source: str
    path: str


class _Sieve:
    """What was kept so far, and which runs of the held-out text training has."""

    def __init__(self, held_out: list[str]) -> None:
        self._paragraphs: set[bytes] = set()
        self._runs: set[int] = set()
        self._wanted = np.unique(np.concatenate([_NONE, *map(runs_of, held_out), _LAST]))
        self._trained = np.zeros(self._wanted.shape, bool)

    def fresh(self, paragraphs: list[str], *, away: bool) -> str:
        """Return what is new of a document, and know it from now on."""
        kept = []
        for paragraph in paragraphs:
            runs = runs_of(paragraph)
            places = self._places(runs)
            if (away and self._trained[places].any()) or not self._is_new(paragraph, runs):
                continue
            kept.append(paragraph)
            if not away:
                self._trained[places] = True
        return "\n\n".join(kept)

    def overlap(self, paragraphs: list[str]) -> float:
        """Return the part of the runs of held-out text that training has too."""
        runs = np.concatenate([_NONE, *map(runs_of, paragraphs)])
        return float(self._trained[self._places(runs)].mean()) if len(runs) else 0.0

    def _places(self, runs: Grams) -> NDArray[np.intp]:
        """Return where runs stand among those of the held-out text; what is not of it has no place."""
        runs = runs[runs < _LAST]
        at: NDArray[np.intp] = np.searchsorted(self._wanted, runs)
        found: NDArray[np.intp] = at[self._wanted[at] == runs]
        return found

    def _is_new(self, paragraph: str, runs: Grams) -> bool:
        key = blake3("".join(_WORD.findall(paragraph.lower())).encode()).digest(length=10)
        some = runs[runs % ONE_IN == 0].tolist()
        known = sum(run in self._runs for run in some)
        if key in self._paragraphs or (some and known >= NEAR * len(some)):
            return False
        self._paragraphs.add(key)
        self._runs.update(some)
        return True


def sift(packages: Iterable[tuple[Package, list[Paper]]], out: Path, held_out: float, seed: int) -> list[Row]:
    """Write what is kept as JSON lines, training first; return what became of each package."""
    sides = [(_is_held_out(package, held_out, seed), package, papers) for package, papers in packages]
    sieve = _Sieve([text for away, _, papers in sides if away for text in _paragraphs(papers)])
    spent: Counter[str] = Counter()
    with out.open("wb") as file:
        return [_sifted(sieve, spent, file, *each) for each in sorted(sides, key=lambda each: each[0])]


def _sifted(
    sieve: _Sieve, spent: Counter[str], file: BinaryIO, away: bool, package: Package, papers: list[Paper]
) -> Row:
    """Write what is kept of one package; return what became of it."""
    overlapping = sieve.overlap(list(_paragraphs(papers))) if away else 0.0
    hasher, kept_bytes = blake3(), 0
    for paper in papers:
        text = sieve.fresh(paper.paragraphs, away=away)
        size_bytes = len(text.encode())
        if len(text) < DOCUMENT_CHARS_MIN or spent[package.source] + size_bytes > SOURCE_BYTES_MAX:
            continue
        kept_bytes += size_bytes
        spent[package.source] += size_bytes
        hasher.update(text.encode())
        file.write(msgspec.json.encode(Text(text, package.source, paper.path)) + b"\n")
    return Row(
        **msgspec.structs.asdict(package),
        held_out=away,
        found_bytes=sum(len(text.encode()) for text in _paragraphs(papers)),
        kept_bytes=kept_bytes,
        text_blake3=hasher.hexdigest(),
        overlapping=overlapping,
    )


def runs_of(paragraph: str) -> Grams:
    """Return a hash of every run of 13 words, without case, figures and punctuation."""
    words = np.array([_hash(word) for word in _WORD.findall(paragraph.lower())], np.uint64)
    if len(words) < RUN_WORDS:
        return np.empty(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(words, RUN_WORDS)
    runs: Grams = (windows * _POWERS).sum(axis=1, dtype=np.uint64)
    return runs


@cache
def _hash(word: str) -> int:
    return int.from_bytes(blake3(word.encode()).digest(length=8), "little")


def _is_held_out(package: Package, held_out: float, seed: int) -> bool:
    return side_of(Document("", package.source), int(held_out * 2.0**64), seed) == "held-out"


def _paragraphs(papers: list[Paper]) -> Iterator[str]:
    for paper in papers:
        yield from paper.paragraphs
