"""Cases that once broke a promise, shrunk and stored: they must stay whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.sim.case import from_json, play

CASES = sorted(Path(__file__).with_name("cases").glob("*.json"))


def test_there_are_cases() -> None:
    assert len(CASES) >= 2


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_was_once_broken_stays_whole(path: Path) -> None:
    assert play(from_json(path.read_bytes())).broken == []
