"""What test_coverage lets real peers do, in virtual time: halves on the wire, a joiner, a crash, gradients, leaving.

Run as a program, so that it can be measured alone. The model only counts: it is the peers that are looked at.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from atoll import journal
from atoll.sim.case import play
from atoll.sim.faults import Crash, Leave
from atoll.sim.scenario import Entrance, Scenario, on_fleet, simulate
from atoll.sim.storm import case_of
from atoll.spec.fleet import Device, load_fleet
from atoll.spec.load import load_run
from atoll.spec.run import Run
from tests.world.shore import RUN

ENDLESS = 100_000
STORMS = 3
"""Storms besides: what a real world may do by chance, the simulated one does on purpose."""


def the_run(recipe: str, codec: str, steps: int, rounds: int) -> Run:
    """Return a run as the real peers' file describes it."""
    text = RUN.format(
        shards="none", recipe=recipe, codec=codec, steps=steps, rounds=rounds, start_with=2, contributors_min=1
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text(text)
        return load_run(path)


def main() -> None:
    machines, delays_s = on_fleet(load_fleet("lan"))
    slow = [replace(machine, device=Device(flop_s=6e10)) for machine in machines]  # a round takes about a second
    halves = the_run("diloco", "fp16", 2, ENDLESS)
    coming_and_going = Scenario(
        run=halves,
        machines=slow[:3],
        delays_s=delays_s,
        entrances=[Entrance(peer=2, round=3)],
        faults=[
            Crash(at_s=20, peer=1, restart_after_s=15),
            *(Leave(at_s=60 + place, peer=place) for place in (2, 1, 0)),
        ],
    )
    gradients = Scenario(run=the_run("ddp", "fp32", 1, 4), machines=slow[:2], delays_s=delays_s)
    for scenario in (coming_and_going, gradients):
        outcome = simulate(scenario)
        assert [host.failed for host in outcome.hosts] == [None] * len(outcome.hosts)
    assert any(isinstance(line.event, journal.RunFinished) for line in outcome.lines)
    for seed in range(STORMS):
        assert play(case_of(halves, slow, delays_s, seed)).broken == []


if __name__ == "__main__":
    main()
