"""One of four is killed in the middle of a round: ours beside hivemind and torchft, in a network lab.

    sudo python -m bench.kill
    sudo python -m bench.kill --only ours

Four peers at 100 Mbit/s average 100 MB. When they are in their stride one gets SIGKILL, half-way into a round. Told are
the time from its death to the first round that all three survivors complete, whether that is the very round in which
it died, with what it had given or without, and whether the survivors hold the same values after it. Whoever needs more
than 160 s is said to never go on. Ours is killed twice: once a member that owns a share, once the one that leads.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.allreduce import Setting, even
from bench.lab import Host, Lab
from bench.rivals.environment import runs_here
from bench.rivals.play import NEVER_S, Rival
from bench.rivals.play import kill as kill_rival
from bench.show import asked_for, folder_of, parser_of, show
from bench.swarm import MBIT

from atoll.net.transport import LinkKind

PEERS = 4
RATE_MBIT = 100.0
CALM_ROUNDS = 4
MEASURED_ROUNDS = 2
LEADER, MEMBER = 0, 2
SETTING = Setting(LinkKind.AUTO, even(PEERS, RATE_MBIT))


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
    with SETTING.played(folder) as swarm:
        swarm.until_committed(CALM_ROUNDS - MEASURED_ROUNDS)
        spent_s = swarm.cpu_s()
        swarm.until_committed(CALM_ROUNDS)
        cpu_s_per_gbit = (swarm.cpu_s() - spent_s) / (8e-9 * SETTING.sent_bytes * MEASURED_ROUNDS)
        resident_mb = swarm.resident_mb()
        calm = range(CALM_ROUNDS - MEASURED_ROUNDS + 1, CALM_ROUNDS + 1)
        undisturbed_s = statistics.median(swarm.took_s(version) for version in calm)
        disturbed = CALM_ROUNDS + 1
        died_s = swarm.kill_in(disturbed, victim, undisturbed_s / 2)
        kept = swarm.until_committed(disturbed, NEVER_S)
        goes_on_s = swarm.committed_s(disturbed) - died_s if kept else None
        alike = kept and swarm.agreed(disturbed)
        return Row(name, undisturbed_s, goes_on_s, kept, alike, cpu_s_per_gbit, resident_mb)


def theirs(rival: Rival, folder: Path) -> Row:
    """Kill one of a rival's."""
    with Lab([Host(RATE_MBIT * MBIT, RATE_MBIT * MBIT)] * PEERS) as lab:
        death = kill_rival(lab, rival, SETTING.size_bytes, folder)
    alike = death.reported_s is not None and death.reported_s == death.alike_s
    times = death.undisturbed_s, death.reported_s
    return Row(str(rival), *times, death.kept, alike, death.cpu_s_per_gbit, death.resident_mb)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", default="*", help="rows with such names: ours*, hivemind, torchft")
    options = parser.parse_args()
    plays: dict[str, Callable[[Path], Row]] = {
        "ours, a member": lambda folder: ours("ours, a member", MEMBER, folder),
        "ours, the leader": lambda folder: ours("ours, the leader", LEADER, folder),
        "hivemind": lambda folder: theirs(Rival.HIVEMIND, folder),
        "torchft": lambda folder: theirs(Rival.TORCHFT, folder),
    }

    def rows() -> Iterator[Row]:
        for name, play in plays.items():
            if asked_for(name, options.only) and runs_here(name):
                with folder_of(None, name) as folder:
                    yield play(folder)

    show(rows(), _text, as_json=options.json)
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
