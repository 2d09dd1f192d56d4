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


BEGAN_S = 40.0


def _watched(
    barrier: Barrier, behind: tuple[int, ...], ends_s: float = -2.0, *, dies: bool = False, halts: bool = False
) -> bool:
    """Return whether two peers count as come that are so far behind by turns until time is over.

    From so many seconds before that on the second one stands still two behind, or has died; or nothing commits.
    """
    calm = Calm(_case(barrier))
    last = int(calm.limit_s - ends_s)
    for nth in range(int(calm.limit_s) + 2):
        over = nth > last
        newest = last if over and halts else nth
        versions = [newest - behind[(nth + place) % len(behind)] for place in range(2)]
        if over and not dies:
            versions[1] = last - 2
        hosts = [
            SimpleNamespace(place=place, gone=False, alive=not (over and dies and place), anchor="", version=version)
            for place, version in enumerate(versions)
        ]
        world = SimpleNamespace(committed=newest, parted=0, hosts=hosts, now_s=lambda at_s=BEGAN_S + nth: at_s)
        assert calm.enough(cast(Any, world)) == calm.overdue(BEGAN_S + nth), "never all at once"
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


@pytest.mark.parametrize("kind", [{}, {"dies": True}, {"halts": True}], ids=["stands-still", "died", "nothing-commits"])
def test_who_came_once_and_does_no_longer_has_not_come(kind: dict[str, bool]) -> None:
    assert _watched(Quorum(), (0, 1), ends_s=2.0), "there was hardly time"
    assert not _watched(Quorum(), (0, 1), ends_s=30.0, **kind)


def test_a_quorum_of_everybody_waits() -> None:
    assert not _watched(Quorum(contributors=3), (0, 1))
