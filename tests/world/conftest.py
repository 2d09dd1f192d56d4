"""What every test of the real world needs: small data, one cache, and a place whose processes never outlive it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.sim.scenario import key_of
from tests.world.shore import Calm, Shore, environment, make_shards, seats, wait_for

CALM_ROUNDS = 30
SEED = 5


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Shore:
    """Return what all tests share: data and cache."""
    folder = tmp_path_factory.mktemp("common")
    return Shore(folder, make_shards(folder / "texts"), environment(folder / "atoll-home"))


@pytest.fixture
def shore(tmp_path: Path, common: Shore) -> Iterator[Shore]:
    place = Shore(tmp_path, common.shards, common.env)
    yield place
    place.end()


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory, common: Shore) -> Calm:
    """Return a run that was trained once for all tests that need one, whichever of pytest's processes they are in."""
    root = tmp_path_factory.getbasetemp()
    place = Shore((root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "calm", common.shards, common.env)
    home, outcome = place.folder / "home", place.folder / "outcome.json"
    try:
        place.folder.mkdir()
    except FileExistsError:  # another process is at it
        wait_for(outcome.exists, "the calm run")
    else:
        _train_calmly(place, home, outcome)
    done = subprocess.CompletedProcess([], **json.loads(outcome.read_bytes()))
    return Calm(place.folder / "run.toml", CALM_ROUNDS, SEED, home, done)


def _train_calmly(place: Shore, home: Path, outcome: Path) -> None:
    """Train with two peers that wait for each other in every round, and keep what was said."""
    run = place.run_file(rounds=CALM_ROUNDS, contributors_min=2)
    for seat, peer in enumerate(seats(home, 2)):
        place.give(peer.folder, key_of(SEED, seat))
    try:
        done = place.atoll(*place.train(run, home, 2))
    finally:
        place.end()
    draft = outcome.with_suffix(".new")
    draft.write_text(json.dumps({"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}))
    draft.rename(outcome)
