"""Commands that are there at once: forked from a server that has imported everything, and real processes all the same.

What a command takes longest for on a small machine is importing, torch above all. Where many tests start many, that is
done once for all of them. The server is a process of its own that runs nothing else, so that forking it is safe.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from atoll.cli.main import COMMANDS

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "atoll.cli.main",
        "pydantic",  # which typer imports with its first command
        *(f"atoll.cli.{name}" for name in COMMANDS),
        *("atoll.cli.local", "atoll.cli.machine", "atoll.cli.play"),
        *("atoll.data.prepare", "atoll.data.samples", "atoll.model.engine", "atoll.model.folder", "atoll.model.worker"),
        *("atoll.net.iroh", "atoll.net.pair", "atoll.net.tls", "atoll.observe.report", "atoll.observe.trial"),
        *("atoll.peer.life", "atoll.plan.planner", "atoll.plan.traffic", "atoll.sim.scenario", "atoll.spec.variant"),
    ]
)


class Warm:
    """A process with as much of `subprocess.Popen` as tests ask for; what it says goes to files."""

    def __init__(
        self,
        words: tuple[str, ...],
        env: Mapping[str, str],
        out: Path,
        err: Path | None = None,
        cwd: Path | None = None,
    ) -> None:
        args = (words, dict(env), str(out), str(err or out), str(cwd or Path.cwd()))
        self._process = _SERVER.Process(target=_live, args=args)
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
            raise subprocess.TimeoutExpired("a warm command", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def atoll(
    *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout_s: float = 200.0
) -> subprocess.CompletedProcess[str]:
    """Run `atoll WORDS` to its end and return what it said."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = Warm(words, os.environ if env is None else env, out, err, cwd)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


def _live(words: tuple[str, ...], env: dict[str, str], out: str, err: str, cwd: str) -> None:
    """Be the `atoll` command with these words."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for path, stream in ((os.devnull, 0), (out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), stream)
    sys.argv = ["atoll", *words]
    from atoll.cli.main import main

    main()
