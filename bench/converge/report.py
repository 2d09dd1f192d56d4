"""The tables of docs/convergence.md, made from the record: between two marks of the page, everything else stays."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from textwrap import fill

from bench.converge.listed import trials
from bench.converge.record import Done, scores
from bench.converge.trial import Trial
from bench.converge.tries import named

from atoll.observe.trial import gain_kept

PAGE = Path(__file__).parents[2] / "docs" / "convergence.md"
BEGIN, END = "<!-- begin: python -m bench.converge --report -->", "<!-- end -->"
WIDTH = 120


def write(rows: list[Done]) -> None:
    """Put the tables into the page."""
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(rows)}\n\n{END}{after}")


def tables(rows: list[Done]) -> str:
    """Return what was played, best first in each family, and what was not yet."""
    scored = [row for row in rows if row.bits_per_byte is not None]
    ddp, solo = _mean_over_seeds(_best(scored, "ddp"), scored), _best(scored, "solo")
    lines = [
        "| trial | bits per byte | over DDP | gain kept | times fewer bytes than DDP | training loss | s |",
        "|---|---|---|---|---|---|---|",
        *(_line(row, ddp, solo.bits_per_byte if solo else None) for row in sorted(rows, key=_place)),
    ]
    known = scores(rows)
    left = [trial.name for trial in trials(known) if trial.name not in known]
    told = f"Played: {len(rows)}. Not played yet: {', '.join(left) or 'none'}."
    return "\n".join([*lines, "", fill(told, WIDTH, break_on_hyphens=False, break_long_words=False)])


def fewer(row: Done) -> float:
    """Return how many times fewer bytes the busiest peer moved than with fp32 gradients at every step."""
    each = 2 * 2 * (row.trial.peers - 1) / row.trial.peers * 4 * row.parameters
    return each * row.steps / row.moved_bytes


def _best(rows: list[Done], family: str) -> Done | None:
    """Return the best of a family's first seeds."""
    mine = [row for row in rows if _family(row.trial) == family and not row.trial.seed]
    return min(mine, key=lambda row: row.bits_per_byte or math.inf, default=None)


def _mean_over_seeds(best: Done | None, rows: list[Done]) -> float | None:
    """Return what a trial came to in the mean of all its seeds: one that was chosen as the best is flattered."""
    if best is None:
        return None
    name = best.trial.name
    found = [row.bits_per_byte for row in rows if row.trial.name == named(name, seed=row.trial.seed)]
    return fmean(bits for bits in found if bits is not None)


def _family(trial: Trial) -> str:
    return trial.name.partition("-")[0]


def _place(row: Done) -> tuple[int, str, float]:
    family = _family(row.trial)
    return ({"ddp": 0, "solo": 1}.get(family, 2), family, row.bits_per_byte or float("inf"))


def _line(row: Done, ddp: float | None, solo: float | None) -> str:
    bits = row.bits_per_byte
    if bits is None:
        return f"| {row.trial.name} | failed: {row.failed.splitlines()[0]} | | | | | {row.took_s:.0f} |"
    over = f"{100 * (bits / ddp - 1):+.2f} %" if ddp else ""
    gain = gain_kept(bits, solo, ddp)
    kept = f"{100 * gain:.1f} %" if gain is not None else ""
    times = f"{fewer(row):,.0f}" if row.moved_bytes else ""
    return f"| {row.trial.name} | {bits:.4f} | {over} | {kept} | {times} | {row.curve[-1][1]:.3f} | {row.took_s:.0f} |"
