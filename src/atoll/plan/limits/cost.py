"""Cost: who pays how much, for how long, and what does it burn?

    device hours   6 N D r / (F . efficiency . 3600)       r: work done per work that counts
    money          hours . rent,  or  hours . kW . PUE . $/kWh  where devices are there anyway
    break even     efficiency* = (p / p_c) (F_c / F) r      below it the central cluster is cheaper

In a scenario everything that other limits take away counts as lost hours: exchanging, waiting, work beyond the ceiling.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from atoll.plan.limits import bandwidth, drift, stragglers
from atoll.plan.limits.finding import Amount, Check, Drawing, Judged, Limit, Marks, Rows, Verdict
from atoll.plan.limits.scenario import SHARES, Scenario, said, with_value


def train_flop(parameters: Any, tokens: Any) -> Any:
    """Return the operations of a training, forward and back."""
    return 6 * parameters * tokens


def device_hours(flop: Any, device_flop_s: Any, efficiency: Any = 1.0, redundancy: Any = 1.0) -> Any:
    """Return the hours of all devices together; `device_flop_s` is what training reaches of the peak."""
    return flop * redundancy / (device_flop_s * efficiency) / 3600


def energy_kwh(hours: Any, watts: Any, pue: Any = 1.0) -> Any:
    return hours * watts / 1000 * pue


def even_efficiency(
    usd_hour: Any, device_flop_s: Any, central_usd_hour: Any, central_flop_s: Any, redundancy: Any
) -> Any:
    """Return the efficiency from which on a device is cheaper than a central one."""
    return usd_hour / central_usd_hour * central_flop_s / device_flop_s * redundancy


class Bill(Struct, frozen=True, kw_only=True):
    """What a training comes to; elementwise over worlds."""

    days: Any
    hours: Any
    """Of devices."""
    usd: Any
    kwh: Any
    carbon_kg: Any


def losses(s: Scenario) -> dict[str, Any]:
    """Return by what each limit multiplies the time: 1 where it takes nothing. What comes after a quorum is lost."""
    local, exchange = bandwidth.round_parts_s(s)
    waiting = (local * stragglers.number(s) + exchange) / (local + exchange)
    return {
        "bandwidth": 1 / bandwidth.number(s),
        "stragglers": waiting / np.maximum(s.work.quorum.value, 1e-3),
        "drift": 1 / drift.number(s),
        "redundancy": s.work.redundancy.value,
        "absence": 1 / s.peers.up_share.value,
    }


def bill(s: Scenario) -> Bill:
    """Return what it takes with these peers."""
    each = s.peers.device_tflops.value * 1e12 * s.peers.mfu.value
    taken = losses(s)
    lost = taken["bandwidth"] * taken["stragglers"] * taken["drift"] * taken["redundancy"]
    hours = device_hours(train_flop(s.model.parameters.value, s.model.tokens.value), each, 1.0, lost)
    days = hours / (s.peers.count.value * s.peers.devices.value) * taken["absence"] / 24
    kwh = energy_kwh(hours, s.peers.device_watts.value, s.power.pue.value)
    rented = s.peers.usd_hour.value
    usd = np.where(np.asarray(rented) > 0, hours * rented, kwh * s.power.usd_kwh.value)
    return Bill(days=days, hours=hours, usd=usd, kwh=kwh, carbon_kg=kwh * s.power.carbon_g_kwh.value / 1000)


def central_bill(s: Scenario) -> Bill:
    """Return what as much training takes in one place, rented, with as many devices."""
    c = s.central
    flop = train_flop(s.model.parameters.value, s.model.tokens.value)
    hours = device_hours(flop, c.device_tflops.value * 1e12 * c.mfu.value, c.efficiency.value)
    kwh = energy_kwh(hours, c.device_watts.value, c.pue.value)
    return Bill(
        days=hours / (s.peers.count.value * s.peers.devices.value) / 24,
        hours=hours,
        usd=hours * c.usd_hour.value,
        kwh=kwh,
        carbon_kg=kwh * c.carbon_g_kwh.value / 1000,
    )


def number(s: Scenario) -> Any:
    """Return the money as a part of what a central cluster costs."""
    return bill(s).usd / central_bill(s).usd


def judge(s: Scenario) -> Judged:
    """Return whether it is cheaper, dearer, or beyond what there is."""
    own, rented = bill(s), central_bill(s)
    times, usd = float(number(s)), float(own.usd)
    budget = s.goal.budget_usd.value
    verdict: Verdict = "no wall"
    if usd > budget:
        verdict = "wall"
    elif times > 1 and s.data.moves:
        verdict = "binds"
    less = "" if s.data.moves else ", where the data may not go"
    says = f"${usd:,.0f}, {times:.2g} times a central cluster{less}"
    kind = "rent" if s.peers.usd_hour.value else "electricity"
    energy = f"{float(own.kwh) / 1000:,.1f} MWh against {float(rented.kwh) / 1000:,.1f}"
    binds = f"{float(own.hours):,.0f} device hours of {kind}; {energy}; budget ${budget:,.0f}"
    return Judged(verdict=verdict, number=times, says=says, binds=binds)


def ease(s: Scenario) -> list[tuple[str, Scenario]]:
    """Return a smaller goal: what else makes it dear is another limit's to ease."""
    smaller = with_value(s, "model.parameters", s.model.parameters.value / 2)
    halved = with_value(smaller, "model.tokens", s.model.tokens.value / 2)
    return [(f"train {s.model.parameters.value / 2e9:.2g}B parameters on half the tokens", halved)]


