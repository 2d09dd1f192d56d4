"""How deep and how wide: every number of stages is laid out, and the one predicted fastest is taken (as Varuna does).

For P stages of G machines there are D = G // P pipelines, as many micro-batches as the batch asks for, and layers cut
so that the slowest stage is as fast as can be; sizes of micro-batches that do not fit in memory fall out. Varuna's
machines are equal. Ours are not, so for each P several crews are tried (all, the fastest, those with good lines, those
of some islands: a far region may better be left out) and several ways to deal them out (alike together, near together,
one of every neighbourhood). The best of each shape are improved by swaps.

How long a step takes is a function that is handed in: the closed form of MLTC by default, an event model where one is
at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from msgspec.structs import replace

from atoll.plan.place.crew import Crew, Job
from atoll.plan.place.islands import ISLANDS_MAX, island_groups
from atoll.plan.place.lay import SMALL, aligned, best_of, in_path
from atoll.plan.place.near import near
from atoll.plan.place.placement import Placement, Predict, in_turn, judged

TRIES = 200
"""Changes that are tried on each of the best shapes of a small crew; of larger ones, fewer."""
MANY = 64
"""Of more machines fewer depths are tried."""
GAIN = 0.01
"""Memory binds where a step without its limit would be so much faster."""


def deepened(crew: Crew, job: Job, predict: Predict = in_turn, *, explain: bool = True) -> Placement | None:
    """Return the placement with the shortest step; None: the chain fits in no way.

    Where `explain`, it is found again for machines with all the memory they want, to tell whether memory binds.
    """
    best = best_of(crew, job, layouts(crew, job), predict, TRIES)
    if best is None:
        return None
    placement = judged(crew, job, best.parts, best.micro_batch, "depth", predict)
    if explain:
        roomy = Crew(tuple(replace(peer, memory_bytes=float("inf")) for peer in crew.peers), crew.links)
        free = best_of(roomy, job, layouts(roomy, job), predict, tries=0)
        if free is not None and free.step_s < (1 - GAIN) * best.step_s:
            return replace(placement, binds="memory", where=f"with more of it a step would take {free.step_s:.3g} s")
    return placement


def layouts(crew: Crew, job: Job) -> Iterator[list[list[int]]]:
    """Yield the groups of machines that are worth laying out, every depth among them."""
    yield from island_groups(crew, job)
    nearby = near(crew.links.transfer_s(max(layer.out_bytes for layer in job.layers)))
    for pool in pools(crew, job):
        line, inside = in_path if len(pool) <= SMALL else aligned, set(pool)
        together = [place for place in nearby if place in inside]
        for stages in _depths(min(len(pool), len(job.layers)), len(crew.peers)):
            width = len(pool) // stages
            starts = range(0, stages * width, width)
            yield line(crew, job, [pool[first : first + width] for first in starts])
            yield line(crew, job, [together[first : first + width] for first in starts])
            if 1 < stages < len(pool):
                yield line(crew, job, [together[stage : stages * width : stages] for stage in range(stages)])


def pools(crew: Crew, job: Job) -> list[list[int]]:
    """Return parts of a crew that may do better: the fastest, by device and with their lines; some islands; all."""
    count = len(crew.peers)
    sizes = range(1, count + 1) if count <= SMALL else [count >> bit for bit in range(count.bit_length() - 3)]
    rankings = _rankings(crew, job)
    names = sorted({peer.island for peer in crew.peers})
    some = [pair for size in (1, 2) for pair in combinations(names, size)] if len(names) <= ISLANDS_MAX else []
    found = [ranked[:size] for ranked in rankings for size in sizes]
    found += [[place for place in rankings[0] if crew.peers[place].island in pair] for pair in some]
    return [list(pool) for pool in dict.fromkeys(map(tuple, found))]


def _rankings(crew: Crew, job: Job) -> list[list[int]]:
    """Return everybody by how long one layer takes, without and with handing it on over a middling link."""
    flop_s = np.array([peer.flop_s for peer in crew.peers])
    work, size_bytes = (np.mean([getattr(layer, key) for layer in job.layers]) for key in ("flop", "out_bytes"))
    hand_s = np.median(crew.links.transfer_s(float(size_bytes)), axis=1)
    return [np.argsort(each, kind="stable").tolist() for each in (work / flop_s, work / flop_s + 2 * hand_s)]


def _depths(most: int, machines: int) -> list[int]:
    """Return depths to try: all up to a few, then steps of a quarter; of many machines, steps of a third throughout."""
    found = list(range(1, min(most, SMALL if machines <= MANY else 4) + 1))
    while found[-1] < most:
        found.append(min(most, -(-found[-1] * 5 // 4) if machines <= MANY else -(-found[-1] * 4 // 3)))
    return found
