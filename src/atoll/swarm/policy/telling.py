"""Where regions hold states of their own: what each starts from, which of them tell, and when all begin anew.

A region starts from the state that most of its members report; while none of them has said anything of the newest
version, each from its own. It tells once it has had as many contributions as the recipe asks for. Regions stay as they
are while anything is untold: to be others, or to end a run, all of them tell what they have and begin anew from what
that comes to. A region that is new begins from the state above; so does one whose state nobody has any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import UNSET, Struct, UnsetType

from atoll.spec.axes.pace import Regional
from atoll.swarm.homes import BEGINS
from atoll.swarm.routes.shares import by_region, numbered
from atoll.swarm.state import Broker

LOST_S = 60.0
"""A region waits so long for one who is away and may have its state, where nobody who is there does."""


class Arranged(Struct, frozen=True):
    """What an announcement says of regions."""

    regions: dict[bytes, int] | None = None
    bases: tuple[str, ...] | UnsetType = UNSET
    tells: tuple[int, ...] | UnsetType = UNSET


def arranged(
    broker: Broker, home: Regional, common: str, wanted: Mapping[bytes, int], *, met: bool, last: bool, now_s: float
) -> Arranged | None:
    """Return how a round among members who should be in these regions is announced; None: not yet.

    `common` is what all start from while nobody is at home anywhere; `met`: that regions are known.
    """
    homes, peers = broker.history.homes, list(wanted)
    agree = _agree(broker, wanted)
    anew = last or not agree
    numbers = tuple(wanted.values()) if agree else _as_they_are(broker, peers)
    groups = by_region(peers, numbers)
    if not homes.of:
        bases: list[str | None] = [common] * len(groups)
    else:
        bases = [_base(broker, group, anew=anew, now_s=now_s) for group in groups]
    if anew and None in bases:
        return None
    named = tuple(base or "" for base in bases)
    due = tuple(number for number, group in enumerate(groups) if named[number] != BEGINS and _due(broker, home, group))
    anew = anew and any(base != BEGINS for base in named)  # else nobody has anything to tell
    tells: tuple[int, ...] | UnsetType = () if anew else due or UNSET
    told = dict(zip(peers, numbers, strict=True)) if (met and agree) or len(groups) > 1 else None
    return Arranged(told, named, tells)


def _agree(broker: Broker, wanted: Mapping[bytes, int]) -> bool:
    """Return whether regions as they should be leave everybody at home."""
    homes = broker.history.homes
    found = [homes.among(group) for group in by_region(list(wanted), list(wanted.values()))]
    places = [home for each in found for home in each]
    return all(len(each) <= 1 for each in found) and len(places) == len({*places})


def _as_they_are(broker: Broker, peers: Sequence[bytes]) -> tuple[int, ...]:
    """Return the region of each by where it is at home; who is new is in one alone."""
    return numbered([broker.history.homes.of.get(peer, peer) for peer in peers])


def _base(broker: Broker, group: Sequence[bytes], *, anew: bool, now_s: float) -> str | None:
    """Return the digest that a region starts from; None: who may have its state has not said so yet."""
    homes, version = broker.history.homes, broker.history.version
    known = homes.among(group)
    if not known:
        return BEGINS
    mates = [peer for peer, home in homes.of.items() if home == known[0]]
    here = {p: broker.present[p].standing for p in mates if p in broker.present}
    newest = [s for s in here.values() if s is not None and s.version == version]
    said = Counter(standing.anchor for standing in newest if standing.anchor)
    if said:
        return max(sorted(said), key=lambda digest: said[digest])
    away_s = [broker.away_s.get(p, broker.started_s) for p in mates if p not in here]
    gone = anew or all(now_s - since_s >= LOST_S for since_s in away_s)
    return BEGINS if gone and len(newest) == len(here) else None


def _due(broker: Broker, home: Regional, group: Sequence[bytes]) -> bool:
    """Return whether a region has had enough contributions since it last told, and somebody is there who has them."""
    homes = broker.history.homes
    said = (broker.present[peer].standing for peer in group if peer in broker.present)
    there = any(standing is not None and standing.anchor for standing in said)
    return there and any(homes.untold.get(each, 0) >= home.pushes for each in homes.among(group))
