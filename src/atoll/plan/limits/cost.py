"""Cost: who pays how much, for how long, and what does it burn?

    device hours   6 N D . losses / (F . 3600)
    money          hours . rent,  or  hours . kW . PUE . $/kWh  where devices are there anyway
    break even     efficiency* = (p / p_c) (F_c e_c / F) r      below it the central cluster is cheaper

Everything that other limits take away counts as lost hours: exchanging, waiting for a quorum and what comes after it,
rounds without one, work beyond the ceiling, and where no peer holds the model, stages of a pipeline that wait for their
lines and for each other. Pipelines fill and drain without loss and replace who drops out, which is kind to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from atoll import units
from atoll.plan.cost.collective import ring_s
from atoll.plan.cost.flops import compute_s, six_n_d
from atoll.plan.cost.local import local_s
from atoll.plan.limits import bandwidth, drift, memory, stragglers
from atoll.plan.limits.finding import Amount, Check, Drawing, Judged, Limit, Marks, Rows, Verdict
from atoll.plan.limits.flows import ring_run
from atoll.plan.limits.scenario import SHARES, Scenario, present, said, with_value

DRAWN, ROUNDS = 400_000, (100, 6000)
"""Peers that are drawn in all the rounds of a check, and how many rounds that is at least and at most."""
HALF = 0.5
"""How far inputs are moved to see what the ratio hangs on."""


def device_hours(flop: Any, device_flop_s: Any, efficiency: Any = 1.0, redundancy: Any = 1.0) -> Any:
    """Return the hours of all devices together; `device_flop_s` is what training reaches of the peak."""
    return compute_s(flop, device_flop_s, efficiency) * redundancy / 3600


def energy_kwh(hours: Any, watts: Any, pue: Any = 1.0) -> Any:
    return hours * watts / 1000 * pue


def even_efficiency(
    usd_hour: Any, device_flop_s: Any, central_usd_hour: Any, central_flop_s: Any, redundancy: Any
) -> Any:
    """Return the efficiency from which on a device is cheaper than a central one; both FLOP/s are what is reached."""
    return usd_hour / central_usd_hour * central_flop_s / device_flop_s * redundancy


class Bill(Struct, frozen=True, kw_only=True):
    """What a training comes to; elementwise over worlds. Infinite where it never ends."""

    days: Any
    hours: Any
    """Of devices."""
    usd: Any
    kwh: Any
    carbon_kg: Any


def say_days(days: Any) -> str:
    """Return days in words."""
    return f"{float(days):,.1f} days" if np.isfinite(days) else "for ever"


def say_usd(usd: Any) -> str:
    """Return money in words."""
    return units.say_usd(float(usd)) if np.isfinite(usd) else "no end of money"


def losses(s: Scenario) -> dict[str, Any]:
    """Return by what each limit multiplies the time: 1 where it takes nothing."""
    crew = memory.crew(s)
    copies = np.maximum(crew.copies, 1.0)
    waits = stragglers.waits(s, np.where(crew.stages > 1, copies, present(s)), crew.stages)
    local = local_s(s.work.local_steps.value, s.work.batch_tokens.value, s.model.parameters.value, bandwidth.flop_s(s))
    exchange = ring_s(bandwidth.contribution_bytes(s) / crew.stages, copies, 0.0, bandwidth.up_bytes_s(s))
    waited = local * waits.lasts
    lines = np.maximum(waited, local / crew.line_share)
    used = crew.copies * crew.stages / np.maximum(s.peers.count.value, crew.stages)
    return {
        "bandwidth": (local + exchange) / local,
        "stragglers": (waited + exchange) / (local + exchange) / waits.counts * waits.tries,
        "memory": (lines + exchange) / (waited + exchange) * s.peers.up_share.value / crew.there,
        "drift": 1 / drift.number(s),
        "redundancy": s.work.redundancy.value,
        "absence": 1 / s.peers.up_share.value,
        "peers left over": np.divide(1.0, used, out=np.full_like(used, np.inf), where=used > 0),
    }


UNPAID = ("absence", "peers left over")
"""Losses of time in which nobody's device runs."""


