"""What is written down of a trial: one JSON line with everything needed to play it again, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from bench.converge.trial import Trial
from msgspec import Struct

RECORD = Path(__file__).parents[2] / "docs" / "convergence" / "trials.jsonl"


class Done(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trial that was played to its end, good or bad."""

    trial: Trial
    commit: str
    data: str
    """Digest of the shards."""
    device: str
    torch: str
    took_s: float
    jobs: int = 1
    """Trials that shared the device."""
    loss: float | None = None
    """Held-out, nats per token, of the exported anchor."""
    bits_per_byte: float | None = None
    held_out_tokens: int = 0
    parameters: int = 0
    tokens: int = 0
    steps: int = 0
    rounds: int = 0
    moved_bytes: int = 0
    """Sent and received by the peer that had most to do; 0: nothing was sent."""
    curve: list[tuple[int, float]] = []
    """Training loss now and then: after so many steps, mean of the steps since the last."""
    failed: str = ""


def done(path: Path) -> list[Done]:
    """Return what was played so far; of a trial that two runners played at once, what ended first."""
    if not path.exists():
        return []
    first: dict[str, Done] = {}
    for line in path.read_bytes().splitlines():
        if line.strip():
            row = msgspec.json.decode(line, type=Done)
            first.setdefault(row.trial.name, row)
    return list(first.values())


def append(path: Path, row: Done) -> None:
    """Write a trial down."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")


def scores(rows: list[Done]) -> dict[str, float | None]:
    """Return what trials came to, by name; none: it failed."""
    return {row.trial.name: row.bits_per_byte for row in rows}


def recorded(job: Callable[[], Done], record: Path) -> Done:
    """Play a trial and write it down, in a process of its own: which finds this here, and not in a program's main."""
    row = job()
    append(record, row)
    return row
