"""Every fleet that ships can be played on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from atoll.sim.scenario import Scenario, losses_of, on_fleet, simulate, stand_in
from atoll.spec.fleet import fleet_names, load_fleet
from atoll.spec.load import demo_run
from tests.few import few_of

MACHINES_MAX = 2
"""Of each group: all 64 volunteers take a minute."""


@pytest.mark.parametrize("name", few_of(fleet_names(), {*fleet_names()} - {"volunteers"}))
def test_a_run_finishes_on_every_shipped_fleet(name: str) -> None:
    fleet = load_fleet(name)
    few = replace(fleet, groups=tuple(replace(each, count=min(each.count, MACHINES_MAX)) for each in fleet.groups))
    machines, delays_s = on_fleet(few)
    run = demo_run(overrides=["budget.rounds=2", f"membership.start_with={len(machines)}"])
    build, scale = stand_in(run, 1024)
    outcome = simulate(
        Scenario(run=run, machines=machines, delays_s=delays_s, losses=losses_of(fleet), build=build, scale=scale)
    )
    assert {host.version for host in outcome.hosts} == {2}
    assert len({host.anchor for host in outcome.hosts}) == 1
