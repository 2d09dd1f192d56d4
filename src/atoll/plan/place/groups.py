"""Equal groups by their links alone, as in DT-FM (Yuan et al. 2022): each group holds one stage, in so many replicas.

With gradients of G bytes for a stage and activations of A bytes for a pipeline, among D replicas of each stage:

    sync of a group       max over its members d of  sum over the others d'  2 (latency + G / (D rate))
    hand-over of two      the best one-to-one pairing's slowest link         2 (latency + A / rate)
    a split               the slowest sync, and the shortest way along all groups

Machines are taken to be equally fast. The search starts from ways to deal out machines that stand in an order in which
near ones are neighbours: in runs, or like cards to so many groups at a time, for every number of them; the best few are
improved by swapping two machines as long as that helps, shaken and improved again. What was weighed once is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from msgspec import Struct

from atoll.plan.place.crew import Floats, Links
from atoll.plan.place.near import near
from atoll.plan.place.path import matched, path, path_s, spanned_s

Group = tuple[int, ...]
"""Machines by their places."""
Groups = tuple[Group, ...]
"""Until they are in line, groups and their members are sorted: the order says nothing."""
TRIALS = 2000
"""Swaps that are weighed for 64 machines or fewer; of more, fewer: each costs more."""
KEPT, SHAKES = 3, 3
"""Starts that are improved, and swaps by which a result is shaken."""


class Volumes(Struct, frozen=True, kw_only=True):
    """What is moved in a step."""

    activation_bytes: float
    """Of one pipeline over one boundary, in one direction."""
    gradient_bytes: float
    """Of one stage."""


class Split(Struct, frozen=True, kw_only=True):
    """Groups in the order of the stages; the members at the same place of each are a pipeline."""

    groups: Groups
    sync_s: float
    hand_s: float

    @property
    def total_s(self) -> float:
        return self.sync_s + self.hand_s


class Scale:
    """Weighs splits of some machines; what it has seen costs nothing."""

    def __init__(self, links: Links, volumes: Volumes, stages: int) -> None:
        self.stages, self.width = stages, len(links.latency_s) // stages
        assert self.stages * self.width == len(links.latency_s), "machines do not go into groups of the same size"
        self.sync = 2 * links.transfer_s(volumes.gradient_bytes / self.width)
        self.hand = 2 * links.transfer_s(volumes.activation_bytes)
        self._syncs: dict[Group, float] = {}
        self._pairs: dict[tuple[Group, Group], float] = {}
        self._totals: dict[Groups, float] = {}

    def total_s(self, groups: Groups) -> float:
        """Return what a split costs; groups and their members are sorted."""
        if groups not in self._totals:
            apart_s = self._apart_s(groups)
            self._totals[groups] = self._sync_s(groups) + path_s(apart_s, path(apart_s))
        return self._totals[groups]

    def beats(self, groups: Groups, than_s: float) -> bool:
        """Return whether a split costs less; most are told by less than all of it."""
        if groups in self._totals:
            return self._totals[groups] < than_s
        sync_s = self._sync_s(groups)
        if sync_s >= than_s or sync_s + spanned_s(self._apart_s(groups)) >= than_s:
            return False
        return self.total_s(groups) < than_s

    def split(self, groups: Groups) -> Split:
        """Return a split in line: groups by the shortest way, members by whom they are matched with."""
        apart_s = self._apart_s(groups)
        order = path(apart_s)
        line = [list(groups[order[0]])]
        for at in order[1:]:
            _, partners = matched(_between(self.hand, line[-1], groups[at]))
            line.append([groups[at][partner] for partner in partners])
        return Split(groups=tuple(map(tuple, line)), sync_s=self._sync_s(groups), hand_s=path_s(apart_s, order))

    def _sync_s(self, groups: Groups) -> float:
        for group in groups:
            if group not in self._syncs:
                self._syncs[group] = float(_between(self.sync, group, group).sum(axis=1).max())
        return max(self._syncs[group] for group in groups)

    def _apart_s(self, groups: Groups) -> Floats:
        apart_s = np.zeros((len(groups), len(groups)))
        for (i, one), (j, other) in combinations(enumerate(groups), 2):
            if (one, other) not in self._pairs:
                self._pairs[one, other] = matched(_between(self.hand, one, other))[0]
            apart_s[i, j] = apart_s[j, i] = self._pairs[one, other]
        return apart_s


def _between(costs: Floats, rows: Sequence[int], columns: Sequence[int]) -> Floats:
    return costs.take(rows, axis=0).take(columns, axis=1)


def split_of(links: Links, volumes: Volumes, groups: Sequence[Sequence[int]]) -> Split:
    """Return what given groups cost, in line."""
    return Scale(links, volumes, len(groups)).split(_sorted(groups))


def split(links: Links, volumes: Volumes, stages: int, *, trials: int = TRIALS, seed: int = 0) -> Split:
    """Return machines in equal groups with little to wait for; the same for the same seed."""
    scale, draw = Scale(links, volumes, stages), np.random.default_rng(seed)
    count = len(links.latency_s)
    trials = int(trials * min(1.0, (64 / count) ** 2))
    starts = {_sorted(groups) for order in (range(count), near(scale.hand)) for groups in dealt(order, stages)}
    starts.add(_sorted(next(dealt(draw.permutation(count).tolist(), stages))))
    kept = sorted(starts, key=scale.total_s)[:KEPT]
    for start in kept:
        best = _improved(scale, start, trials // (2 * KEPT), draw)
        kept = sorted({*kept, best}, key=scale.total_s)
    return scale.split(_shaken(scale, kept[0], trials // 2, draw))


def dealt(order: Sequence[int], stages: int) -> Iterator[list[list[int]]]:
    """Yield the groups when machines in an order are dealt like cards to q groups at a time, for every q.

    With q = 1 groups are runs of the order; with q = stages each group has one of every run of so many.
    """
    width = len(order) // stages
    for hands in range(1, stages + 1):
        if stages % hands == 0:
            table = np.array(order).reshape(stages // hands, width, hands)
            yield [list(map(int, group)) for part in table for group in part.T]


def _sorted(groups: Sequence[Sequence[int]]) -> Groups:
    return tuple(sorted(tuple(sorted(map(int, group))) for group in groups))


def _swapped(groups: Groups, one: tuple[int, int], other: tuple[int, int]) -> Groups:
    """Return the groups with two machines in each other's place; both given by their group and their place in it."""
    changed = [list(group) for group in groups]
    (g, i), (h, j) = one, other
    changed[g][i], changed[h][j] = changed[h][j], changed[g][i]
    return _sorted(changed)


