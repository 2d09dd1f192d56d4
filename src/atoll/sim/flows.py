"""How concurrent transfers share links: a fluid model, max-min fair, strict by traffic class.

A flow uses up to three links (its sender's uplink, its receiver's downlink, and the loss limit of its
connection) and may have a limit of its own (window over round trip). Rates are those of progressive filling:
every flow grows alike until one of its links is full. One numpy pass freezes all flows of every link that is the
tightest for all its flows, so tens of thousands of flows take a few passes. Rates change only when a flow starts
or ends; with a quantum they are recomputed at most once per quantum, which costs little truth and saves much time.

A link is anything that fills up in proportion to what flows: a line takes a byte for each byte, with headers a little
more, and a computer's cores take some nanoseconds for each (`cores`). So a flow names with each link its `weight`: how
much of that link one byte of the flow takes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from atoll.sim.loop import VirtualLoop

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_LINK = 0
"""A link that never limits."""
UNLIMITED_BYTES_S = 1e15
RESERVED = 0.02
"""Part of a link that a lower class keeps when it has something to send: less urgent is not never."""


def share(links_FU: Ints, weight_FU: Floats, limit_F: Floats, traffic_F: Ints, capacity_L: Floats) -> Floats:
    """Return the rate of every flow (F), given which links (L) it uses (U): classes in order, max-min fair in each."""
    rate_F = np.zeros(len(limit_F))
    left_L = capacity_L.copy()
    present = np.unique(traffic_F)
    for traffic in present:
        members = np.flatnonzero(traffic_F == traffic)
        usable_L = left_L
        if traffic != present[-1]:
            lower = np.bincount(links_FU[traffic_F > traffic].ravel(), minlength=len(left_L)) > 0
            usable_L = np.maximum(left_L - RESERVED * capacity_L * lower, 0.0)
        rate_F[members] = _fill(links_FU[members], weight_FU[members], limit_F[members], usable_L)
        load_L = _load(links_FU[members], weight_FU[members], rate_F[members], len(left_L))
        left_L = np.maximum(left_L - load_L, 0.0)
    return rate_F


def _fill(links_FU: Ints, weight_FU: Floats, limit_F: Floats, capacity_L: Floats) -> Floats:
    """Return max-min fair rates of one class."""
    rate_F = np.zeros(len(limit_F))
    left_L = capacity_L.copy()
    active = np.arange(len(limit_F))
    while active.size:
        links, weight = links_FU[active], weight_FU[active]
        # How much of each link is taken when every flow on it moves one byte a second.
        taken_L = _load(links, weight, np.ones(len(active)), len(left_L))
        fair_L = np.divide(left_L, taken_L, out=np.full(len(left_L), np.inf), where=taken_L > 0)
        want = np.minimum(fair_L[links].min(axis=1), limit_F[active])
        lowest_L = np.full(len(left_L), np.inf)
        np.minimum.at(lowest_L, links.ravel(), np.repeat(want, links.shape[1]))
        # A link is settled when no flow on it is held lower elsewhere; a flow, when its own limit binds.
        settled = (fair_L <= lowest_L)[links].any(axis=1) | (limit_F[active] <= want)
        rate_F[active[settled]] = want[settled]
        left_L = np.maximum(left_L - _load(links[settled], weight[settled], want[settled], len(left_L)), 0.0)
        active = active[~settled]
    return rate_F


def _load(links_FU: Ints, weight_FU: Floats, rate_F: Floats, links: int) -> Floats:
    """Return how much of every link flows of these rates take."""
    load_FU = weight_FU * rate_F[:, None]
    return np.bincount(links_FU.ravel(), weights=load_FU.ravel(), minlength=links).astype(np.float64, copy=False)


class Flow:
    """One message on its way: `done` is called when its last byte has left."""

    __slots__ = ("_slot", "done", "limit_bytes_s", "links", "size_bytes", "traffic", "weights")

    def __init__(
        self,
        *,
        links: tuple[int, ...],
        traffic: int,
        size_bytes: float,
        limit_bytes_s: float,
        done: Callable[[], None],
        weights: tuple[float, ...] = (),
    ) -> None:
        self.links = links
        self.weights = weights or (1.0,) * len(links)
        self.traffic = traffic
        self.size_bytes = size_bytes
        self.limit_bytes_s = min(limit_bytes_s, UNLIMITED_BYTES_S)
        self.done = done
        self._slot = -1


class Fluid:
    """All flows of a network, advanced in virtual time."""

    def __init__(self, loop: VirtualLoop, quantum_s: float = 0.0, *, uses: int = 3) -> None:
        """`uses` is how many links a flow uses at most."""
        self.solves = 0
        self._uses = uses
        self._loop = loop
        self._quantum_s = quantum_s
        self._capacity_L: list[float] = [UNLIMITED_BYTES_S * 1000]
        self._unused_links: list[int] = []
        self._flows: list[Flow | None] = []
        self._unused: list[int] = []
        self._links = np.zeros((0, uses), np.int64)
        self._weights = np.zeros((0, uses))
        self._limit = np.zeros(0)
        self._traffic = np.zeros(0, np.int64)
        self._left = np.zeros(0)
        self._rate = np.zeros(0)
        self._live = np.zeros(0, np.bool_)
        self._settled_s = 0.0
        self._solved_s = -quantum_s
        self._timer: asyncio.TimerHandle | None = None
        self._freed: dict[tuple[tuple[int, ...], int], list[float]] = {}
        self._freed_s = -1.0

    def link(self, capacity_bytes_s: float) -> int:
        """Return the number of a new link."""
        capacity = min(capacity_bytes_s, UNLIMITED_BYTES_S)
        if self._unused_links:
            number = self._unused_links.pop()
            self._capacity_L[number] = capacity
        else:
            number = len(self._capacity_L)
            self._capacity_L.append(capacity)
        return number

    def resize(self, link: int, capacity_bytes_s: float) -> None:
        """Change a link's capacity from now on."""
        self._capacity_L[link] = min(capacity_bytes_s, UNLIMITED_BYTES_S)
        self._solve_soon()

    def unlink(self, link: int) -> None:
        """Give a link back that no flow uses any more."""
        self._unused_links.append(link)

    def start(self, flow: Flow) -> None:
        """Let a flow take its share from now on."""
        if not self._unused:
            self._grow()
        slot = flow._slot = self._unused.pop()
        self._flows[slot] = flow
        self._links[slot] = NO_LINK
        self._links[slot, : len(flow.links)] = flow.links
        self._weights[slot] = 1.0
        self._weights[slot, : len(flow.weights)] = flow.weights
        self._limit[slot] = flow.limit_bytes_s
        self._traffic[slot] = flow.traffic
        self._left[slot] = flow.size_bytes
        self._rate[slot] = 0.0
        self._live[slot] = True
        self._inherit(flow)
        self._solve_soon()

    def stop(self, flow: Flow) -> None:
        """Take a flow off, done or not."""
        if flow._slot >= 0:
            self._drop(flow)
            self._solve_soon()

    def limit(self, flow: Flow, limit_bytes_s: float) -> None:
        """Change a flow's own limit from now on; zero holds it."""
        if flow._slot >= 0:
            self._limit[flow._slot] = min(limit_bytes_s, UNLIMITED_BYTES_S)
            self._solve_soon()

    def stretch(self, flow: Flow, times: float) -> None:
        """Let what is left of a flow be so many times as much from now on."""
        if flow._slot >= 0:
            moved = self._rate[flow._slot] * (self._loop.time() - self._settled_s)  # which is not taken off yet
            self._left[flow._slot] = max(0.0, self._left[flow._slot] - moved) * times + moved
            self._solve_soon()

    def _inherit(self, flow: Flow) -> None:
        """Go on at the rate of a flow that ended on the same links this instant: a stream idles out no quantum."""
        now_s = self._loop.time()
        if self._freed_s != now_s:
            self._freed.clear()
        rates = self._freed.get((flow.links, flow.traffic))
        if rates:
            rate = rates.pop()
            self._rate[flow._slot] = rate
            self._left[flow._slot] += rate * (now_s - self._settled_s)
            self._end_within_quantum(flow, now_s + flow.size_bytes / rate)

    def _end_within_quantum(self, flow: Flow | None, end_s: float) -> None:
        if end_s <= self._solved_s + self._quantum_s:
            self._loop.call_in_world_at(end_s, self._finish_early, flow)

    def _drop(self, flow: Flow) -> None:
        self._live[flow._slot] = False
        self._rate[flow._slot] = 0.0
        self._flows[flow._slot] = None
        self._unused.append(flow._slot)
        flow._slot = -1

    def _grow(self) -> None:
        old = len(self._flows)
        new = max(64, old)
        self._links = np.concatenate([self._links, np.zeros((new, self._uses), np.int64)])
        self._weights = np.concatenate([self._weights, np.ones((new, self._uses))])
        self._limit = np.concatenate([self._limit, np.zeros(new)])
        self._traffic = np.concatenate([self._traffic, np.zeros(new, np.int64)])
        self._left = np.concatenate([self._left, np.zeros(new)])
        self._rate = np.concatenate([self._rate, np.zeros(new)])
        self._live = np.concatenate([self._live, np.zeros(new, np.bool_)])
        self._flows.extend([None] * new)
        self._unused.extend(range(old + new - 1, old - 1, -1))

    def _solve_soon(self) -> None:
        """Recompute at the end of this instant, or of the quantum."""
        self._solve_at(max(self._loop.time(), self._solved_s + self._quantum_s))

    def _solve_at(self, when_s: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_in_world_at(when_s, self._solve)

    def _solve(self) -> None:
        """Move every flow up to now and end the finished; then share out anew."""
        now_s = self._loop.time()
        self._left -= self._rate * (now_s - self._settled_s)
        self._settled_s = self._solved_s = now_s
        # What would leave within the rounding of the clock has left.
        ended = np.flatnonzero(self._live & (self._left <= self._rate * max(1e-9, 4 * math.ulp(now_s)) + 1e-6))
        if not ended.size:
            self._share_out()
            return
        # Those who waited for an end may start the next message in this very instant: share out after them.
        self._timer = self._loop.call_in_world_at(now_s, self._share_out)
        for flow in [self._flows[slot] for slot in ended.tolist()]:
            self._finish(flow)

    def _share_out(self) -> None:
        """Set the rates until the next change."""
        self._timer = None
        live = np.flatnonzero(self._live)
        if live.size:
            self._set_rates(live)

    def _set_rates(self, live: Ints) -> None:
        self.solves += 1
        capacity_L = np.array(self._capacity_L)
        rate = share(self._links[live], self._weights[live], self._limit[live], self._traffic[live], capacity_L)
        self._rate[live] = rate
        moving = live[rate > 0]
        if not moving.size:
            return
        ends_s = self._settled_s + self._left[moving] / self._rate[moving]
        within = ends_s <= self._settled_s + self._quantum_s
        for slot, end_s in zip(moving[within].tolist(), ends_s[within].tolist(), strict=True):
            self._end_within_quantum(self._flows[slot], end_s)
        if not within.all():
            self._solve_at(float(ends_s[~within].min()))

    def _finish_early(self, flow: Flow | None) -> None:
        """End a flow inside a quantum, at its own time; what it frees is shared out at the next solution."""
        if flow is not None and flow._slot >= 0:
            if self._freed_s != self._loop.time():
                self._freed_s = self._loop.time()
                self._freed.clear()
            self._freed.setdefault((flow.links, flow.traffic), []).append(float(self._rate[flow._slot]))
            self._finish(flow)
            self._solve_soon()

    def _finish(self, flow: Flow | None) -> None:
        if flow is not None and flow._slot >= 0:  # an earlier one of this instant may have stopped it
            self._drop(flow)
            flow.done()