def run(s: Scenario, rounds: int, rng: np.random.Generator) -> float:
    """Return the device hours of a training whose rounds are played, from those rounds up to the whole.

    In each, peers take drawn times, the round ends with its quorum, then all exchange; part of the work is done again
    to check it, and tokens count as the ceiling lets them.
    """
    local, exchange = (float(part) for part in bandwidth.round_parts_s(s))
    peers, spread = max(1, round(s.peers.count.value)), s.peers.spread.value
    among = stragglers.quorum_of(s.work.quorum.value, peers)
    slow = 1.0 if s.work.proportional or peers == 1 else s.peers.slowest.value
    spent_s = useful_tokens = 0.0
    for _ in range(rounds):
        times = local * np.exp(spread * rng.standard_normal(peers) - spread**2 / 2) / slow
        lasts_s = float(np.partition(times, among - 1)[among - 1]) if peers > 1 else local
        checked = rng.binomial(peers, s.work.redundancy.value - 1) if s.work.redundancy.value <= 2 else 0
        spent_s += (lasts_s + exchange) * (peers + checked) * s.peers.devices.value
        useful_tokens += among * s.work.local_steps.value * s.work.batch_tokens.value * float(drift.number(s))
    return spent_s / 3600 * s.model.tokens.value / useful_tokens


def checks(s: Scenario, seed: int) -> list[Check]:
    """Return a training played round by round beside the product of its losses."""
    rounds = 400 if s.peers.count.value <= 5000 else 100
    hours = float(bill(s).hours)
    return [
        Check(
            what="device hours of the whole training",
            formula=hours,
            run=run(s, rounds, np.random.default_rng(seed)),
            within=0.04,
            how=f"{rounds} rounds played with drawn times and drawn recomputation, and the rest like them",
        )
    ]


def tables(s: Scenario) -> list[Rows]:
    """Return both bills, where the hours go, and from which efficiency on a device pays."""
    rows = []
    for name, each in (("these peers", bill(s)), ("central, rented", central_bill(s))):
        burnt = [f"{float(each.kwh) / 1000:,.1f}", f"{float(each.carbon_kg) / 1000:,.2f}"]
        spent = [f"{float(each.hours):,.0f}", f"{float(each.days):,.1f}", f"{float(each.usd):,.0f}"]
        rows.append([name, *spent, *burnt])
    head = ["who", "device hours", "days", "$", "MWh", "t CO2e"]
    taken = [[name, f"{float(times):.2f}"] for name, times in losses(s).items()]
    return [
        Rows(title="Both bills, for as many devices", head=head, rows=rows),
        Rows(title="What multiplies the time", head=["limit", "times"], rows=taken),
        _even(s),
    ]


