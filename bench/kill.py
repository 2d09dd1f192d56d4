"""One of four is killed in the middle of a round: ours beside hivemind and torchft, in a network lab.

    sudo python -m bench.kill
    sudo python -m bench.kill --only ours

Four peers at 100 Mbit/s average 100 MB. When they are in their stride one gets SIGKILL, half-way into a round. Told are
the time from its death to the first round that all three survivors complete, whether that is the very round in which
it died, with what it had given or without, and whether the survivors hold the same values after it. Whoever needs more
than 160 s is said to never go on. Ours is killed twice: once a member that owns a share, once the one that leads.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.allreduce import ELEMENTS, run_of
from bench.lab import Host, Lab
from bench.rivals.play import NEVER_S, Rival
from bench.rivals.play import kill as kill_rival
from bench.stage import leave
from bench.swarm import MBIT, Swarm

from atoll.errors import AtollError
from atoll.net.transport import LinkKind

PEERS = 4
RATE_MBIT = 100.0
CALM_ROUNDS = 4
MEASURED_ROUNDS = 2
LEADER, MEMBER = 0, 2
SENT_GBIT = 8e-9 * 2 * (PEERS - 1) * 4 * ELEMENTS
"""By all peers, in a round."""


@dataclass
class Row:
    """What became of the survivors."""

    name: str
    undisturbed_s: float
    """A round while nobody dies."""
    goes_on_s: float | None
    """From the death to the first round that all survivors complete; None: never."""
    kept: bool
    """That was the very round in which it died."""
    alike: bool
    """All survivors hold the same values after it."""
    cpu_s_per_gbit: float
    """Of all peers, while nobody dies."""
    resident_mb: float
    """The most that a peer held until then."""


def ours(name: str, victim: int, folder: Path) -> Row:
    """Kill one of our peers."""
    with (
        Lab([Host(RATE_MBIT * MBIT, RATE_MBIT * MBIT)] * PEERS) as lab,
        Swarm(lab, folder, run_of(PEERS), ELEMENTS, LinkKind.AUTO) as swarm,
    ):
        for index in range(PEERS):
            swarm.start(index)
        swarm.until_committed(CALM_ROUNDS - MEASURED_ROUNDS)
        spent_s = swarm.cpu_s()
        swarm.until_committed(CALM_ROUNDS)
        cpu_s_per_gbit = (swarm.cpu_s() - spent_s) / (MEASURED_ROUNDS * SENT_GBIT)
        resident_mb = swarm.resident_mb()
        calm = range(CALM_ROUNDS - MEASURED_ROUNDS + 1, CALM_ROUNDS + 1)
        undisturbed_s = statistics.median(swarm.took_s(version) for version in calm)
        disturbed = CALM_ROUNDS + 1
        swarm.until(lambda: swarm.announced(disturbed) is not None)
        began_s = swarm.announced(disturbed) or 0.0
        time.sleep(max(0.0, began_s + undisturbed_s / 2 - time.time()))
        died_s = swarm.kill(victim)
        kept = swarm.until(lambda: all(disturbed in swarm.committed(index) for index in swarm.processes), NEVER_S)
        ends_s = [swarm.committed(index)[disturbed][0] for index in swarm.processes] if kept else []
        alike = kept and swarm.agreed(disturbed)
        goes_on_s = max(ends_s) - died_s if kept else None
        return Row(name, undisturbed_s, goes_on_s, kept, alike, cpu_s_per_gbit, resident_mb)


def theirs(rival: Rival, folder: Path) -> Row:
    """Kill one of a rival's."""
    with Lab([Host(RATE_MBIT * MBIT, RATE_MBIT * MBIT)] * PEERS) as lab:
        death = kill_rival(lab, rival, 4 * ELEMENTS, folder)
    alike = death.reported_s is not None and death.reported_s == death.alike_s
    times = death.undisturbed_s, death.reported_s
    return Row(str(rival), *times, death.kept, alike, death.cpu_s_per_gbit, death.resident_mb)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="rows with such names: ours*, hivemind, torchft")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, leave)
    plays: dict[str, Callable[[Path], Row]] = {
        "ours, a member": lambda folder: ours("ours, a member", MEMBER, folder),
        "ours, the leader": lambda folder: ours("ours, the leader", LEADER, folder),
        "hivemind": lambda folder: theirs(Rival.HIVEMIND, folder),
        "torchft": lambda folder: theirs(Rival.TORCHFT, folder),
    }
    rows: list[Row] = []
    try:
        for name, play in plays.items():
            if fnmatch(name, options.only):
                with TemporaryDirectory() as folder:
                    rows.append(play(Path(folder)))
                print(_text(rows[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    except AtollError as error:
        print(f"error: {error.what}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    return 0


def _text(row: Row) -> str:
    goes_on = "never goes on" if row.goes_on_s is None else f"goes on after {row.goes_on_s:.1f} s"
    kept = "the round is kept" if row.kept else "the round is lost"
    alike = "survivors agree" if row.alike else "survivors do not agree"
    took = f"undisturbed a round takes {row.undisturbed_s:.1f} s"
    used = f"{row.cpu_s_per_gbit:.1f} CPU-s per Gbit, {row.resident_mb:.0f} MB"
    return f"{row.name:<18} {goes_on}, {kept}, {alike}; {took}, {used}"


if __name__ == "__main__":
    sys.exit(main())
