"""Small fleets, and everything that there is to do with them: what solvers are held against.

Nothing here is clever on purpose: brute force walks through all cuts, orders and groups, and asks the judge that the
solvers are asked by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product
from math import inf

import numpy as np

from atoll.plan.place.crew import Crew, Job, Layer, Links, Peer, links_of
from atoll.plan.place.placement import Part, Predict, fits, in_turn, pipeline_of


def random_links(draw: np.random.Generator, count: int, regions: int = 0) -> tuple[Links, list[int]]:
    """Return links of which every one is drawn, or only those between regions, and the region of each."""
    kinds = regions or count
    at = draw.integers(kinds, size=count) if regions else np.arange(count)
    delay_s, rate = draw.uniform(0.002, 0.15, (kinds, kinds)), 10 ** draw.uniform(6.5, 9, (kinds, kinds))
    if regions:
        np.fill_diagonal(delay_s, 0.001)
        np.fill_diagonal(rate, 3e9)
    grid = np.ix_(at, at)
    return links_of(delay_s[grid], rate[grid]), [int(each) for each in at]


def random_crew(draw: np.random.Generator, count: int, regions: int = 0) -> Crew:
    """Return peers of a few kinds, in regions or with links that are all different."""
    links, at = random_links(draw, count, regions)
    kinds = [(8e12, 6e9), (15e12, 8e9), (30e12, 12e9), (60e12, 24e9)]
    peers = []
    for number in range(count):
        flop_s, memory_bytes = kinds[draw.integers(len(kinds))]
        peers.append(
            Peer(
                name=f"p{number}",
                flop_s=flop_s * draw.uniform(0.7, 1.3),
                memory_bytes=memory_bytes,
                island=str(at[number]) if regions else "",
            )
        )
    return Crew(tuple(peers), links)


def random_job(draw: np.random.Generator, layers: int, batch: int = 16) -> Job:
    """Return a chain of layers that are alike but not the same."""
    size = 10 ** draw.uniform(8, 8.7)
    return Job(
        layers=tuple(
            Layer(
                flop=6 * size * 1024 * draw.uniform(0.7, 1.3),
                state_bytes=16 * size / 4,
                gradient_bytes=size / 4,
                held_bytes=draw.uniform(0.5, 1.5) * 5e7,
                working_bytes=draw.uniform(0.5, 1.5) * 4e8,
                out_bytes=draw.uniform(0.5, 1.5) * 4e6,
            )
            for _ in range(layers)
        ),
        batch=batch,
    )


# everything there is


def cuts(layers: int, stages: int) -> Iterator[list[int]]:
    """Yield where every stage ends."""
    for ends in combinations(range(1, layers), stages - 1):
        yield [*ends, layers]


def all_rows(crew: Crew, job: Job) -> Iterator[list[Part]]:
    """Yield every way to put the chain on one pipeline of any peers."""
    for stages in range(1, min(len(crew.peers), len(job.layers)) + 1):
        for ends, order in product(cuts(len(job.layers), stages), permutations(range(len(crew.peers)), stages)):
            yield [(first, end, (place,)) for first, end, place in zip([0, *ends[:-1]], ends, order, strict=True)]


def slowest_s(crew: Crew, job: Job, parts: Sequence[Part], micro_batch: int) -> float:
    """Return the slowest stage or link of a pipeline; for ever where it does not fit."""
    if not fits(crew, job, parts, micro_batch):
        return inf
    pipeline = pipeline_of(crew, job, parts, micro_batch)
    return max(*pipeline.compute_s, *pipeline.send_s, 0.0)


def partitions(items: Sequence[int], width: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield every way to make equal groups."""
    if not items:
        yield ()
        return
    for others in combinations(items[1:], width - 1):
        left = [item for item in items[1:] if item not in others]
        for rest in partitions(left, width):
            yield ((items[0], *others), *rest)


def all_placements(crew: Crew, job: Job) -> Iterator[tuple[list[Part], int]]:
    """Yield every depth, width, choice and order of machines, cut, and size of micro-batches in powers of two."""
    count = len(crew.peers)
    for stages in range(1, min(count, len(job.layers)) + 1):
        for width in range(1, count // stages + 1):
            sizes = [1 << bit for bit in range(job.batch.bit_length())]
            seats = [
                order
                for order in permutations(range(count), stages * width)
                if list(order[:width]) == sorted(order[:width])
            ]
            for order, ends in product(seats, cuts(len(job.layers), stages)):
                groups = [order[first : first + width] for first in range(0, len(order), width)]
                parts = [(first, end, group) for first, end, group in zip([0, *ends[:-1]], ends, groups, strict=True)]
                yield from ((parts, size) for size in sizes if size < 2 * -(-job.batch // width))


def step_s(crew: Crew, job: Job, parts: Sequence[Part], micro_batch: int, predict: Predict = in_turn) -> float:
    """Return what a step takes; for ever where it does not fit."""
    return predict(pipeline_of(crew, job, parts, micro_batch)) if fits(crew, job, parts, micro_batch) else inf
