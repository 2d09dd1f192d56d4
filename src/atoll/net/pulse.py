"""When silence means death: judged by what this very connection has shown before.

Every tick we ping and look whether anything came. Ticks are counted, not seconds: one that comes late because our
own machine was busy counts once, so a stall on this side only puts the verdict off.

How long to wait is not guessed. If each tick is silent with some chance, then the longest silence L of N ticks is the
one that comes up once in N, and one of m * L comes up once in N ** m: after 1,000 ticks m = 3 is once in a thousand
million. So we wait three times the longest silence; a link too young to have shown one gets the m ticks that make it
as improbable; and both get the time an answer takes to come back. That is 4.5 s for a new link, 2.5 s for a quiet one
after half a minute, and more for one with gaps. What strikes a whole machine keeps to no such law: for that there is
a floor, and a ceiling that the run states. The simulated transport judges by the same `Rhythm`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

TICK_S = 0.5
SILENCE_S_MIN = 2.5
"""Nobody is given up earlier unless the ceiling is lower: a fully loaded machine may keep its threads waiting."""
SILENCE_S_MAX = 30.0
"""The ceiling where the run says nothing; QUIC itself gives up there."""
MEMORY_S = 600.0
"""What was seen so long ago counts half."""
_TIMES = 3
_FALSE_ALARMS_PER_TICK = 1e-9
_TICKS_MIN = 10
"""A link with less of a history is judged as if it had this much of an uneventful one."""
_DEVIATIONS = 4
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Rhythm:
    """What a connection has shown: how often it was looked at, its longest silence, its round trips."""

    tick_s: float = TICK_S
    ticks: float = 0.0
    """Ticks seen, older ones counting less."""
    longest_s: float = 0.0
    """The longest silence, shrinking as it fades into the past."""
    round_trip_s: float | None = None
    deviation_s: float = 0.0

    def after(self, ticks: int, silent: int = 0) -> Rhythm:
        """Return the history so many ticks later, at most `silent` of them on end without a sign of life."""
        faded = 0.5 ** (ticks * self.tick_s / MEMORY_S)
        per_tick = 0.5 ** (self.tick_s / MEMORY_S)
        seen = self.ticks * faded + (1 - faded) / (1 - per_tick)
        # A sign of life may be nearly a tick old when it is noticed.
        return replace(self, ticks=seen, longest_s=max(self.longest_s * faded, (silent + 1) * self.tick_s))

    def measured(self, round_trip_s: float | None) -> Rhythm:
        """Return the history with one more round trip, smoothed as TCP does."""
        if round_trip_s is None:
            return self
        if self.round_trip_s is None:
            return replace(self, round_trip_s=round_trip_s, deviation_s=round_trip_s / 2)
        off_s = round_trip_s - self.round_trip_s
        return replace(
            self,
            round_trip_s=self.round_trip_s + off_s / 8,
            deviation_s=self.deviation_s + (abs(off_s) - self.deviation_s) / 4,
        )

    def improbable_s(self) -> float:
        """Return the silence that this history makes too improbable to wait longer."""
        unseen = math.log(1 / _FALSE_ALARMS_PER_TICK) / math.log(max(self.ticks, _TICKS_MIN))
        answer_s = (self.round_trip_s or 0.0) + _DEVIATIONS * self.deviation_s
        return max(unseen * self.tick_s, _TIMES * self.longest_s) + answer_s

    def silent_max(self, silence_s_max: float) -> int:
        """Return after how many silent ticks the other side is given up; the ceiling is kept whatever was seen."""
        floor = math.ceil(SILENCE_S_MIN / self.tick_s - _ROUNDING)
        enough = math.ceil(self.improbable_s() / self.tick_s - _ROUNDING) - 1
        ceiling = math.floor(silence_s_max / self.tick_s + _ROUNDING) - 1
        return max(1, min(max(floor, enough), ceiling))

    def verdict(self, silent: int) -> str:
        """Return in words why the other side is given up after so many silent ticks."""
        words = f"silent for {silent * self.tick_s:.1f} s; its longest silence lately was {self.longest_s:.1f} s"
        if self.round_trip_s is None:
            return words
        return f"{words}, a round trip takes {1000 * self.round_trip_s:.0f} ms"


def tick_for(silence_s_max: float) -> float:
    """Return the time between two ticks: several must fit under the ceiling."""
    return min(TICK_S, silence_s_max / 5)


class Pulse:
    """Judges one connection, asked once every `tick_s`."""

    def __init__(self, silence_s_max: float = SILENCE_S_MAX) -> None:
        assert silence_s_max > 0, "silence_s_max must be positive"
        self.silence_s_max = silence_s_max
        self.rhythm = Rhythm(tick_for(silence_s_max))
        self._silent = 0
        self._heard = -1

    @property
    def tick_s(self) -> float:
        return self.rhythm.tick_s

    def dead(self, heard: int, round_trip_s: float | None = None) -> str | None:
        """Return why the other side is to be given up, if it is; `heard` is a count that grows with every sign of it.

        History is written only when there is a sign, so the time to wait does not change while we wait.
        """
        if heard != self._heard:
            if self._heard >= 0:
                self.rhythm = self.rhythm.after(self._silent + 1, self._silent)
            self.rhythm = self.rhythm.measured(round_trip_s)
            self._silent, self._heard = 0, heard
            return None
        self._silent += 1
        if self._silent < self.rhythm.silent_max(self.silence_s_max):
            return None
        return self.rhythm.verdict(self._silent)
