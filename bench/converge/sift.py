"""Each paragraph once, and nothing held out that was trained on.

Sources that the split holds out are read last. A paragraph is dropped when it was there before letter for letter (case,
figures and punctuation aside), or when half of its runs of 13 words were, as in manuals of two versions. A held-out
paragraph is dropped when any run of 13 words in it occurs anywhere in training: what is left overlaps nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from atoll.data.documents import Document
from atoll.data.prepare import side_of

if TYPE_CHECKING:
    from bench.converge.text import Package

Grams = NDArray[np.uint64]

RUN_WORDS = 13
NEAR = 0.5
"""A paragraph is as good as known when so much of it is."""
ONE_IN = np.uint64(8)
"""For nearness every eighth run is looked at, chosen by its hash."""
SOURCE_BYTES_MAX = 16_000_000
"""No source is more than so much of the text: what would go beyond is left out."""
DOCUMENT_BYTES_MIN = 400
_WORD = re.compile(r"[a-z]+")
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


class _Seen:
    """What was kept so far."""

    def __init__(self) -> None:
        self._paragraphs: set[bytes] = set()
        self._runs: set[int] = set()

    def is_new(self, paragraph: str, runs: Grams) -> bool:
        """Return whether a paragraph is neither known nor nearly known, and know it from now on."""
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
    both = sorted(packages, key=lambda each: _is_held_out(each[0], held_out, seed))
    kept_back = [papers for package, papers in both if _is_held_out(package, held_out, seed)]
    wanted = np.unique(np.concatenate([runs_of(text) for papers in kept_back for text in _paragraphs(papers)]))
    trained = np.zeros(wanted.shape, bool)
    """Which runs of the held-out text were seen in training."""
    seen, rows, spent = _Seen(), [], dict[str, int]()
    with out.open("wb") as file:
        for package, papers in both:
            away = _is_held_out(package, held_out, seed)
            overlap = _overlap(papers, wanted, trained) if away else 0.0
            hasher, size = blake3(), 0
            for paper in papers:
                fresh = []
                for paragraph in paper.paragraphs:
                    runs = runs_of(paragraph)
                    at = np.searchsorted(wanted, runs)
                    hits = at[wanted[np.minimum(at, len(wanted) - 1)] == runs]
                    if (away and trained[hits].any()) or not seen.is_new(paragraph, runs):
                        continue
                    fresh.append(paragraph)
                    if not away:
                        trained[hits] = True
                text = "\n\n".join(fresh).encode()
                together = spent.get(package.source, 0) + len(text)
                if len(text) < DOCUMENT_BYTES_MIN or together > SOURCE_BYTES_MAX:
                    continue
                size, spent[package.source] = size + len(text), together
                hasher.update(text)
                file.write(msgspec.json.encode(Text(text.decode(), package.source, paper.path)) + b"\n")
            found = sum(len(text.encode()) for text in _paragraphs(papers))
            about = msgspec.structs.asdict(package)
            rows.append(
                Row(
                    **about,
                    held_out=away,
                    found_bytes=found,
                    kept_bytes=size,
                    text_blake3=hasher.hexdigest(),
                    overlapping=overlap,
                )
            )
    return rows


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


def _overlap(papers: list[Paper], wanted: Grams, trained: NDArray[np.bool_]) -> float:
    runs = np.concatenate([runs_of(text) for text in _paragraphs(papers)] or [np.empty(0, np.uint64)])
    return float(trained[np.searchsorted(wanted, runs)].mean()) if len(runs) else 0.0
