"""What a sample costs, and what more machines would gain: the arithmetic of Erben et al. (VLDB 2024).

Granularity G is the time a round calculates over the time it communicates. With k times the machines only the
calculating gets shorter, so at best the speed grows by (G + 1) / (G / k + 1). Who sends how much to whom follows from
where the peers are: each to each, or each within its group and groups to groups; priced by the place it comes from, as
every provider does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from atoll.plan.money.bill import Bill, Rented, Tariff, bill

LOADED = "data"
"""The source of what peers load, in tariffs."""


def granularity(calculating_s: float, communicating_s: float) -> float:
    """Return how long a round calculates for each second that it communicates."""
    return calculating_s / communicating_s


def speedup(granular: float, factor: float) -> float:
    """Return how much faster a run is at best with so many times its machines."""
    return (granular + 1) / (granular / factor + 1)


def usd_1m_samples(usd_hour: float, samples_s: float) -> float:
    """Return what a million samples cost at so much an hour."""
    return 1e6 * usd_hour / (3600 * samples_s)


def pair_shares(places: Sequence[str]) -> dict[tuple[str, str], float]:
    """Return which part of all traffic goes from where to where, with a peer at each place and each sending to each."""
    calls = Counter((one, other) for i, one in enumerate(places) for j, other in enumerate(places) if i != j)
    return _parts(calls)


def group_shares(places: Sequence[str]) -> dict[tuple[str, str], float]:
    """Return likewise where peers of one place average among themselves and each place then calls each other once."""
    members = Counter(places)
    calls = Counter({(place, place): count * (count - 1) for place, count in members.items() if count > 1})
    calls.update((one, other) for one in members for other in members if one != other)
    return _parts(calls)


def hour_bill(
    places: Sequence[str],
    usd_hour: Mapping[str, float],
    shares: Mapping[tuple[str, str], float],
    sent_gb_hour: float,
    tariffs: Sequence[Tariff],
    loaded_gb_hour: float = 0.0,
) -> Bill:
    """Return what an hour costs with a peer at each place, each sending so much on average and loading so much data."""
    peers = Counter(places)
    traffic_gb = {ends: share * sent_gb_hour * len(places) for ends, share in shares.items()}
    if loaded_gb_hour:
        traffic_gb |= {(LOADED, place): loaded_gb_hour * count for place, count in peers.items()}
    terms = [Rented(name=place, count=count, hours=1.0, usd_hour=usd_hour[place]) for place, count in peers.items()]
    return bill(terms, traffic_gb=traffic_gb, tariffs=tariffs)


def _parts(calls: Counter[tuple[str, str]]) -> dict[tuple[str, str], float]:
    return {ends: count / calls.total() for ends, count in calls.items()}
