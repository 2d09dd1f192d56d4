"""What every test of the real world needs: small data, one cache, and a place whose processes never outlive it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.data.prepare import prepare
from atoll.sim.scenario import key_of
from tests.world.shore import Calm, Shore, seats

CALM_ROUNDS = 30
SEED = 5

_WORDS = "the reef lagoon tide gull lamp boat harbour follows meets leaves carries and while until".split()


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works() -> None:
    """Let children hear Ctrl-C even where the tests run in the background of a shell, which switches it off."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small data set of seeded text."""
    folder = tmp_path_factory.mktemp("shards")
    rng = random.Random(7)
    stories = folder / "stories"
    stories.mkdir()
    for number in range(60):
        (stories / f"{number:02d}.txt").write_text(" ".join(rng.choices(_WORDS, k=120)) + "\n", encoding="utf-8")
    prepare([stories], folder / "data", "bytes", held_out=0.05)
    return folder / "data"


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what the processes of all tests are told: one cache, one thread."""
    home = tmp_path_factory.mktemp("atoll-home")
    return {**os.environ, "ATOLL_HOME": str(home), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def shore(tmp_path: Path, shards: Path, environment: dict[str, str]) -> Iterator[Shore]:
    place = Shore(tmp_path, shards, environment)
    yield place
    place.end()


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory, shards: Path, environment: dict[str, str]) -> Calm:
    """Return a run that was trained once for all tests that need one."""
    place = Shore(tmp_path_factory.mktemp("calm"), shards, environment)
    run = place.run_file(rounds=CALM_ROUNDS, contributors_min=2)
    home = place.folder / "home"
    for seat, peer in enumerate(seats(home, 2)):
        place.give(peer.folder, key_of(SEED, seat))
    try:
        return Calm(run, CALM_ROUNDS, SEED, home, place.atoll(*place.train(run, home, 2)))
    finally:
        place.end()
