"""Real peers on a network lab whose lines change under them: shares follow what is measured; no rate is declared."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.allreduce import run_of
from bench.lab import Host, Lab, missing
from bench.swarm import MBIT, Swarm

from atoll import journal

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]

PEERS, CHANGED = 4, 3
FAST, SLOW = 100 * MBIT, 15 * MBIT
ELEMENTS = 5_000_000
ROUNDS = 3
"""Within so many the shares have followed."""


def share(swarm: Swarm, index: int) -> float:
    """Return a peer's share as the broker last said it; at first all are equal."""
    told = [event for _, event in swarm.events(0, journal.SharesChanged)]
    return told[-1].shares.get(swarm.name(index), 0.0) if told else 1 / PEERS


def newest(swarm: Swarm) -> int:
    return max(swarm.committed(0), default=0)


def test_shares_follow_a_line_within_three_rounds(tmp_path: Path) -> None:
    with (
        Lab([Host(FAST, FAST)] * PEERS) as lab,
        Swarm(lab, tmp_path, run_of(PEERS), ELEMENTS) as swarm,
    ):
        for index in range(PEERS):
            swarm.start(index)
        swarm.until_committed(ROUNDS + 1)
        assert share(swarm, CHANGED) > 0.15, "equal lines, about equal shares"

        lab.set_rate(CHANGED, SLOW, SLOW)
        begun = newest(swarm) + 1  # in which the line changed
        swarm.until_committed(begun + ROUNDS)
        assert share(swarm, CHANGED) < 0.05, "a slow line owns next to nothing"

        lab.set_rate(CHANGED, FAST, FAST)
        begun = newest(swarm) + 1
        swarm.until_committed(begun + ROUNDS)
        assert share(swarm, CHANGED) > 0.15, "and gets its share back"
