"""How well recipes converge beside DDP: plays the trials of docs/convergence.md and writes each down.

    python -m bench.converge --list                          the trials: done, due, or to follow at the best rate then
    python -m bench.converge --shards FOLDER [--only PATTERN] [--seconds LIMIT] [--jobs N]
    python -m bench.converge --report                        docs/convergence.md's tables again from the record

One JSON line a finished trial, failed ones too, goes to docs/convergence/trials.jsonl; a trial that is there is not
played again. Several are played at once by processes of their own: in the simulated world a device often waits. Each
writes down its own trial, so what ends is kept whatever became of this program meanwhile.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench.converge.listed import Scores, due, trials
from bench.converge.play import played
from bench.converge.record import RECORD, Done, done, recorded, scores
from bench.converge.report import write
from bench.converge.trial import Trial
from bench.show import asked_for, ending

from atoll.data.shards import read_manifest
from atoll.errors import SpecError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, help="what `python -m bench.converge.text` made")
    parser.add_argument("--only", default="*", help="trials with such names: ddp-*,solo-*")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="none begins that would not end by then")
    parser.add_argument("--jobs", type=int, default=1, help="so many at once")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--commit", default="", help="of what is played, where this is no repository")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    rows = done(options.record)
    if options.list:
        print("\n".join(_told(trial, scores(rows)) for trial in trials(scores(rows))))
    elif options.report:
        write(rows)
    else:
        with ending():
            _check(rows, options.shards)
            _play(rows, options)
    return 0


def _told(trial: Trial, known: Scores) -> str:
    """Return a line of the list."""
    word = "done" if trial.name in known else "" if trial in due(known) else "then"
    return f"{word:<4}  {trial.name}"


def _check(rows: list[Done], shards: Path) -> None:
    """Raise unless trials read what those before them read."""
    digest = read_manifest(shards).digest()
    others = sorted({row.data for row in rows} - {digest})
    if others:
        raise SpecError(
            f"{shards}: this is not the text of the trials so far: its digest is {digest}, theirs {others[0]}",
            hint="packages change now and then: compare bench/converge/manifest.jsonl with the one in the repository",
        )


def _play(before: list[Done], options: argparse.Namespace) -> None:
    """Play trials in their order, several at once, and begin none that would not end in time."""
    ends_s = time.monotonic() + options.seconds
    commit = (
        options.commit or subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    )
    now: list[Done] = []
    running: dict[Future[Done], Trial] = {}
    broke: list[Trial] = []
    # A process of its own for each: once a device has failed one, it fails all that come after it there.
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        while True:
            while len(running) < options.jobs:
                taken = [*running.values(), *broke]
                trial = _next(before, now, taken, ends_s - time.monotonic(), options)
                if trial is None:
                    break
                job = partial(played, trial, options.shards, options.device, commit=commit, jobs=options.jobs)
                running[pool.submit(recorded, job, options.record)] = trial
            if not running:
                return
            over, _ = wait(running, return_when=FIRST_COMPLETED)
            for each in over:
                trial = running.pop(each)
                if (error := each.exception()) is not None:  # ours, not the trial's: it is to be played again
                    broke.append(trial)
                    print(f"{trial.name}: {''.join(traceback.format_exception(error))}", file=sys.stderr, flush=True)
                    continue
                now.append(each.result())
                print(_text(now[-1]), flush=True)


def _next(
    before: list[Done], now: list[Done], taken: list[Trial], left_s: float, options: argparse.Namespace
) -> Trial | None:
    """Return the first trial of the list, as it is by now, that is neither played nor taken, and would end in time."""
    known = scores([*before, *now])
    for trial in due(known):
        asked = asked_for(trial.name, options.only)
        longest_s = max((row.took_s for row in now if _alike(row.trial, trial)), default=0.0)
        if asked and trial.name not in known and trial not in taken and longest_s < left_s:
            return trial
    return None


def _alike(one: Trial, other: Trial) -> bool:
    """Return whether two trials take about as long."""
    return (one.how, one.alone, one.batch) == (other.how, other.alone, other.batch)


def _text(row: Done) -> str:
    came = row.failed or f"{row.bits_per_byte:.4f} bits per byte, training {row.curve[-1][1]:.3f}"
    return f"{row.trial.name:<34} {came}  {row.took_s:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
