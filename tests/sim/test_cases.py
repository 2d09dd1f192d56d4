"""Cases that once broke a promise, shrunk and stored: they must stay whole."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from atoll.sim.case import Calm, Case, from_json, play
from atoll.spec.axes.pace import Barrier, Full, Quorum

CASES = sorted(Path(__file__).with_name("cases").glob("*.json"))
IN_TURN = Path(__file__).with_name("cases") / "never-all-with-the-newest.json"


def test_there_are_cases() -> None:
    assert len(CASES) >= 2


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_was_once_broken_stays_whole(path: Path) -> None:
    assert play(from_json(path.read_bytes())).broken == []


def _case(barrier: Barrier) -> Case:
    case = from_json(IN_TURN.read_bytes())
    channels = {name: replace(each, barrier=barrier) for name, each in case.run.recipe.channel.items()}
    return replace(case, run=replace(case.run, recipe=replace(case.run.recipe, channel=channels)))


def _watched(barrier: Barrier, behind: tuple[int, ...], last: int = 1000) -> bool:
    """Return whether two peers count as come that are so far behind by turns until time is over, or end at `last`."""
    calm = Calm(_case(barrier))
    began_s = 40.0
    for nth in range(int(calm.limit_s) + 2):
        hosts = [
            SimpleNamespace(
                place=place,
                gone=False,
                alive=True,
                anchor="",
                version=min(last, nth - behind[(nth + place) % len(behind)]),
            )
            for place in range(2)
        ]
        world = SimpleNamespace(committed=nth, parted=0, hosts=hosts, now_s=lambda at_s=began_s + nth: at_s)
        over = calm.enough(cast(Any, world))
        assert over == calm.overdue(began_s + nth), "never all at once"
    return calm.each_came


@pytest.mark.parametrize(
    ("barrier", "behind", "come"),
    [(Quorum(), (0, 1), True), (Quorum(), (1, 2), False), (Quorum(), (1,), False), (Full(), (0, 1), False)],
    ids=["by-turns", "never-the-newest", "always-one-behind", "rounds-that-wait"],
)
def test_each_may_come_to_the_newest_by_itself_only_where_rounds_wait_for_nobody(
    barrier: Barrier, behind: tuple[int, ...], come: bool
) -> None:
    assert _watched(barrier, behind) == come


def test_who_came_once_and_stands_still_since_has_not_come() -> None:
    assert not _watched(Quorum(), (0, 1), last=200)
