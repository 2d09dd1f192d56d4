"""The rivals' own virtual environment: made when it is first needed, never part of what Atoll depends on.

`requirements.txt` pins all of it; the folder is named by its digest, so other pins make another environment. It is
whole when its mark is there, which is written last; one without a mark is made anew.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import platformdirs

from atoll.errors import LocalError

PINS = Path(__file__).with_name("requirements.txt")
HOME = Path(os.environ.get("ATOLL_HOME") or platformdirs.user_cache_dir("atoll"))
"""Taken when this is imported: benchmarks point `ATOLL_HOME` elsewhere for the peers they start."""
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def runs_here(name: str) -> bool:
    """Return whether what a row is named after can be installed on this machine; say so where it cannot."""
    if "torchft" not in name or platform.machine() == "x86_64":
        return True
    _tell(f"{name}: left out, since torchft is built for x86_64 only and this machine is {platform.machine()}")
    return False


def folder() -> Path:
    """Return where the environment is, or will be."""
    about = f"{sys.version_info.major}.{sys.version_info.minor}\n{PINS.read_text()}"
    return HOME / f"rivals-{sha256(about.encode()).hexdigest()[:12]}"


def python() -> Path:
    """Return the rivals' Python, making its environment unless it is there."""
    found = folder()
    if not (found / "complete").exists():
        with _alone(found):
            if not (found / "complete").exists():
                _make(found)
    return found / "bin" / "python"


@contextmanager
def _alone(found: Path) -> Iterator[None]:
    """Keep others from making the same environment at the same time."""
    found.parent.mkdir(parents=True, exist_ok=True)
    with found.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(found: Path) -> None:
    _tell(f"making the rivals' environment in {found}: a few minutes, about a gigabyte")
    shutil.rmtree(found, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(found)], "cannot make a virtual environment")
    torch = next(line.strip() for line in PINS.read_text().splitlines() if line.startswith("torch=="))
    _tell(f"installing {torch}, for the CPU")
    try:
        _pip(found, f"{torch}+cpu")
    except LocalError:
        _pip(found, torch, "--index-url", CPU_BUILDS)
    _tell("installing the rivals")
    _pip(found, "--requirement", str(PINS))
    (found / "complete").touch()
    _tell("the rivals' environment is made")


def _pip(found: Path, *words: str) -> None:
    pip = [str(found / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run([*pip, *words], f"cannot install {' '.join(words)}")


def _run(command: Sequence[str], failure: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        said = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("WARNING"))[-1500:]
        hint = "the rivals come from the package index: is there a network, and room for a gigabyte?"
        raise LocalError(f"{failure}: {said.strip()}", hint=hint)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
