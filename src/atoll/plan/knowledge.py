"""What is known of a fleet's machines, and how well: every input of a forecast with its spread and its source.

A fleet file is taken at its word for the middle. How far off that may be comes from the tables of facts where they have
a spread, and else is an estimate that says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.facts.book import Facts
from atoll.facts.rows import Row
from atoll.facts.rows import spread as spread_of
from atoll.plan.carbon.inputs import inputs_of
from atoll.plan.spread import Spread, spread
from atoll.spec.fleet import Machine
from atoll.spec.terms import Owned, Rented

OURS = "estimate: how far a fleet file may be off"
COMPUTING, LINES, LOSS, STAYING = (0.7, 1.2), (0.7, 1.1), (0.3, 3.0), (0.5, 2.0)
"""Low and high, as parts of what a fleet file says."""
FORECAST = (1.0, 1.08, 1.3)
"""What exchanges take as a multiple of the formula: headers and acknowledgements over TLS, and at most over QUIC."""
FORECAST_SOURCE = "measured: python -m bench.mesh, python -m bench.forecast"
CRITICAL_TOKENS = (2.5e5, 1e6, 4e6)
CRITICAL_SOURCE = "estimate, around what we remember of Kaplan et al. (2020) for a loss of 3 nats; not read again"
LOSS_SLOPE = (0.05, 0.08, 0.12)
"""By which part the loss falls where tokens grow by one: 0.28 x 410.7/D^0.28 of 1.69 + 406.4/N^0.34 + 410.7/D^0.28."""
LOSS_SLOPE_SOURCE = "computed at 125M parameters, 2.5G tokens from Hoffmann et al. (2022) as others quote their fit"
AS_OF = "2026-11"
HOUSEHOLD = "World residential"
"""The electricity of a machine of which nothing is said."""
WEAR_HOURS_YEAR = 8760.0

Knowledge = dict[str, Spread]


def knowledge_of(machines: Sequence[Machine], facts: Facts) -> Knowledge:
    """Return every input by its name, for all machines."""
    energy = [inputs_of(machine, facts) for machine in machines]
    rows = [row for each in energy for row in each.rows]
    return {
        "computing": _computing(machines, facts),
        "lines": _told(machines, LINES),
        "loss": _told(machines, LOSS),
        "staying": _told(machines, STAYING),
        "critical batch": _three([CRITICAL_TOKENS], (CRITICAL_SOURCE, AS_OF)),
        "loss slope": _three([LOSS_SLOPE], (LOSS_SLOPE_SOURCE, AS_OF)),
        "forecast": _three([FORECAST], (FORECAST_SOURCE, AS_OF)),
        "device": _three([each.most_w for each in energy], _source(rows, "gpus")),
        "host": _three([each.host_w for each in energy], _source(rows, "hosts")),
        "building": _three([each.pue for each in energy], _source(rows, "sites")),
        "grid": _three([each.carbon_g_kwh for each in energy], _source(rows, "grids")),
        "making": _three([each.made_g for each in energy], _source(rows, "embodied")),
        "electricity": _electricity(machines, facts),
        "rent": _rent(machines, facts),
        "network": _three([spread_of(facts.wire(), "energy_kwh_gb")], (facts.wire().source, facts.wire().as_of)),
    }


def wear_usd_hour(machine: Machine) -> float:
    """Return what an hour of use takes of the price of a machine that somebody owns, where the fleet says it."""
    terms = machine.terms
    return terms.price_usd / (terms.years * WEAR_HOURS_YEAR) if isinstance(terms, Owned) else 0.0


def _three(threes: Sequence[tuple[float, float, float]], source: tuple[str, str]) -> Spread:
    low, middle, high = np.array(threes, float).T
    return spread(low, middle, high, *source)


def _source(rows: Sequence[Row], table: str) -> tuple[str, str]:
    """Return where a table's rows come from, and how old the oldest is."""
    of = [row for row in rows if row.table == table]
    return "; ".join(dict.fromkeys(row.source for row in of)), min(row.as_of for row in of)


def _told(machines: Sequence[Machine], ends: tuple[float, float]) -> Spread:
    ones = np.ones(len(machines))
    return spread(ends[0] * ones, ones, ends[1] * ones, OURS, AS_OF)


def _computing(machines: Sequence[Machine], facts: Facts) -> Spread:
    """Return how many times faster machines may be than the fleet says."""
    ends, sources = [], {OURS: AS_OF}
    for machine in machines:
        if not machine.gpu:
            ends.append(COMPUTING)
            continue
        row = facts.efficiency(facts.gpu(machine.gpu))
        low, middle, high = spread_of(row, "mfu")
        ends.append((low / middle, high / middle))
        sources[row.source] = row.as_of
    low_high = np.array(ends, float)
    ones = np.ones(len(machines))
    return spread(low_high[:, 0], ones, low_high[:, 1], "; ".join(sources), min(sources.values()))


def _electricity(machines: Sequence[Machine], facts: Facts) -> Spread:
    """Return the price of a kilowatt-hour for each; nothing for who rents."""
    household = facts.electricity(HOUSEHOLD)
    low, middle, high = spread_of(household, "usd_kwh")
    threes = []
    for machine in machines:
        match machine.terms:
            case Owned(usd_kwh=usd_kwh, electricity=""):
                threes.append((usd_kwh, usd_kwh, usd_kwh))
            case Owned(electricity=market):
                threes.append(spread_of(facts.electricity(market), "usd_kwh"))
            case Rented():
                threes.append((0.0, 0.0, 0.0))
            case _:
                threes.append((low, middle, high))
    return _three(threes, (household.source, household.as_of))


def _rent(machines: Sequence[Machine], facts: Facts) -> Spread:
    """Return the price of an hour for each; nothing for who owns."""
    threes, sources = [], {"the fleet file": AS_OF}
    for machine in machines:
        terms = machine.terms
        if isinstance(terms, Rented) and terms.provider:
            row = facts.price(terms.provider, machine.gpu, terms.market)
            threes.append(spread_of(row, "usd_hour"))
            sources[row.source] = row.as_of
        else:
            usd_hour = terms.usd_hour if isinstance(terms, Rented) else 0.0
            threes.append((usd_hour, usd_hour, usd_hour))
    return _three(threes, ("; ".join(sources), min(sources.values())))
