"""What is known of a fleet's machines, and how well: every input of a forecast with its spread and its source.

A fleet file is taken at its word for the middle. How far off that may be comes from the tables of facts where they have
a spread, and else is an estimate that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from atoll.facts.book import Facts
from atoll.facts.rows import Region, Row
from atoll.facts.rows import spread as spread_of
from atoll.plan.carbon.inputs import inputs_of
from atoll.plan.goal import Goal
from atoll.plan.money.inputs import HOME
from atoll.plan.spread import Floats, Spread, spread
from atoll.spec.fleet import Churn, Machine
from atoll.spec.recipe import Recipe
from atoll.spec.terms import Owned, Rented

OURS = "estimate: how far a fleet file may be off"
FLEET, NOBODY = "the fleet file", "no machine is concerned"
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
HOURS_YEAR = 8760.0
NEVER_S = 1e15
"""How long a machine stays that never leaves."""
STATE_BYTES = 8.0
"""For each parameter that who comes back has to fetch: weights, and the state that moves the anchor. Where moments
travel nothing moves it, and each element is 4 bytes."""
USEFUL_MIN = 1e-6
"""Where no more than this part of the work counts, machines come and go too often to train at all."""
HOUSEHOLD = "World residential"
"""The electricity of a machine of which nothing is said."""

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
        "egress": _egress(machines, facts),
        "network": _three([spread_of(facts.wire(), "energy_kwh_gb")], (facts.wire().source, facts.wire().as_of)),
    }


def wear_usd_hour(machine: Machine) -> float:
    """Return what an hour of use takes of the price of a machine that somebody owns, where the fleet says it."""
    terms = machine.terms
    return terms.price_usd / (terms.years * HOURS_YEAR) if isinstance(terms, Owned) else 0.0


def stays_s(machines: Sequence[Machine]) -> tuple[Floats, Floats]:
    """Return how long each machine stays at a time, and how long it is away then."""
    kinds = [machine.availability for machine in machines]
    return (
        np.array([kind.up_s if isinstance(kind, Churn) else NEVER_S for kind in kinds]),
        np.array([kind.down_s if isinstance(kind, Churn) else 0.0 for kind in kinds]),
    )


def fetch_s(machines: Sequence[Machine], goal: Goal, recipe: Recipe) -> Floats:
    """Return how long each machine fetches the anchor when it comes back."""
    size_bytes = max(STATE_BYTES * goal.parameters, 4.0 * goal.travels(recipe))
    return size_bytes / np.array([machine.down_bytes_s for machine in machines])


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
    threes, sources = [], dict[str, str]()
    for machine in machines:
        match machine.terms:
            case Owned(usd_kwh=usd_kwh, electricity=""):
                threes.append((usd_kwh, usd_kwh, usd_kwh))
                sources[FLEET] = AS_OF
            case Rented():
                threes.append((0.0, 0.0, 0.0))
            case terms:
                row = facts.electricity(terms.electricity if isinstance(terms, Owned) else HOUSEHOLD)
                threes.append(spread_of(row, "usd_kwh"))
                sources[row.source] = row.as_of
    return _three(threes, _listed(sources))


def _rent(machines: Sequence[Machine], facts: Facts) -> Spread:
    """Return the price of an hour for each; nothing for who owns."""
    threes, sources = [], dict[str, str]()
    for machine in machines:
        terms = machine.terms
        if isinstance(terms, Rented) and terms.provider:
            row = facts.price(terms.provider, machine.gpu, terms.market)
            threes.append(spread_of(row, "usd_hour"))
            sources[row.source] = row.as_of
        elif isinstance(terms, Rented):
            threes.append((terms.usd_hour, terms.usd_hour, terms.usd_hour))
            sources[FLEET] = AS_OF
        else:
            threes.append((0.0, 0.0, 0.0))
    return _three(threes, _listed(sources))


def _egress(machines: Sequence[Machine], facts: Facts) -> Spread:
    """Return how many times what the tables say a gigabyte may cost that leaves a cloud region."""
    known = {each.region for each in machines if facts.known(Region, each.region) is not None}
    rented = {each.region for each in machines if isinstance(each.terms, Rented) and each.region in known}
    everywhere = {each.region if each.region in known else HOME for each in machines}
    low, high, sources = 1.0, 1.0, dict[str, str]()
    for origin, to in product(sorted(rented), sorted(everywhere)):
        if origin != to:
            row = facts.egress(origin, to)
            least, middle, most = spread_of(row, "usd_gb")
            low, high = (min(low, least / middle), max(high, most / middle)) if middle else (low, high)
            sources[row.source] = row.as_of
    return _three([(low, 1.0, high)], _listed(sources))


def _listed(sources: dict[str, str]) -> tuple[str, str]:
    """Return where an input comes from, and how old the oldest of that is."""
    return ("; ".join(sources), min(sources.values())) if sources else (NOBODY, AS_OF)
