"""Peers that are there at once: forked from a server that has imported everything, and real processes all the same.

What a peer takes longest for on a small machine is importing torch. Where many tests start four peers each, that is
done once for all of them. The server is a process of its own that runs nothing else, so that forking it is safe.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["atoll.cli.main", "atoll.peer.life", "atoll.model.engine"])


class Warm:
    """A process with as much of `subprocess.Popen` as tests ask for."""

    def __init__(self, words: tuple[str, ...], env: Mapping[str, str], output: Path) -> None:
        self._process = _SERVER.Process(target=_live, args=(words, dict(env), str(output)))
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, once there is one."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a warm peer", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _live(words: tuple[str, ...], env: dict[str, str], output: str) -> None:
    """Be the `atoll` command with these words."""
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    to = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(to, 1)
    os.dup2(to, 2)
    sys.argv = ["atoll", *words]
    from atoll.cli.main import main

    main()
