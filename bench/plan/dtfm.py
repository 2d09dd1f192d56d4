"""DT-FM's five scenarios of 64 GPUs, with the volumes of its scheduler: what given placements cost, and what we find.

Costs to compare with are not the paper's: they were computed from its formulas by somebody else's program, for
placements that can be said in a word, and the best of them is not known to be the best there is, so all rows are
"ours". From the paper itself is only what its scheduler won over random placement world-wide, in measured time: 2.7
times, which costs of sending alone cannot be held against.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from bench.plan.row import Gate, Row, table

from atoll.plan.place.crew import Links, links_of
from atoll.plan.place.groups import Split, Volumes, split, split_of

STAGES = WIDTH = 8
VOLUMES = Volumes(activation_bytes=125_000 * 2024 * 2 * 1e9 / 2**30, gradient_bytes=1.3e9 * 4 * 3 / 24)
"""A macro-batch of 125,000 tokens in fp16, as their script has it (2024 wide, and in units of 2**30 bytes that links
count as 10**9); gradients of three of 24 layers of 1.3 G parameters in fp32."""
ROUNDING = 0.0051
"""Of costs that are known to two digits after the point."""
SLACK, RANDOMS = 0.01, 20
PAIRS = {"us": ("Virginia", "Ohio", "Oregon", "California"), "world": (
    "Oregon", "Virginia", "Ohio", "London", "Tokyo", "Seoul", "Frankfurt", "Ireland",
)}  # fmt: skip
Groups = list[list[int]]


def scenarios() -> list[str]:
    return [each["scenario"] for each in table("dtfm_scenarios")]


def blocks_of(scenario: str) -> list[tuple[str, list[int]]]:
    """Return the blocks of a scenario, named, with their machines."""
    row = next(each for each in table("dtfm_scenarios") if each["scenario"] == scenario)
    found, at = [], 0
    for name, size in (part.rsplit(" ", 1) for part in row["blocks"].split("|")):
        found.append((name, list(range(at, at + int(size)))))
        at += int(size)
    return found


def links_in(scenario: str) -> Links:
    """Return the links of a scenario."""
    row = next(each for each in table("dtfm_scenarios") if each["scenario"] == scenario)
    across = {
        frozenset((each["one"], each["other"])): (float(each["delay_ms"]), float(each["rate_gbit_s"]))
        for each in table("dtfm_links")
        if each["scenario"] == scenario
    }
    inside = (float(row["inside_delay_ms"]), float(row["inside_gbit_s"]))
    count = STAGES * WIDTH
    delay_ms, rate_gbit_s = np.zeros((count, count)), np.ones((count, count))
    for name, here in blocks_of(scenario):
        for other, there in blocks_of(scenario):
            near = name == other and name != "single"
            far = across.get(frozenset((name, other))) or (float(row["across_delay_ms"]), float(row["across_gbit_s"])) \
                if not near else inside  # fmt: skip
            delay_ms[np.ix_(here, there)], rate_gbit_s[np.ix_(here, there)] = inside if near else far
    return links_of(delay_ms / 1e3, rate_gbit_s * 1e9 / 8)


def placed(scenario: str, placement: str) -> Groups:
    """Return the groups of a placement that has a name."""
    blocks = dict(blocks_of(scenario))
    every = [machine for machines in blocks.values() for machine in machines]
    match placement:
        case "consecutive":
            return _runs(every)
        case "striped":
            return [every[stage::STAGES] for stage in range(STAGES)]
        case "nodes in four":
            return [every[stage : STAGES * 4 : 4] for stage in range(4)] + _runs(blocks["single"])
        case "near pairs":
            return _pairs(blocks, PAIRS[scenario])
        case _:
            raise ValueError(placement)


def _runs(machines: Sequence[int]) -> Groups:
    return [list(machines[first : first + WIDTH]) for first in range(0, len(machines), WIDTH)]


def _pairs(blocks: dict[str, list[int]], names: Sequence[str]) -> Groups:
    """Return groups of which each has half of its members in either of two near regions."""
    found = []
    for one, other in zip(names[::2], names[1::2], strict=True):
        half = WIDTH // 2
        starts = range(0, len(blocks[one]), half)
        found += [blocks[one][first : first + half] + blocks[other][first : first + half] for first in starts]
    return found


@cache
def solved(scenario: str) -> Split:
    return split(links_in(scenario), VOLUMES, STAGES)


@cache
def random_s(scenario: str) -> float:
    """Return what random placements cost on average."""
    draw, links = np.random.default_rng(0), links_in(scenario)
    costs = [split_of(links, VOLUMES, _runs(draw.permutation(STAGES * WIDTH).tolist())) for _ in range(RANDOMS)]
    return float(np.mean([each.total_s for each in costs]))


def best_known_s(scenario: str) -> float:
    return min(float(each["total_s"]) for each in table("dtfm") if each["scenario"] == scenario)


def rows() -> list[Row]:
    """Return every named placement's cost, and after them what the solver found against the best of these."""
    found = [
        _row(each["scenario"], f"{each['placement']}, {part}", float(each[f"{part}_s"]), getattr(cost, f"{part}_s"))
        for each in table("dtfm")
        for cost in [split_of(links_in(each["scenario"]), VOLUMES, placed(each["scenario"], each["placement"]))]
        for part in ("sync", "hand", "total")
    ]
    ours = [_row(name, "solver, total", best_known_s(name), solved(name).total_s) for name in scenarios()]
    return found + ours


def _row(scenario: str, what: str, reference: float, predicted: float) -> Row:
    return Row(
        source="DT-FM formulas",
        setting=f"{scenario}: {what}",
        quantity="s",
        basis="ours",
        reference=reference,
        predicted=predicted,
    )


def gates() -> list[Gate]:
    fixed = max(abs(row.predicted - row.reference) for row in rows() if "solver" not in row.setting)
    worst = max(solved(name).total_s / best_known_s(name) - 1 for name in scenarios())
    won = min(random_s(name) / solved(name).total_s for name in scenarios())
    return [
        Gate(
            source="DT-FM formulas",
            demand="given placements, to rounding (s)",
            value=fixed,
            holds=fixed <= ROUNDING,
        ),
        Gate(
            source="DT-FM formulas",
            demand=f"solver over the best known, at most {SLACK:.0%} in all five",
            value=worst,
            holds=worst <= SLACK,
        ),
        Gate(
            source="DT-FM formulas",
            demand="random placement over the solver's, at least 1.5 in all five",
            value=won,
            holds=won >= 1.5,
        ),
    ]
