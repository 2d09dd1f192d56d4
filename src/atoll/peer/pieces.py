"""Pieces of something large, named by their digests, and which of them to ask whom for next.

Pure bookkeeping, no network. Each donor owes a few pieces at a time (as many as it sends in about a second, so
that its link stays full), rarest first. How rare a piece is depends on those who have only a part: whoever has
everything has each piece. Equally rare ones come in an order of chance that differs from joiner to joiner. Joiners that
draw from each other share out what all of them need: each piece is the first concern of the one whose lot for it is
highest, as each of them can tell from the others' names. So a lone source sends most pieces once.

Nothing is asked for twice while a piece that nobody was asked for is left. After that a donor with nothing to do
takes over what another would deliver much later: a slow or silent one holds up only what it has begun to send.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from blake3 import blake3
from msgspec import Struct

from atoll.net.transport import PeerId

PIECE_BYTES = 2**20
PIECE_BYTES_MIN = 2**12
PIECES_FEW = 64
"""Something small is cut into about so many pieces, so that every donor has something to send."""
WINDOW_FIRST = 4
WINDOW_MIN = 2
WINDOW_MAX = 32
"""Pieces one donor owes us at once, at first and at least and at most."""
HORIZON_S = 1.0
"""A donor owes what it delivers in this time, and one piece more."""
GAIN = 1.5
"""A piece goes to another donor when it comes this many times sooner from there."""
SMOOTH = 0.3
"""Weight of the newest measurement."""


def piece_bytes(size_bytes: int) -> int:
    """Return how large the pieces of something of this size are."""
    even = -(-size_bytes // PIECES_FEW)
    rounded = -(-even // PIECE_BYTES_MIN) * PIECE_BYTES_MIN
    return max(PIECE_BYTES_MIN, min(PIECE_BYTES, rounded))


class Listing(Struct, frozen=True):
    """What a snapshot is: its version, the anchor's digest, its size, and the digest of each piece."""

    version: int
    state: str
    size_bytes: int
    digests: tuple[bytes, ...]

    def root(self) -> str:
        """Return the name of all this."""
        head = f"{self.version} {self.state} {self.size_bytes}\0".encode()
        return blake3(head + b"".join(self.digests)).hexdigest()

    def span(self, index: int) -> tuple[int, int]:
        """Return where a piece begins in the file, and how long it is."""
        step = piece_bytes(self.size_bytes)
        return index * step, min(step, self.size_bytes - index * step)

    def fits(self) -> bool:
        """Return whether there are as many digests as pieces."""
        step = piece_bytes(self.size_bytes)
        return len(self.digests) == -(-self.size_bytes // step) and all(len(d) == 32 for d in self.digests)


@dataclass
class _Donor:
    """What one donor has, owes and is worth."""

    has: set[int] | None
    """None: all."""
    heap: list[tuple[int, float, int]]
    """(rarity, chance, piece): what it could be asked for; some entries are out of date."""
    owes: dict[int, None] = field(default_factory=dict)
    """Asked for and not here yet, in the order of asking."""
    called_off: Counter[int] = field(default_factory=Counter)
    """May still come, as often as it was called off, and is then no offence."""
    unsaid: list[int] = field(default_factory=list)
    """To be called off, when there is time to say so."""
    pace_s: float | None = None
    """Measured time for one piece."""
    moved_s: float = 0.0
    """When it last delivered, or was first asked after owing nothing."""


class Haul:
    """What is still to come, who has it, and who was asked for it."""

    def __init__(self, count: int, chance: Random, have: Iterable[int] = (), me: bytes = b"") -> None:
        self.count = count
        self._lots: dict[bytes, list[float]] = {}
        self._mine = self._lots_of(me)
        self.have = dict.fromkeys(have)
        self.twice = 0
        """Pieces that came once more although they were here."""
        self._chance = [chance.random() for _ in range(count)]
        self._askers: Counter[int] = Counter()
        self._partial: Counter[int] = Counter()
        """In how many incomplete donors each piece is."""
        self._donors: dict[PeerId, _Donor] = {}
        self._delivered: dict[PeerId, int] = {}

    @property
    def complete(self) -> bool:
        return len(self.have) == self.count

    @property
    def donors(self) -> list[PeerId]:
        """Return who delivered anything, in the order of their first piece."""
        return list(self._delivered)

    def join(self, peer: PeerId, has: Iterable[int] | None) -> None:
        """Count on a donor that has these pieces, or all."""
        self._donors[peer] = donor = _Donor(None if has is None else set(), [])
        if has is None:
            donor.heap = [self._entry(index) for index in range(self.count) if index not in self.have]
            heapq.heapify(donor.heap)
        else:
            self.grow(peer, has)

    def grow(self, peer: PeerId, pieces: Iterable[int]) -> None:
        """Learn that a donor has more pieces than before."""
        donor = self._donors[peer]
        if donor.has is None:
            return
        for index in pieces:
            if index not in donor.has:
                donor.has.add(index)
                self._partial[index] += 1
                heapq.heappush(donor.heap, self._entry(index))

    def leave(self, peer: PeerId) -> None:
        """Stop counting on a donor; what it owes can be asked of others again."""
        donor = self._donors.pop(peer, None)
        if donor is None:
            return
        self._partial.subtract(donor.has or ())
        for index in donor.owes:
            self._askers[index] -= 1
            self._put_back(index)

    def owes(self, peer: PeerId) -> int:
        """Return how many pieces a donor owes."""
        return len(self._donors[peer].owes)

    def silent_s(self, peer: PeerId, now_s: float) -> float:
        """Return for how long a donor has owed something and delivered nothing."""
        donor = self._donors[peer]
        return now_s - donor.moved_s if donor.owes else 0.0

    def hopeless(self) -> bool:
        """Return whether some missing piece is with nobody we count on."""
        if any(donor.has is None for donor in self._donors.values()):
            return False
        return any(self._partial[index] <= 0 for index in range(self.count) if index not in self.have)

    def turn(self, peer: PeerId, now_s: float) -> tuple[list[int], list[int]]:
        """Return what to ask a donor for now, and what to call off."""
        donor = self._donors[peer]
        off, donor.unsaid = donor.unsaid, []
        wants: list[int] = []
        while len(donor.owes) < _window(donor):
            index, left = self._rarest(donor, idle=not donor.owes)
            if index is None and not left:
                index = self._take_over(donor, now_s)
            if index is None:
                break
            if not donor.owes:
                donor.moved_s = now_s
            donor.owes[index] = None
            self._askers[index] += 1
            wants.append(index)
        return wants, off

    def expects(self, peer: PeerId, index: int) -> bool:
        """Return whether a donor was asked for this piece, lately or before it was called off."""
        donor = self._donors[peer]
        return index in donor.owes or donor.called_off[index] > 0

    def got(self, peer: PeerId, index: int, now_s: float) -> bool:
        """Note that a donor delivered a piece it was expected to; return whether it is new."""
        donor = self._donors[peer]
        took_s = max(now_s - donor.moved_s, 1e-6)
        donor.pace_s = took_s if donor.pace_s is None else donor.pace_s + SMOOTH * (took_s - donor.pace_s)
        donor.moved_s = now_s
        if index in donor.owes:
            del donor.owes[index]
            self._askers[index] -= 1
        else:
            donor.called_off[index] -= 1
        if index in self.have:
            self.twice += 1
            return False
        self.have[index] = None
        self._delivered[peer] = self._delivered.get(peer, 0) + 1
        for other in self._donors.values():
            self._call_off(other, index)
        return True

    def _call_off(self, donor: _Donor, index: int) -> None:
        if index in donor.owes:
            del donor.owes[index]
            self._askers[index] -= 1
            donor.called_off[index] += 1
            donor.unsaid.append(index)

    def _entry(self, index: int) -> tuple[int, float, int]:
        return self._partial[index], self._chance[index], index

    def _put_back(self, index: int) -> None:
        if index in self.have or self._askers[index]:
            return
        for donor in self._donors.values():
            if donor.has is None or index in donor.has:
                heapq.heappush(donor.heap, self._entry(index))

    def _rarest(self, donor: _Donor, *, idle: bool) -> tuple[int | None, bool]:
        """Return the rarest piece that this donor has and nobody was asked for, and whether there are more.

        Of equally rare ones those that are our concern come first, the others only where the donor would be idle:
        whoever they concern has most likely asked for them.
        """
        others: list[tuple[int, float, int]] = []
        found: int | None = None
        while donor.heap and found is None:
            rarity, _, index = entry = heapq.heappop(donor.heap)
            if index in self.have or self._askers[index]:
                continue
            if rarity < self._partial[index]:
                heapq.heappush(donor.heap, self._entry(index))
            elif others and rarity > others[0][0]:
                others.append(entry)
                break
            elif donor.has is None and self._is_others(index):
                others.append(entry)
            else:
                found = index
        if found is None and others and idle:
            found = others.pop(0)[2]
        for entry in others:
            heapq.heappush(donor.heap, entry)
        return found, bool(others)

    def _is_others(self, index: int) -> bool:
        """Return whether a joiner that draws the same has a higher lot for a piece."""
        mine = self._mine[index]
        return any(donor.has is not None and self._lots_of(peer)[index] > mine for peer, donor in self._donors.items())

    def _lots_of(self, peer: bytes) -> list[float]:
        """Return a joiner's lots, the same wherever they are drawn."""
        if peer not in self._lots:
            draw = Random(peer)
            self._lots[peer] = [draw.random() for _ in range(self.count)]
        return self._lots[peer]

    def _take_over(self, donor: _Donor, now_s: float) -> int | None:
        """Return the piece that others would deliver last, if it comes much sooner from here."""
        mine_s = (len(donor.owes) + 1) * self._pace_s(donor, now_s)
        soonest: dict[int, tuple[float, int, _Donor]] = {}
        for other in self._donors.values():
            pace_s = self._pace_s(other, now_s)
            for place, index in enumerate(other.owes):
                due_s = (place + 1) * pace_s
                if index not in soonest or due_s < soonest[index][0]:
                    soonest[index] = due_s, place, other
        late = [
            (due_s, index)
            for index, (due_s, _, _) in soonest.items()
            if due_s > GAIN * mine_s and index not in donor.owes and (donor.has is None or index in donor.has)
        ]
        if not late:
            return None
        _, index = max(late, key=lambda each: each[0])
        _, place, other = soonest[index]
        if place:  # the first is perhaps on its way already: whichever comes sooner
            self._call_off(other, index)
        return index

    def _pace_s(self, donor: _Donor, now_s: float) -> float:
        """Return how long a donor takes for a piece; one that owes and stays silent gets slower by the second."""
        known = [d.pace_s for d in self._donors.values() if d.pace_s is not None]
        pace_s = donor.pace_s if donor.pace_s is not None else sum(known) / len(known) if known else HORIZON_S
        return max(pace_s, now_s - donor.moved_s) if donor.owes else pace_s


def _window(donor: _Donor) -> int:
    if donor.pace_s is None:
        return WINDOW_FIRST
    return max(WINDOW_MIN, min(WINDOW_MAX, 1 + round(HORIZON_S / donor.pace_s)))
