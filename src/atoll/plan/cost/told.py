"""Lines as a fleet file says them beside what the tables know of such lines: notes for what lies far apart.

Of two cloud regions skyplane measured the round trip and what 64 streams carried; of homes there are typical lines and
medians. A file may know better, so nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from atoll.facts.book import Facts
from atoll.facts.rows import Home, Line, Region, spread
from atoll.plan.carbon.inputs import inputs_of
from atoll.spec.fleet import Fleet, Machine, latency_s
from atoll.units import say_bytes

FAR = 1.5
"""A number that is so many times another is worth a note."""


def notes(fleet: Fleet, machines: Sequence[Machine], facts: Facts) -> list[str]:
    """Return what of a fleet's lines is unlike what is known of such lines."""
    return [*_regions(fleet, machines, facts), *_homes(machines, facts)]


def _regions(fleet: Fleet, machines: Sequence[Machine], facts: Facts) -> Iterator[str]:
    """Yield pairs of cloud regions whose latency is another, or whose lines were never seen as fast."""
    regions = sorted({each.region for each in machines if facts.known(Region, each.region) is not None})
    for here, there in permutations(regions, 2):
        known = facts.known(Line, here, there)
        if known is None:
            continue
        said_s, seen_s = latency_s(fleet, here, there), known.rtt_s / 2
        if here < there and not seen_s / FAR <= said_s <= seen_s * FAR:
            yield f"{here} to {there}: {1e3 * said_s:.3g} ms one way, {1e3 * seen_s:.3g} were measured ({known.as_of})"
        up = max(each.up_bytes_s for each in machines if each.region == here)
        most = spread(known, "bytes_s")[2]
        if up > FAR * most:
            yield f"{here} to {there}: {say_bytes(up)}/s up, 64 streams carried {say_bytes(most)}/s ({known.as_of})"


def _homes(machines: Sequence[Machine], facts: Facts) -> Iterator[str]:
    """Yield machines in homes whose uplink no home of the table has."""
    best = max(facts.rows(Home), key=lambda each: each.up_bytes_s)
    fast = [each for each in machines if each.up_bytes_s > FAR * best.up_bytes_s]
    for machine in fast:
        if inputs_of(machine, facts).rows[3].key == "home" and facts.use(best):
            said, most = say_bytes(machine.up_bytes_s), say_bytes(best.up_bytes_s)
            yield f"{machine.name}: {said}/s up from a home; the fastest known ({best.profile}) has {most}/s"