def _swaps(groups: Groups, draw: np.random.Generator) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield every pair of machines in different groups once, in a drawn order."""
    width = len(groups[0])
    pairs = list(combinations(range(len(groups) * width), 2))
    for at in draw.permutation(len(pairs)):
        one, other = divmod(pairs[at][0], width), divmod(pairs[at][1], width)
        if one[0] != other[0]:
            yield one, other


def _improved(scale: Scale, groups: Groups, trials: int, draw: np.random.Generator) -> Groups:
    """Return the groups after swaps that help, until none does or so many were tried."""
    swaps = _swaps(groups, draw)
    for _ in range(trials):
        pair = next(swaps, None)
        if pair is None:
            break
        other = _swapped(groups, *pair)
        if scale.beats(other, scale.total_s(groups)):
            groups, swaps = other, _swaps(other, draw)
    return groups


def _shaken(scale: Scale, best: Groups, trials: int, draw: np.random.Generator) -> Groups:
    """Return the best of what comes of shaking the best so far and improving it again."""
    swaps = len(best[0]) ** 2 * len(best) * (len(best) - 1) // 2
    rounds = max(1, trials // max(1, swaps))
    for _ in range(rounds if trials and swaps else 0):
        groups = best
        for _ in range(SHAKES):
            groups = _swapped(groups, *next(_swaps(groups, draw)))
        groups = _improved(scale, groups, trials // rounds, draw)
        best = min(best, groups, key=scale.total_s)
    return best
