"""Who carries the sums of a round, and along which ways: a ring, trees over measured links, or rings of clusters.

Nothing travels before it is settled who is in, so until then ways are simply drawn again whenever somebody comes or
goes: they are of everybody who may still contribute. Who is late when patience is over is left out; who dies takes its
contribution along, since nobody else has that. Two that could not reach each other are never put next to each other.
Where that cannot be, the broker does everything: whoever is here reaches it.

Trees that follow links stay as they are while the same members are in and no others make a round clearly shorter.
Clusters are of near members, so before there are any all must have met: until then they are one ring, whose results go
from everybody to everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import median

from msgspec.structs import replace

from atoll import journal
from atoll.net.identity import short
from atoll.net.transport import PeerId
from atoll.spec.axes.whom import Rings, Trees
from atoll.swarm.messages import Standing, trip_name
from atoll.swarm.routes.clusters import rings_of
from atoll.swarm.routes.grow import Cargo, Forest, Links, forecast_s, grown
from atoll.swarm.routes.owners import alone
from atoll.swarm.routes.ring import NEVER_S, ring_order
from atoll.swarm.routes.shares import Shard, Shards
from atoll.swarm.routes.tree import OUT, Tree, ways_of
from atoll.swarm.state import Action, Broker, Note, Round, expected

UNKNOWN_BYTES_S = 1e7
"""What a link is taken to carry while nobody has measured any."""


def around(broker: Broker, round_: Round, now_s: float) -> Round:
    """Return a round with ways among everybody who may still be in it; where there are none, with the broker alone.

    There are none either where nobody may be: all are gone or refused while the broker itself is leaving.
    """
    carriers = carriers_of(broker, round_, now_s)
    if not carriers:
        return _by_the_broker(broker, round_)
    match broker.whom.route:
        case Trees() | Rings() as route if isinstance(route, Trees) or _all_met(broker, round_, carriers):
            return _in_trees(broker, round_, carriers, route)
        case _:
            return _in_a_ring(broker, round_, carriers)


def _in_a_ring(broker: Broker, round_: Round, carriers: tuple[bytes, ...]) -> Round:
    order = ring_order(_trips_s(broker, round_, carriers))
    if not order:
        return _by_the_broker(broker, round_)
    return replace(round_, ring=True, trees=(), shards=_shards(broker, [carriers[place] for place in order]))


def _in_trees(broker: Broker, round_: Round, carriers: tuple[bytes, ...], route: Trees | Rings) -> Round:
    """Return a round in trees; where these are grown, in those of the last one unless others are clearly better."""
    links, cargo = _links(broker, round_, carriers), _cargo(broker)
    match route:
        case Trees(roots=roots, gain=gain):
            forest, before = grown(links, cargo, roots), _before(broker, round_, carriers)
            if before and (1 - gain) * forecast_s(before, links, cargo) <= forecast_s(forest, links, cargo):
                forest = before
        case Rings(clusters=clusters):
            forest = rings_of(_trips_s(broker, round_, carriers), cargo.chunks, clusters)
    if forecast_s(forest, links, cargo) >= NEVER_S:
        return _by_the_broker(broker, round_)
    members = round_.announced.members
    trees = tuple(Tree(chunks, _over(members, carriers, up)) for chunks, up in forest)
    return replace(round_, ring=False, trees=trees, shards=_shards(broker, carriers))


def _cargo(broker: Broker) -> Cargo:
    return Cargo(broker.bulk.chunks, broker.bulk.chunk_bytes)


def _over(members: Sequence[bytes], carriers: Sequence[bytes], up: Sequence[int]) -> tuple[int, ...]:
    """Return a tree of who carries as one over all members of the round."""
    places = [members.index(peer) for peer in carriers]
    above = dict(zip(places, (places[each] for each in up), strict=True))
    return tuple(above.get(place, OUT) for place in range(len(members)))


def _before(broker: Broker, round_: Round, carriers: Sequence[bytes]) -> Forest:
    """Return the last round's trees, if the same members are in them and they are for as many chunks."""
    members, trees = broker.trees
    inside = [place for place, peer in enumerate(members) if peer in carriers]
    same = members == round_.announced.members and sum(tree.chunks for tree in trees) == broker.bulk.chunks
    if not same or any((above != OUT) != (place in inside) for tree in trees for place, above in enumerate(tree.up)):
        return []
    return [(len(way.chunks), way.up) for way in ways_of(trees, inside)]


