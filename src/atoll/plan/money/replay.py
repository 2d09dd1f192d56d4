"""A job played over a trace under a policy: what it paid, when it was done, how often it moved, what it lost.

One rule of the game for every policy, in steps of the trace. Who is in a zone that goes down is sent away, and what it
did since it last saved is lost. Who starts anywhere pays from the first moment and works after `move_h`. Who leaves of
its own accord saves first, and pays for carrying its state off, at the price of the place it leaves. On demand is a
place that is never down. Time that saving itself takes is part of the work.

`hindsight_usd` is the least that anybody could have paid who knew the trace, and saved just before it was needed: a
dynamic program over where the state lies, whether it runs, and how much is left. No policy is below it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from atoll.plan.money.check import not_negative, positive
from atoll.plan.money.policy import OnDemand, Policy, Sight, Stay, choose
from atoll.plan.money.trace import Trace

ON_DEMAND = "on demand"


class Job(Struct, frozen=True, kw_only=True):
    """What is to be done, and what moving it costs."""

    work_h: float
    """Of all machines together, on any of the places."""
    machines: float = 1.0
    on_demand_usd_hour: float | None = None
    """None: there is only spot."""
    deadline_h: float | None = None
    """None: the end of the trace."""
    state_gb: float = 0.0
    egress_usd_gb: Mapping[str, float] = {}
    """By the zone that is left, or "on demand"; nothing where none is named."""
    move_h: float = 0.0
    save_every_h: float = 1.0


class Outcome(Struct, frozen=True, kw_only=True):
    """How a policy fared."""

    policy: Policy
    compute_usd: float
    egress_usd: float
    finish_h: float
    """Infinite where the work was not done by the deadline."""
    moves: int
    """From one place to another, of its own accord or not."""
    sent_away: int
    lost_h: float
    waited_h: float
    on_demand_h: float

    @property
    def usd(self) -> float:
        return self.compute_usd + self.egress_usd

    @property
    def is_done(self) -> bool:
        return math.isfinite(self.finish_h)


class Comparison(Struct, frozen=True, kw_only=True):
    """Policies beside what one could have done without any, and with hindsight."""

    outcomes: tuple[Outcome, ...]
    static: tuple[Outcome, ...]
    """Every zone stayed in, and on demand where there is such a price."""
    hindsight_usd: float

    @property
    def best_static(self) -> Outcome | None:
        """The cheapest place to have stayed in, of those that got the work done."""
        return min((one for one in self.static if one.is_done), key=lambda one: one.usd, default=None)


class _Board(Struct, frozen=True, kw_only=True):
    """A job on a trace, in steps; the last place is on demand."""

    usd: NDArray[np.float64]
    """Of all its machines, for a step and a place."""
    up: NDArray[np.bool_]
    leave_usd: NDArray[np.float64]
    work: int
    dead: int
    save: int
    end: int


class _State(Struct):
    """Of a job that is being played."""

    place: int | None = None
    home: int | None = None
    dead: int = 0
    done: int = 0
    saved: int = 0


def replay(trace: Trace, job: Job, policy: Policy) -> Outcome:
    """Return how a policy would have fared."""
    board, state = _board(trace, job), _State()
    compute = egress = 0.0
    moves = sent_away = lost = waited = on_demand = 0
    finish_h = math.inf
    for now in range(board.end):
        if state.place is not None and not board.up[now, state.place]:
            sent_away, lost = sent_away + 1, lost + state.done - state.saved
            state.done, state.place = state.saved, None
        place = choose(policy, _sight(trace, job, board, state, now))
        if place is None:
            waited += 1
            state.place, state.saved = None, state.done
            continue
        assert board.up[now, place], "a policy chose a place that is down"
        if place != state.place:
            if state.home is not None and state.home != place:
                moves, egress = moves + 1, egress + board.leave_usd[state.home]
            state.place, state.home, state.dead, state.saved = place, place, board.dead, state.done
        compute += board.usd[now, place]
        on_demand += place == len(trace.zones)
        _work(board, state)
        if state.done == board.work:
            finish_h = (now + 1) * trace.step_h
            break
    return Outcome(
        policy=policy,
        compute_usd=float(compute),
        egress_usd=float(egress),
        finish_h=finish_h,
        moves=moves,
        sent_away=sent_away,
        lost_h=lost * trace.step_h,
        waited_h=waited * trace.step_h,
        on_demand_h=on_demand * trace.step_h,
    )


def compared(trace: Trace, job: Job, policies: Sequence[Policy]) -> Comparison:
    """Return policies beside every static choice and hindsight."""
    static: list[Policy] = [Stay(zone) for zone in trace.zones]
    if job.on_demand_usd_hour is not None:
        static.append(OnDemand())
    return Comparison(
        outcomes=tuple(replay(trace, job, each) for each in policies),
        static=tuple(replay(trace, job, each) for each in static),
        hindsight_usd=hindsight_usd(trace, job),
    )


def hindsight_usd(trace: Trace, job: Job) -> float:
    """Return the least that the job could have cost within its deadline; infinite where it could not be done."""
    board = _board(trace, job)
    places, off = board.up.shape[1], board.dead + 1  # phases: so many steps until it works, and off
    rest = np.full((places + 1, off + 1, board.work + 1), np.inf)  # the last home: nothing lies anywhere yet
    rest[:, :, 0] = 0.0
    leave_usd = np.append(board.leave_usd, 0.0)[:, None]
    for now in reversed(range(board.end)):
        usd = np.where(board.up[now], board.usd[now], np.inf)[:, None]
        enter = usd + _after(rest, board.dead)[:places]
        move = leave_usd + enter.min(axis=0)
        move[:places] = np.minimum(move[:places], enter)
        before = np.empty_like(rest)
        before[:, off] = np.minimum(rest[:, off], move)
        for phase in range(off):
            before[:, phase] = before[:, off]
            goes_on = usd + _after(rest, phase)[:places]
            before[:places, phase] = np.minimum(before[:places, phase], goes_on)
        before[:, :, 0] = 0.0
        rest = before
    return float(rest[places, off, board.work])


def _after(rest: NDArray[np.float64], phase: int) -> NDArray[np.float64]:
    """Return what is still to be paid after a step in a phase: nearer to working, or a step of work less."""
    if phase > 0:
        return rest[:, phase - 1]
    return np.concatenate([np.full((len(rest), 1), np.inf), rest[:, 0, :-1]], axis=1)


def _work(board: _Board, state: _State) -> None:
    """Spend a step where it is."""
    if state.dead > 0:
        state.dead -= 1
        return
    state.done += 1
    if state.done % board.save == 0:
        state.saved = state.done


def _board(trace: Trace, job: Job) -> _Board:
    positive(work_h=job.work_h, machines=job.machines, save_every_h=job.save_every_h, deadline_h=job.deadline_h or 1.0)
    not_negative(move_h=job.move_h, state_gb=job.state_gb, on_demand_usd_hour=job.on_demand_usd_hour or 0.0)
    step_h, on_demand = trace.step_h, job.on_demand_usd_hour
    steady = np.full((trace.steps, 1), 0.0 if on_demand is None else on_demand)
    deadline_h = trace.steps * step_h if job.deadline_h is None else job.deadline_h
    return _Board(
        usd=np.hstack([trace.usd_hour, steady]) * job.machines * step_h,
        up=np.hstack([trace.up, np.full((trace.steps, 1), on_demand is not None)]),
        leave_usd=np.array([job.state_gb * job.egress_usd_gb.get(name, 0.0) for name in (*trace.zones, ON_DEMAND)]),
        work=math.ceil(job.work_h / step_h - 1e-9),
        dead=math.ceil(job.move_h / step_h - 1e-9),
        save=max(1, round(job.save_every_h / step_h)),
        end=min(trace.steps, int(deadline_h / step_h + 1e-9)),
    )


def _sight(trace: Trace, job: Job, board: _Board, state: _State, now: int) -> Sight:
    step_h, on_demand = trace.step_h, job.on_demand_usd_hour
    return Sight(
        names=trace.zones,
        usd_hour=np.append(trace.usd_hour[now], np.inf if on_demand is None else on_demand),
        up=board.up[now],
        time_h=now * step_h,
        step_h=step_h,
        place=state.place,
        home=state.home,
        left_h=(board.work - state.done) * step_h,
        unsaved_h=(state.done - state.saved) * step_h,
        work_h=board.work * step_h,
        deadline_h=board.end * step_h,
        machines=job.machines,
        leave_usd=0.0 if state.home is None else float(board.leave_usd[state.home]),
        dead_h=board.dead * step_h,
    )
