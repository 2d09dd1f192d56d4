"""How fast this peer's own line is, and each link to another, measured from the traffic of rounds.

What counts is what the other side says it has got (up) or what we have taken (down): bytes that were merely handed
over may lie in a buffer. The rate is the highest over any second in which something moved, since most of the time a
line waits for somebody else's, or over longer where few messages come in a second; and it is the highest of the last
few rounds, so that a line that got slower is known for what it is within that many.

That is right of a line that is full now and then. Who owns something has parts pushed at it and fills its line; who
owns nothing sends and receives at the pace of the owners, and would look slow for good and go on owning nothing. So
where it shows clearly more than when it last owned, its line is another one by now, and how fast is not known.

A line that is faster than all others never fills, since each of them sends it no more than its share: it looks like
theirs. So a person may say what it carries (`--line`). That holds until the line was given much more than an equal
share, which it is for that very reason; from then on it is what was seen there, if that is less.

A link is mostly idle, as it waits for what is to go over it. So its rate is over the time in which something was on its
way, less the round trip until that is known to have arrived; and what a byte took is averaged over rounds.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 1.0
MESSAGES = 32
"""A second in which fewer messages arrive is too short: they come from several peers, and those that happen to come
together would be taken for speed. Then it is the time of so many."""
SHORT_S = 0.2
"""What moved within less time than this is taken to have needed as much: a burst says little."""
IDLE_S = 5.0
"""After so long without a byte the next one begins a new transfer."""
ROUNDS = 2
MORE = 1.3
"""A line that moves so many times more than was known of it is no longer the same."""
FILLED = 2.0
"""Who owns so many equal shares has as much more pushed at it: its line shows what it carries."""
DIGITS = 2
"""Reported with so many digits: the rest is noise."""
NEWEST = 0.75
"""What the last round counts for in the mean time that a byte takes on a link."""
ROUNDS_MAX = 32
"""A link that nothing went over in so many rounds is not known any more: it may have become faster."""
APART = 1.5
"""So many times more bytes must be for what they took longer to tell something,"""
TINY_S = 1e-3
"""no amount takes less than this,"""
TWICE = 2.0
"""and what is concluded changes no more than this from round to round, since much else delays a message."""
LEAST = 0.1
"""Of the time that something was on its way, round trips are taken for no more than the rest of this."""


class Meter:
    """The rate of one direction."""

    def __init__(self) -> None:
        self._total_bytes = 0
        self._marks: deque[tuple[float, int]] = deque()
        self._last_s = float("-inf")
        self._vague_s = float("-inf")
        self._peak_bytes_s = 0.0
        self._peaks_bytes_s: deque[float] = deque(maxlen=ROUNDS)

    def begin(self, now_s: float) -> None:
        """Note that something is on its way."""
        if now_s - self._last_s > IDLE_S:
            self._marks = deque([(now_s, self._total_bytes)])
        self._last_s = now_s

    def moved(self, size_bytes: int, now_s: float) -> None:
        """Note that so many bytes have arrived; when they set out is known only if `begin` was called."""
        if now_s - self._last_s > IDLE_S:
            self._vague_s = now_s + SHORT_S
        self.begin(now_s)
        self._total_bytes += size_bytes
        if now_s <= self._vague_s:  # the first to arrive only say since when there is something to measure
            self._marks = deque([(now_s, self._total_bytes)])
            return
        self._marks.append((now_s, self._total_bytes))
        while len(self._marks) > MESSAGES and self._marks[1][0] <= now_s - WINDOW_S:
            self._marks.popleft()
        since_s, before_bytes = self._marks[0]
        rate_bytes_s = (self._total_bytes - before_bytes) / max(now_s - since_s, SHORT_S)
        self._peak_bytes_s = max(self._peak_bytes_s, rate_bytes_s)

    def turn(self) -> None:
        """Begin another round."""
        if self._peak_bytes_s:
            self._peaks_bytes_s.append(self._peak_bytes_s)
        self._peak_bytes_s = 0.0
        self._last_s = float("-inf")  # what comes next is a transfer of its own: the line may be another one by now

    def rate_bytes_s(self) -> int:
        """Return the measured rate, rounded; 0: unknown."""
        return _rounded(max([self._peak_bytes_s, *self._peaks_bytes_s]))


class Line:
    """The rates of both directions of our line."""

    def __init__(self, stated_bytes_s: int = 0) -> None:
        self.up, self.down = Meter(), Meter()
        self._stated_bytes_s = stated_bytes_s
        """What a person says that it carries either way, as far as it did when it was put to it; 0: nothing."""
        self._known_bytes_s = 0
        """Of the slower direction, when we last owned something; 0: we never did."""

    def turn(self, *, owned: float) -> None:
        """Begin another round; in the one before we owned so many times an equal share."""
        self.up.turn()
        self.down.turn()
        if owned:
            self._known_bytes_s = min(self.up.rate_bytes_s(), self.down.rate_bytes_s())
        if owned >= FILLED:
            self._stated_bytes_s = min(self._stated_bytes_s, self._known_bytes_s)

    def rates_bytes_s(self) -> tuple[int, int]:
        """Return the rates up and down; 0: unknown."""
        up, down = self.up.rate_bytes_s(), self.down.rate_bytes_s()
        if self._stated_bytes_s:
            return max(up, self._stated_bytes_s), max(down, self._stated_bytes_s)
        outgrown = 0 < MORE * self._known_bytes_s < min(up, down)
        return (0, 0) if outgrown else (up, down)


class Slope:
    """What a link carries where how much goes over it is chosen by that: by what different amounts took.

    Some of the time is not for bytes, and the fewer these are the larger a part of it. Who went by bytes over time
    would send less and less. So a rate is what more bytes took longer; as many that take longer are taken to be slower
    in proportion, and whatever went over it was carried.
    """

    def __init__(self) -> None:
        self._rate_bytes_s = 0.0
        self._before: tuple[int, float] | None = None

    def took(self, size_bytes: int, took_s: float) -> None:
        """Note how long so many bytes took in a round."""
        took_s = max(took_s, TINY_S)
        rate_bytes_s = self._rate_bytes_s
        if self._before is not None:
            before_bytes, before_s = self._before
            more_bytes, longer_s = size_bytes - before_bytes, took_s - before_s
            if max(size_bytes, before_bytes) < APART * min(size_bytes, before_bytes):
                rate_bytes_s *= before_s / took_s
            elif more_bytes * longer_s > 0:
                rate_bytes_s = more_bytes / longer_s
            rate_bytes_s = min(max(rate_bytes_s, self._rate_bytes_s / TWICE), self._rate_bytes_s * TWICE)
        self._rate_bytes_s = max(rate_bytes_s, size_bytes / took_s)
        self._before = (size_bytes, took_s)

    def rate_bytes_s(self) -> float:
        """Return the rate; 0: unknown."""
        return self._rate_bytes_s


class Link:
    """The rate of the link to one peer, in our direction."""

    def __init__(self) -> None:
        self.slope = Slope()
        self._on_way_bytes = 0
        self._since_s = 0.0
        self._moved_bytes = 0
        self._busy_s = 0.0
        self._transfers = 0
        self._byte_s = 0.0
        self._idle_rounds = 0

    def begin(self, size_bytes: int, now_s: float) -> None:
        """Note that so many more bytes are on their way."""
        if not self._on_way_bytes:
            self._since_s = now_s
            self._transfers += 1
        self._on_way_bytes += size_bytes

    def moved(self, size_bytes: int, now_s: float) -> None:
        """Note that so many of them have arrived."""
        self._on_way_bytes = max(0, self._on_way_bytes - size_bytes)
        self._moved_bytes += size_bytes
        self._busy_s += now_s - self._since_s
        self._since_s = now_s

    def turn(self, trip_s: float) -> None:
        """Begin another round, as long as the round trip is."""
        if self._moved_bytes:
            took_s = max(self._busy_s - self._transfers * trip_s, LEAST * self._busy_s)
            self.slope.took(self._moved_bytes, self._busy_s)
            byte_s = took_s / self._moved_bytes
            self._byte_s = NEWEST * byte_s + (1 - NEWEST) * self._byte_s if self._byte_s else byte_s
        self._idle_rounds = 0 if self._moved_bytes else self._idle_rounds + 1
        if self._idle_rounds >= ROUNDS_MAX:
            self._byte_s = 0.0
        self._on_way_bytes, self._moved_bytes, self._busy_s, self._transfers = 0, 0, 0.0, 0

    def rate_bytes_s(self) -> int:
        """Return the measured rate, rounded; 0: unknown."""
        return max(1, _rounded(1 / self._byte_s)) if self._byte_s else 0


def _rounded(rate: float) -> int:
    whole = round(rate)
    return int(round(whole, DIGITS - len(str(whole))))
