"""The same script in processes with different hash seeds: what does not depend on them is said by both."""

from __future__ import annotations

import os
import subprocess
import sys


def said_under_hash_seeds(script: str) -> set[str]:
    """Return what a script prints in two processes; it is given the seed as its argument."""
    return {
        subprocess.run(
            [sys.executable, "-W", "error", "-c", script, seed],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
