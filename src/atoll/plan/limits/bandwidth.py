"""Bandwidth: does the line keep up with the device?

A peer of F useful FLOP/s trains H steps of B tokens on a model of N parameters, then sends b bytes for each of them:

    local     T_l = H B 6 N / F
    ring      T_c = 2 (R - 1) / R . N b / U         (up; as much comes down)
    tree      levels . max(f N b / D, N b / U) + the way back, with fan-in f and levels = ceil(log_f R)
    swarm     max(S / u_seed, S / d_min, R S / (u_seed + sum u))     a file to R peers: no protocol is faster
    efficient T_l / (T_l + T_c)

N cancels: the tax of exchanging now and then does not grow with the model. What is left is H . B . U / b against F, so
the least H for an efficiency e is  e / (1 - e) . 2 (R - 1) / R . b F / (6 U B).  Nothing is taken to overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.plan.limits.finding import Check, Drawing, Judged, Limit, Marks, Rows, Verdict
from atoll.plan.limits.flows import ring_run_s, swarm_run_slots
from atoll.plan.limits.scenario import Scenario, with_value

STEPS_MAX = 500
"""Local steps that published runs have been seen to bear (DiLoCo's own)."""
SENT_BYTES_MIN = 4 / 146
"""Per parameter: the smallest form that Atoll ships, SparseLoCo's chunks of top values in two bits."""
FAN_IN = 8
MONTH_S = 30 * 86400
CODECS = (("fp32", 4.0), ("bf16", 2.0), ("int8", 1.0), ("sparse, 146 times", SENT_BYTES_MIN))
LINES = (("cable 20 / 250 Mbit", 20.0, 250.0), ("fibre 500 / 500", 500.0, 500.0), ("1 Gbit", 1000.0, 1000.0))


def local_s(steps: Any, batch_tokens: Any, parameters: Any, flop_s: Any) -> Any:
    """Return the time between two exchanges."""
    return steps * batch_tokens * 6 * parameters / flop_s


def ring_s(size_bytes: Any, peers: Any, up_bytes_s: Any, down_bytes_s: Any = np.inf) -> Any:
    """Return the time of an all-reduce among equal lines."""
    return 2 * (peers - 1) / peers * size_bytes / np.minimum(up_bytes_s, down_bytes_s)


def levels(peers: float, fan_in: int = FAN_IN) -> int:
    """Return how often sums are merged on the way to the root of a tree."""
    return max(1, math.ceil(math.log(peers, fan_in) - 1e-9))


def tree_s(size_bytes: float, peers: float, up_bytes_s: float, down_bytes_s: float, fan_in: int = FAN_IN) -> float:
    """Return the time in which contributions go up a tree of peers, level after level, and the sum comes back."""
    merge_s = max(fan_in * size_bytes / down_bytes_s, size_bytes / up_bytes_s)
    return levels(peers, fan_in) * merge_s + swarm_s(
        size_bytes, up_bytes_s, np.full(int(peers), up_bytes_s), down_bytes_s
    )


def swarm_s(size_bytes: float, seed_bytes_s: float, up_bytes_s: NDArray[np.float64], down_bytes_s: float) -> float:
    """Return the least time to bring a file to all peers who pass on what they have (the fluid bound)."""
    spread = len(up_bytes_s) * size_bytes / (seed_bytes_s + float(up_bytes_s.sum()))
    return max(size_bytes / seed_bytes_s, size_bytes / down_bytes_s, spread)


def efficiency(local: Any, exchange: Any) -> Any:
    """Return the part of a round that is spent computing."""
    return local / (local + exchange)


def steps_min(
    wanted: Any, sent_bytes: Any, flop_s: Any, up_bytes_s: Any, batch_tokens: Any, peers: Any = np.inf
) -> Any:
    """Return the least local steps for an efficiency; the size of the model is not asked."""
    both_ways = 2.0 if np.all(np.isinf(peers)) else 2 * (peers - 1) / peers
    return wanted / np.maximum(1 - wanted, 1e-9) * both_ways * sent_bytes * flop_s / (6 * up_bytes_s * batch_tokens)


def flop_s(s: Scenario) -> Any:
    """Return what a peer computes in a second, of use."""
    return s.peers.devices.value * s.peers.device_tflops.value * 1e12 * s.peers.mfu.value


def up_bytes_s(s: Scenario) -> Any:
    """Return the slower direction of a line: as much goes up as comes down."""
    return np.minimum(s.line.up_mbit.value, s.line.down_mbit.value) * 1e6 / 8


def round_parts_s(s: Scenario) -> tuple[Any, Any]:
    """Return the time of a round's local steps, and that of its exchange."""
    size_bytes = s.model.parameters.value * s.work.sent_bytes.value
    local = local_s(s.work.local_steps.value, s.work.batch_tokens.value, s.model.parameters.value, flop_s(s))
    return local, ring_s(size_bytes, np.maximum(s.peers.count.value, 1.0), up_bytes_s(s))


def number(s: Scenario) -> Any:
    """Return the part of its time in which a peer computes."""
    return efficiency(*round_parts_s(s))


def month_gb(s: Scenario) -> Any:
    """Return what a peer sends and receives in a month of nothing else."""
    local, exchange = round_parts_s(s)
    peers = np.maximum(s.peers.count.value, 1.0)
    moved_bytes = 2 * 2 * (peers - 1) / peers * s.model.parameters.value * s.work.sent_bytes.value
    return moved_bytes * MONTH_S / (local + exchange) / 1e9


def tightest(s: Scenario) -> Scenario:
    """Return the scenario as sparing as what has been shown to train: rare exchanges of few bytes."""
    rare = with_value(s, "work.local_steps", max(s.work.local_steps.value, STEPS_MAX))
    return with_value(rare, "work.sent_bytes", min(s.work.sent_bytes.value, SENT_BYTES_MIN))


def judge(s: Scenario) -> Judged:
    """Return whether the line keeps up, as the scenario has it and as it could be."""
    found, wanted, cap = float(number(s)), s.work.efficiency.value, s.line.cap_gb_month.value
    moved = float(month_gb(s))
    over = bool(cap) and moved > cap
    verdict: Verdict = "no wall"
    if found < wanted or over:
        best = tightest(s)
        spare = number(best) >= wanted and (not cap or month_gb(best) <= cap)
        verdict = "binds" if spare else "wall"
    binds = f"{moved:,.0f} GB a month, the line lets {cap:,.0f} through" if over else _what_binds(s)
    return Judged(
        verdict=verdict, number=found, says=f"{found:.0%} of the time computing ({wanted:.0%} asked)", binds=binds
    )


def _bytes(size: float) -> str:
    return "1 byte" if size == 1 else f"{size:.2g} bytes"


def _what_binds(s: Scenario) -> str:
    least = steps_min(
        s.work.efficiency.value,
        s.work.sent_bytes.value,
        flop_s(s),
        up_bytes_s(s),
        s.work.batch_tokens.value,
        max(s.peers.count.value, 1.0),
    )
    has = f"{s.work.local_steps.value:,.0f} steps between exchanges, {max(1, math.ceil(least)):,} needed"
    line = min(s.line.up_mbit.value, s.line.down_mbit.value)
    return f"{has} at {line:g} Mbit and {_bytes(s.work.sent_bytes.value)} a parameter"


def ease(s: Scenario) -> list[tuple[str, Scenario]]:
    """Return a smaller form on the wire, then rarer exchanges, then both."""
    smaller = [size for _, size in CODECS if size < s.work.sent_bytes.value]
    eased = [(f"send {_bytes(size)} a parameter", with_value(s, "work.sent_bytes", size)) for size in smaller]
    if s.work.local_steps.value < STEPS_MAX:
        eased.append((f"exchange every {STEPS_MAX} steps", with_value(s, "work.local_steps", STEPS_MAX)))
    return [*eased, (f"exchange every {STEPS_MAX} steps in the smallest form", tightest(s))]


# the run of chance


def checks(s: Scenario, seed: int) -> list[Check]:
    """Return the ring and the swarm, played out piece by piece."""
    rng = np.random.default_rng(seed)
    size_bytes, line = s.model.parameters.value * s.work.sent_bytes.value, float(up_bytes_s(s))
    peers = int(min(max(s.peers.count.value, 2), 256))
    drawn = line * np.exp(0.3 * rng.standard_normal(peers))
    pieces, few = 100, min(peers, 32)
    slots = swarm_run_slots(few, pieces, max(1, round(s.line.down_mbit.value / s.line.up_mbit.value)), rng)
    slot_s = size_bytes / pieces / line
    bound = swarm_s(size_bytes, line, np.full(few, line), s.line.down_mbit.value * 1e6 / 8)
    return [
        Check(
            what="hours of a ring whose lines differ: as long as the slowest needs",
            formula=float(ring_s(size_bytes, peers, drawn.min())) / 3600,
            run=ring_run_s(size_bytes, drawn) / 3600,
            within=0.05,
            how=f"{peers} peers with drawn lines, {2 * (peers - 1)} pieces one after the other",
        ),
        Check(
            what="hours for all to have a file by swarm, against the fluid bound",
            formula=bound / 3600,
            run=slots * slot_s / 3600,
            within=0.2,
            how=f"{few} peers and a seed, {pieces} pieces, the rarest first",
        ),
    ]


def tables(s: Scenario) -> list[Rows]:
    """Return efficiencies by line and form, and what the routes take."""
    rows = []
    for line, up, down in LINES:
        for codec, size in CODECS:
            here = with_value(
                with_value(with_value(s, "line.up_mbit", up), "line.down_mbit", down), "work.sent_bytes", size
            )
            least = steps_min(
                s.work.efficiency.value, size, flop_s(s), up * 1e6 / 8, s.work.batch_tokens.value, s.peers.count.value
            )
            size_gb = s.model.parameters.value * size / 1e9
            _, exchange = round_parts_s(here)
            rows.append(
                [
                    line,
                    codec,
                    f"{size_gb:.3g}",
                    f"{exchange / 3600:.2f}",
                    f"{number(here):.1%}",
                    f"{max(1, math.ceil(least)):,}",
                    f"{month_gb(here):,.0f}",
                ]
            )
    head = ["line", "form", "GB a round", "hours to exchange", "computing", "least steps", "GB a month"]
    return [Rows(title="By line and form, with the scenario's steps and batch", head=head, rows=rows), _routes(s)]


def _routes(s: Scenario) -> Rows:
    size_bytes, peers = s.model.parameters.value * s.work.sent_bytes.value, max(s.peers.count.value, 2)
    up, down = s.line.up_mbit.value * 1e6 / 8, s.line.down_mbit.value * 1e6 / 8
    local, ring = round_parts_s(s)
    tree = tree_s(size_bytes, peers, up, down)
    weights = swarm_s(s.model.parameters.value * 2, up, np.full(int(peers), up), down)
    rows = [
        ["local steps", f"{local / 3600:.2f}", ""],
        ["ring or butterfly", f"{ring / 3600:.2f}", f"{efficiency(local, ring):.1%}"],
        [f"tree of {levels(peers)} levels, {FAN_IN} to one", f"{tree / 3600:.2f}", f"{efficiency(local, tree):.1%}"],
        ["a new peer fetches the model (16 bits) by swarm", f"{weights / 3600:.2f}", ""],
    ]
    return Rows(title="By route", head=["what", "hours", "computing"], rows=rows)


def drawings(s: Scenario, seed: int) -> list[Drawing]:
    """Return the efficiency over local steps, by form."""
    steps = np.geomspace(1, 10000, 41)
    series: list[Marks] = []
    for codec, size in CODECS:
        shares = [
            float(number(with_value(with_value(s, "work.sent_bytes", size), "work.local_steps", h))) for h in steps
        ]
        series.append(Marks(label=codec, x=steps.tolist(), y=[100 * share for share in shares]))
    asked = 100 * s.work.efficiency.value
    series.append(Marks(label="asked for", x=[1, 10000], y=[asked, asked], grey=True))
    here = Marks(label="this scenario", x=[s.work.local_steps.value], y=[100 * float(number(s))], joined=False)
    return [
        Drawing(
            title="Time spent computing",
            x="local steps between two exchanges",
            y="% of a round",
            series=[*series, here],
            log_x=True,
            caption="Farther left exchanges more often. The size of the model does not matter: it cancels.",
        )
    ]


INPUTS: Sequence[str] = (
    "work.local_steps",
    "work.batch_tokens",
    "work.sent_bytes",
    "work.efficiency",
    "peers.count",
    "peers.devices",
    "peers.device_tflops",
    "peers.mfu",
    "line.up_mbit",
    "line.down_mbit",
    "line.cap_gb_month",
    "model.parameters",
)
LIMIT = Limit(
    name="bandwidth",
    question="Does the line keep up with the device?",
    inputs=tuple(INPUTS),
    levers=("work.local_steps", "work.batch_tokens", "work.sent_bytes", "line.up_mbit", "line.cap_gb_month"),
    number=number,
    judge=judge,
    checks=checks,
    tables=tables,
    drawings=drawings,
    ease=ease,
)
