"""Who is in the ring of a round, and in which order sums go round in it.

Nothing travels before a ring is settled, so until then it is simply drawn again whenever somebody comes or goes: it is
of everybody who may still contribute. Who is late when patience is over is left out; who dies takes its contribution
along, since nobody else has that.

Every hop of a ring carries the same bytes, so what an order decides is how long a chunk is on its way: as long as all
round trips together. Members measure those to each other; the order is a short tour (`tour`), and the canonical one
while that is not clearly longer, so that noise changes nothing. Two that could not reach each other are never put side
by side. Where no order avoids that, the broker does everything: whoever is here reaches it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median

from msgspec.structs import replace

from atoll.swarm.messages import trip_name
from atoll.swarm.owners import alone
from atoll.swarm.shares import Shard
from atoll.swarm.state import Broker, Round, expected

Costs = Sequence[Sequence[float]]

GAIN_MIN = 1.2
"""The canonical order is left when it takes so many times longer than another,"""
GAIN_S_MIN = 0.1
"""and at least so much longer."""
NEVER_S = 1e9
"""What a hop between two costs that do not reach each other."""
BETTER = 1e-9
"""An order must be shorter by so much of a second to be taken for better: the rest is rounding."""


def around(broker: Broker, round_: Round, now_s: float) -> Round:
    """Return a round with a ring of everybody who may still be in it; where none is possible, with the broker alone."""
    carriers = carriers_of(broker, round_, now_s)
    order = _order(_costs(broker, round_, carriers))
    if not order:
        return replace(round_, ring=False, shards=alone(broker, replace(round_, ring=True)))
    shards = (Shard(carriers[place], 0, broker.bulk.chunks, number) for number, place in enumerate(order))
    return replace(round_, ring=True, shards=tuple(shards))


def carriers_of(broker: Broker, round_: Round, now_s: float) -> tuple[bytes, ...]:
    """Return who may still be in, in canonical order; also who is late, where there would be too few without."""
    here = tuple(
        peer
        for peer in round_.announced.members
        if peer not in round_.spoiled and (peer in broker.present or expected(broker, peer, now_s))
    )
    prompt = tuple(peer for peer in here if peer not in round_.late)
    return prompt if len(prompt) >= broker.run.membership.contributors_min else here


def _order(costs: Costs) -> list[int]:
    """Return in which order to go round: the given one unless another is clearly shorter; empty: there is none."""
    given, short = list(range(len(costs))), tour(costs)
    given_s, short_s = length(costs, given), length(costs, short)
    if short_s >= NEVER_S:
        return []
    return short if given_s >= GAIN_MIN * short_s and given_s - short_s >= GAIN_S_MIN else given


def _costs(broker: Broker, round_: Round, peers: Sequence[bytes]) -> list[list[float]]:
    """Return the round trip between any two, as the one or the other measured it, and never for who is parted."""
    trips_s = {
        (peer, name): trip_ms / 1e3
        for peer in peers
        if (presence := broker.present.get(peer)) is not None and presence.standing is not None
        for name, trip_ms in presence.standing.trips_ms
    }
    costs = [[0.0] * len(peers) for _ in peers]
    unknown_s = median(trips_s.values()) if trips_s else 0.0
    for one, other in combinations(range(len(peers)), 2):
        known = [
            trips_s[pair]
            for pair in ((peers[one], trip_name(peers[other])), (peers[other], trip_name(peers[one])))
            if pair in trips_s
        ]
        parted = _parted(broker, round_, peers[one], peers[other])
        costs[one][other] = costs[other][one] = NEVER_S if parted else min(known, default=unknown_s)
    return costs


def _parted(broker: Broker, round_: Round, one: bytes, other: bytes) -> bool:
    """Return whether one of two could not reach the other, in this round or so often that it is remembered."""
    if (one, other) in round_.parted or (other, one) in round_.parted:
        return True
    here = broker.present
    return (one in here and other in here[one].unreached) or (other in here and one in here[other].unreached)


def length(costs: Costs, order: Sequence[int]) -> float:
    """Return what going round once costs."""
    return sum(costs[place][order[at - 1]] for at, place in enumerate(order))


def tour(costs: Costs) -> list[int]:
    """Return a short way round, by symmetric costs: to the nearest each time, then untangled until nothing crosses."""
    if not costs:
        return []
    order, left = [0], list(range(1, len(costs)))
    while left:
        nearest = min(left, key=lambda place: (costs[order[-1]][place], place))
        order.append(nearest)
        left.remove(nearest)
    while (better := _untangled(costs, order)) is not None:
        order = better
    return order


def _untangled(costs: Costs, order: list[int]) -> list[int] | None:
    """Return the order with the stretch turned round that this shortens most (2-opt); None: there is none."""
    best, best_gain = None, BETTER
    for first, last in combinations(range(1, len(order)), 2):
        before, start, end, after = order[first - 1], order[first], order[last], order[(last + 1) % len(order)]
        gain = costs[before][start] + costs[end][after] - costs[before][end] - costs[start][after]
        if gain > best_gain:
            best, best_gain = [*order[:first], *reversed(order[first : last + 1]), *order[last + 1 :]], gain
    return best
