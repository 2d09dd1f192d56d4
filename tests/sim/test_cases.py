"""Cases that once broke a promise, shrunk and stored: they must stay whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.sim.case import from_json, play

STARVED = pytest.mark.xfail(
    strict=True, reason="a quorum of one is always the fastest: others' steps are longer than its rounds"
)
OPEN = {"never-all-with-the-newest": [STARVED, pytest.mark.long]}
"""What is still broken, and why."""
CASES = sorted(Path(__file__).with_name("cases").glob("*.json"))
MARKED = [pytest.param(path, marks=OPEN.get(path.stem, []), id=path.stem) for path in CASES]


def test_there_are_cases() -> None:
    assert len(CASES) >= 2


@pytest.mark.parametrize("path", MARKED)
def test_what_was_once_broken_stays_whole(path: Path) -> None:
    assert play(from_json(path.read_bytes())).broken == []
