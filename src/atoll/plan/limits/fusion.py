"""FusionAI's "50 RTX 3080 against 4 H100", worked out: where it holds, where it does not, and what it costs.

The claim (Tang et al. 2023, arXiv 2309.01172) is an analysis, not a run: by what makers promise, 50 x 59.5 TFLOP/s are
as many as 4 x 756. How it is worked out here is ours: we know the claim, not the paper's equations. As a pipeline in
steady state a fleet does one micro-batch per max over stages of max(C, R), C the time to compute and R the time that
its line is occupied, so equal peaks are equal throughput while R <= C and while each side reaches the same part of its
peak. A stage's line carries 2 bytes for each activation on, and as many back (`tandem.py`):

    C = 6 N s / (P e F)        R = 4 s h / U        needed: U >= 4 s h / C

The same fleet over homes' uplinks is the same formula with another U; delays make the way through longer, not the pace.
The model is one of GPT-3's sizes, 6.7B, which both sides hold while it trains; stages are taken to be equal, which is
kind to the longer pipeline.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from atoll.plan.cost.flops import six_n_d
from atoll.plan.limits.finding import Check, Drawing, Marks, Rows
from atoll.plan.limits.scenario import Said
from atoll.plan.limits.tandem import play_s, uplink_bytes, uplink_needed_bytes_s

YEAR_H = 8760


class Side(Struct, frozen=True, kw_only=True):
    """One of the two fleets."""

    name: str
    count: int
    tflops: Said
    watts: Said
    usd: Said
    """For one device, bought."""
    up_mbit: float
    latency_s: float


class Example(Struct, frozen=True, kw_only=True):
    """Both, and what they train."""

    many: Side
    few: Side
    parameters: float = 6.7e9
    hidden: int = 4096
    context: int = 2048
    efficiency: float = 0.4
    """The part of its peak that either side reaches."""
    years: float = 3.0
    usd_kwh: Said = Said(value=0.165, low=0.1, high=0.39, source="GlobalPetrolPrices, households, 2025-06")


def example() -> Example:
    """Return the claim's two fleets, with homes' lines between the many and a server's between the few."""
    vendor = "NVIDIA, dense, fp32 accumulation"
    return Example(
        many=Side(
            name="50 RTX 3080 in homes",
            count=50,
            tflops=Said(value=59.5, source=vendor),
            watts=Said(value=320, source="NVIDIA"),
            usd=Said(value=375, low=300, high=699, source="used, US, 2026-05; high: price when new"),
            up_mbit=20,
            latency_s=0.018,
        ),
        few=Side(
            name="4 H100 PCIe in a server",
            count=4,
            tflops=Said(value=756, source=vendor),
            watts=Said(value=350, source="NVIDIA"),
            usd=Said(value=25750, low=25000, high=30000, source="our estimate of street prices"),
            up_mbit=200_000,
            latency_s=5e-6,
        ),
    )


def peak_ratio(one: Side, other: Side) -> float:
    """Return what makers promise of one side, over what they promise of the other."""
    return one.count * one.tflops.value / (other.count * other.tflops.value)


def flop_s(e: Example, side: Side) -> float:
    """Return what one device reaches."""
    return side.tflops.value * 1e12 * e.efficiency


def compute_s(e: Example, side: Side) -> float:
    """Return the time of a stage for one micro-batch, one sample long."""
    return float(six_n_d(e.parameters / side.count, e.context)) / flop_s(e, side)


def line_s(e: Example, side: Side, up_mbit: Any = None) -> Any:
    """Return the time for which one micro-batch occupies a stage's line: activations on, gradients back."""
    line = side.up_mbit if up_mbit is None else up_mbit
    return uplink_bytes(e.context, e.hidden, side.count) * 8 / (line * 1e6)


def samples_s(e: Example, side: Side, up_mbit: Any = None) -> Any:
    """Return the throughput in steady state."""
    return 1 / np.maximum(compute_s(e, side), line_s(e, side, up_mbit))


def ratio(e: Example, up_mbit: Any = None) -> Any:
    """Return the throughput of the many, over that of the few, with these lines between the many."""
    return samples_s(e, e.many, up_mbit) / samples_s(e, e.few)


def line_needed_mbit(e: Example) -> float:
    """Return the uplink with which sending takes no longer than computing."""
    need = uplink_needed_bytes_s(flop_s(e, e.many), e.parameters, e.many.count, e.hidden)
    return float(need) * 8 / 1e6


def through_s(e: Example, side: Side, up_mbit: Any = None) -> float:
    """Return how long one sample is on its way through all stages and back: work, lines, and a delay for each hop."""
    hops = 2 * (side.count - 1) * (side.latency_s + float(line_s(e, side, up_mbit)) / 2)
    return side.count * compute_s(e, side) + hops


def power_kwh(e: Example, side: Side) -> float:
    """Return what a side burns in the years it runs, its devices alone."""
    return side.count * side.watts.value / 1000 * e.years * YEAR_H


def total_usd(e: Example, side: Side, usd: float | None = None, usd_kwh: float | None = None) -> float:
    """Return what a side costs over the years: bought once, and its power."""
    price = side.usd.value if usd is None else usd
    return side.count * price + power_kwh(e, side) * (e.usd_kwh.value if usd_kwh is None else usd_kwh)


