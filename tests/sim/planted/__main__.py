"""Search for every planted bug anew: `python -m tests.sim.planted [--seeds N] [--again] [--table] [NAME ...]`.

Each bug goes into a copy of the package, and the mixed seeds 0, 1, 2, ... of `atoll sim --seeds` are played from that
copy until the checks, which nobody changed for it, catch it; where N seeds do not, the crashes at single sends and
syncs of `atoll sim --faults points` follow. What caught it is shrunk, must hold with the code as it is, and is stored
beside this file in the form that `atoll sim --replay` takes; `make test` replays it.

    --seeds N   mixed seeds to play before the crash points (default 300)
    --again     search for nothing, play what is stored and keep its traces as they are now: after a change of the model
    --table     search for nothing, print the table of what is stored
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.sim.planted.bugs import BUGS, SOURCE, Bug
from tests.sim.planted.hunt import (
    Found,
    broken_in,
    case_file,
    checks_of,
    copy_with,
    found,
    keep,
    search,
    shrunk,
    stored_again,
    table,
)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.sim.planted", description="Search for planted bugs.")
    options.add_argument("names", nargs="*", help="bugs to search for; none: all")
    options.add_argument("--seeds", type=int, default=300, help="mixed seeds before the crash points")
    options.add_argument("--again", action="store_true", help="only play the stored cases and keep their traces")
    options.add_argument("--table", action="store_true", help="only print the table of what is stored")
    asked = options.parse_args()
    unknown = sorted(set(asked.names) - {bug.name for bug in BUGS})
    if unknown:
        options.error(f"no bug is called {unknown[0]!r}")
    wanted = [bug for bug in BUGS if not asked.table and (not asked.names or bug.name in asked.names)]
    missed = [bug for bug in wanted if not (_again(bug) if asked.again else _hunt(bug, asked.seeds))]
    print(table())
    return 1 if missed else 0


def _hunt(bug: Bug, seeds: int) -> bool:
    """Search for one bug and store what shows it; return whether the checks caught it."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_with(bug, SOURCE, Path(folder))
        caught, case = search(copy, bug, seeds, SOURCE.parent)
        if caught.seeds:
            caught, case = shrunk(copy, caught, case)
            if real := broken_in(SOURCE.parent, case, Path(folder)):
                print(
                    f"{bug.name}: without it {caught.family} seed {caught.seed} breaks too: {real[0]}", file=sys.stderr
                )
                return False
        keep(bug, caught, case)
    print(f"{bug.name}: {_words(caught)} ({time.monotonic() - began_s:.0f} s)", file=sys.stderr)
    return caught.seeds > 0


def _again(bug: Bug) -> bool:
    """Play a bug's stored case, if it has one, and keep its trace; return whether the same checks still catch it."""
    if not case_file(bug).exists():
        return True
    with tempfile.TemporaryDirectory() as folder:
        broken = stored_again(copy_with(bug, SOURCE, Path(folder)), case_file(bug))
    caught = bool(set(checks_of(broken)) & set(found()[bug.name].checks))
    print(f"{bug.name}: {'still caught' if caught else 'not caught any more'}", file=sys.stderr)
    return caught


def _words(caught: Found) -> str:
    if not caught.seeds:
        return f"not caught in {caught.played} plays"
    return f"caught by {', '.join(caught.checks)} in play {caught.seeds}, {caught.family} seed {caught.seed}"


if __name__ == "__main__":
    sys.exit(main())
