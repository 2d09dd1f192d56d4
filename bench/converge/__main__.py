"""How well recipes converge beside DDP: plays the trials of docs/convergence.md and writes each down.

    python -m bench.converge --list                          the trials, and which are done
    python -m bench.converge --shards FOLDER [--only PATTERN] [--seconds LIMIT] [--jobs N]
    python -m bench.converge --report                        docs/convergence.md's tables again from the record

One JSON line a finished trial, failed ones too, goes to docs/convergence/trials.jsonl; a trial that is there is not
played again. Several are played at once by processes of their own: in the simulated world a device often waits.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from fnmatch import fnmatch
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench.converge.play import played
from bench.converge.record import RECORD, Done, append, done
from bench.converge.report import write
from bench.converge.trial import Trial, trials
from bench.show import ending

from atoll.data.shards import read_manifest
from atoll.errors import SpecError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, help="what `python -m bench.converge.text` made")
    parser.add_argument("--only", default="*", help="trials with such names: ddp-*,solo-*")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no trial begins later than this")
    parser.add_argument("--jobs", type=int, default=1, help="so many at once")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--commit", default="", help="of what is played, where this is no repository")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    rows = done(options.record)
    finished = {row.trial.name for row in rows}
    asked = [trial for trial in trials() if any(fnmatch(trial.name, only) for only in options.only.split(","))]
    if options.list:
        print("\n".join(f"{'done' if trial.name in finished else '    '}  {trial.name}" for trial in asked))
    elif options.report:
        write(rows)
    else:
        with ending():
            _check(rows, options.shards)
            _play([trial for trial in asked if trial.name not in finished], options)
    return 0


def _check(rows: list[Done], shards: Path) -> None:
    """Raise unless trials read what those before them read."""
    digest = read_manifest(shards).digest()
    others = sorted({row.data for row in rows} - {digest})
    if others:
        raise SpecError(
            f"{shards}: this is not the text of the trials so far: its digest is {digest}, theirs {others[0]}",
            hint="packages change now and then: compare bench/converge/manifest.jsonl with the one in the repository",
        )


def _play(missing: list[Trial], options: argparse.Namespace) -> None:
    """Play trials in their order, several at once, and begin none when the time is over."""
    began_s = time.monotonic()
    waiting = iter(missing)
    commit = (
        options.commit or subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    )
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        running: set[Future[Done]] = set()
        while True:
            while len(running) < options.jobs and time.monotonic() - began_s < options.seconds:
                trial = next(waiting, None)
                if trial is None:
                    break
                job = partial(played, trial, options.shards, options.device, commit=commit, jobs=options.jobs)
                running.add(pool.submit(job))
            if not running:
                return
            over, running = wait(running, return_when=FIRST_COMPLETED)
            for each in over:
                row = each.result()
                append(options.record, row)
                print(_text(row), flush=True)


def _text(row: Done) -> str:
    came = row.failed or f"{row.bits_per_byte:.4f} bits per byte, training {row.curve[-1][1]:.3f}"
    return f"{row.trial.name:<34} {came}  {row.took_s:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
