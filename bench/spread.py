"""How soon has everybody what one has? 200 MB of state from one source to four fresh peers, in a network lab.

    sudo python -m bench.spread

One real peer whose model stands still (`bench.still`) has made a few rounds alone and is at work on the next. Then four
more start at once. The time is from the first one's first word in its journal to the state in everybody's hands,
checked. The bound is bytes / rate: the source must send each byte once, and the others can pass it on meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.join import FETCH_S_MAX, RATE_MBIT, begin, fetched, swarm_at_work
from bench.lab import Host, Lab
from bench.show import folder_of, parser_of, show
from bench.swarm import MBIT

from atoll.net.transport import LinkKind

STATE_BYTES = 200_000_000
FRESH = 4


@dataclass
class Row:
    """What came of it."""

    name: str
    bound_s: float
    took_s: float
    ratio: float
    each_s: list[float]
    cpu_s_per_gbit: float
    resident_mb: float


def measured(links: LinkKind, folder: Path) -> Row:
    """Let four join at once where one is."""
    with (
        Lab([Host(RATE_MBIT * MBIT, RATE_MBIT * MBIT)] * (1 + FRESH)) as lab,
        swarm_at_work(lab, folder, STATE_BYTES, 1, links) as swarm,
    ):
        begin(swarm, 1)
        spent_s, fresh = swarm.cpu_s(), range(1, 1 + FRESH)
        for index in fresh:
            swarm.start(index)
        if not swarm.until(lambda: all(fetched(swarm, index) is not None for index in fresh), FETCH_S_MAX):
            raise RuntimeError(f"not all had it after {FETCH_S_MAX:.0f} s")
        spent_s = swarm.cpu_s() - spent_s
        times = [found for index in fresh if (found := fetched(swarm, index)) is not None]
        began_s, size_bytes = min(began_s for began_s, _, _ in times), times[0][2].size_bytes
        took_s = max(ended_s for _, ended_s, _ in times) - began_s
        bound_s = size_bytes / (RATE_MBIT * MBIT)
        return Row(
            name=str(links),
            bound_s=bound_s,
            took_s=took_s,
            ratio=took_s / bound_s,
            each_s=[ended_s - began_s for _, ended_s, _ in times],
            cpu_s_per_gbit=spent_s / (8e-9 * size_bytes * FRESH),
            resident_mb=swarm.resident_mb(),
        )


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--links", type=LinkKind, choices=list(LinkKind), default=LinkKind.TLS)
    parser.add_argument("--keep", type=Path, help="keep the peers' folders here")
    options = parser.parse_args()

    def rows() -> Iterator[Row]:
        with folder_of(options.keep, "spread") as folder:
            yield measured(options.links, folder)

    show(rows(), _text, as_json=options.json)
    return 0


def _text(row: Row) -> str:
    times = " ".join(f"{each:.1f}" for each in row.each_s)
    return (
        f"{row.name:<16} {row.took_s:6.2f} s, {row.ratio:.3f} of the bound of {row.bound_s:.2f} s  ({times})  "
        f"{row.cpu_s_per_gbit:.2f} CPU-s per Gbit, {row.resident_mb:.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
