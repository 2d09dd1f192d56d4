"""Whose state is whose, where the members of a region hold one in common: what the log says of it.

A region may be named by another number in every round, since numbers are given as its members come up. So whoever is in
one has a home, which stays the same while others come and go, and while all of them are away. Who is new in a region
comes home there, and takes its state from a mate. Homes are given up when all have told what they had to tell and begin
anew from what that came to: only then are regions others than before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

BEGINS = "above"
"""In place of the digest that a region starts from: new, or a state that nobody has, it begins from the one above."""


class Homes(Struct, frozen=True):
    """Who is at home where, and how much each home has had."""

    of: dict[bytes, int] = {}
    since: dict[bytes, int] = {}
    """The round with which each came home."""
    pushes: dict[int, int] = {}
    """Contributions of each home."""
    untold: dict[int, int] = {}
    """Those of them that came after it last told."""
    told: int = 0
    """How often any has told."""
    given: int = 0
    """Homes that were ever given out."""

    def mates(self, peer: bytes) -> list[bytes]:
        """Return who else is at home where a peer is."""
        home = self.of.get(peer)
        return [other for other, where in self.of.items() if where == home and other != peer] if peer in self.of else []

    def among(self, group: Iterable[bytes]) -> list[int]:
        """Return where some members are at home; of a region that is one place, or none where all are new."""
        return sorted({self.of[peer] for peer in group if peer in self.of})

    def without(self, members: Collection[bytes]) -> Homes:
        """Return them with nobody but these."""
        return replace(
            self,
            of={peer: home for peer, home in self.of.items() if peer in members},
            since={peer: since for peer, since in self.since.items() if peer in members},
        )


def entered(homes: Homes, version: int, groups: Sequence[Sequence[bytes]], bases: Sequence[str]) -> Homes:
    """Return them once a round of these regions is announced: everybody in it is at home."""
    of, since, given = dict(homes.of), dict(homes.since), homes.given
    for group, base in zip(groups, bases, strict=True):
        known = homes.among(group)
        if not known or base == BEGINS:
            known, given = [given], given + 1
        for peer in group:
            if of.get(peer) != known[0]:
                of[peer], since[peer] = known[0], version
    return replace(homes, of=of, since=since, given=given)


def pushed(homes: Homes, came: Collection[int]) -> Homes:
    """Return them after a round with contributions from these, each as often as it had one."""
    if not came:
        return homes
    more = Counter(came)
    return replace(homes, pushes=_added(homes.pushes, more), untold=_added(homes.untold, more))


def _added(counts: Mapping[int, int], more: Mapping[int, int]) -> dict[int, int]:
    return dict(counts) | {home: counts.get(home, 0) + count for home, count in more.items()}


def told(homes: Homes, came: Collection[int], *, anew: bool) -> Homes:
    """Return them after a round in which these told; or all of them, to begin anew."""
    count = homes.told + len(came)
    if anew:
        return Homes(told=count, given=homes.given)
    return replace(homes, told=count, untold={home: n for home, n in homes.untold.items() if home not in came})
