"""What the tables say of a fleet's money beside prices: what bytes cost that leave, how often machines fail.

A machine that says how it comes and goes is taken at its word. Of others, one on a spot market stays as long as such
machines did (`spot.csv`, by its GPU, or the middle of all), one that is rented or no consumer's fails as often as those
of data centres, and the rest as volunteers' do (`failures.csv`). Whatever was taken the book of facts remembers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atoll.facts.book import Facts
from atoll.facts.rows import Gpu, Region, Spot, spread
from atoll.plan.money.bill import Tariff
from atoll.plan.money.checkpoint import Saving, saving
from atoll.spec.fleet import Churn, Machine
from atoll.spec.terms import Rented

Three = tuple[float, float, float]
"""Low, middle and high."""
HOUR_S = 3600.0
HOME = "home"


def tariffs(pairs: Iterable[tuple[str, str]], facts: Facts) -> list[Tariff]:
    """Return what a gigabyte costs from place to place; a place that is no cloud's region sends as a home does."""
    found = []
    for source, target in dict.fromkeys(pairs):
        origin, to = (place if facts.known(Region, place) is not None else HOME for place in (source, target))
        found.append(Tariff(source=source, target=target, usd_gb=facts.egress(origin, to).usd_gb))
    return found


def failures_hour(machine: Machine, facts: Facts) -> Three:
    """Return how often a machine fails or leaves."""
    if isinstance(machine.availability, Churn):
        rate = HOUR_S / machine.availability.up_s
        return rate, rate, rate
    gpu = facts.known(Gpu, machine.gpu) if machine.gpu else None
    if isinstance(machine.terms, Rented) and machine.terms.market == "spot":
        lived = None if gpu is None else facts.known(Spot, "any", gpu.name, 1, 1)
        if lived is None:
            return spread(facts.failure("spot"), "rate_hour")
        short_s, middle_s, long_s = spread(lived, "up_s")
        return HOUR_S / long_s, HOUR_S / middle_s, HOUR_S / short_s
    steady = isinstance(machine.terms, Rented) or (gpu is not None and gpu.kind != "consumer")
    return spread(facts.failure("datacenter" if steady else "volunteer"), "rate_hour")


def keeping(
    machines: Sequence[Machine], facts: Facts, save_s: float, restart_s: float = 0.0
) -> tuple[Saving, Saving, Saving]:
    """Return how often to save what all of them hold together, with failures rare, as expected, and frequent.

    Any one that fails stops the others, as in a pipeline or in steps that everybody takes part in.
    """
    rates = [failures_hour(machine, facts) for machine in machines]
    seldom, middle, often = (saving(save_s, HOUR_S / sum(each), restart_s) for each in zip(*rates, strict=True))
    return seldom, middle, often
