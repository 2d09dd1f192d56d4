"""The tables of docs/convergence.md, made from the record: between two marks of the page, everything else stays."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from textwrap import fill

from bench.converge.listed import trials
from bench.converge.record import Done, scores
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
    """Return what was played, best first in each family, means over seeds, and what was not played yet."""
    seeds = _by_configuration(rows)
    ddp = _lowest_mean([bits for name, bits in seeds.items() if _family(name) == "ddp"])
    solo = min((bit for name, bits in seeds.items() if _family(name) == "solo" for bit in bits), default=None)
    lines = [
        "| trial | bits per byte | over DDP | gain kept | times fewer bytes than DDP | training loss | s |",
        "|---|---|---|---|---|---|---|",
        *(_line(row, ddp, solo) for row in sorted(rows, key=_place)),
        "",
        "| mean over seeds | seeds | bits per byte | over DDP | gain kept |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {len(bits)} | {' | '.join(_scored(fmean(bits), ddp, solo))} |"
            for name, bits in seeds.items()
            if len(bits) > 1
        ),
    ]
    known = scores(rows)
    left = [trial.name for trial in trials(known) if trial.name not in known]
    told = f"Played: {len(rows)}. Not played yet: {', '.join(left) or 'none'}."
    return "\n".join([*lines, "", fill(told, WIDTH, break_on_hyphens=False, break_long_words=False)])


def fewer(row: Done) -> float:
    """Return how many times fewer bytes the busiest peer moved than with fp32 gradients at every step."""
    each = 2 * 2 * (row.trial.peers - 1) / row.trial.peers * 4 * row.parameters
    return each * row.steps / row.moved_bytes


def _by_configuration(rows: list[Done]) -> dict[str, list[float]]:
    """Return bits per byte of all seeds of each configuration, by the first one's name, the best mean first.

    A trial that was chosen as the best of many is flattered; its mean over seeds is less so.
    """
    found: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row.trial.seed):
        if row.bits_per_byte is not None:
            found.setdefault(row.trial.name.removesuffix(named("", seed=row.trial.seed)), []).append(row.bits_per_byte)
    return dict(sorted(found.items(), key=lambda pair: (_rank(pair[0]), fmean(pair[1]))))


def _lowest_mean(seeds: list[list[float]]) -> float | None:
    """Return the lowest mean of configurations that were played more than once, if there are any."""
    return min(map(fmean, [bits for bits in seeds if len(bits) > 1] or seeds), default=None)


def _family(name: str) -> str:
    return name.partition("-")[0]


def _rank(name: str) -> tuple[int, str]:
    """Return where a trial's family comes."""
    family = _family(name)
    return {"ddp": 0, "solo": 1}.get(family, 2), family


def _place(row: Done) -> tuple[tuple[int, str], float]:
    return _rank(row.trial.name), row.bits_per_byte or math.inf


def _line(row: Done, ddp: float | None, solo: float | None) -> str:
    bits = row.bits_per_byte
    if bits is None:
        return f"| {row.trial.name} | failed: {row.failed.splitlines()[0]} | | | | | {row.took_s:.0f} |"
    times = f"{fewer(row):,.0f}" if row.moved_bytes else ""
    cells = [row.trial.name, *_scored(bits, ddp, solo), times, f"{row.curve[-1][1]:.3f}", f"{row.took_s:.0f}"]
    return f"| {' | '.join(cells)} |"


def _scored(bits: float, ddp: float | None, solo: float | None) -> list[str]:
    """Return bits per byte, and where on the scale that is."""
    gain = gain_kept(bits, solo, ddp)
    return [
        f"{bits:.4f}",
        f"{100 * (bits / ddp - 1):+.2f} %" if ddp else "",
        f"{100 * gain:.1f} %" if gain is not None else "",
    ]
