"""Bandwidth: does the line keep up with the device?

A peer of F useful FLOP/s trains H steps of B tokens on a model of N parameters, then sends b bytes for each of them:

    local     T_l = H B 6 N / F
    ring      T_c = 2 (R - 1) / R . N b / U         (up; as much comes down)
    tree      levels . max(f N b / D, N b / U) + the way back, with fan-in f and levels = ceil(log_f R)
    swarm     max(S / u_seed, S / d_min, R S / (u_seed + sum u))     a file to R peers: no protocol is faster
    computing T_l / (T_l + T_c)

N cancels: the tax of exchanging now and then does not grow with the model. What is left is H . B . U / b against F, so
the least H for an efficiency e is  e / (1 - e) . 2 (R - 1) / R . b F / (6 U B).  Nothing is taken to overlap. The forms
are `plan.cost`'s; what they are held against is played piece by piece (`flows.py`). It is asked as if every peer held
the whole model: whether it does is memory's question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from atoll.plan.cost.collective import all_reduce_bytes, ring_s, tree_levels
from atoll.plan.cost.local import computed_part, exchange_bytes, local_s, spread_s, steps_for
from atoll.plan.limits.finding import Check, Drawing, Judged, Limit, Marks, Rows, Verdict
from atoll.plan.limits.flows import ring_run, rounds_run, steps_found, swarm_run_slots
from atoll.plan.limits.scenario import Scenario, with_value

STEPS_MAX = 500
"""Local steps that published runs have been seen to bear (DiLoCo's own)."""
SENT_BYTES_MIN = 4 / 146
"""Per parameter: the smallest form that Atoll ships, SparseLoCo's chunks of top values in two bits."""
FAN_IN = 8
MONTH_S = 30 * 86400
CODECS = (("fp32", 4.0), ("bf16", 2.0), ("int8", 1.0), ("sparse, 146 times", SENT_BYTES_MIN))
LINES = (("cable 20 / 250 Mbit", 20.0, 250.0), ("fibre 500 / 500", 500.0, 500.0), ("1 Gbit", 1000.0, 1000.0))


def merged_s(
    size_bytes: float, peers: float, line: tuple[float, float], merger: tuple[float, float] | None = None
) -> float:
    """Return the time in which contributions go up a tree of mergers, level after level, and the sum comes by swarm.

    Lines are (up, down) in bytes a second; mergers are peers like all others unless they are said to have their own.
    """
    (up, down), (merger_up, merger_down) = line, merger or line
    merge_s = max(FAN_IN * size_bytes / merger_down, size_bytes / merger_up)
    back_s = float(spread_s(size_bytes, merger_up, up, down, round(peers)))
    return max(1.0, float(tree_levels(peers, FAN_IN))) * merge_s + back_s


def steps_min(wanted: Any, sent_bytes: Any, flop_s: Any, up_bytes_s: Any, batch_tokens: Any, peers: Any) -> Any:
    """Return the least local steps for an efficiency; the size of the model is not asked."""
    many = steps_for(np.minimum(wanted, 1 - 1e-9), batch_tokens, flop_s, up_bytes_s, sent_bytes)
    return many * (peers - 1) / peers


def flop_s(s: Scenario) -> Any:
    """Return what a peer computes in a second, of use."""
    return s.peers.devices.value * s.peers.device_tflops.value * 1e12 * s.peers.mfu.value


def up_bytes_s(s: Scenario) -> Any:
    """Return the slower direction of a line: as much goes up as comes down."""
    return np.minimum(s.line.up_mbit.value, s.line.down_mbit.value) * 1e6 / 8


def round_parts_s(s: Scenario) -> tuple[Any, Any]:
    """Return the time of a round's local steps, and that of its exchange."""
    local = local_s(s.work.local_steps.value, s.work.batch_tokens.value, s.model.parameters.value, flop_s(s))
    return local, ring_s(contribution_bytes(s), np.maximum(s.peers.count.value, 1.0), 0.0, up_bytes_s(s))


def contribution_bytes(s: Scenario) -> Any:
    """Return what a peer has to say of its steps."""
    return exchange_bytes(s.model.parameters.value, s.work.sent_bytes.value)


def number(s: Scenario) -> Any:
    """Return the part of its time in which a peer computes."""
    return computed_part(*round_parts_s(s))


def month_gb(s: Scenario) -> Any:
    """Return what a peer sends and receives in a month of nothing else."""
    local, exchange = round_parts_s(s)
    moved_bytes = 2 * all_reduce_bytes(contribution_bytes(s), np.maximum(s.peers.count.value, 1.0))
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
    """Return rounds played step by step and piece by piece, a ring of unequal lines, and a swarm."""
    rng = np.random.default_rng(seed)
    size_bytes, line = float(contribution_bytes(s)), float(up_bytes_s(s))
    peers = int(min(max(s.peers.count.value, 2), 256))
    drawn = line * np.exp(0.3 * rng.standard_normal(peers))
    step_s = 6 * s.model.parameters.value * s.work.batch_tokens.value / float(flop_s(s))
    steps = max(1, round(s.work.local_steps.value))
    played = rounds_run(size_bytes, np.full(peers, line), step_s, steps, rounds=3)
    few, many = with_value(s, "peers.count", float(peers)), f"{peers} peers, pieces one after the other"
    least = steps_min(
        s.work.efficiency.value, s.work.sent_bytes.value, flop_s(s), line, s.work.batch_tokens.value, peers
    )
    return [
        Check(
            what="part of the time computing",
            formula=float(number(with_value(few, "work.local_steps", float(steps)))),
            run=played.computing,
            within=0.01,
            how=f"3 rounds of {steps:,} steps and a ring, {many}",
        ),
        Check(
            what="GB a month up and down a line",
            formula=float(month_gb(with_value(few, "work.local_steps", float(steps)))),
            run=2 * played.sent_bytes_s * MONTH_S / 1e9,
            within=0.01,
            how="bytes of those rounds counted as they are sent",
        ),
        Check(
            what="least local steps for the efficiency that is asked for",
            formula=float(max(1, math.ceil(least))),
            run=float(steps_found(size_bytes, np.full(peers, line), step_s, s.work.efficiency.value)),
            within=0.01,
            how="rounds played with more and more steps until they compute enough",
        ),
        Check(
            what="hours of a ring whose lines differ: as long as the slowest needs",
            formula=float(ring_s(size_bytes, peers, 0.0, drawn.min())) / 3600,
            run=ring_run(size_bytes, drawn).lasts_s / 3600,
            within=0.05,
            how=f"{peers} peers with drawn lines, {2 * (peers - 1)} pieces one after the other",
        ),
        _swarm_check(s, size_bytes, rng),
    ]


def _swarm_check(s: Scenario, size_bytes: float, rng: np.random.Generator) -> Check:
    """Return a file passed on piece by piece beside the bound that no protocol beats."""
    up, down = s.line.up_mbit.value * 1e6 / 8, s.line.down_mbit.value * 1e6 / 8
    pieces, few = 100, int(min(max(s.peers.count.value, 2), 32))
    slots = swarm_run_slots(few, pieces, max(1, round(down / up)), rng)
    return Check(
        what="hours for all to have a file by swarm, against the fluid bound",
        formula=float(spread_s(size_bytes, up, up, down, few)) / 3600,
        run=slots * size_bytes / pieces / min(up, down) / 3600,
        within=0.2,
        how=f"{few} peers and a seed, {pieces} pieces, the rarest first",
    )


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
    head = ["line", "form", "GB", "hours", "computing", "least steps", "GB a month"]
    return [
        Rows(
            title="What a round sends, and its exchange, by line and form, with the scenario's steps and batch",
            head=head,
            rows=rows,
        ),
        _routes(s),
    ]


def _routes(s: Scenario) -> Rows:
    peers = max(s.peers.count.value, 2)
    up, down = s.line.up_mbit.value * 1e6 / 8, s.line.down_mbit.value * 1e6 / 8
    local, ring = round_parts_s(s)
    tree = merged_s(float(contribution_bytes(s)), peers, (up, down))
    weights = float(spread_s(s.model.parameters.value * 2, up, up, down, round(peers)))
    rows = [
        ["local steps", f"{local / 3600:.2f}", ""],
        ["ring or butterfly", f"{ring / 3600:.2f}", f"{computed_part(local, ring):.1%}"],
        [
            f"tree of {tree_levels(peers, FAN_IN):.0f} levels, {FAN_IN} to one",
            f"{tree / 3600:.2f}",
            f"{computed_part(local, tree):.1%}",
        ],
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
