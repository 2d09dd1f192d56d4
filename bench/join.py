"""How close to its line is somebody who joins? 100 MB of state at 100 Mbit/s from four donors, in a network lab.

    sudo python -m bench.join              undisturbed, and with a donor that is killed half-way

Real peers whose models stand still (`bench.still`) have made a few rounds and are at work on the next, so their lines
are free. Then one more starts. Its time is from its first word in its journal to the state in its hands, checked: found
the run, reached the donors, heard what there is, drew all of it from all of them. The bound is bytes / rate. A donor's
death costs what of it was on the way: so many more bytes reach the joiner's card than otherwise.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.lab import Host, Lab
from bench.runs import run_text
from bench.show import folder_of, parser_of, show
from bench.swarm import MBIT, Swarm

from atoll import journal
from atoll.net.transport import LinkKind

RATE_MBIT = 100.0
STATE_BYTES = 100_000_000
DONORS = 4
FETCH_S_MAX = 300.0
BYTES_PER_ELEMENT = 8
"""Of the anchor: a weight and the outer optimizer's momentum, four bytes each."""
ROUND_STEPS, STEP_S = 2000, 0.5
"""Work that goes on while somebody joins; what others ask of a peer waits for a slice of it at most."""
QUICK_ROUNDS = 4
"""Enough for the state to be fewer bytes than the results since the first one."""


def swarm_at_work(lab: Lab, folder: Path, state_bytes: int, members: int, links: LinkKind) -> Swarm:
    """Return peers that make a few rounds at once and are then long at work."""
    changes: dict[str, object] = {
        "recipe.work.batch": 1,
        "recipe.channel.outer.when.steps": ROUND_STEPS,
        "membership.start_with": members,
        "upkeep.checkpoint_every": 1,
        "upkeep.evaluate_every": 0,
        "upkeep.evaluate_samples": 1,
    }
    elements = state_bytes // BYTES_PER_ELEMENT
    return Swarm(lab, folder, run_text("join", changes), elements, links, QUICK_ROUNDS * ROUND_STEPS, STEP_S)


def begin(swarm: Swarm, members: int) -> None:
    """Start the members and wait until they are at work on the round after."""
    for index in range(members):
        swarm.start(index)
    swarm.until(lambda: all(_works(swarm, index) for index in range(members)))


def _works(swarm: Swarm, index: int) -> bool:
    saved = any(event.version == QUICK_ROUNDS for _, event in swarm.events(index, journal.CheckpointSaved))
    leased = any(event.version == QUICK_ROUNDS + 1 for _, event in swarm.events(index, journal.LeaseTaken))
    return saved and leased


def fetched(swarm: Swarm, index: int) -> tuple[float, float, journal.StateFetched] | None:
    """Return when a joiner began and when it had its state, if it has."""
    began = next((at_s for at_s, _ in swarm.events(index, journal.PeerStarted)), None)
    ended = next(iter(swarm.events(index, journal.StateFetched)), None)
    return None if began is None or ended is None else (began, *ended)


@dataclass
class Row:
    """What came of somebody's joining."""

    name: str
    bound_s: float
    took_s: float
    ratio: float
    donors: int
    came_of_state: float
    """Bytes that reached its card, as a multiple of the state."""
    cpu_s_per_gbit: float
    resident_mb: float


def measured(links: LinkKind, folder: Path, *, killed: bool) -> Row:
    """Let somebody join, and kill a donor in the middle of it or not."""
    with (
        Lab([Host(RATE_MBIT * MBIT, RATE_MBIT * MBIT)] * (DONORS + 1)) as lab,
        swarm_at_work(lab, folder, STATE_BYTES, DONORS, links) as swarm,
    ):
        begin(swarm, DONORS)
        spent_s, joiner = swarm.cpu_s(), DONORS
        swarm.start(joiner)
        if killed:
            swarm.until(lambda: swarm.received_bytes(joiner) > STATE_BYTES / 2, FETCH_S_MAX)
            swarm.kill(DONORS - 1)
        if not swarm.until(lambda: fetched(swarm, joiner) is not None, FETCH_S_MAX):
            raise RuntimeError(f"nothing had come after {FETCH_S_MAX:.0f} s")
        spent_s = swarm.cpu_s() - spent_s
        time.sleep(0.2)  # what is on its way counts
        found = fetched(swarm, joiner)
        assert found is not None, "it was there a moment ago"
        began_s, ended_s, event = found
        bound_s = event.size_bytes / (RATE_MBIT * MBIT)
        return Row(
            name=f"{links}, a donor killed half-way" if killed else f"{links}, {DONORS} donors",
            bound_s=bound_s,
            took_s=ended_s - began_s,
            ratio=(ended_s - began_s) / bound_s,
            donors=len(event.donors),
            came_of_state=swarm.received_bytes(joiner) / event.size_bytes,
            cpu_s_per_gbit=spent_s / (8e-9 * event.size_bytes),
            resident_mb=swarm.resident_mb(),
        )


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--links", type=LinkKind, choices=list(LinkKind), default=LinkKind.TLS)
    parser.add_argument("--keep", type=Path, help="keep the peers' folders here")
    options = parser.parse_args()

    def rows() -> Iterator[Row]:
        for killed in (False, True):
            with folder_of(options.keep, "killed" if killed else "undisturbed") as folder:
                yield measured(options.links, folder, killed=killed)

    show(rows(), _text, as_json=options.json)
    return 0


def _text(row: Row) -> str:
    return (
        f"{row.name:<32} {row.took_s:6.2f} s, {row.ratio:.3f} of the bound of {row.bound_s:.2f} s, from {row.donors}; "
        f"{row.came_of_state:.3f} of the state came; {row.cpu_s_per_gbit:.2f} CPU-s per Gbit, {row.resident_mb:.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
