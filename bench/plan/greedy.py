"""What an engineer would write in an afternoon: begin with something sensible, swap as long as that helps.

And luck: what comes of drawing. Both are what a solver has to beat to be worth its lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from math import inf
from typing import TypeVar

import numpy as np

from atoll.plan.place.chain import proportional
from atoll.plan.place.crew import Crew, Floats, Job
from atoll.plan.place.placement import Part

T = TypeVar("T")
DRAWS = 20


def climbed(start: T, cost: Callable[[T], float], moves: Callable[[T], Iterator[T]]) -> float:
    """Return what it costs after the first move that helps was made, again and again, until none does."""
    best, best_cost = start, cost(start)
    while True:
        found = next(((other, c) for other in moves(best) if (c := cost(other)) < best_cost), None)
        if found is None:
            return best_cost
        best, best_cost = found


def drawn(draw: Callable[[], T], cost: Callable[[T], float]) -> float:
    """Return what draws cost on average, of those that are possible at all."""
    costs = [c for c in (cost(draw()) for _ in range(DRAWS)) if c < inf]
    return float(np.mean(costs)) if costs else inf


# equal groups

Groups = tuple[tuple[int, ...], ...]


def nearest_groups(apart: Floats, stages: int) -> Groups:
    """Return groups each of which took the nearest that were left."""
    left, found = list(range(len(apart))), []
    width = len(left) // stages
    while left:
        first = left[0]
        group = sorted(left, key=lambda other: apart[first, other] if other != first else -1)[:width]
        found.append(tuple(group))
        left = [each for each in left if each not in group]
    return tuple(found)


def random_groups(draw: np.random.Generator, count: int, stages: int) -> Groups:
    return tuple(map(tuple, draw.permutation(count).reshape(stages, -1).tolist()))


def group_swaps(groups: Groups) -> Iterator[Groups]:
    """Yield all that comes of two members in each other's place."""
    for g, h in combinations(range(len(groups)), 2):
        for one in groups[g]:
            for other in groups[h]:
                yield tuple(
                    tuple(other if each == one else one if each == other else each for each in group)
                    for group in groups
                )


# stages

Laid = tuple[list[Part], int]
"""Stages, and the size of a micro-batch."""


def starts(crew: Crew, job: Job, *, single: bool, by_island: bool = False) -> Iterator[Laid]:
    """Yield every depth, with machines alike in a stage, layers by speed, and every size of micro-batches."""
    ranked = sorted(range(len(crew.peers)), key=lambda place: -crew.peers[place].flop_s)
    if by_island:
        ranked.sort(key=lambda place: crew.peers[place].island)
    for stages in range(1, min(len(ranked), len(job.layers)) + 1):
        wide = 1 if single else len(ranked) // stages
        groups = [ranked[first : first + wide] for first in range(0, stages * wide, wide)]
        counts = proportional(len(job.layers), [min(crew.peers[place].flop_s for place in group) for group in groups])
        ends = np.cumsum(counts).tolist()
        parts: list[Part] = [(e - c, e, tuple(group)) for e, c, group in zip(ends, counts, groups, strict=True) if c]
        yield from ((parts, size) for size in ([1] if single else [1 << bit for bit in range(job.batch.bit_length())]))


def laid_moves(count: int, *, single: bool) -> Callable[[Laid], Iterator[Laid]]:
    """Return what yields all that comes of two machines swapped, a layer moved, one pipeline less, another size."""

    def moves(laid: Laid) -> Iterator[Laid]:
        parts, size = laid
        yield from ((other, size) for other in part_moves(count)(parts))
        if not single:
            if len(parts[0][2]) > 1:
                yield [(a, b, places[:-1]) for a, b, places in parts], size
            yield from ((parts, other) for other in (size // 2, size * 2) if other)

    return moves


def part_moves(count: int) -> Callable[[list[Part]], Iterator[list[Part]]]:
    """Return what yields all that comes of two machines swapped, or of one layer moved to a neighbour."""

    def moves(parts: list[Part]) -> Iterator[list[Part]]:
        seats = [place for part in parts for place in part[2]]
        width, everybody = len(parts[0][2]), [*seats, *(set(range(count)) - set(seats))]
        for one, other in combinations(range(count), 2):
            if one < len(seats):
                order = list(everybody)
                order[one], order[other] = order[other], order[one]
                yield [(a, b, tuple(order[at * width : (at + 1) * width])) for at, (a, b, _) in enumerate(parts)]
        for at in range(len(parts) - 1):
            for by in (-1, 1):
                (first, middle, here), (_, end, there) = parts[at], parts[at + 1]
                if first < middle + by < end:
                    yield [*parts[:at], (first, middle + by, here), (middle + by, end, there), *parts[at + 2 :]]

    return moves


def greedy(crew: Crew, job: Job, cost: Callable[[Laid], float], *, single: bool, by_island: bool = False) -> float:
    """Return what the best start costs after swaps."""
    start = min(starts(crew, job, single=single, by_island=by_island), key=cost)
    return climbed(start, cost, laid_moves(len(crew.peers), single=single))


def random_parts(draw: np.random.Generator, crew: Crew, job: Job, *, single: bool) -> list[Part]:
    """Return a drawn depth, width, order and cut."""
    stages = int(draw.integers(1, min(len(crew.peers), len(job.layers)) + 1))
    width = 1 if single else int(draw.integers(1, len(crew.peers) // stages + 1))
    order = draw.permutation(len(crew.peers)).tolist()
    ends = [*sorted(int(at) for at in draw.choice(range(1, len(job.layers)), stages - 1, replace=False)),
            len(job.layers)]  # fmt: skip
    return [
        (first, end, tuple(order[at * width : (at + 1) * width]))
        for at, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]