def _even(s: Scenario) -> Rows:
    central = s.central.device_tflops.value * 1e12 * s.central.mfu.value
    each = s.peers.device_tflops.value * 1e12 * s.peers.mfu.value
    electricity = s.peers.device_watts.value / 1000 * s.power.pue.value * s.power.usd_kwh.value
    rows = []
    for name, usd_hour in (("rent", s.peers.usd_hour.value), ("electricity alone", electricity)):
        if usd_hour:
            even = float(even_efficiency(usd_hour, each, s.central.usd_hour.value, central, s.work.redundancy.value))
            rows.append([name, f"{usd_hour:.3f}", f"{even:.2f}"])
    return Rows(
        title="Efficiency from which on a peer's device is cheaper", head=["paid", "$ an hour", "efficiency"], rows=rows
    )


def drawings(s: Scenario, seed: int) -> list[Drawing]:
    """Return the cost under half and one and a half times each input, and over the number of peers."""
    counts = np.geomspace(2, max(4.0, 4 * s.peers.count.value), 30)
    fleets = [with_value(s, "peers.count", float(count)) for count in counts]
    mine = Marks(label="these peers", x=counts.tolist(), y=[float(bill(each).usd) for each in fleets])
    usd = float(central_bill(s).usd)
    other = Marks(label="central, rented", x=[counts[0], counts[-1]], y=[usd, usd], grey=True)
    here = Marks(label="this scenario", x=[s.peers.count.value], y=[float(bill(s).usd)], joined=False)
    return [
        Drawing(
            title="What the training costs",
            x="peers",
            y="$",
            series=[mine, here, other],
            log_x=True,
            log_y=True,
            caption="More peers are sooner done and cost more together: they wait, exchange and repeat each other.",
        ),
        _tornado(s),
    ]


TORNADO = (
    "peers.usd_hour",
    "peers.mfu",
    "peers.spread",
    "power.usd_kwh",
    "peers.device_watts",
    "work.local_steps",
    "line.up_mbit",
    "work.critical_batch_tokens",
    "central.usd_hour",
    "central.mfu",
)


def _tornado(s: Scenario) -> Drawing:
    """Return how far the ratio moves when one input is half as much or half as much again."""
    now, bars = float(number(s)), []
    for path in (each for each in TORNADO if said(s, each).value):
        ends = sorted(float(number(_scaled(s, path, factor))) for factor in (0.5, 1.5))
        bars.append(
            Amount(
                label=path,
                value=now,
                low=min(now, ends[0]),
                high=max(now, ends[1]),
                say=f"{ends[0]:.2g} to {ends[1]:.2g}",
            )
        )
    bars.sort(key=lambda bar: (bar.low or 0) - (bar.high or 0))
    caption = "Whiskers: one input at half, and at one and a half times, of what it is; all others as they are."
    return Drawing(title="What the ratio hangs on", x="times a central cluster", bars=bars, caption=caption)


def _scaled(s: Scenario, path: str, factor: float) -> Scenario:
    value = said(s, path).value * factor
    return with_value(s, path, min(value, 1.0) if path in SHARES else value)


LIMIT = Limit(
    name="cost",
    question="Is it cheaper than renting one place?",
    inputs=(
        *(f"model.{key}" for key in ("parameters", "tokens")),
        *(f"peers.{key}" for key in ("count", "device_tflops", "mfu", "device_watts", "usd_hour")),
        *(f"power.{key}" for key in ("usd_kwh", "pue")),
        *(f"central.{key}" for key in ("device_tflops", "mfu", "efficiency", "usd_hour")),
        *("work.local_steps", "work.critical_batch_tokens", "work.redundancy", "goal.budget_usd"),
    ),
    levers=(
        "peers.count",
        "peers.mfu",
        "peers.usd_hour",
        "power.usd_kwh",
        "work.critical_batch_tokens",
        "goal.budget_usd",
    ),
    switches=("data.moves",),
    number=number,
    judge=judge,
    checks=checks,
    tables=tables,
    drawings=drawings,
    ease=ease,
)
