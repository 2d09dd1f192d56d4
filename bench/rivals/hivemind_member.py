"""One member of hivemind's averaging: a DHT node of its own and a `DecentralizedAverager`, as its trainers use them.

The group is complete as soon as all are there (`target_group_size`), the true rate of the line is declared, and
`allreduce_timeout` is set: without it a round in which a member dies may never return. Encryption is libp2p's default.
What `step` returns is not proof: it counts the members that were gathered, not those that took part to the end, and
parts that a dead reducer owed stay as they were before, at each survivor its own.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import hivemind  # type: ignore[import-not-found]
from bench.rivals import member
from bench.rivals.vector import Vector
from hivemind.compression import NoCompression, Uniform8BitQuantization  # type: ignore[import-not-found]

CODECS = {"none": NoCompression, "8bit": Uniform8BitQuantization}
GATHER_S = 3.0
"""For how long a leader waits for others before it goes on with fewer."""
ASK_S = 1.5
"""For how long a member waits for a leader's answer; hivemind wants it shorter."""
FIND_S_MAX = 120.0
LOOK_S = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-bytes", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where member 0 leaves its address")
    parser.add_argument("--rate", type=float, help="of this member's line, bytes/s")
    parser.add_argument("--codec", choices=sorted(CODECS), default="none")
    parser.add_argument("--timeout-s", type=float, required=True, help="of one all-reduce")
    parser.add_argument("--part-timeout-s", type=float, help="between two parts; hivemind's default is none")
    parser.add_argument("--members-min", type=int, required=True)
    options = parser.parse_args()
    here = member.place()
    vector = Vector(here, options.size_bytes)
    averager = hivemind.DecentralizedAverager(
        [vector.values],
        introduced(here, options.folder / "addresses"),
        start=True,
        prefix="rivals",
        target_group_size=here.count,
        min_group_size=options.members_min,
        min_matchmaking_time=GATHER_S,
        request_timeout=ASK_S,
        allreduce_timeout=options.timeout_s,
        next_chunk_timeout=options.part_timeout_s,
        bandwidth=options.rate,
        compression=CODECS[options.codec](),
    )

    def exchange(number: int) -> member.Exchanged:
        began_s = time.monotonic()
        step = averager.step(gather=[here.index, number], timeout=FIND_S_MAX, wait=False)
        while not step.began_allreduce and not step.done():
            time.sleep(LOOK_S)
        matched_s = time.monotonic() - began_s
        gathered = sorted(step.result().values())
        return member.Exchanged(ok=True, members=len(gathered), group=json.dumps(gathered), matched_s=matched_s)

    member.play(vector, exchange)


def introduced(here: member.Place, addresses: Path) -> hivemind.DHT:
    """Return this member's own node, introduced by member 0's."""
    known = None if here.index == 0 else _read(addresses)
    node = hivemind.DHT(
        start=True,
        initial_peers=known,
        host_maddrs=[f"/ip4/{here.ip}/tcp/0"],
        use_relay=False,
        auto_nat=False,
        nat_port_map=False,
    )
    if here.index == 0:
        draft = addresses.with_suffix(".new")
        draft.write_text("\n".join(map(str, node.get_visible_maddrs())))
        draft.rename(addresses)
    return node


def _read(addresses: Path) -> list[str]:
    """Return where member 0 is, once it says so."""
    deadline_s = time.monotonic() + FIND_S_MAX
    while not addresses.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return addresses.read_text().split()


if __name__ == "__main__":
    main()
