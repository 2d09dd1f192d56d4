"""Who is in which region: members that are near each other, by the round trips that they measured themselves.

Two regions are as far from each other as the middle of all round trips between their members that anybody measured.
The nearest two become one, then the next, while that is within what the recipe calls near: so neighbours of neighbours
do not all end in one. What is known grows as members meet. Until all have, there are no regions, and rounds are of all,
in which they meet; after some rounds half of all pairs are enough, since who owns nothing may never meet its like.

Traffic makes round trips longer for a while, and that must move nobody. So regions begin as they were in the last round
that named some, and a member leaves its own only when it is `STAY` times as far from the others there. The broker
decides; the announcement names the region of everybody, and that alone counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import median

from atoll import journal
from atoll.net.identity import short
from atoll.net.transport import PeerId
from atoll.spec.axes.whom import Regions
from atoll.swarm.log import Key
from atoll.swarm.routes.shares import by_region, numbered
from atoll.swarm.routes.ways import measured
from atoll.swarm.state import Action, Broker, Note

STAY = 3.0
"""Members stay together until round trips are so many times what is near."""
MEET_ROUNDS, MET = 4, 0.5
"""In so many rounds all may meet; after them it is enough if this part of all pairs has."""

Trips = Sequence[Sequence[int | None]]
"""Round trips between members, in milliseconds; None: nobody measured it."""
Places = list[int]


def place(broker: Broker, peers: Sequence[bytes]) -> dict[bytes, int] | None:
    """Return the region of everybody who is to take part; None: there are none, or they are not known yet."""
    route = broker.whom.route
    if not isinstance(route, Regions):
        return None
    trips_ms = measured(broker, peers, lambda standing: standing.trips_ms)
    before = broker.history.regions
    if not before and _met(trips_ms) < (1.0 if broker.history.version < MEET_ROUNDS else MET):
        return None
    return dict(zip(peers, regions_of(trips_ms, route.near_ms, [before.get(peer) for peer in peers]), strict=True))


def moved(broker: Broker, key: Key, regions: dict[bytes, int] | None) -> list[Action]:
    """Return a word about regions that are not as they were in the last round that named some."""
    before = broker.history.regions
    if regions is None or regions == before:
        return []
    told = [[short(PeerId(peer)) for peer in group] for group in by_region(tuple(regions), tuple(regions.values()))]
    return [Note(journal.RegionsChanged(channel=key.channel, version=key.version, regions=told))]


def regions_of(trips_ms: Trips, near_ms: float, before: Sequence[int | None]) -> tuple[int, ...]:
    """Return the region of each member, given in canonical order, from where each was before; None: nowhere."""
    groups = _stayed(trips_ms, STAY * near_ms, before)
    while (pair := _nearest(trips_ms, near_ms, groups)) is not None:
        one, other = pair
        groups[one] += groups.pop(other)
    region = {place: number for number, group in enumerate(groups) for place in group}
    return numbered([region[place] for place in range(len(before))])


def _stayed(trips_ms: Trips, far_ms: float, before: Sequence[int | None]) -> list[Places]:
    """Return regions as they were, without those who are far from the others now; those are regions alone."""
    groups: list[Places] = []
    for region in dict.fromkeys(before):
        group = [place for place, was in enumerate(before) if was == region]
        gone = [each for each in group if region is None or _apart_ms(trips_ms, [each], group, far_ms) > far_ms]
        groups += [[each for each in group if each not in gone], *([each] for each in gone)]
    return [group for group in groups if group]


def _nearest(trips_ms: Trips, near_ms: float, groups: Sequence[Places]) -> tuple[int, int] | None:
    """Return which two regions are nearest to each other, if they are near."""
    pairs = list(combinations(range(len(groups)), 2))
    apart_ms = [_apart_ms(trips_ms, groups[one], groups[other], float("inf")) for one, other in pairs]
    least_ms = min(apart_ms, default=float("inf"))
    return pairs[apart_ms.index(least_ms)] if least_ms <= near_ms else None


def _apart_ms(trips_ms: Trips, some: Iterable[int], others: Sequence[int], unknown_ms: float) -> float:
    """Return the middle of all round trips that are known between some members and others."""
    known = [ms for one in some for other in others if one != other and (ms := trips_ms[one][other]) is not None]
    return median(known) if known else unknown_ms


def _met(trips_ms: Trips) -> float:
    """Return which part of all pairs have met."""
    pairs = list(combinations(range(len(trips_ms)), 2))
    return sum(trips_ms[one][other] is not None for one, other in pairs) / len(pairs) if pairs else 1.0
