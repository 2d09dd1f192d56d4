"""`python -m bench.rivals`: every rival at every setting, or those with such names.

    sudo python -m bench.rivals --only 'hivemind-4-*'
    sudo python -m bench.rivals --only 'kill-*' --keep /tmp/looked-at

The bound is that of `bench.allreduce`: all lines carry all that must be sent, and each at least its own contribution;
for a file, that it must leave its source once.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.lab import Host, Lab
from bench.lab import Path as Between
from bench.rivals.environment import runs_here
from bench.rivals.play import Death, Rival, allreduce, kill, spread
from bench.show import asked_for, ending, folder_of

MBIT = 1e6 / 8
SIZE_BYTES = 100_000_000
FILE_BYTES = 200_000_000
ROUNDS = 4
UNEVEN = (100, 100, 100, 25)


@dataclass(frozen=True)
class Row:
    """One thing to measure."""

    what: str
    rates_mbit: tuple[float, ...]
    play: Callable[[Lab, Path], object]
    bound_s: float
    round_trip_s: float = 0.0

    @property
    def name(self) -> str:
        rates = "+".join(f"{rate:g}" for rate in dict.fromkeys(self.rates_mbit))
        trip = f"-{1000 * self.round_trip_s:.0f}ms" if self.round_trip_s else ""
        return f"{self.what}-{len(self.rates_mbit)}-{rates}{trip}"


def averaging(rival: Rival, rates_mbit: tuple[float, ...], round_trip_s: float = 0.0) -> Row:
    """Return a row of rounds."""
    size_bytes = SIZE_BYTES // 4 if rival is Rival.HIVEMIND_8BIT else SIZE_BYTES
    together_s = 2 * (len(rates_mbit) - 1) * size_bytes / (sum(rates_mbit) * MBIT)
    bound_s = max(together_s, size_bytes / (min(rates_mbit) * MBIT))
    return Row(
        rival, rates_mbit, lambda lab, folder: allreduce(lab, rival, SIZE_BYTES, ROUNDS, folder), bound_s, round_trip_s
    )


def dying(rival: Rival, timeout_s: float) -> Row:
    """Return a row of a death, for a rival that was told to wait so long."""

    def play(lab: Lab, folder: Path) -> Death:
        return kill(lab, rival, SIZE_BYTES, folder, timeout_s=timeout_s)

    return Row(f"kill-{rival}-{timeout_s:.0f}s", (100,) * 4, play, 12.0)


def spreading(*, tuned: bool) -> Row:
    """Return a row of one file for four."""
    what = "libtorrent" if tuned else "libtorrent-defaults"
    bound_s = FILE_BYTES / (100 * MBIT)
    return Row(what, (100,) * 5, lambda lab, folder: spread(lab, FILE_BYTES, folder, tuned=tuned), bound_s)


ROWS = [
    *(averaging(rival, (100,) * 4) for rival in (Rival.GLOO, Rival.HIVEMIND, Rival.TORCHFT)),
    *(averaging(rival, (100,) * 4, 0.04) for rival in (Rival.GLOO, Rival.HIVEMIND, Rival.TORCHFT)),
    *(averaging(rival, (100,) * 8) for rival in (Rival.GLOO, Rival.HIVEMIND, Rival.HIVEMIND_8BIT, Rival.TORCHFT)),
    *(averaging(rival, (500,) * 8) for rival in (Rival.GLOO, Rival.HIVEMIND, Rival.TORCHFT)),
    *(averaging(rival, UNEVEN) for rival in (Rival.GLOO, Rival.HIVEMIND, Rival.TORCHFT)),
    *(spreading(tuned=tuned) for tuned in (True, False)),
    *(dying(rival, 30.0) for rival in (Rival.HIVEMIND, Rival.HIVEMIND_QUICK, Rival.TORCHFT)),
    *(dying(rival, 60.0) for rival in (Rival.HIVEMIND, Rival.TORCHFT)),
]


def played(row: Row, folder: Path) -> dict[str, object]:
    """Play a row in a lab of its own."""
    hosts = [Host(rate * MBIT, rate * MBIT) for rate in row.rates_mbit]
    path = Between(latency_s=row.round_trip_s / 2)
    with Lab(hosts, lambda i, j: path) as lab:
        came = row.play(lab, folder)
    return {"name": row.name, "bound_s": row.bound_s, **_plain(came)}


def _plain(came: object) -> dict[str, object]:
    """Return an outcome as it can be printed; what members said stays in their folders."""
    facts: dict[str, object] = asdict(came)  # type: ignore[call-overload]
    facts.pop("lines", None)
    return facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="rows with such names: gloo-4-100, kill-*, ...")
    parser.add_argument("--keep", type=Path, help="keep what members said here, instead of what was kept before")
    options = parser.parse_args()
    with ending():
        for row in ROWS:
            if asked_for(row.name, options.only) and runs_here(row.name):
                with folder_of(options.keep, row.name) as folder:
                    shutil.rmtree(folder, ignore_errors=True)
                    print(json.dumps(played(row, folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
