"""How long the lines of a round's members need for what they move: the one estimate that policy and planner share.

And what a run would be with other knobs, from how it was measured (`View`).

Every line is full all the while and nobody waits for anybody, so it is a bound, right up to a factor that is about the
same for every form of the exchange: who wants to know what another form would take compares two forecasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from atoll.spec.axes.control import Knobs
from atoll.spec.axes.whom import AllGather, Butterfly, Regions, Ring, Rings, Route, Star, Trees
from atoll.swarm.routes.shares import groups_needed, slowest, solve


class Line(Struct, frozen=True):
    """A member's line: what it carries, and whether others can bring it something to own."""

    rate_bytes_s: float
    owns: bool = True


def wire_s(route: Route, size_bytes: float, lines: Sequence[Line]) -> float:
    """Return how long the slowest line needs for a round with contributions of so many bytes from everybody."""
    if len(lines) < 2:
        return 0.0
    match route:
        case AllGather() | Star():  # one line carries what all others give it; whose that is, of a star, nobody chose
            return size_bytes * (len(lines) - 1) / min(line.rate_bytes_s for line in lines)
        case Ring() | Trees() | Rings() | Regions():  # what all together move is the same on any of their ways
            return size_bytes * 2 * (len(lines) - 1) / len(lines) / min(line.rate_bytes_s for line in lines)
        case Butterfly(group=group):
            return size_bytes * _butterfly(lines, groups_needed(len(lines), group))


def _butterfly(lines: Sequence[Line], groups: int) -> float:
    """Return the slowest member's time for contributions of size 1."""
    bounds = [len(lines) * number // groups for number in range(groups + 1)]
    between = 2 * (groups - 1) / groups  # a sum and a result, for all but the own group
    longest = 0.0
    for first, end in pairwise(bounds):
        group = lines[first:end]
        owners = [line.rate_bytes_s for line in group if line.owns] or [line.rate_bytes_s for line in group]
        carries = len(group) + between
        owning = slowest(owners, solve(owners, carries), carries)
        longest = max(longest, owning, *(1 / line.rate_bytes_s for line in group))
    return longest


class View(Struct, frozen=True, kw_only=True):
    """A run as it was measured: what it could be with other knobs follows."""

    step_s: float
    wire_s: float
    """What bytes take in the present form."""
    rest_s: float
    """What the exchange takes beside."""
    ratios: tuple[float, ...]
    """What they would take on each rung, in proportion."""
    members: int
    samples: int = 0
    """Of all together, that such a step is of; 0: that is no knob."""
    batches: tuple[int, ...] = (0,)
    """What it may be of."""
    least: int = 0
    """What it is of at least: everybody has something to work on."""

    def work_s(self, knobs: Knobs) -> float:
        """Return how long the work of a round takes."""
        times = self.drawn(knobs.samples) / self.drawn(self.samples) if self.samples else 1.0
        return knobs.steps * self.step_s * times

    def drawn(self, samples: int) -> int:
        """Return of how many samples a batch really is."""
        return max(samples, self.least)

    def exchange_s(self, rung: int) -> float:
        """Return how long an exchange takes on a rung."""
        return self.rest_s + self.wire_s * self.ratios[rung]

    def lost_s(self, knobs: Knobs) -> float:
        """Return how long nobody works in a round."""
        return max(0.0, self.exchange_s(knobs.rung) - knobs.delay * self.step_s)

    def share(self, knobs: Knobs) -> float:
        """Return which part of a round that is."""
        lost_s = self.lost_s(knobs)
        return lost_s / (knobs.steps * self.step_s + lost_s)
