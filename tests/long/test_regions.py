"""Real peers on the hosts of a network lab find their regions by the round trips that they really have."""

from __future__ import annotations

from pathlib import Path as File

import pytest
from bench.lab import Host, Lab, Path, missing
from bench.runs import run_text
from bench.swarm import MBIT, Swarm

from atoll import journal
from atoll.net.transport import LinkKind

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]

PLACES = ("east", "west", "west", "east")
FAR_S = 0.03
ELEMENTS = 500_000
ROUNDS, K2 = 8, 4


def between(i: int, j: int) -> Path:
    return Path(latency_s=0.0005 if PLACES[i] == PLACES[j] else FAR_S)


@pytest.mark.parametrize("links", [LinkKind.TLS, LinkKind.IROH])
def test_real_round_trips_tell_regions_apart_and_traffic_moves_nobody(tmp_path: File, links: LinkKind) -> None:
    """Lines are full while rounds are exchanged: regions are named once, and stay."""
    changes: dict[str, object] = {
        "recipe.base": "hfa",
        "recipe.channel.outer.when.steps": 2,
        "recipe.channel.outer.whom.all_every": K2,
        "membership.start_with": len(PLACES),
    }
    lab = Lab([Host(40 * MBIT, 40 * MBIT)] * len(PLACES), between)
    with lab, Swarm(lab, tmp_path, run_text("regions", changes), ELEMENTS, links) as swarm:
        for index in range(len(PLACES)):
            swarm.start(index)
        assert swarm.until_committed(ROUNDS, 240.0)
        told = [event for index in range(len(PLACES)) for _, event in swarm.events(index, journal.RegionsChanged)]
        names = {swarm.name(index): place for index, place in enumerate(PLACES)}
        circles = {version: event.circles for version, (_, event) in swarm.committed(0).items()}
    assert [sorted({names[who] for who in region}) for region in told[0].regions] in (
        [["east"], ["west"]],
        [["west"], ["east"]],
    )
    assert len(told) == 1, told
    assert [len(circles[version]) for version in (K2 - 1, K2, K2 + 1, 2 * K2)] == [2, 0, 2, 0]
