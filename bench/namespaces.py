"""Machines that share nothing but a ticket train together: each peer in a network namespace of its own.

    sudo python -m bench.namespaces                       three machines, no rate limit
    sudo python -m bench.namespaces --machines 4 --rate "20 Mbit"

`bench.lab` pretends the machines. The first organises the run there; each of the others gets the ticket and runs
`atoll join TICKET` with its own home, cache and address. All must end on the same anchors. Exits 1 when peers disagree
or a machine fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lab import Host, Lab, everywhere
from bench.runs import run_text

from atoll import journal
from atoll.units import rate_bytes_s

WAIT_S_MAX = 300.0


def run_of(rounds: int, machines: int) -> str:
    """Return the run file."""
    return run_text(
        "islands",
        {
            "recipe.work.batch": 8,
            "recipe.channel.outer.when.steps": 10,
            "budget.rounds": rounds,
            "membership.start_with": machines,
        },
    )


# on one machine


def take_part(folder: Path) -> int:
    """Be the machine that the environment says, and return the exit code of its `atoll` command."""
    index, address = int(os.environ["ATOLL_HOST_INDEX"]), os.environ["ATOLL_HOST_IP"]
    own = folder / str(index)
    ticket = folder / "ticket"
    here = ("--home", str(own / "run"), "--host", address, "--threads", "1", "--device", "cpu", "--json")
    env = {**os.environ, "HOME": str(own), "ATOLL_HOME": str(own / "cache"), "OMP_NUM_THREADS": "1"}
    words = ("train", str(folder / "run.toml")) if index == 0 else ("join", _await(ticket))
    process = subprocess.Popen([sys.executable, "-m", "atoll.cli.main", *words, *here], env=env)
    if index == 0:
        _publish(process, own / "run" / "peers" / "0" / "journal.jsonl", ticket)
    return process.wait()


def _await(ticket: Path) -> str:
    """Return the ticket once somebody has passed it on."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not ticket.exists():
        assert time.monotonic() < deadline_s, "no ticket came"
        time.sleep(0.1)
    return ticket.read_text()


def _publish(organiser: subprocess.Popen[bytes], path: Path, ticket: Path) -> None:
    """Pass the organiser's ticket on, whole or not at all; an empty one when it has ended without."""
    word = ""
    while not word and organiser.poll() is None:
        time.sleep(0.1)
        lines = list(journal.read(path)) if path.is_file() else []
        word = next((line.event.ticket for line in lines if isinstance(line.event, journal.TicketPrinted)), "")
    draft = ticket.with_suffix(".new")
    draft.write_text(word)
    draft.rename(ticket)


# from outside


def compare(folder: Path, machines: int, rounds: int) -> list[str]:
    """Print who holds which anchor, and return what is wrong."""
    wrong: list[str] = []
    held: dict[int, dict[int, str]] = {}
    for index in range(machines):
        lines = list(journal.read(folder / str(index) / "run" / "peers" / "0" / "journal.jsonl"))
        applied = [line.event for line in lines if isinstance(line.event, journal.RoundApplied)]
        held[index] = {event.version: event.anchor for event in applied}
        sent = [line.event.sent_bytes for line in lines if isinstance(line.event, journal.TrafficCounted)][-1]
        lost = [line.event.why for line in lines if isinstance(line.event, journal.PeerLost)]
        last = max(held[index], default=0)
        print(f"machine {index}: round {last}, anchor {held[index].get(last, '')[:16]}, {sent} bytes sent")
        wrong += [f"machine {index} lost a link: {why}" for why in lost]
        if last != rounds:
            wrong.append(f"machine {index} ended at round {last} of {rounds}")
    for version in range(1, rounds + 1):
        if len({anchors.get(version, "none") for anchors in held.values()}) != 1:
            wrong.append(f"round {version}: the machines do not hold the same anchor")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rate", type=rate_bytes_s, default=0.0, help='limit both ways, for example "20 Mbit"')
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        return take_part(options.inside)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for index in range(options.machines):
            (folder / str(index)).mkdir()
        (folder / "run.toml").write_text(run_of(options.rounds, options.machines))
        inside = [sys.executable, "-m", "bench.namespaces", "--inside", name]
        with Lab([Host(options.rate, options.rate)] * options.machines) as lab:
            code = everywhere(lab, inside)
        if code != 0:
            print(f"a machine failed (exit code {code})", file=sys.stderr)
            return 1
        wrong = compare(folder, options.machines, options.rounds)
    for line in wrong:
        print(line, file=sys.stderr)
    print("the machines agree" if not wrong else "the machines do not agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
