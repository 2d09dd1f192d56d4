"""Planted bugs: the checks catch each of them in its stored case, and find nothing there in the code as it is.

The bugs and the promises they break are in `planted/bugs.py`; their cases were found by a search and shrunk. Where a
test here fails because production code moved on, write the bug anew, or search for its case again:

    python -m tests.sim.planted NAME
"""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.sim.case import from_json, play
from tests.few import few_of
from tests.sim.planted.bugs import BUGS, SOURCE, Bug, misfits
from tests.sim.planted.hunt import case_file, check_of, compiled, copy_with, found, replayed

STORED = [bug for bug in BUGS if case_file(bug).exists()]
BUGS_MIN = 12
QUARTERS = 4
"""A quarter of the bugs in `make test`, all of them in `make long`."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_fits_the_present_code(bug: Bug) -> None:
    assert misfits(bug, SOURCE) == []


def test_enough_bugs_are_caught_by_the_checks() -> None:
    assert len(STORED) >= BUGS_MIN
    assert {bug.name for bug in STORED} == {name for name, caught in found().items() if caught.seeds}


@pytest.mark.parametrize("first", few_of(range(QUARTERS), (0,)))
def test_planted_bugs_are_caught_in_their_stored_cases(first: int, tmp_path: Path) -> None:
    base, bugs = compiled(SOURCE, tmp_path / "base"), STORED[first::QUARTERS]
    pairs = [(copy_with(bug, base, tmp_path / bug.name), case_file(bug)) for bug in bugs]
    missed = {
        bug.name: told
        for bug, told in zip(bugs, replayed(pairs), strict=True)
        if not {check_of(sentence) for sentence in told} & set(found()[bug.name].checks)
    }
    assert missed == {}, "search for them again: python -m tests.sim.planted " + " ".join(missed)


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, id=bug.name, marks=pytest.mark.long if at % 3 else ()) for at, bug in enumerate(STORED)],
)
def test_the_code_as_it_is_breaks_nothing_in_a_stored_case(bug: Bug) -> None:
    assert play(from_json(case_file(bug).read_bytes())).broken == []
