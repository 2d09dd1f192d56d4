"""How groups of machines become stages: their order, who is in a pipeline with whom, layers, micro-batches; and swaps.

A layout is improved as long as that helps, by two machines in each other's place (one may have been idle), two stages
in each other's place, and single layers to the stage before or after. Whatever it is, it fits in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import TypeVar

import numpy as np
from msgspec import Struct

from atoll.plan.place.crew import Crew, Floats, Job
from atoll.plan.place.cuts import cut_stages
from atoll.plan.place.path import matched, path
from atoll.plan.place.placement import Part, Predict, fits, micro_batches, pipeline_of

SMALL = 16
"""Crews up to this size are gone through in every way; of larger ones, some depths and widths."""
KEPT = 5
"""Shapes that are improved."""
T = TypeVar("T")
Groups = Sequence[Sequence[int]]
Allowed = Callable[[Groups], bool]


class Layout(Struct, frozen=True, kw_only=True):
    """Stages, the size of a micro-batch, and what a step is predicted to take."""

    step_s: float
    parts: list[Part]
    micro_batch: int

    @property
    def groups(self) -> list[list[int]]:
        return [list(part[2]) for part in self.parts]


def micro_batch_sizes(job: Job, width: int) -> list[int]:
    """Return sizes worth a try: powers of two, up to all that one pipeline has in a step."""
    most = max(1, -(-job.batch // width))
    return [*(1 << bit for bit in range(most.bit_length()) if 1 << bit < most), most]


def in_path(crew: Crew, job: Job, groups: Groups) -> list[list[int]]:
    """Return groups in the order of the shortest way along all of them, aligned."""
    apart_s = np.zeros((len(groups), len(groups)))
    for one, other in combinations(range(len(groups)), 2):
        apart_s[one, other] = apart_s[other, one] = matched(_hand_s(crew, job, groups[one], groups[other]))[0]
    return aligned(crew, job, [groups[at] for at in path(apart_s)])


def aligned(crew: Crew, job: Job, groups: Groups) -> list[list[int]]:
    """Return groups with their members so that the r-th of each are a pipeline over good links."""
    line = [list(groups[0])]
    for group in groups[1:]:
        _, partners = matched(_hand_s(crew, job, line[-1], group))
        line.append([group[partner] for partner in partners])
    return line


def _hand_s(crew: Crew, job: Job, here: Sequence[int], there: Sequence[int]) -> Floats:
    grid, links = np.ix_(here, there), crew.links
    return links.latency_s[grid] + max(layer.out_bytes for layer in job.layers) / links.bytes_s[grid]


def laid(crew: Crew, job: Job, groups: Groups, predict: Predict, sizes: Sequence[int] = ()) -> Layout | None:
    """Return the best cut and micro-batch of machines in given stages; None: they do not fit.

    Sizes are tried upwards, until they do not fit any more or have stopped to help.
    """
    best: Layout | None = None
    for size in sizes or micro_batch_sizes(job, len(groups[0])):
        parts = cut_stages(crew, job, groups, size, micro_batches(job, len(groups[0]), size))
        if parts is None:
            break
        step_s = predict(pipeline_of(crew, job, parts, size))
        if best is None or step_s < best.step_s:
            best = Layout(step_s=step_s, parts=parts, micro_batch=size)
        elif size > 2 * best.micro_batch:
            break
    return best


# improving


def best_of(
    crew: Crew,
    job: Job,
    many: Iterable[Groups],
    predict: Predict,
    tries: int,
    allowed: Allowed = lambda _: True,
) -> Layout | None:
    """Return the best layout: of each depth and width the best is a candidate, and a few of these are improved."""
    shapes: dict[tuple[int, int], Layout] = {}
    for groups in dict.fromkeys(tuple(map(tuple, each)) for each in many):
        layout, shape = laid(crew, job, groups, predict), (len(groups), len(groups[0]))
        if layout and (shape not in shapes or layout.step_s < shapes[shape].step_s):
            shapes[shape] = layout
    tries = int(tries * min(1.0, (SMALL / len(crew.peers)) ** 2))
    kept = sorted(shapes.values(), key=lambda each: each.step_s)[:KEPT]
    better = [improved(crew, job, each, predict, tries, allowed) for each in kept]
    return min(better, key=lambda each: each.step_s, default=None)


def improved(
    crew: Crew, job: Job, layout: Layout, predict: Predict, tries: int, allowed: Allowed = lambda _: True
) -> Layout:
    """Return a layout after changes that help, until none does or so many were tried; the same every time."""
    draw, most = np.random.default_rng(0), micro_batch_sizes(job, len(layout.parts[0][2]))[-1]
    changes = _changes(layout.groups, len(crew.peers), draw)
    for _ in range(tries):
        groups = next(changes, None)
        if groups is None:
            break
        sizes = sorted({max(1, layout.micro_batch // 2), layout.micro_batch, min(2 * layout.micro_batch, most)})
        other = laid(crew, job, groups, predict, sizes) if allowed(groups) else None
        if other and other.step_s < layout.step_s:
            layout, changes = other, _changes(other.groups, len(crew.peers), draw)
    return _shifted(crew, job, layout, predict)


def _changes(groups: Groups, count: int, draw: np.random.Generator) -> Iterator[Groups]:
    """Yield all that comes of two machines, or two groups, in each other's place, in a drawn order."""
    width, used = len(groups[0]), [place for group in groups for place in group]
    seats = [*used, *sorted(set(range(count)) - set(used))]
    moves = [(True, pair) for pair in combinations(range(count), 2) if pair[0] < len(used)]
    moves += [(False, pair) for pair in combinations(range(len(groups)), 2) if width > 1]
    for at in draw.permutation(len(moves)):
        single, (one, other) = moves[at]
        if single:
            order = _swapped(seats, one, other)
            yield [order[first : first + width] for first in range(0, len(used), width)]
        else:
            yield _swapped(groups, one, other)


def _swapped(items: Sequence[T], one: int, other: int) -> list[T]:
    found = list(items)
    found[one], found[other] = found[other], found[one]
    return found


def _shifted(crew: Crew, job: Job, layout: Layout, predict: Predict) -> Layout:
    """Return a layout after single layers went to the stage before or after, as long as that helps."""
    better = True
    while better:
        better = False
        for border, by in [(border, by) for border in range(len(layout.parts) - 1) for by in (-1, 1)]:
            parts = list(layout.parts)
            (first, middle, one), (_, end, other) = parts[border : border + 2]
            if not first < middle + by < end:
                continue
            parts[border : border + 2] = [(first, middle + by, one), (middle + by, end, other)]
            if fits(crew, job, parts, layout.micro_batch):
                step_s = predict(pipeline_of(crew, job, parts, layout.micro_batch))
                if step_s < layout.step_s:
                    layout, better = Layout(step_s=step_s, parts=parts, micro_batch=layout.micro_batch), True
    return layout
