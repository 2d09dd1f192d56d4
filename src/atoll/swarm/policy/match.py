"""Matching forms to lines: everybody's contribution takes as long as everybody else's, each as fine as that allows.

Members say how long they took to bring in what they contributed; longer than the broker waited for it cannot be. All
have the time that the fastest needs for the finest form; or that of the work of a round, if that is longer, since
nothing is won by being faster than that. Each contributes in the finest form that goes by in it. Results are one form
for all, the finest that the slowest line brings in within it.

Forms stay while they take about as long, so that noise moves nothing. Who sends little takes mostly what messages need
to get there, which says only that its line carries at least that: what was known before holds until a contribution
takes a good part of the time and is slower. Then the other direction is taken to have become slower alike: how fast
results come in depends on who is slowest in bringing its contribution, so that no rate of theirs tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from atoll.spec.axes.control import Knobs, Match
from atoll.spec.say import say

SLOWER = 1.15
"""A form stays that takes up to so much of its time,"""
FINER = 0.85
"""and a finer one must take at most so much of it."""
HALF = 0.5
"""Who owns more than half has as much time as if it sent so much of its own: it returns results beside that."""
TRUSTED = 0.5
"""A rate that is lower than before is believed where what was moved at it took so much of the time."""


class Line(Struct, frozen=True):
    """A member's line: what it carries, 0: not known; and what its owner has."""

    up_bytes_s: float = 0.0
    """Of its contributions, as it says how long they took."""
    most_bytes_s: float = 0.0
    """The most that ever was."""
    own_down_bytes_s: float = 0.0
    """The most it ever measured downwards."""
    owner_bytes_s: float = 0.0
    """Of its slower direction, by its own measure: how much it may own follows from that."""
    share: float = 0.0
    """Of the grid it owns so much: that part of its contribution stays with it."""

    @property
    def away(self) -> float:
        """Return which part of contributions and results goes over it."""
        return max(1 - self.share, 1e-9)

    @property
    def known(self) -> bool:
        return self.up_bytes_s > 0 and self.own_down_bytes_s > 0

    @property
    def down_bytes_s(self) -> float:
        """Return what it carries downwards."""
        left = self.up_bytes_s / self.most_bytes_s if self.most_bytes_s else 1.0
        return self.own_down_bytes_s * left


Lines = Mapping[bytes, Line]


class Setting(Struct, frozen=True):
    """Who contributes in which form of so many bytes, and in which results are."""

    sizes: Sequence[int]
    """Bytes of each form, the finest first."""
    result: int
    rungs: Mapping[bytes, int]


def setting_of(sizes: Sequence[int], members: Sequence[bytes], knobs: Knobs | None) -> Setting:
    """Return the setting of a round at a position of the knobs; None: the finest for all."""
    result = 0 if knobs is None else knobs.rung
    each = {} if knobs is None else dict(knobs.each)
    return Setting(sizes, result, {peer: each.get(peer, result) for peer in members})


def believe(had: Line, seen: Line, took_s: float, time_s: float) -> Line:
    """Return what a line carries after a round in which a contribution took so long, where all have so much time."""
    long = took_s >= TRUSTED * time_s
    up_bytes_s = seen.up_bytes_s if long else max(had.up_bytes_s, seen.up_bytes_s)
    owner_bytes_s = seen.owner_bytes_s if long and seen.owner_bytes_s else max(had.owner_bytes_s, seen.owner_bytes_s)
    return Line(
        up_bytes_s=up_bytes_s,
        most_bytes_s=max(had.most_bytes_s, up_bytes_s),
        own_down_bytes_s=max(had.own_down_bytes_s, seen.own_down_bytes_s),
        owner_bytes_s=owner_bytes_s,
        share=seen.share,
    )


def time_of(sizes: Sequence[int], lines: Lines, work_s: float) -> float:
    """Return the time that all have."""
    sending = [line for line in lines.values() if line.known and line.share < 1]
    return max(work_s, min((max(line.away, HALF) * sizes[0] / line.up_bytes_s for line in sending), default=0.0))


def decide(
    match: Match, setting: Setting, lines: Lines, now: Knobs | None, work_s: float, steps: int
) -> tuple[Knobs | None, str]:
    """Return who should contribute in which form, and why."""
    known = {peer: line for peer, line in lines.items() if line.known and peer in setting.rungs}
    if len(known) < 2:
        return now, ""
    sizes, rungs = setting.sizes, dict(setting.rungs)
    time_s = time_of(sizes, known, work_s)
    down_bytes = min(time_s * line.down_bytes_s / line.away for line in known.values())
    result = finest(sizes, down_bytes, setting.result)
    for peer, line in known.items():
        rungs[peer] = finest(sizes, time_s * line.up_bytes_s / line.away, rungs[peer])
    if (result, rungs) == (setting.result, setting.rungs):
        return now, ""
    each = tuple((peer, rung) for peer, rung in sorted(rungs.items()) if rung != result)
    return Knobs(rung=result, steps=steps, each=each), _why(match, result, rungs, time_s, work_s)


def finest(sizes: Sequence[int], room_bytes: float, had: int) -> int:
    """Return the finest form for which there is room; the one before, if it is about as good; the last, if none is."""
    fits = next((rung for rung, size in enumerate(sizes) if size <= room_bytes), len(sizes) - 1)
    eager = next((rung for rung, size in enumerate(sizes) if size <= FINER * room_bytes), len(sizes) - 1)
    if fits < had:
        return min(had, eager)
    return had if sizes[had] <= SLOWER * room_bytes else fits


def _why(match: Match, result: int, rungs: Mapping[bytes, int], time_s: float, work_s: float) -> str:
    """Return the arithmetic in words."""
    counts = Counter(rungs.values())
    forms = ", ".join(f"{counts[rung]} in {say(match.ladder[rung].codec)}" for rung in sorted(counts))
    bound = "the work of a round" if time_s == work_s else "the fastest line in the finest form"
    return f"in the {time_s:.2f} s of {bound}: {forms}; results in {say(match.ladder[result].codec)}"
