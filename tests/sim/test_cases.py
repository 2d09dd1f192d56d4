"""Cases that once broke a promise, shrunk and stored: they must stay whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atoll.sim.case import Calm, from_json, play, scenario_of
from atoll.sim.scenario import World, simulate

CASES = sorted(Path(__file__).with_name("cases").glob("*.json"))


def test_there_are_cases() -> None:
    assert len(CASES) >= 2


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_was_once_broken_stays_whole(path: Path) -> None:
    assert play(from_json(path.read_bytes())).broken == []


def test_where_nobody_waits_who_is_as_far_behind_as_steps_are_long_is_near_and_who_is_farther_is_not() -> None:
    (path,) = (path for path in CASES if path.stem == "never-all-with-the-newest")
    case = from_json(path.read_bytes())
    calm, near = Calm(case), []

    def enough(world: World) -> bool:
        over = calm.enough(world)
        for behind in (calm.room_max - 1, calm.room_max) if over else ():
            world.hosts[0].version = world.committed - behind
            near.append(calm.enough(world) and calm.near)
        return over

    simulate(replace(scenario_of(case, calm), enough=enough))
    assert near == [True, False]
