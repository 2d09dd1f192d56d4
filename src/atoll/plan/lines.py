"""Members of a round as their lines: how fast they are, whether others can call them, and how many each stands for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from atoll.spec.fleet import Machine

MEMBERS_MAX = 96
"""Of a larger crew so many stand for all: enough to be cut into groups, as all of them are."""


class Line(Struct, frozen=True, kw_only=True):
    """A member as its line: how fast it is, and whether others can call it."""

    name: str = ""
    up_bytes_s: float = 0.0
    down_bytes_s: float = 0.0
    """0: not known; shares are then equal and no time is told."""
    reached: bool = True
    region: str = ""
    """Members of the same one are near each other."""
    count: float = 1.0
    """Members that it stands for: of a crowd some are looked at for all."""


def lines_of(machines: Sequence[Machine], count: float = 1.0) -> list[Line]:
    """Return the lines of a fleet's machines, each of which stands for so many."""
    return [
        Line(
            name=each.name,
            up_bytes_s=each.up_bytes_s,
            down_bytes_s=each.down_bytes_s,
            reached=not each.nat,
            region=each.region,
            count=count,
        )
        for each in machines
    ]


def crowd_of(lines: Iterable[Line]) -> float:
    """Return how many members lines stand for."""
    return sum(line.count for line in lines)


def standing_in(crew: Sequence[Machine]) -> tuple[int, ...]:
    """Return the places of those that stand for all: evenly over regions, speeds and lines, both ends among them."""
    if len(crew) <= MEMBERS_MAX:
        return tuple(range(len(crew)))
    order = sorted(
        range(len(crew)),
        key=lambda place: (crew[place].region, crew[place].device.reached_flop_s, crew[place].up_bytes_s),
    )
    chosen = {order[round(step * (len(order) - 1) / (MEMBERS_MAX - 1))] for step in range(MEMBERS_MAX)}
    return tuple(sorted(chosen))
