"""Every shipped recipe: four real processes, and the same bits as in virtual time.

A third of them here, all of them in `make long`.
"""

from __future__ import annotations

import pytest

from atoll import journal
from atoll.cli.machine import Machine, build_torch, pinned
from atoll.journal import Line
from atoll.sim.scenario import Outcome, Scenario, key_of, simulate
from atoll.spec.fleet import Device
from atoll.spec.fleet import Machine as Imagined
from atoll.spec.load import recipe_names
from atoll.spec.recipe import TargetBatch
from atoll.spec.run import Run
from atoll.spec.variant import variants
from tests.world.shore import Peer, Shore, one_history

SEED, PEERS, ROUNDS = 23, 4, 5
QUICK = ("dedloc", "eager", "intellect-1", "sparse-butterfly", "sparseloco", "streaming")
"""One that works by speed, one that is a round late, one in a ring, two that feed back, one in fragments."""

RUN = """
name = "reef"

[model]
kind = "fresh"
size = {{ dim = 16, layers = 3, heads = 2, kv_heads = 1, ffn = 32 }}

[data]
context = 16
source = {{ kind = "shards", path = '{shards}' }}

[recipe]
base = "diloco"

[recipe.work]
batch = 2

[recipe.channel.outer.when]
steps = 6

[budget]
rounds = {rounds}

[membership]
start_with = {peers}
contributors_min = {peers}

[upkeep]
checkpoint_every = 1
"""


def run_of(shore: Shore, recipe: str) -> Run:
    path = shore.folder / "run.toml"
    path.write_text(RUN.format(shards=shore.shards, rounds=ROUNDS, peers=PEERS))
    sets = [f"{recipe}:recipe.channel.outer.when.samples=24"] if recipe in ("dedloc", "howcw") else []
    (variant,) = variants(path, [recipe], sets)
    return pinned(variant.run, Machine())


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long) for name in recipe_names()]
)
def test_four_processes_come_to_the_anchors_that_virtual_time_comes_to(shore: Shore, recipe: str) -> None:
    run = run_of(shore, recipe)
    peers = really(shore, run)
    real = one_history(peers)
    assert sorted(real) == list(range(1, ROUNDS + 1))
    assert len({real[version] for version in real}) == ROUNDS, "every round moved the anchor"
    by_speed = isinstance(run.recipe.channel["outer"].when, TargetBatch)  # which this machine and that one differ in
    if not by_speed:
        assert anchors(imagined(run).lines) == real


def really(shore: Shore, run: Run) -> list[Peer]:
    """Train with real processes, and return them when all have ended well."""
    for place in range(PEERS):
        shore.give(shore.folder / str(place), key_of(SEED, place))
    first = shore.organise(run, shore.folder / "0")
    ticket = first.ticket()
    peers = [first, *(shore.join(ticket, shore.folder / str(place)) for place in range(1, PEERS))]
    assert [peer.ended() for peer in peers] == [0] * PEERS
    return peers


def imagined(run: Run) -> Outcome:
    here = Machine(device="cpu", threads=1)
    desk = Imagined(
        name="desk", region="here", device=Device(flop_s=1e8), up_bytes_s=1e7, down_bytes_s=1e7, disk_bytes=10**9
    )
    return simulate(
        Scenario(
            run=run,
            machines=[desk] * PEERS,
            delays_s={("here", "here"): 1e-3},
            seed=SEED,
            build=lambda run: build_torch(run, here),
        )
    )


def anchors(lines: list[Line]) -> dict[int, str]:
    applied = [line.event for line in lines if isinstance(line.event, journal.RoundApplied)]
    found = {event.version: event.anchor for event in applied}
    assert all(found[event.version] == event.anchor for event in applied)
    return found
