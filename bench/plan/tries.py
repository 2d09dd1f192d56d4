"""One small fleet at a time, drawn: what the best there is costs, what a solver's answer does, greedy's, and luck's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from math import inf, isinf

import numpy as np
from bench.plan.brute import (
    all_placements,
    all_rows,
    cuts,
    partitions,
    random_crew,
    random_job,
    random_links,
    slowest_s,
    step_s,
)
from bench.plan.greedy import (
    climbed,
    drawn,
    greedy,
    group_swaps,
    nearest_groups,
    part_moves,
    random_groups,
    random_parts,
)

from atoll.plan.place.chain import Row, best_row, moved, proportional
from atoll.plan.place.crew import Crew, Floats, Job
from atoll.plan.place.cuts import cut_stages
from atoll.plan.place.depth import deepened
from atoll.plan.place.fence import fenced_row
from atoll.plan.place.groups import Scale, Volumes, split
from atoll.plan.place.islands import islanded, within_islands
from atoll.plan.place.path import path_s, short, shortest
from atoll.plan.place.placement import Part, pipeline_of
from atoll.plan.place.rings import shared
from atoll.swarm.routes.clusters import clusters_of
from atoll.swarm.routes.shares import slowest

Draw = np.random.Generator
Costs = tuple[float, float, float, float]
"""Of the best there is, of ours, of greedy with swaps, and of luck."""


# groups by links


def groups_costs(draw: Draw) -> Costs:
    count, stages = [(6, 2), (6, 3), (8, 2), (8, 4)][draw.integers(4)]
    links, _ = random_links(draw, count, regions=int(draw.choice([0, 3])))
    volumes = Volumes(activation_bytes=10 ** draw.uniform(6, 9), gradient_bytes=10 ** draw.uniform(6, 9))
    scale = Scale(links, volumes, stages)

    def cost(groups: Sequence[Sequence[int]]) -> float:
        return scale.total_s(tuple(sorted(tuple(sorted(group)) for group in groups)))

    return (
        min(cost(groups) for groups in partitions(range(count), count // stages)),
        split(links, volumes, stages).total_s,
        climbed(nearest_groups(scale.sync, stages), cost, group_swaps),
        drawn(lambda: random_groups(draw, count, stages), cost),
    )


def clusters_costs(draw: Draw) -> Costs:
    count, clusters = [(6, 2), (6, 3), (8, 2), (9, 3)][draw.integers(4)]
    links, _ = random_links(draw, count, regions=clusters)
    trips_s: Floats = 2 * links.transfer_s(0.0) + 1e-4 * (1 - np.eye(count))

    def cost(groups: Sequence[Sequence[int]]) -> float:
        return float(sum(trips_s[np.ix_(group, group)].sum() for group in groups))

    return (
        min(cost(groups) for groups in partitions(range(count), count // clusters)),
        cost(clusters_of(trips_s.tolist(), clusters)),
        climbed(nearest_groups(trips_s, clusters), cost, group_swaps),
        drawn(lambda: random_groups(draw, count, clusters), cost),
    )


def path_costs(draw: Draw) -> Costs:
    points = draw.uniform(0, 1, (10, 2))
    apart = np.hypot(*(points[:, None] - points[None, :]).transpose(2, 0, 1))

    def swaps(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for one in range(10):
            for other in range(one):
                changed = list(order)
                changed[one], changed[other] = changed[other], changed[one]
                yield tuple(changed)

    def cost(order: Sequence[int]) -> float:
        return path_s(apart, order)

    order = [0]
    while len(order) < 10:
        order.append(min(set(range(10)) - set(order), key=lambda each: apart[order[-1], each]))
    return (
        cost(shortest(apart)),
        cost(short(apart)),
        climbed(tuple(order), cost, swaps),
        drawn(lambda: draw.permutation(10).tolist(), cost),
    )


# chains


def _row_costs(draw: Draw, ours: Callable[[Crew, Job], Row | None], regions: bool = False) -> Costs:
    crew = random_crew(draw, 5, regions=2 if regions else int(draw.choice([0, 2])))
    job = random_job(draw, 6)
    row = ours(crew, job)
    return (
        min(slowest_s(crew, job, parts, 1) for parts in all_rows(crew, job)),
        row.slowest_s if row else inf,
        greedy(crew, job, lambda laid: slowest_s(crew, job, *laid), single=True),
        drawn(lambda: random_parts(draw, crew, job, single=True), lambda parts: slowest_s(crew, job, parts, 1)),
    )


def chain_costs(draw: Draw) -> Costs:
    return _row_costs(draw, best_row)


def moved_costs(draw: Draw) -> Costs:
    """The chain as it is done for more peers than can be put in order exactly."""
    return _row_costs(draw, lambda crew, job: moved(crew, job, 1))


def fence_costs(draw: Draw) -> Costs:
    return _row_costs(draw, fenced_row, regions=True)


def cuts_costs(draw: Draw) -> Costs:
    """Stages are given, only cuts are free; what counts is computing and sending one after the other."""
    crew, job = random_crew(draw, 4), random_job(draw, 9)
    groups = [[place] for place in range(4)]

    def cost(parts: Sequence[Part]) -> float:
        if isinf(step_s(crew, job, parts, 1)):
            return inf
        pipeline = pipeline_of(crew, job, parts, 1)
        return max(c + 2 * s for c, s in zip(pipeline.compute_s, (*pipeline.send_s, 0.0), strict=True))

    def parts_of(ends: Sequence[int]) -> list[Part]:
        return [(a, b, (at,)) for at, (a, b) in enumerate(zip([0, *ends[:-1]], ends, strict=True))]

    def borders(parts: list[Part]) -> Iterator[list[Part]]:
        return (other for other in part_moves(4)(parts) if [p[2] for p in other] == [p[2] for p in parts])

    every = list(cuts(9, 4))
    ours = cut_stages(crew, job, groups, 1, job.batch)
    return (
        min(cost(parts_of(ends)) for ends in every),
        cost(ours) if ours else inf,
        climbed(parts_of([2, 4, 6, 9]), cost, borders),
        drawn(lambda: parts_of(every[draw.integers(len(every))]), cost),
    )


def proportional_costs(draw: Draw) -> Costs:
    """Only the time of computing counts, as in Holmes: equal layers on four stages of unequal speed."""
    speeds, layers = draw.uniform(1, 4, 4).tolist(), 24

    def cost(counts: Sequence[int]) -> float:
        return float(max(count / speed for count, speed in zip(counts, speeds, strict=True)))

    def moves(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for one, other in permutations(range(4), 2):
            if counts[one] > 1:
                yield tuple(c - (at == one) + (at == other) for at, c in enumerate(counts))

    every = [np.diff([0, *ends]).tolist() for ends in cuts(layers, 4)]
    return (
        min(map(cost, every)),
        cost(proportional(layers, speeds)),
        climbed(tuple([layers // 4] * 4), cost, moves),
        drawn(lambda: every[draw.integers(len(every))], cost),
    )


# depth and width


def _step_costs(draw: Draw, islands: bool) -> Costs:
    crew = random_crew(draw, 5, regions=2 if islands else int(draw.choice([0, 2])))
    job = random_job(draw, 5, batch=8)

    def allowed(parts: Sequence[Part]) -> bool:
        return not islands or within_islands(crew, [part[2] for part in parts])

    def cost(both: tuple[list[Part], int]) -> float:
        return step_s(crew, job, *both) if allowed(both[0]) else inf

    found = islanded(crew, job) if islands else deepened(crew, job, explain=False)
    return (
        min(map(cost, all_placements(crew, job))),
        found.step_s if found else inf,
        greedy(crew, job, cost, single=False, by_island=islands),
        drawn(lambda: (random_parts(draw, crew, job, single=False), 1 << int(draw.integers(4))), cost),
    )


def depth_costs(draw: Draw) -> Costs:
    return _step_costs(draw, islands=False)


def islands_costs(draw: Draw) -> Costs:
    return _step_costs(draw, islands=True)


# shares


def shares_costs(draw: Draw) -> Costs:
    """Brute force is a linear program here."""
    count = int(draw.integers(3, 9))
    rates, memory = 10 ** draw.uniform(6, 8, count), draw.uniform(2.5, 20, count) * 1e9

    def cost(shares: Sequence[float]) -> float:
        return slowest(rates.tolist(), shares, count)

    caps = np.minimum(1.0, (memory / 1e9 - 2) / (count - 1))
    if caps.sum() <= 1:
        return inf, inf, inf, inf

    def moves(shares: tuple[float, ...]) -> Iterator[tuple[float, ...]]:
        for one, other in permutations(range(count), 2):
            step = min(0.01, shares[one], caps[other] - shares[other])
            if step > 1e-9:
                yield tuple(s - step * (at == one) + step * (at == other) for at, s in enumerate(shares))

    def filled(order: Sequence[int]) -> tuple[float, ...]:
        left, found = 1.0, [0.0] * count
        for at in order:
            found[at] = min(left, float(caps[at]))
            left -= found[at]
        return tuple(found)

    return (
        linear_s(rates, caps, count),
        cost(shared(rates.tolist(), memory.tolist(), 1e9)),
        climbed(filled(np.argsort(-rates).tolist()), cost, moves),
        drawn(lambda: filled(draw.permutation(count).tolist()), cost),
    )


def linear_s(rates: Floats, caps: Floats, contributors: int) -> float:
    """Return the least time of the slowest member, by a linear program over shares and that time."""
    from scipy.optimize import linprog

    count, scale = len(rates), float(rates.max())
    each = np.column_stack([np.diag((contributors - 2) * scale / rates), -np.ones(count)])
    found = linprog(
        [0.0] * count + [1.0],
        A_ub=each,
        b_ub=-scale / rates,
        A_eq=[[1.0] * count + [0.0]],
        b_eq=[1.0],
        bounds=[*((0.0, float(cap)) for cap in caps), (0.0, None)],
        method="highs",
    )
    return float(found.fun) / scale if found.success else inf
