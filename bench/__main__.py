"""`python -m bench`: every benchmark that this machine can run, one after the other.

A benchmark prints ratios taken side by side in one run, never a bare time. Each is a module of its own with
flags: `python -m bench.inner --help`.
"""

from __future__ import annotations

import subprocess
import sys

BENCHES = {
    "inner": "the inner loop against a plain PyTorch loop",
    "links": "what a link costs, TLS beside iroh",
    "codec": "codecs beside torch and a copy in memory",
    "memory": "what the exchange holds in memory against its formula",
    "plan": "the planner beside what others published",
}


def main() -> None:
    """Run all of them; end with the first failure."""
    for name, about in BENCHES.items():
        print(f"== {name}: {about}", flush=True)
        subprocess.run([sys.executable, "-m", f"bench.{name}"], check=True)


if __name__ == "__main__":
    main()
