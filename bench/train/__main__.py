"""`python -m bench.train`: who reaches the loss when.

    sudo python -m bench.train --only 'ours-4-*' --json

Every row is one training in a lab of its own: hosts with lines of 50 Mbit/s both ways. Time to the target is from the
first local step until the first look at weights that all members hold with a held-out loss at or below the target, in a
straight line between the two looks around it. Looking takes nobody's time: weights are kept in files and judged later.
CPU time is all of it, training included. The bound is of the wire: what averaging so many times needs on these lines.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench.lab import Host, Lab
from bench.rivals.environment import runs_here
from bench.show import asked_for, folder_of, parser_of, show
from bench.swarm import MBIT
from bench.train import maths
from bench.train.play import played
from bench.train.setting import Setting, System, chosen, tried_in_lab, tried_in_maths
from bench.train.task import Judge

RATE_MBIT = 50.0
PEERS = (4, 8)
TARGET = 2.1
"""Nats per byte, held out; a table of pairs of bytes has 2.37 on the same samples."""


@dataclass(frozen=True)
class Row:
    """What came of a setting."""

    name: str
    peers: int
    target_s: float | None
    """None: not within what was played."""
    target_round: float | None
    bound_s: float | None
    """The least that averaging takes until then: 2 (N - 1) / N x bytes / rate, as often as it was done."""
    round_s: float
    """On average."""
    losses: list[tuple[int, float, float]]
    """Rounds, seconds, held-out loss."""
    cpu_s_per_gbit: float
    cpu_s: float
    other_cpu_s: float
    """Of the rest of this machine meanwhile, the pretended network included: much of it means a disturbed row."""
    sent_gbit: float
    resident_mb: float
    agreed: bool
    failed: str


def measured(setting: Setting, target: float, folder: Path) -> Row:
    """Play a setting and return its row."""
    folder.mkdir(parents=True, exist_ok=True)
    judge = Judge(folder)
    with Lab([Host(RATE_MBIT * MBIT, RATE_MBIT * MBIT)] * setting.peers) as lab:
        done = played(lab, setting, judge, folder / "play")
    losses = [(held.round, held.at_s, judge.loss(held.weights())) for held in done.held]
    number, at_s = reached(losses, target)
    exchange_s = 2 * (setting.peers - 1) / setting.peers * judge.size_bytes(setting.codec) / (RATE_MBIT * MBIT)
    return Row(
        name=setting.name,
        peers=setting.peers,
        target_s=at_s,
        target_round=number,
        bound_s=None if number is None else number * exchange_s,
        round_s=done.took_s / max(1, done.rounds),
        losses=losses,
        cpu_s_per_gbit=done.cpu_s / max(done.sent_gbit, 1e-9),
        cpu_s=done.cpu_s,
        other_cpu_s=done.other_cpu_s,
        sent_gbit=done.sent_gbit,
        resident_mb=done.resident_mb,
        agreed=done.agreed,
        failed=done.failed,
    )


@dataclass(frozen=True)
class Reckoned:
    """What a setting comes to without a wire."""

    name: str
    target_round: float | None
    losses: list[tuple[int, float]]


def reckoned(setting: Setting, target: float, folder: Path, device: str) -> Reckoned:
    """Do a setting's maths until the target."""
    judge = Judge(folder)
    found: list[tuple[int, float]] = []
    for number, loss in maths.losses(judge, setting, folder, device):
        found.append((number, loss))
        if loss <= target:
            break
    at, _ = reached([(number, 0.0, loss) for number, loss in found], target)
    return Reckoned(setting.name, at, found)


def reached(losses: list[tuple[int, float, float]], target: float) -> tuple[float | None, float | None]:
    """Return in which round and when a loss was reached, on the line between the looks before and after."""
    for before, after in itertools.pairwise(losses):
        if after[2] <= target < before[2]:
            part = (before[2] - target) / (before[2] - after[2])
            return before[0] + part * (after[0] - before[0]), before[1] + part * (after[1] - before[1])
    return None, None


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", default="*", help="settings with such names: ours-4-*, ddp-*, ...")
    parser.add_argument("--target", type=float, default=TARGET, help="held-out loss, nats per byte")
    parser.add_argument("--rounds", type=int, help="play so many rounds instead of what the setting says")
    parser.add_argument("--trials", choices=("maths", "lab"), help="what was tried: without a wire, or in the lab")
    parser.add_argument("--device", default="cpu", help="for the maths")
    parser.add_argument("--keep", type=Path, help="keep the folders here")
    options = parser.parse_args()

    def asked() -> Iterator[tuple[Setting, Path]]:
        """Yield settings, each with a folder of its own."""
        some = {"maths": tried_in_maths, "lab": tried_in_lab, None: chosen}[options.trials]
        for setting in (each for peers in PEERS for each in some(peers) if asked_for(each.name, options.only)):
            if not runs_here(setting.name):
                continue
            with folder_of(options.keep, setting.name) as folder:
                yield replace(setting, rounds=options.rounds or setting.rounds), folder

    if options.trials == "maths":
        reckonings = (reckoned(setting, options.target, folder, options.device) for setting, folder in asked())
        show(reckonings, _curve, as_json=options.json)
        return 0
    rows = (measured(setting, options.target, folder) for setting, folder in asked())
    ours = [row for row in show(rows, _text, as_json=options.json) if row.name.startswith(System.OURS)]
    return 0 if all(row.agreed for row in ours) else 1


def _curve(row: Reckoned) -> str:
    when = "not reached" if row.target_round is None else f"{row.target_round:.1f} rounds"
    return f"{row.name:<44} {when}\n   " + " ".join(f"{loss:.3f}@{number}" for number, loss in row.losses)


def _text(row: Row) -> str:
    when = f"{row.target_s:6.1f} s" if row.target_s is not None else f"not reached ({row.failed})"
    return (
        f"{row.name:<44} {when}  round {row.target_round or 0:.1f}, {row.round_s:.2f} s each, "
        f"the wire at least {row.bound_s or 0:.1f} s  "
        f"{row.cpu_s_per_gbit:.1f} CPU-s per Gbit ({row.cpu_s:.0f}, {row.sent_gbit:.1f}), {row.resident_mb:.0f} MB, "
        f"elsewhere {row.other_cpu_s:.0f} CPU-s"
        f"{'' if row.agreed else ', members differ'}\n   "
        + " ".join(f"{loss:.3f}@{at_s:.0f}" for _, at_s, loss in row.losses)
    )


if __name__ == "__main__":
    sys.exit(main())