def changed(broker: Broker, round_: Round) -> list[Action]:
    """Return a word about the trees of a round, if they are not those of the one before."""
    if not round_.trees or (round_.announced.members, round_.trees) == broker.trees:
        return []
    carriers, cargo = round_.owners, _cargo(broker)
    links, before = _links(broker, round_, carriers), _before(broker, round_, carriers)
    members = round_.announced.members
    ways = ways_of(round_.trees, [members.index(peer) for peer in carriers])
    roots: dict[str, float] = {}
    for way in ways:
        who = short(PeerId(carriers[way.root]))
        roots[who] = roots.get(who, 0.0) + len(way.chunks) / cargo.chunks
    event = journal.TreesChanged(
        channel=round_.key.channel,
        version=round_.key.version,
        roots={who: round(share, 3) for who, share in roots.items()},
        trees=len(ways),
        before_s=round(forecast_s(before, links, cargo), 3),
        forecast_s=round(forecast_s([(len(way.chunks), way.up) for way in ways], links, cargo), 3),
    )
    return [Note(event)]


def _links(broker: Broker, round_: Round, peers: Sequence[bytes]) -> Links:
    """Return what is known of the links between some members, and never for who is parted."""
    trips_s = _trips_s(broker, round_, peers)
    # What goes up a link comes down it again: its slower direction counts.
    rates = [[rate or 0 for rate in row] for row in measured(broker, peers, lambda standing: standing.rates_bytes_s)]
    best = [max(row, default=0) for row in rates]
    typical = median(filter(None, best)) if any(best) else UNKNOWN_BYTES_S
    count = range(len(peers))
    # A link that nobody measured is taken to be as fast as any of its ends' others: so it comes to be tried.
    fast = [[rates[a][b] or min(best[a] or typical, best[b] or typical) for b in count] for a in count]
    return Links([[1 / each for each in row] for row in fast], [[trip_s / 2 for trip_s in row] for row in trips_s])


def _by_the_broker(broker: Broker, round_: Round) -> Round:
    return replace(round_, ring=False, trees=(), shards=alone(broker, replace(round_, ring=True)))


def _shards(broker: Broker, carriers: Sequence[bytes]) -> Shards:
    return tuple(Shard(peer, 0, broker.bulk.chunks, place) for place, peer in enumerate(carriers))


def carriers_of(broker: Broker, round_: Round, now_s: float) -> tuple[bytes, ...]:
    """Return who may still be in, in canonical order; also who is late, where there would be too few without."""
    here = tuple(
        peer
        for peer in round_.announced.members
        if peer not in round_.spoiled and (peer in broker.present or expected(broker, peer, now_s))
    )
    prompt = tuple(peer for peer in here if peer not in round_.late)
    return prompt if len(prompt) >= broker.run.membership.contributors_min else here


def _trips_s(broker: Broker, round_: Round, peers: Sequence[bytes]) -> list[list[float]]:
    """Return the round trip between any two, as the one or the other measured it, and never for who is parted."""
    trips_ms = measured(broker, peers, lambda standing: standing.trips_ms)
    known_ms = [trip_ms for row in trips_ms for trip_ms in row if trip_ms is not None]
    unknown_ms = median(known_ms) if known_ms else 0.0
    costs = [[(unknown_ms if trip_ms is None else trip_ms) / 1e3 for trip_ms in row] for row in trips_ms]
    for one, other in combinations(range(len(peers)), 2):
        if _parted(broker, round_, peers[one], peers[other]):
            costs[one][other] = costs[other][one] = NEVER_S
    return costs


def _all_met(broker: Broker, round_: Round, peers: Sequence[bytes]) -> bool:
    """Return whether any two know how far they are from each other, or that they do not reach each other."""
    trips_ms = measured(broker, peers, lambda standing: standing.trips_ms)
    return all(
        trips_ms[one][other] is not None or _parted(broker, round_, peers[one], peers[other])
        for one, other in combinations(range(len(peers)), 2)
    )


def measured(
    broker: Broker, peers: Sequence[bytes], what: Callable[[Standing], tuple[tuple[bytes, int], ...]]
) -> list[list[int | None]]:
    """Return the lesser of what two measured of the way between them, or what one of them did; None: neither did."""
    told = {
        (peer, name): value
        for peer in peers
        if (presence := broker.present.get(peer)) is not None and presence.standing is not None
        for name, value in what(presence.standing)
    }
    found: list[list[int | None]] = [[None] * len(peers) for _ in peers]
    for one, other in combinations(range(len(peers)), 2):
        pairs = ((peers[one], trip_name(peers[other])), (peers[other], trip_name(peers[one])))
        found[one][other] = found[other][one] = min((told[pair] for pair in pairs if pair in told), default=None)
    return found


def _parted(broker: Broker, round_: Round, one: bytes, other: bytes) -> bool:
    """Return whether one of two could not reach the other, in this round or so often that it is remembered."""
    if (one, other) in round_.parted or (other, one) in round_.parted:
        return True
    here = broker.present
    return (one in here and other in here[one].unreached) or (other in here and one in here[other].unreached)
