"""When one end of a connection gives the other up: after a silence that their history makes very improbable.

Pings cost no events. When silence begins, the time of the last ping that passed is computed, and the history up to it
(`net/pulse`, the same code as over real links); when it ends, so is when the next ping comes.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from atoll.net.pulse import Rhythm, tick_for

if TYPE_CHECKING:
    from atoll.sim.conns import SimConn


class Silence:
    """What one end of a connection has heard of the other, and since when it hears nothing."""

    def __init__(self, conn: SimConn) -> None:
        self._conn = conn
        self._loop = conn.network.loop
        self._rhythm = Rhythm(tick_for(conn.door.silence_s_max), round_trip_s=2 * conn.delay_s)
        self._born_s = self._loop.time()
        self._written_s = self._born_s
        """Up to when the history is written."""
        self._heard_s: float | None = None
        """The last sign of life, while the other side is silent."""
        self._paused_s: float | None = None
        """Since when this side looks at nothing."""
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Arm or disarm the timer that ends this side when the other has been silent for too long."""
        if not self._conn.door.running:
            self._note_silence()
            self.disarm()  # a paused process notices nothing
            self._paused_s = self._loop.time() if self._paused_s is None else self._paused_s
            return
        self._leave_out_pause()
        if not self._conn.hears():
            self._note_silence()
            if self._timer is None:
                self._timer = self._loop.call_in_world_at(self._dead_s(), self._give_up)
        elif self._timer is None or self._next_ping_s() < self._timer.when():
            self.disarm()
            self._note_end_of_silence()

    def disarm(self) -> None:
        """Wait for nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave_out_pause(self) -> None:
        """Our own pause says nothing about the other side."""
        if self._paused_s is not None:
            assert self._heard_s is not None
            self._heard_s += self._loop.time() - self._paused_s
            self._paused_s = None

    def _note_silence(self) -> None:
        """Write the history up to the last ping that got through."""
        if self._heard_s is None:
            tick_s = self._rhythm.tick_s
            pings = math.floor((self._loop.time() - self._conn.delay_s - self._born_s) / tick_s)
            self._heard_s = self._born_s + max(0.0, pings * tick_s + self._conn.delay_s)
            self._write(round((self._heard_s - self._written_s) / tick_s))
            self._written_s = max(self._written_s, self._heard_s)

    def _note_end_of_silence(self) -> None:
        if self._heard_s is not None:
            next_s = self._next_ping_s()
            silent = max(0, math.ceil((next_s - self._heard_s) / self._rhythm.tick_s) - 1)
            self._rhythm = self._rhythm.after(silent + 1, silent)
            self._written_s = next_s
            self._heard_s = None

    def _write(self, ticks: int) -> None:
        """Add so many ticks with nothing in them but the pings that loss may have swallowed, one after the other."""
        if ticks > 0:
            later = self._rhythm.after(ticks)
            loss = self._conn.loss()
            silent = loss * (1 - (1 - loss) ** 2)  # neither their ping nor their answer to ours
            run = math.log(max(later.ticks, 1)) / -math.log(silent) if 0 < silent < 1 else 0.0
            self._rhythm = self._rhythm.after(ticks, int(run))

    def _dead_s(self) -> float:
        """Return when the present silence will have lasted too long, looked at once a tick."""
        assert self._heard_s is not None
        tick_s, loop = self._rhythm.tick_s, self._loop
        noticed_s = self._born_s + math.ceil((self._heard_s - self._born_s) / tick_s) * tick_s
        dead_s = noticed_s + self._rhythm.silent_max(self._conn.door.silence_s_max) * tick_s
        return max(dead_s, loop.time() + self._conn.delay_s)

    def _next_ping_s(self) -> float:
        pings = math.ceil((self._loop.time() - self._born_s) / self._rhythm.tick_s)
        return self._born_s + pings * self._rhythm.tick_s + self._conn.delay_s

    def _give_up(self) -> None:
        self._timer = None
        why = self._rhythm.verdict(self._rhythm.silent_max(self._conn.door.silence_s_max))
        self._conn.end(why, tell=f"the other side heard nothing of this one: {why}")
