"""Programs in a process of their own: Triton reads what its environment says when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys


def said_by(program: str, **environment: str) -> str:
    """Return what a program prints; it must end well."""
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert child.returncode == 0, child.stderr
    return child.stdout
