"""How close to the wire is a round? 25 million values, 100 MB of fp32, from every peer to every peer, in a network lab.

    sudo python -m bench.allreduce                    every setting
    sudo python -m bench.allreduce --only 'tls-4-*'   those with such names

Real peers whose models stand still (`bench.still`) exchange on shaped links. A round's time is from its announcement to
the commit on every member, with encryption, leases, digests and fsync on; the bound is 2 (N - 1) / N x bytes / rate,
the least that any way of averaging has to send (where lines differ: their mean rate; and nobody's own contribution
leaves faster than its line). Given are the median of the rounds after the first two (rates are
measured in those, none is declared) and its ratio to the bound, the CPU time of all peers per gigabit that they send,
and the largest resident memory of a peer.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lab import Host, Lab
from bench.lab import Path as Between
from bench.runs import run_text
from bench.stage import leave
from bench.swarm import MBIT, Swarm

from atoll.errors import AtollError
from atoll.net.transport import LinkKind
from atoll.spec.recipe import Codec, Fp32, Int8
from atoll.sync.codec import wire_bytes

ELEMENTS = 25_000_000
FP32 = Fp32()
ROUNDS = 6
UNMEASURED = 2


def run_of(peers: int, codec: Codec = FP32) -> str:
    """Return the run file: rounds of one step each, without an end."""
    return run_text(
        "wire",
        {
            "recipe.work.batch": 1,
            "recipe.channel.outer.when.steps": 1,
            "recipe.channel.outer.what.codec.kind": kind_of(codec),
            "membership.start_with": peers,
            "upkeep.evaluate_samples": 1,
        },
    )


def kind_of(codec: Codec) -> str:
    """Return a codec's name in a recipe."""
    return str(codec.__struct_config__.tag)


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    links: LinkKind
    rates_mbit: tuple[float, ...]
    round_trip_s: float = 0.0
    elements: int = ELEMENTS
    codec: Codec = FP32

    @property
    def peers(self) -> int:
        return len(self.rates_mbit)

    @property
    def name(self) -> str:
        rates = "+".join(f"{rate:g}" for rate in dict.fromkeys(self.rates_mbit))
        trip = f"-{1000 * self.round_trip_s:.0f}ms" if self.round_trip_s else ""
        codec = "" if self.codec == FP32 else f"-{kind_of(self.codec)}"
        return f"{self.links}-{self.peers}-{rates}{trip}{codec}"

    @property
    def size_bytes(self) -> int:
        """One contribution on the wire."""
        return wire_bytes(self.codec, self.elements)

    @property
    def sent_bytes(self) -> int:
        """What all peers send in a round: every contribution to its owners, every result to all others."""
        return 2 * (self.peers - 1) * self.size_bytes

    @property
    def bound_s(self) -> float:
        """The least any way of averaging takes: all lines carry all that must be sent, and each at least its own."""
        together_s = self.sent_bytes / (sum(self.rates_mbit) * MBIT)
        return max(together_s, self.size_bytes / (min(self.rates_mbit) * MBIT))


def even(links: LinkKind, peers: int, rate_mbit: float, round_trip_s: float = 0.0) -> Setting:
    """Return a setting with equal lines."""
    return Setting(links, (rate_mbit,) * peers, round_trip_s)


SETTINGS = [
    *(even(links, peers, 100) for links in (LinkKind.TLS, LinkKind.IROH) for peers in (4, 8)),
    even(LinkKind.TLS, 8, 500),
    *(even(links, 4, 100, round_trip_s=0.04) for links in (LinkKind.TLS, LinkKind.IROH)),
    *(Setting(links, (100, 100, 100, 25)) for links in (LinkKind.TLS, LinkKind.IROH)),
    Setting(LinkKind.TLS, (100,) * 8, codec=Int8()),
]


@dataclass
class Row:
    """What came of a setting."""

    name: str
    bound_s: float
    rounds_s: list[float]
    median_s: float
    ratio: float
    cpu_s_per_gbit: float
    resident_mb: float
    agreed: bool


def measured(setting: Setting, rounds: int, folder: Path) -> Row:
    """Play a setting and return its row."""
    hosts = [Host(rate * MBIT, rate * MBIT) for rate in setting.rates_mbit]
    path = Between(latency_s=setting.round_trip_s / 2)
    with (
        Lab(hosts, lambda i, j: path) as lab,
        Swarm(lab, folder, run_of(setting.peers, setting.codec), setting.elements, setting.links) as swarm,
    ):
        for index in range(setting.peers):
            swarm.start(index)
        swarm.until_committed(UNMEASURED)
        spent_s = swarm.cpu_s()
        swarm.until_committed(rounds)
        spent_s = swarm.cpu_s() - spent_s
        times_s = [swarm.took_s(version) for version in range(UNMEASURED + 1, rounds + 1)]
        median_s = statistics.median(times_s)
        return Row(
            name=setting.name,
            bound_s=setting.bound_s,
            rounds_s=times_s,
            median_s=median_s,
            ratio=median_s / setting.bound_s,
            cpu_s_per_gbit=spent_s / (8e-9 * setting.sent_bytes * (rounds - UNMEASURED)),
            resident_mb=swarm.resident_mb(),
            agreed=swarm.agreed(rounds),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="settings with such names: iroh-4-100, tls-*, ...")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--keep", type=Path, help="keep the peers' folders here")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, leave)
    rows: list[Row] = []
    try:
        for setting in SETTINGS:
            if fnmatch(setting.name, options.only):
                with TemporaryDirectory() as name:
                    folder = options.keep / setting.name if options.keep else Path(name)
                    rows.append(measured(setting, options.rounds, folder))
                print(_text(rows[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    except AtollError as error:
        print(f"error: {error.what}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    return 0 if all(row.agreed for row in rows) else 1


def _text(row: Row) -> str:
    times = " ".join(f"{each:.1f}" for each in row.rounds_s)
    return (
        f"{row.name:<16} {row.median_s:6.2f} s, {row.ratio:.3f} of the bound of {row.bound_s:.2f} s  ({times})  "
        f"{row.cpu_s_per_gbit:.2f} CPU-s per Gbit, {row.resident_mb:.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
