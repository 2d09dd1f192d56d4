"""How soon has everybody what one has? 200 MB of state from one source to four fresh peers, in a network lab.

    sudo python -m bench.spread

One real peer whose model stands still (`bench.still`) has made a few rounds alone and is at work on the next. Then four
more start at once. The time is from the first one's first word in its journal to the state in everybody's hands,
checked. The bound is bytes / rate: the source must send each byte once, and the others can pass it on meanwhile.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.join import FETCH_S_MAX, RATE_MBIT, begin, fetched, swarm_at_work
from bench.lab import Host, Lab
from bench.stage import leave
from bench.swarm import MBIT

from atoll.errors import AtollError
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", type=LinkKind, choices=list(LinkKind), default=LinkKind.TLS)
    parser.add_argument("--keep", type=Path, help="keep the peers' folders here")
    parser.add_argument("--json", action="store_true", help="print the row as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, leave)
    try:
        with TemporaryDirectory() as name:
            row = measured(options.links, options.keep or Path(name))
    except AtollError as error:
        print(f"error: {error.what}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    times = " ".join(f"{each:.1f}" for each in row.each_s)
    print(
        f"{row.name:<16} {row.took_s:6.2f} s, {row.ratio:.3f} of the bound of {row.bound_s:.2f} s  ({times})  "
        f"{row.cpu_s_per_gbit:.2f} CPU-s per Gbit, {row.resident_mb:.0f} MB",
        file=sys.stderr if options.json else sys.stdout,
    )
    if options.json:
        print(json.dumps([asdict(row)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
