"""Can peers that nobody can call take part? Two machines behind two routers and one that is open to all.

    sudo python -m bench.nat                   no rate limit, until 5 rounds have all three in
    sudo python -m bench.nat --rate "20 Mbit"

`bench.lab` pretends the machines and routers (`nft` masquerade, a new port for each destination, answers only let in).
A probe first shows who can reach whom: both reach the open one, nobody gets through to either of them, and they do
not reach each other even when both try at once. Then real `atoll` peers train: the open one organises, the others
join with its ticket, and no outside relay is asked. All must contribute and hold the same anchors. Exits 1 when
anything of this fails.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lab import Host, Lab, everywhere
from bench.namespaces import run_of, take_part

from atoll import journal
from atoll.units import rate_bytes_s

MACHINES = 3
HIDDEN = (1, 2)
PORT = 7000
PROBE_S = 4.0


# on one machine


def probe() -> list[int]:
    """Call everybody at all their addresses, answer who calls, and return whose calls or answers came through."""
    index, own = int(os.environ["ATOLL_HOST_INDEX"]), os.environ["ATOLL_HOST_IP"]
    everybody = {*os.environ["ATOLL_HOST_IPS"].split(), *os.environ["ATOLL_PUBLIC_IPS"].split()} - {own}
    heard: set[int] = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        door.bind((own, PORT))
        door.settimeout(0.1)
        end_s = time.monotonic() + PROBE_S
        while time.monotonic() < end_s:
            for address in everybody:
                _send(door, index, (address, PORT))
            try:
                said, caller = door.recvfrom(100)
            except (TimeoutError, ConnectionRefusedError):
                continue
            heard.add(int(said))
            _send(door, index, caller)
    return sorted(heard)


def _send(door: socket.socket, index: int, where: tuple[str, int]) -> None:
    try:
        door.sendto(b"%d" % index, where)
    except OSError:
        pass  # no way there, or an earlier call was refused


def _inside(folder: Path) -> int:
    index = os.environ["ATOLL_HOST_INDEX"]
    (folder / f"heard-{index}.json").write_text(json.dumps(probe()))
    return take_part(folder)


# from outside


def hidden(folder: Path) -> list[str]:
    """Print who heard whom in the probe, and return what is not as a router makes it."""
    wrong: list[str] = []
    heard = {index: json.loads((folder / f"heard-{index}.json").read_text()) for index in range(MACHINES)}
    for index, whom in heard.items():
        place = "behind a router" if index in HIDDEN else "open"
        print(f"machine {index} ({place}): hears {', '.join(map(str, whom)) or 'nobody'}")
        expected = [0] if index in HIDDEN else list(HIDDEN)
        if whom != expected:
            wrong.append(f"machine {index} hears {whom} in the probe, expected {expected}")
    return wrong


def trained(folder: Path, rounds: int) -> list[str]:
    """Print what the rounds came to, and return what is wrong with them."""
    wrong: list[str] = []
    homes = [folder / str(index) / "run" / "peers" / "0" / "journal.jsonl" for index in range(MACHINES)]
    lines = [list(journal.read(home)) for home in homes]
    committed = {e.version: e for line in lines[0] if isinstance(e := line.event, journal.RoundCommitted)}
    for version, event in sorted(committed.items()):
        print(f"round {version}: {len(event.contributors)} contributed, {event.round_s:.1f} s")
    whole = [version for version, event in committed.items() if len(event.contributors) == MACHINES]
    if len(whole) < rounds:
        wrong.append(f"all {MACHINES} contributed to {len(whole)} rounds, expected {rounds}")
    held = [
        {e.version: e.anchor for line in mine if isinstance(e := line.event, journal.RoundApplied)} for mine in lines
    ]
    for index, anchors in enumerate(held):
        lost = [line.event.why for line in lines[index] if isinstance(line.event, journal.PeerLost)]
        last = max(anchors, default=0)
        print(f"machine {index}: round {last}, anchor {anchors.get(last, '')[:16]}, {len(lost)} links lost")
        for why in dict.fromkeys(lost):
            print(f"  {why}")
    differing = [v for v in committed if len({anchors[v] for anchors in held if v in anchors}) > 1]
    return wrong + [f"round {version}: the machines do not hold the same anchor" for version in differing]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="how long to train; 5 of them must have all three in")
    parser.add_argument("--rate", type=rate_bytes_s, default=0.0, help='limit both ways, for example "20 Mbit"')
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        return _inside(options.inside)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for index in range(MACHINES):
            (folder / str(index)).mkdir()
        (folder / "run.toml").write_text(run_of(options.rounds, MACHINES))
        inside = [sys.executable, "-m", "bench.nat", "--inside", name]
        hosts = [Host(options.rate, options.rate, nat=index in HIDDEN) for index in range(MACHINES)]
        began_s = time.monotonic()
        with Lab(hosts) as lab:
            code = everywhere(lab, inside)
        print(f"took {time.monotonic() - began_s:.0f} s")
        if code != 0:
            print(f"a machine failed (exit code {code})", file=sys.stderr)
            return 1
        wrong = hidden(folder) + trained(folder, min(5, options.rounds))
    for line in wrong:
        print(line, file=sys.stderr)
    print("all three trained together" if not wrong else "they did not train together")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
