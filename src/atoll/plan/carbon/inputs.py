"""What the tables say of a machine's energy and carbon: each number with its low and its high, to draw ranges over.

A machine that says less is taken to be like others: the power of the GPU whose speed is nearest, the grid of its cloud
region or of the world, the buildings of who rents it out or of whose region it is in, else a home for a consumer's GPU
that nobody rents and an average building for others. Whatever was taken is among what the book of facts remembers, so
that a plan shows it.
"""

from __future__ import annotations

import math

from msgspec import Struct

from atoll.facts.book import Facts
from atoll.facts.rows import Gpu, Grid, Region, Row, Site, spread
from atoll.plan.carbon.hours import Clock
from atoll.spec.fleet import Machine
from atoll.spec.terms import Rented

Three = tuple[float, float, float]
"""Low, middle and high."""


class Inputs(Struct, frozen=True, kw_only=True):
    """What `energy.machines_drawn` wants to know of a machine."""

    most_w: Three
    host_w: Three
    pue: Three
    carbon_g_kwh: Three
    made_g: Three
    rows: tuple[Row, ...]
    """Where it comes from."""


def inputs_of(machine: Machine, facts: Facts) -> Inputs:
    """Return what is known of a machine, or of others like it."""
    gpu = facts.gpu(machine.gpu) if machine.gpu else _alike(machine, facts)
    drawing = gpu if gpu.power_w is not None or machine.power_w is not None else _alike(machine, facts)
    host, made, grid, site = facts.host(gpu), facts.made(gpu), _grid(machine, facts), _site(machine, gpu, facts)
    made_g = made.carbon_g + host.made_g
    most_w = machine.power_w if machine.power_w is not None else float(drawing.power_w or 0)
    return Inputs(
        most_w=(most_w, most_w, most_w),
        host_w=spread(host, "power_w"),
        pue=spread(site, "pue"),
        carbon_g_kwh=spread(grid, "carbon_g_kwh"),
        made_g=(made_g, made_g, made_g),
        rows=(drawing, host, made, site, grid),
    )


def clock_of(grid: Grid, facts: Facts) -> Clock:
    """Return a grid through the day, as the tables shape it."""
    return Clock(mean_g_kwh=grid.carbon_g_kwh, day=tuple(facts.day(grid.day)), utc_h=grid.utc_h)


def _alike(machine: Machine, facts: Facts) -> Gpu:
    """Return the GPU whose speed is nearest, of those whose power is known."""
    known = [gpu for gpu in facts.rows(Gpu) if gpu.power_w is not None]
    return facts.use(min(known, key=lambda gpu: abs(math.log(gpu.flop_s / machine.device.flop_s))))


def _grid(machine: Machine, facts: Facts) -> Grid:
    if machine.grid:
        return facts.grid(machine.grid)
    region = facts.known(Region, machine.region)
    return facts.grid("WORLD" if region is None else region.grid)


def _site(machine: Machine, gpu: Gpu, facts: Facts) -> Site:
    if machine.site:
        return facts.site(machine.site)
    rented = isinstance(machine.terms, Rented)
    operator = machine.terms.operator if isinstance(machine.terms, Rented) else ""
    for provider in filter(None, (operator, machine.region.partition(":")[0] if ":" in machine.region else "")):
        if (found := facts.known(Site, provider)) is not None:
            return found
    return facts.site("home" if gpu.kind == "consumer" and not rented else "industry")
