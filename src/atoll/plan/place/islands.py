"""Islands of fast network: replicas of a stage never leave theirs, and stages are handed on between them (Holmes).

Gradients are the heavy flow and stay inside; between islands go activations only. For every width each island gives as
many stages as it can fill, layers go by speed, and the width whose step is predicted fastest is taken; all islands are
tried, and some of them without the others. Islands stand in the order whose borders are shortest; within one, machines
of a stage are alike, so that none waits for another. What is best is improved by swaps that keep to the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from atoll.plan.place.chain import proportional
from atoll.plan.place.crew import Crew, Job
from atoll.plan.place.lay import SMALL, Groups, Layout, aligned, best_of, micro_batch_sizes
from atoll.plan.place.path import path
from atoll.plan.place.placement import Part, Placement, Predict, fits, in_turn, judged, pipeline_of

ISLANDS_MAX = 4
"""Of so many islands every set is tried; of more, the fastest together."""
TRIES = 200
"""Changes that are tried on each of the best shapes of a small crew; of larger ones, fewer."""


def islanded(crew: Crew, job: Job, predict: Predict = in_turn) -> Placement | None:
    """Return the best placement whose replicas share an island; None: there is none that fits."""
    best = best_of(crew, job, island_groups(crew, job), predict, TRIES, lambda groups: within_islands(crew, groups))
    return None if best is None else judged(crew, job, best.parts, best.micro_batch, "islands", predict)


def by_speed(crew: Crew, job: Job, slack: float = 1.0, predict: Predict = in_turn) -> Placement | None:
    """Return the best placement within islands whose layers are strictly in proportion to speed, as Holmes has it."""
    found: list[Layout] = []
    for groups in island_groups(crew, job):
        parts = _proportional(crew, job, groups, slack)
        found += [
            Layout(step_s=predict(pipeline_of(crew, job, parts, size)), parts=parts, micro_batch=size)
            for size in micro_batch_sizes(job, len(groups[0]))
            if fits(crew, job, parts, size)
        ]
    best = min(found, key=lambda each: each.step_s, default=None)
    return None if best is None else judged(crew, job, best.parts, best.micro_batch, "by speed", predict)


def within_islands(crew: Crew, groups: Groups) -> bool:
    """Return whether no group is on two islands."""
    return all(len({crew.peers[place].island for place in group}) == 1 for group in groups)


def island_groups(crew: Crew, job: Job) -> Iterator[list[list[int]]]:
    """Yield the stages' machines for sets of islands and widths."""
    islands = _islands(crew, job)
    for some in (some for fast in _fastest(crew) for some in _sets(crew, _only(islands, fast))):
        for width in _widths(max(map(len, some)), len(crew.peers)):
            groups = [part for island in some for part in _parts(island, width)]
            if len(groups) > len(job.layers):  # the slowest are left out
                ranked = sorted(groups, key=lambda group: -min(crew.peers[place].flop_s for place in group))
                groups = [group for group in groups if group in ranked[: len(job.layers)]]
            yield aligned(crew, job, groups)


def _fastest(crew: Crew) -> list[set[int]]:
    """Return everybody, and the fastest few: who is slow may better be left out."""
    count = len(crew.peers)
    ranked = sorted(range(count), key=lambda place: (-crew.peers[place].flop_s, place))
    sizes = range(1, count + 1) if count <= SMALL // 2 else [count, -(-count * 3 // 4), -(-count // 2), -(-count // 4)]
    return [set(ranked[:size]) for size in sizes]


def _only(islands: list[list[int]], fast: set[int]) -> list[list[int]]:
    return [left for island in islands if (left := [place for place in island if place in fast])]


def _parts(island: Sequence[int], width: int) -> list[list[int]]:
    return [list(island[first : first + width]) for first in range(0, len(island) - width + 1, width)]


def _widths(most: int, count: int) -> list[int]:
    """Return widths to try: all of a small crew, else steps of an eighth."""
    if count <= SMALL:
        return list(range(1, most + 1))
    found = [1]
    while found[-1] < most:
        found.append(min(most, found[-1] + max(1, found[-1] // 8)))
    return found


def _sets(crew: Crew, islands: list[list[int]]) -> list[list[list[int]]]:
    """Return sets of islands, each in the order of all."""
    if len(islands) <= ISLANDS_MAX:
        return [list(some) for size in range(1, len(islands) + 1) for some in combinations(islands, size)]
    ranked = sorted(islands, key=lambda island: -sum(crew.peers[place].flop_s for place in island))
    sizes = sorted({1, 2, 4, len(islands) // 2, len(islands)})
    return [[island for island in islands if island in ranked[:size]] for size in sizes]


def _islands(crew: Crew, job: Job) -> list[list[int]]:
    """Return the places of each island's peers, the fastest first; islands by the shortest way past all."""
    names = list(dict.fromkeys(peer.island for peer in crew.peers))
    members = [[place for place, peer in enumerate(crew.peers) if peer.island == name] for name in names]
    apart_s = crew.links.transfer_s(max(layer.out_bytes for layer in job.layers))
    borders = np.array([[apart_s[np.ix_(one, other)].min() for other in members] for one in members])
    return [sorted(members[at], key=lambda place: (-crew.peers[place].flop_s, place)) for at in path(borders)]


def _proportional(crew: Crew, job: Job, groups: Groups, slack: float) -> list[Part]:
    speeds = [min(crew.peers[place].flop_s for place in group) for group in groups]
    parts: list[Part] = []
    for layers, group in zip(proportional(len(job.layers), speeds, slack), groups, strict=True):
        first = parts[-1][1] if parts else 0
        if layers:
            parts.append((first, first + layers, tuple(group)))
    return parts
