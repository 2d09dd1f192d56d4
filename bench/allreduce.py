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

import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.lab import Host, Lab
from bench.lab import Path as Between
from bench.runs import run_text
from bench.show import asked_for, folder_of, parser_of, show
from bench.swarm import MBIT, Swarm

from atoll.net.transport import LinkKind
from atoll.spec.axes.codec import Codec, Fp32, Int8
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
    """Who exchanges how much over which lines."""

    links: LinkKind
    lines_mbit: tuple[tuple[float, float], ...]
    """Up and down, of each peer."""
    round_trip_s: float = 0.0
    elements: int = ELEMENTS
    codec: Codec = FP32

    @property
    def peers(self) -> int:
        return len(self.lines_mbit)

    @property
    def name(self) -> str:
        lines = dict.fromkeys(f"{up:g}" if up == down else f"{up:g}:{down:g}" for up, down in self.lines_mbit)
        trip = f"-{1000 * self.round_trip_s:.0f}ms" if self.round_trip_s else ""
        codec = "" if self.codec == FP32 else f"-{kind_of(self.codec)}"
        return f"{self.links}-{self.peers}-{'+'.join(lines)}{trip}{codec}"

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
        rates_mbit = [min(line) for line in self.lines_mbit]
        together_s = self.sent_bytes / (sum(rates_mbit) * MBIT)
        return max(together_s, self.size_bytes / (min(rates_mbit) * MBIT))

    @contextmanager
    def played(self, folder: Path) -> Iterator[Swarm]:
        """Start all peers, on a lab of their own."""
        hosts = [Host(up * MBIT, down * MBIT) for up, down in self.lines_mbit]
        path = Between(latency_s=self.round_trip_s / 2)
        with (
            Lab(hosts, lambda i, j: path) as lab,
            Swarm(lab, folder, run_of(self.peers, self.codec), self.elements, self.links) as swarm,
        ):
            for index in range(self.peers):
                swarm.start(index)
            yield swarm


def even(peers: int, rate_mbit: float) -> tuple[tuple[float, float], ...]:
    """Return equal lines, as fast up as down."""
    return ((rate_mbit, rate_mbit),) * peers


BOTH = (LinkKind.TLS, LinkKind.IROH)
SETTINGS = [
    *(Setting(links, even(peers, 100)) for links in BOTH for peers in (4, 8)),
    Setting(LinkKind.TLS, even(8, 500)),
    *(Setting(links, even(4, 100), round_trip_s=0.04) for links in BOTH),
    *(Setting(links, (*even(3, 100), (25, 25))) for links in BOTH),
    Setting(LinkKind.TLS, even(8, 100), codec=Int8()),
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
    with setting.played(folder) as swarm:
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
    parser = parser_of(__doc__)
    parser.add_argument("--only", default="*", help="settings with such names: iroh-4-100, tls-*, ...")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--keep", type=Path, help="keep the peers' folders here")
    options = parser.parse_args()

    def rows() -> Iterator[Row]:
        for setting in SETTINGS:
            if asked_for(setting.name, options.only):
                with folder_of(options.keep, setting.name) as folder:
                    yield measured(setting, options.rounds, folder)

    return 0 if all(row.agreed for row in show(rows(), _text, as_json=options.json)) else 1


def _text(row: Row) -> str:
    times = " ".join(f"{each:.1f}" for each in row.rounds_s)
    return (
        f"{row.name:<16} {row.median_s:6.2f} s, {row.ratio:.3f} of the bound of {row.bound_s:.2f} s  ({times})  "
        f"{row.cpu_s_per_gbit:.2f} CPU-s per Gbit, {row.resident_mb:.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
