"""To buy or to hire, many small machines or a few large ones: what hardware costs over the years it is used.

    owning     price + power x hours x dollars per kWh                over some years
    training   device-hours = FLOP x redundancy / (peak x MFU x efficiency),  at so much an hour each

A swarm of cheap devices loses some of its time to its lines (`efficiency`) and does some of its work more than once
(`redundancy`). Against a central cluster it breaks even at the efficiency

    (price of a swarm's hour / price of a central one) x (useful speed of a central device / of one in the swarm) x r

above which it is the cheaper one. More than 1 means never. Arrays go through all of it elementwise.
"""

from __future__ import annotations

from msgspec import Struct

HOURS_YEAR = 8760.0


class Kit(Struct, frozen=True, kw_only=True):
    """Devices that one buys."""

    name: str
    count: float
    price_usd: float
    """Of each."""
    power_kw: float
    """Of each."""


class Side(Struct, frozen=True, kw_only=True):
    """Devices to train on, as somebody pays for them."""

    name: str
    flop_s: float
    """What each could do."""
    mfu: float
    """The part of it that training reaches where nothing is waited for."""
    usd_hour: float
    """Hire, or electricity where that is all one pays (`fed_usd_hour`)."""
    efficiency: float = 1.0
    """The part of the time that is left when lines, stragglers and failures have had theirs."""
    redundancy: float = 1.0
    """How often work is done on average, checks included."""
    power_kw: float = 0.0
    pue: float = 1.0


class Effort(Struct, frozen=True, kw_only=True):
    """What some training takes on one side."""

    device_hours: float
    usd: float
    energy_kwh: float


class Versus(Struct, frozen=True, kw_only=True):
    """A swarm beside a central cluster, for the same training."""

    swarm: Effort
    central: Effort
    even_efficiency: float
    """From which on the swarm is the cheaper one."""

    @property
    def usd_ratio(self) -> float:
        return self.swarm.usd / self.central.usd

    @property
    def energy_ratio(self) -> float:
        return self.swarm.energy_kwh / self.central.energy_kwh


def owning_usd(kit: Kit, years: float, usd_kwh: float, *, pue: float = 1.0, duty: float = 1.0) -> float:
    """Return what a kit costs over its years: itself and its electricity, at work for a part of the time."""
    return kit.count * (kit.price_usd + kit.power_kw * pue * duty * HOURS_YEAR * years * usd_kwh)


def even_usd_kwh(frugal: Kit, cheap: Kit, years: float, *, duty: float = 1.0) -> float:
    """Return the price of electricity at which a kit that draws less and one that costs less come to the same."""
    saved_usd = frugal.count * frugal.price_usd - cheap.count * cheap.price_usd
    more_kwh = (cheap.count * cheap.power_kw - frugal.count * frugal.power_kw) * duty * HOURS_YEAR * years
    return saved_usd / more_kwh


def wear_usd_hour(price_usd: float, years: float, *, duty: float = 1.0, resale: float = 0.0) -> float:
    """Return what an hour of use takes off a device that is worth a part of its price in the end."""
    return price_usd * (1 - resale) / (years * HOURS_YEAR * duty)


def fed_usd_hour(power_kw: float, usd_kwh: float, pue: float = 1.0) -> float:
    """Return what the electricity of a device costs each hour."""
    return power_kw * pue * usd_kwh


def effort(flop: float, side: Side) -> Effort:
    """Return what training of so many operations takes."""
    hours = flop * side.redundancy / (side.flop_s * side.mfu * side.efficiency * 3600)
    return Effort(device_hours=hours, usd=hours * side.usd_hour, energy_kwh=hours * side.power_kw * side.pue)


def even_efficiency(swarm: Side, central: Side) -> float:
    """Return the efficiency at which a swarm costs as much as a central cluster for the same work."""
    speeds = (central.flop_s * central.mfu * central.efficiency) / (swarm.flop_s * swarm.mfu)
    return swarm.usd_hour / central.usd_hour * speeds * swarm.redundancy / central.redundancy


def versus(flop: float, swarm: Side, central: Side) -> Versus:
    """Return a swarm beside a central cluster."""
    return Versus(
        swarm=effort(flop, swarm), central=effort(flop, central), even_efficiency=even_efficiency(swarm, central)
    )
