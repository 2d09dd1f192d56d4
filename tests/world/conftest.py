"""What every test of the real world needs: small data, one cache, and a place whose processes never outlive it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.sim.scenario import key_of
from tests.world.shore import Calm, Shore, environment, make_shards, seats

CALM_ROUNDS = 30
SEED = 5


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works() -> None:
    """Let children hear Ctrl-C even where the tests run in the background of a shell, which switches it off."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
def calm(common: Shore) -> Calm:
    """Return a run that was trained once for all tests that need one."""
    run = common.run_file(rounds=CALM_ROUNDS)
    home = common.folder / "calm"
    for seat, peer in enumerate(seats(home, 2)):
        common.give(peer.folder, key_of(SEED, seat))
    try:
        return Calm(run, CALM_ROUNDS, SEED, home, common.atoll(*common.train(run, home, 2)))
    finally:
        common.end()
