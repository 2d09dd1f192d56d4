"""Seeded text for the data tests: a small grammar, no files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

_NOUNS = ["island", "reef", "lagoon", "boat", "lamp", "tide", "gull", "harbour"]
_VERBS = ["follows", "meets", "remembers", "carries", "leaves"]
_JOINS = ["and", "while", "because", "until"]


def _story(rng: random.Random, sentences: int) -> str:
    """Return some sentences of a tiny grammar."""

    def clause() -> str:
        return f"the {rng.choice(_NOUNS)} {rng.choice(_VERBS)} the {rng.choice(_NOUNS)}"

    lines = [f"{clause()} {rng.choice(_JOINS)} {clause()}.".capitalize() for _ in range(sentences)]
    return " ".join(lines) + "\n"


@pytest.fixture(scope="session")
def story_texts() -> list[str]:
    """Return fifty seeded stories."""
    return [_story(random.Random(number), 20) for number in range(50)]


@pytest.fixture
def stories(tmp_path: Path) -> Callable[..., Path]:
    """Return a maker of folders of seeded story files."""

    def make(count: int = 40, sentences: int = 8, seed: int = 1, name: str = "stories") -> Path:
        rng = random.Random(seed)
        folder = tmp_path / name
        folder.mkdir()
        for number in range(count):
            (folder / f"{number:04d}.txt").write_text(_story(rng, sentences), encoding="utf-8")
        return folder

    return make
