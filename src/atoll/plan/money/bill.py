"""The one cost function: hours at prices, traffic at the price of its source, storage, control, verification.

    cost = sum over sites of  count x integral of price dt   +   sum over pairs of  GB x dollars per GB of the source
         + GB x months x dollars per GB-month   +   dollars per hour of control x hours   +   what checking costs

Machines of one's own have no hire: they have electricity and, where somebody counts it, wear. Everything else of money
in this room comes down to such a bill, so each says its parts and what share of the whole they are. Any number that is
only added and multiplied (counts, hours, prices, gigabytes) may be a numpy array: a bill then holds arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, assert_never, get_args

from msgspec import Struct
from msgspec.structs import replace

from atoll.errors import SpecError

PFLOP_DAY_FLOP = 1e15 * 86400
Kind = Literal["compute", "energy", "wear", "egress", "storage", "control", "verification"]
Traffic = Mapping[tuple[str, str], float]
"""Gigabytes from one place to another."""


class Step(Struct, frozen=True):
    """A price from some hour of the run on."""

    since_h: float
    usd_hour: float


class Rented(Struct, frozen=True, kw_only=True):
    """Equal machines at one site that are paid by the hour."""

    name: str
    """Of the site."""
    count: float
    hours: float
    usd_hour: float | tuple[Step, ...]
    """For each; steps where it changes during the run."""


class Owned(Struct, frozen=True, kw_only=True):
    """Equal machines that only have to be fed."""

    name: str
    count: float
    hours: float
    power_kw: float
    """Of each, with all that is around the device."""
    usd_kwh: float
    pue: float = 1.0
    """What the building draws for each unit that a machine does."""
    wear_usd_hour: float = 0.0
    """What an hour takes off the price at which it was bought, where that counts."""

    @property
    def energy_kwh(self) -> float:
        return self.count * self.hours * self.power_kw * self.pue


Term = Rented | Owned
"""How a group of machines is paid for."""


class Tariff(Struct, frozen=True, kw_only=True):
    """What a gigabyte from a place costs; volumes beyond `from_gb` are the ones that cost it."""

    source: str
    target: str = ""
    """Empty: to anywhere that no other tariff names."""
    usd_gb: float
    from_gb: float = 0.0


class Stored(Struct, frozen=True, kw_only=True):
    """Data that lie somewhere while the run goes on, and perhaps longer."""

    size_gb: float
    usd_gb_month: float
    months: float


class Part(Struct, frozen=True, kw_only=True):
    """One line of a bill."""

    kind: Kind
    name: str
    usd: float
    site: str = ""
    """Who is paid: where the machines are, or where the traffic comes from."""


class Bill(Struct, frozen=True):
    """What a run costs, line by line."""

    parts: tuple[Part, ...]

    @property
    def total_usd(self) -> float:
        return sum(part.usd for part in self.parts)

    def usd(self, kind: Kind) -> float:
        """Return what all lines of a kind come to."""
        return sum(part.usd for part in self.parts if part.kind == kind)

    def share(self, kind: Kind) -> float:
        """Return which part of the whole a kind is; 0 where nothing is paid."""
        total_usd = self.total_usd
        return 0.0 if _nothing(total_usd) else self.usd(kind) / total_usd

    def at(self, site: str) -> Bill:
        """Return what is paid to one site."""
        return Bill(tuple(part for part in self.parts if part.site == site))

    def times(self, often: float) -> Bill:
        """Return the bill of so many of the same."""
        return Bill(tuple(replace(part, usd=part.usd * often) for part in self.parts))

    @property
    def by_kind(self) -> dict[Kind, float]:
        """Return dollars of every kind that is on the bill."""
        present = {part.kind for part in self.parts}
        return {kind: self.usd(kind) for kind in get_args(Kind) if kind in present}


class Units(Struct, frozen=True, kw_only=True):
    """A bill over what was done for it."""

    usd_token: float
    usd_1m_samples: float
    usd_pflop_day: float
    """For a thousand million million useful operations each second, a day long."""
    kwh_pflop_day: float
    egress_share: float


def bill(
    terms: Sequence[Term],
    *,
    traffic_gb: Traffic | None = None,
    tariffs: Sequence[Tariff] = (),
    stored: Sequence[Stored] = (),
    control_usd_hour: float = 0.0,
    hours: float = 0.0,
    verification_usd: float = 0.0,
) -> Bill:
    """Return the bill of a run of so many hours; lines that cannot cost anything are left out."""
    parts = [part for term in terms for part in _term_parts(term)]
    parts += [
        Part(kind="egress", name=f"{source} -> {target}", usd=egress_usd(source, target, size_gb, tariffs), site=source)
        for (source, target), size_gb in (traffic_gb or {}).items()
    ]
    parts += [Part(kind="storage", name="stored", usd=one.size_gb * one.usd_gb_month * one.months) for one in stored]
    if not _nothing(control_usd_hour):
        parts.append(Part(kind="control", name="control", usd=control_usd_hour * hours))
    if not _nothing(verification_usd):
        parts.append(Part(kind="verification", name="verification", usd=verification_usd))
    return Bill(tuple(parts))


def egress_usd(source: str, target: str, size_gb: float, tariffs: Sequence[Tariff]) -> float:
    """Return what it costs to send so much, by the tariff of the pair or else by that of its source, tier by tier."""
    named = [one for one in tariffs if one.source == source and one.target == target]
    tiers = sorted(
        named or [one for one in tariffs if one.source == source and not one.target and source != target],
        key=lambda one: one.from_gb,
    )
    if not tiers and source == target:
        return 0.0 * size_gb
    if not tiers or tiers[0].from_gb > 0:
        raise SpecError(f"no price for traffic from {source!r} to {target!r}", hint="add a tariff for this source")
    total, above_usd_gb = 0.0, 0.0
    for tier in tiers:
        beyond_gb = size_gb - tier.from_gb
        total = total + (tier.usd_gb - above_usd_gb) * beyond_gb * (beyond_gb > 0)
        above_usd_gb = tier.usd_gb
    return total


def units(
    paid: Bill, *, tokens: float = 0.0, samples: float = 0.0, flop: float = 0.0, energy_kwh: float = 0.0
) -> Units:
    """Return dollars and energy per what was done; 0 where it was not said how much."""
    days = flop / PFLOP_DAY_FLOP
    return Units(
        usd_token=_over(paid.total_usd, tokens),
        usd_1m_samples=_over(1e6 * paid.total_usd, samples),
        usd_pflop_day=_over(paid.total_usd, days),
        kwh_pflop_day=_over(energy_kwh, days),
        egress_share=paid.share("egress"),
    )


def paid_usd(price: float | tuple[Step, ...], hours: float) -> float:
    """Return what one machine costs for so long: the integral of its price."""
    if not isinstance(price, tuple):
        return price * hours
    if not price or price[0].since_h > 0:
        raise SpecError("a price that changes needs a step at hour 0", hint="say what it is when the run begins")
    ends = [step.since_h for step in price[1:]] + [hours]
    spans = [max(0.0, min(end, hours) - step.since_h) for step, end in zip(price, ends, strict=True)]
    return sum(step.usd_hour * span for step, span in zip(price, spans, strict=True))


def _term_parts(term: Term) -> list[Part]:
    match term:
        case Rented(name=name, count=count, hours=hours, usd_hour=price):
            return [Part(kind="compute", name=name, usd=count * paid_usd(price, hours), site=name)]
        case Owned(name=name, count=count, hours=hours, wear_usd_hour=wear):
            fed = Part(kind="energy", name=name, usd=term.energy_kwh * term.usd_kwh, site=name)
            worn = Part(kind="wear", name=name, usd=count * hours * wear, site=name)
            return [fed] if _nothing(wear) else [fed, worn]
        case _:
            assert_never(term)


def _over(amount: float, count: float) -> float:
    return 0.0 if _nothing(count) else amount / count


def _nothing(number: float) -> bool:
    """Return whether it is the plain number 0 (an array is never nothing)."""
    return isinstance(number, int | float) and number == 0
