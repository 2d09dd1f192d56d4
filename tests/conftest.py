"""What every test needs."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

settings.register_profile("atoll", deadline=None)
settings.load_profile("atoll")
"""How long an example takes says something about the machine and its other work, not about the code."""

LONGEST = ("tests/world/", "tests/cli/", "tests/sim/test_sweep", "tests/sim/test_planted")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let begin first what takes longest: in the end only short ones are left, and no process waits for another."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works() -> None:
    """Let children hear Ctrl-C even where the tests run in the background of a shell, which switches it off."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