def bill(s: Scenario) -> Bill:
    """Return what it takes with these peers."""
    each = s.peers.device_tflops.value * 1e12 * s.peers.mfu.value
    taken = losses(s)
    paid = np.prod([np.broadcast_arrays(times, each)[0] for name, times in taken.items() if name not in UNPAID], axis=0)
    hours = device_hours(six_n_d(s.model.parameters.value, s.model.tokens.value), each, 1.0, paid)
    idle = taken["absence"] * taken["peers left over"]
    days = hours / (np.maximum(s.peers.count.value, 1.0) * s.peers.devices.value) * idle / 24
    hours = np.where(np.isfinite(idle), hours, np.inf)
    kwh = energy_kwh(hours, s.peers.device_watts.value, s.power.pue.value)
    rent = np.asarray(s.peers.usd_hour.value)
    usd = hours * np.where(rent > 0, rent, electricity_usd_hour(s))
    return Bill(days=days, hours=hours, usd=usd, kwh=kwh, carbon_kg=kwh * s.power.carbon_g_kwh.value / 1000)


def electricity_usd_hour(s: Scenario) -> Any:
    """Return what a device burns in an hour, in money."""
    return energy_kwh(1.0, s.peers.device_watts.value, s.power.pue.value) * s.power.usd_kwh.value


def central_bill(s: Scenario) -> Bill:
    """Return what as much training takes in one place, rented, with as many devices."""
    c = s.central
    flop = six_n_d(s.model.parameters.value, s.model.tokens.value)
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
    times, usd = float(own.usd / rented.usd), float(own.usd)
    budget = s.goal.budget_usd.value
    verdict: Verdict = "no wall"
    if usd > budget:
        verdict = "wall"
    elif times > 1 and s.data.moves:
        verdict = "binds"
    less = "" if s.data.moves else ", where the data may not go"
    says = f"{say_usd(usd)}, {times:,.{0 if times >= 10 else 2}f} times a central cluster{less}"
    kind = "rent" if s.peers.usd_hour.value else "electricity"
    stages = int(memory.crew(s).stages)
    kind += f" in pipelines of {stages} peers" if stages > 1 else ""
    energy = f"{float(own.kwh) / 1000:,.1f} MWh against {float(rented.kwh) / 1000:,.1f}"
    binds = f"{float(own.hours):,.0f} device hours of {kind}; {energy}; budget ${budget:,.0f}"
    return Judged(verdict=verdict, number=times, says=says, binds=binds)


def ease(s: Scenario) -> list[tuple[str, Scenario]]:
    """Return a smaller goal: what else makes it dear is another limit's to ease."""
    smaller = with_value(s, "model.parameters", s.model.parameters.value / 2)
    halved = with_value(smaller, "model.tokens", s.model.tokens.value / 2)
    return [(f"train {s.model.parameters.value / 2e9:.2g}B parameters on half the tokens", halved)]


# the run of chance


class Played(Struct, frozen=True, kw_only=True):
    """A training whose rounds were played, from those rounds up to the whole."""

    days: float
    hours: float
    usd: float


def run(s: Scenario, rounds: int, rng: np.random.Generator) -> Played:
    """Return a training played round by round from the scenario's own numbers.

    In each round peers are there or not, take drawn times or drop out, the round ends with its quorum or in vain, then
    all exchange piece by piece; some of the work is done again; tokens count as drawn gradients let them. A pipeline
    works while all of its stages are there, each as slow as the slowest of them or its line.
    """
    crew = memory.crew(s)
    stages, copies = round(float(crew.stages)), max(1, round(float(crew.copies)))
    up = min(s.line.up_mbit.value, s.line.down_mbit.value) * 1e6 / 8
    flop_s = s.peers.devices.value * s.peers.device_tflops.value * 1e12 * s.peers.mfu.value
    tokens = s.work.local_steps.value * s.work.batch_tokens.value  # of a peer in a round
    local = tokens * 6 * s.model.parameters.value / flop_s
    sends = tokens * stages * 2 * s.model.hidden.value * min(2, stages - 1) / up  # all of a pipeline's pass each stage
    ring = ring_run(s.model.parameters.value * s.work.sent_bytes.value / stages, np.full(min(copies, 256), up))
    exchange = ring.lasts_s if copies > 1 else 0.0
    share = s.work.batch_tokens.value / s.work.critical_batch_tokens.value
    worth = drift.worth_drawn(max(1.0, s.peers.count.value * s.peers.up_share.value), share, rng)
    spent_s = passed_s = counted = 0.0
    for _ in range(rounds):
        there = rng.random((copies, stages)) < s.peers.up_share.value
        times = _times(s, copies, stages, local, rng)
        taking = max(1, int(there.all(1).sum())) if stages == 1 else copies
        ends = np.sort(np.maximum(times[:taking], sends))
        among = max(1, int(np.ceil(s.work.quorum.value * taking - 1e-9)))
        enough = np.isfinite(ends[among - 1])
        lasts = ends[among - 1] if enough else max(local, ends[np.isfinite(ends)].max(initial=0.0))
        again = np.floor(s.work.redundancy.value - 1 + rng.random(taking)).mean()
        working = there.all(1).mean() if stages > 1 else 1.0  # of the time: a pipeline stands still without one stage
        passed_s += (lasts + exchange) * (1 + again) / max(float(working), 1 / copies)
        spent_s += (lasts + exchange) * (1 + again) / max(float(working), 1 / copies) * there.sum()
        counted += among * stages * tokens * worth if enough else 0.0
    rest = s.model.tokens.value / counted
    hours = spent_s * s.peers.devices.value / 3600 * rest
    hour_usd = s.peers.usd_hour.value or s.peers.device_watts.value / 1000 * s.power.pue.value * s.power.usd_kwh.value
    return Played(days=passed_s / 86400 * rest, hours=hours, usd=hours * hour_usd)


