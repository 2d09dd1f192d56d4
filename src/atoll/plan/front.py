"""Which of many ways are worth telling: those that no other beats in time, money and carbon at once.

One way beats another where it is nowhere worse and somewhere better, so the best of anything always stays. Of the ways
that are left one is recommended: the nearest to having the least of everything, all three counted alike on a
logarithmic scale, so that twice as long weighs as much as twice as dear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Takes = tuple[float, float, float]
"""Seconds, dollars, grams."""
NAMES = ("time", "money", "carbon")
TOLD_MAX = 6
"""So many ways are told; of a longer front those that are best in something, and the ones between."""
BLAND = 1.02
"""Ways that differ by no more than this in anything are told as one."""
LEAST: Takes = (1.0, 0.01, 1.0)
"""What is compared on a logarithmic scale is never less: something that is free is not worth any wait."""


def front(ways: Sequence[Takes]) -> list[tuple[int, tuple[str, ...]]]:
    """Return the places of the ways to tell, the recommended one first, and what each is best in."""
    left = [place for place, takes in enumerate(ways) if not any(beats(other, takes) for other in ways)]
    best = {name: min(left, key=lambda place: ways[place][number]) for number, name in enumerate(NAMES)}
    least = _least([ways[place] for place in left])
    ranked = sorted(left, key=lambda place: _distance(ways[place], least))
    told = list(dict.fromkeys([ranked[0], *best.values()]))
    for place in ranked:
        if len(told) < TOLD_MAX and not any(_alike(ways[place], ways[other]) for other in told):
            told.append(place)
    return [(place, tuple(name for name in NAMES if best[name] == place)) for place in told]


def recommended(ways: Sequence[Takes]) -> int:
    """Return which way is nearest to the least of everything."""
    least = _least(ways)
    return min(range(len(ways)), key=lambda place: _distance(ways[place], least))


def beats(one: Takes, other: Takes) -> bool:
    """Return whether one way is nowhere worse, and better in something."""
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def _alike(one: Takes, other: Takes) -> bool:
    pairs = zip(one, other, strict=True)
    return all(mine <= BLAND * theirs and theirs <= BLAND * mine for mine, theirs in pairs)


def _least(ways: Sequence[Takes]) -> Takes:
    time_s, usd, carbon_g = (min(takes[number] for takes in ways) for number in range(3))
    return time_s, usd, carbon_g


def _distance(takes: Takes, least: Takes) -> float:
    told = zip(takes, least, LEAST, strict=True)
    return sum(math.log(max(mine, nothing) / max(ours, nothing)) for mine, ours, nothing in told)
