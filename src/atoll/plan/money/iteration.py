"""What an iteration costs on machines in several zones: their hire while it lasts, and what crosses between zones.

The estimator of MLTC and Sailor: sum of count x price over all kinds, times the time of an iteration, and for every
edge that is cut the bytes that go over it at the price of where they come from. How long it takes comes in: that is
for those who know pipelines. A ring of w members moves 2 (w - 1) / w of what it reduces over each of its edges; a cut
between two stages moves an activation forth and its gradient back for every micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from atoll.plan.money.bill import Bill, Rented, Tariff, bill


class Group(Struct, frozen=True, kw_only=True):
    """Equal machines in a zone."""

    zone: str
    count: int
    usd_hour: float


class Hop(Struct, frozen=True):
    """What goes from one zone to another in an iteration."""

    source: str
    target: str
    size_bytes: float


def ring_hops(zones: Sequence[str], size_bytes: float) -> list[Hop]:
    """Return what a ring through members in these zones, in this order, moves to reduce so many bytes."""
    if len(zones) < 2:
        return []
    each_bytes = 2 * (len(zones) - 1) / len(zones) * size_bytes
    return [Hop(one, other, each_bytes) for one, other in pairwise([*zones, zones[0]])]


def pipeline_hops(zones: Sequence[str], boundary_bytes: float, microbatches: int) -> list[Hop]:
    """Return what stages in these zones hand on: activations forth, gradients back."""
    each_bytes = boundary_bytes * microbatches
    return [Hop(*ends, each_bytes) for one, other in pairwise(zones) for ends in ((one, other), (other, one))]


def iteration_bill(
    groups: Sequence[Group],
    iteration_s: float,
    hops: Iterable[Hop],
    tariffs: Sequence[Tariff],
    control_usd_hour: float = 0.0,
) -> Bill:
    """Return what one iteration costs."""
    hours, traffic_gb = iteration_s / 3600, dict[tuple[str, str], float]()
    for hop in hops:
        ends = (hop.source, hop.target)
        traffic_gb[ends] = traffic_gb.get(ends, 0.0) + hop.size_bytes / 1e9
    terms = [Rented(name=one.zone, count=one.count, hours=hours, usd_hour=one.usd_hour) for one in groups]
    return bill(terms, traffic_gb=traffic_gb, tariffs=tariffs, control_usd_hour=control_usd_hour, hours=hours)