def _times(s: Scenario, copies: int, stages: int, local: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return how long each copy takes for its part of a round; infinite: one who is alone with it dropped out."""
    sigma = s.peers.spread.value
    times = local * np.exp(sigma * rng.standard_normal((copies, stages)) - sigma**2 / 2)
    if copies * stages == 1:
        return np.full(1, local)
    if not s.work.proportional:
        times /= s.peers.slowest.value
    if stages == 1:
        times[rng.random((copies, 1)) < s.peers.dropout.value] = np.inf
    return np.asarray(times.max(1))


def checks(s: Scenario, seed: int) -> list[Check]:
    """Return a training played round by round beside the product of its losses."""
    rounds = int(np.clip(DRAWN / s.peers.count.value, *ROUNDS))
    played, said_ = run(s, rounds, np.random.default_rng(seed)), bill(s)
    how = f"{rounds} rounds played with who is there, times, drop-outs and recomputation drawn, and the rest like them"
    pairs = (
        ("device hours", played.hours, said_.hours),
        ("days", played.days, said_.days),
        ("dollars", played.usd, said_.usd),
    )
    return [
        Check(what=f"{what} of the whole training", formula=float(formula), run=drawn, within=0.04, how=how)
        for what, drawn, formula in pairs
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
    central = s.central.device_tflops.value * 1e12 * s.central.mfu.value * s.central.efficiency.value
    each = s.peers.device_tflops.value * 1e12 * s.peers.mfu.value
    rows = []
    for name, usd_hour in (("rent", s.peers.usd_hour.value), ("electricity alone", electricity_usd_hour(s))):
        if usd_hour:
            even = float(even_efficiency(usd_hour, each, s.central.usd_hour.value, central, s.work.redundancy.value))
            rows.append([name, f"{usd_hour:.3f}", f"{even:.2f}"])
    return Rows(
        title="Efficiency from which on a peer's device is cheaper", head=["paid", "$ an hour", "efficiency"], rows=rows
    )


def drawings(s: Scenario, seed: int) -> list[Drawing]:
    """Return the cost under half and one and a half times each input, and over the number of peers."""
    fewest = 2.0 if memory.crew(s).stages <= 1 else float(memory.crew(s).stages)  # fewer do not hold the model
    counts = np.geomspace(fewest, max(2 * fewest, 4 * s.peers.count.value), 30)
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
        ends = sorted(float(number(_scaled(s, path, factor))) for factor in (1 - HALF, 1 + HALF))
        bars.append(
            Amount(
                label=path,
                value=now,
                low=min(now, ends[0]),
                high=max(now, ends[1]),
                say=f"{units.say_number(ends[0])} to {units.say_number(ends[1])}",
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
        *(f"model.{key}" for key in ("parameters", "tokens", "hidden", "training_bytes")),
        *(f"peers.{key}" for key in ("count", "devices", "device_tflops", "mfu", "device_memory_gb", "device_watts")),
        *(f"peers.{key}" for key in ("usd_hour", "up_share", "spread", "slowest", "dropout")),
        *("line.up_mbit", "line.down_mbit"),
        *(f"power.{key}" for key in ("usd_kwh", "pue")),
        *(f"central.{key}" for key in ("device_tflops", "mfu", "efficiency", "usd_hour")),
        *(f"work.{key}" for key in ("batch_tokens", "local_steps", "sent_bytes", "critical_batch_tokens")),
        *("work.quorum", "work.redundancy", "goal.budget_usd"),
    ),
    levers=(
        "peers.count",
        "peers.mfu",
        "peers.usd_hour",
        "power.usd_kwh",
        "work.critical_batch_tokens",
        "goal.budget_usd",
    ),
    switches=("data.moves", "work.proportional"),
    number=number,
    judge=judge,
    checks=checks,
    tables=tables,
    drawings=drawings,
    ease=ease,
)
