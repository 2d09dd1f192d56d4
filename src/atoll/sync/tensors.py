"""Whose turn it is: which tensors are exchanged after which step of a period, so that little is waited for (DreamDDP).

A backward pass is done with the last tensors first; what is exchanged of them can travel while it works on the others.
Tensors, in that order, are cut into as many runs as a period has exchanges, at least one in each. A run that ends in
time is hidden; what is left when the pass is over is waited for:

    backward   | 5     | 4     | 3     | 2     | 1     |            of every step
    first              [ 5 ][ 4      ][ 3     ]                     hidden
    second                                     [ 2     ][ 1     ]   waited for from the end of the pass on

Runs are sought depth first. Into each go all tensors that are hidden there, since to leave one for later hides no more;
then one more, or not: that is where the search branches. Who must wait least in all is taken. What time is left then is
filled: with the last tensors again, as many as nobody waits longer for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

Run = range
"""Tensors next to each other, numbered as the backward pass comes to them."""


class Profile:
    """How long the backward pass works on each tensor, and how long each travels, in the order of the pass."""

    def __init__(self, backward_s: Sequence[float], travel_s: Sequence[float]) -> None:
        assert len(backward_s) == len(travel_s) > 0, "each tensor has both"
        self.count = len(travel_s)
        self._ready_s = list(accumulate(backward_s))
        self._travel_s = travel_s

    def wait_s(self, *runs: Run) -> float:
        """Return how long a step waits for tensors, that travel one after the other, after its backward pass."""
        end_s = 0.0
        for run in runs:
            for tensor in run:
                end_s = max(end_s, self._ready_s[tensor]) + self._travel_s[tensor]
        return max(0.0, end_s - self._ready_s[-1])


def turns(profile: Profile, exchanges: int) -> list[tuple[int, ...]]:
    """Return the tensors of each exchange of a period; there are at least as many tensors as exchanges."""
    return [_filled(profile, run) for run in _cut(profile, exchanges)]


def _cut(profile: Profile, exchanges: int) -> list[Run]:
    """Return the runs that are waited for least in all."""

    @cache
    def best(first: int, left: int) -> tuple[float, tuple[Run, ...]]:
        if left == 1:
            rest = range(first, profile.count)
            return profile.wait_s(rest), (rest,)
        most = profile.count - left + 1  # one at least for each that follows
        hidden = first + 1
        while hidden < most and not profile.wait_s(range(first, hidden + 1)):
            hidden += 1
        ways = []
        for end in range(hidden, min(hidden + 1, most) + 1):
            run = range(first, end)
            wait_s, runs = best(end, left - 1)
            ways.append((profile.wait_s(run) + wait_s, (run, *runs)))
        return min(ways, key=lambda way: way[0])

    assert exchanges <= profile.count, "there is a tensor for each exchange"
    return list(best(0, exchanges)[1])


def _filled(profile: Profile, run: Run) -> tuple[int, ...]:
    """Return a run, and before it as many of the last tensors as make no step wait longer."""
    wait_s = profile.wait_s(run)
    fits, too_many = 0, run.start + 1
    while fits + 1 < too_many:  # each more is never better
        tried = (fits + too_many) // 2
        if profile.wait_s(range(tried), run) <= wait_s:
            fits = tried
        else:
            too_many = tried
    return (*range(fits), *run)
