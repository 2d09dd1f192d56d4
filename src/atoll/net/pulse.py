"""When silence means death: a count of our own ticks without a sign of life from the other side.

Ticks are counted, not seconds. A tick that comes late because our own machine was busy counts once, so
a stall on this side only puts the verdict off; a fully loaded machine never declares the others dead.
"""

from __future__ import annotations

import math


class Pulse:
    """Judges one connection, asked once every `tick_s`."""

    def __init__(self, dead_after_s: float) -> None:
        assert dead_after_s > 0, "dead_after_s must be positive"
        self.tick_s = min(1.0, dead_after_s / 5)
        # One tick is kept in hand: a sign of life may be nearly a tick old when it is noticed.
        self._silent_max = max(1, math.ceil(dead_after_s / self.tick_s) - 1)
        self._silent = 0
        self._heard = -1

    def dead(self, heard: int) -> bool:
        """Return whether the other side is to be given up, `heard` being a count that grows with every sign of it."""
        self._silent = 0 if heard != self._heard else self._silent + 1
        self._heard = heard
        return self._silent >= self._silent_max