def even_usd_kwh(e: Example) -> float:
    """Return the price of power at which both cost the same over the years."""
    more = e.few.count * e.few.usd.value - e.many.count * e.many.usd.value
    return more / (power_kwh(e, e.many) - power_kwh(e, e.few))


def played_s(e: Example, side: Side, up_mbit: float, batches: int) -> float:
    """Return how long so many samples really take, stage by stage and message by message."""
    hop_s = 2 * e.context * e.hidden * 8 / (up_mbit * 1e6)
    return play_s(side.count, compute_s(e, side), hop_s, batches, side.latency_s)


def pace_s(e: Example, side: Side, up_mbit: float, batches: int = 300) -> float:
    """Return the samples a second that really come through a pipeline once it is full."""
    return batches / (played_s(e, side, up_mbit, 2 * batches) - played_s(e, side, up_mbit, batches))


def checks(e: Example) -> list[Check]:
    """Return pipelines played, sample by sample, where lines keep up and where they do not."""
    lines = ((e.many, "a line that keeps up", 2 * line_needed_mbit(e)), (e.many, "a home's uplink", e.many.up_mbit))
    found = [
        Check(
            what=f"samples a second through {side.count} stages over {told}",
            formula=float(samples_s(e, side, line)),
            run=pace_s(e, side, line),
            within=0.01,
            how="300 samples there and back after 300 others: devices and lines take up what is there",
        )
        for side, told, line in (*lines, (e.few, "a server's lines", e.few.up_mbit))
    ]
    return [
        *found,
        Check(
            what="seconds of one sample on its way through the fifty in homes",
            formula=through_s(e, e.many),
            run=played_s(e, e.many, e.many.up_mbit, 1),
            within=0.01,
            how="one sample played alone",
        ),
    ]


def tables(e: Example) -> list[Rows]:
    """Return speed by line, and money."""
    needed = line_needed_mbit(e)
    lines = (("cable", 20.0), ("fibre", 500.0), ("a gigabit", 1000.0), ("just enough", needed), ("10 gigabit", 10000.0))
    speeds = [
        [f"{name}, {mbit:,.0f} Mbit", f"{float(samples_s(e, e.many, mbit)):.3f}", f"{float(ratio(e, mbit)):.1%}",
         f"{through_s(e, e.many, mbit):,.1f}"]
        for name, mbit in lines
    ]  # fmt: skip
    few = [e.few.name, f"{float(samples_s(e, e.few)):.3f}", "100.0%", f"{through_s(e, e.few):,.1f}"]
    return [
        Rows(
            title="50 RTX 3080 in line, by what lies between them",
            head=["uplink", "samples a second", "of 4 H100", "seconds on the way"],
            rows=[*speeds, few],
        ),
        Rows(title=f"Money and power over {e.years:g} years", head=["", e.many.name, e.few.name], rows=_money(e)),
    ]


def _money(e: Example) -> list[list[str]]:
    both = (e.many, e.few)
    new = (e.many.usd.high or e.many.usd.value, e.few.usd.value)
    return [
        ["bought", *(f"${side.count * side.usd.value:,.0f}" for side in both)],
        ["kilowatts", *(f"{side.count * side.watts.value / 1000:.1f}" for side in both)],
        ["power", *(f"${power_kwh(e, side) * e.usd_kwh.value:,.0f}" for side in both)],
        ["together", *(f"${total_usd(e, side):,.0f}" for side in both)],
        ["together, bought new", *(f"${total_usd(e, side, usd):,.0f}" for side, usd in zip(both, new, strict=True))],
        ["MWh", *(f"{power_kwh(e, side) / 1000:,.0f}" for side in both)],
    ]


def drawings(e: Example) -> list[Drawing]:
    """Return the ratio over the uplink with played pipelines beside it, and money over the price of power."""
    lines = np.geomspace(5, 20000, 60)
    played_at = [20.0, 500.0, 2000.0, 10000.0]
    played = [100 * pace_s(e, e.many, mbit) / float(samples_s(e, e.few)) for mbit in played_at]
    prices = np.linspace(0, 0.5, 26)
    return [
        Drawing(
            title="50 RTX 3080 as a part of 4 H100",
            x="uplink of each, Mbit/s",
            y="% of the throughput",
            series=[
                Marks(label="by formula", x=lines.tolist(), y=(100 * np.asarray(ratio(e, lines))).tolist()),
                Marks(label="300 samples played", x=played_at, y=played, joined=False),
                Marks(label="a tenth off parity", x=[5, 20000], y=[90, 90], grey=True),
            ],
            log_x=True,
            log_y=True,
            caption=f"Parity needs {line_needed_mbit(e):,.0f} Mbit/s up from every home; cable has 20.",
        ),
        Drawing(
            title=f"What both cost over {e.years:g} years",
            x="price of power, $ a kWh",
            y="$",
            series=[
                Marks(
                    label=side.name,
                    x=prices.tolist(),
                    y=[total_usd(e, side, usd_kwh=float(price)) for price in prices],
                )
                for side in (e.many, e.few)
            ],
            caption=f"They meet at ${even_usd_kwh(e):.2f} a kWh. Devices alone: no hosts, no cooling.",
        ),
    ]
