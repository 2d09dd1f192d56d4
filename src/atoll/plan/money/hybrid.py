"""Machines of one's own, and how many to hire beside them: StellaTrain's question, as a model.

A round has to get through some samples; who is there shares them by speed. As soon as there are two sites, what they
have learnt has to cross the line between them in both directions, which no number of hired machines makes shorter. So
hiring is of no use below a certain line, has less of it the more is hired, and may be worse than hiring everything in
one place and leaving one's own machines idle. All three are counted here; nothing else of a cluster is (what machines
of one site say to each other takes `near_s`, whoever they are, where there are two or more).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from atoll.errors import SpecError
from atoll.plan.money.bill import Bill, Owned, Rented, Tariff, bill
from atoll.plan.money.check import not_negative, part, positive

HERE, AWAY = "own", "cloud"


class Own(Struct, frozen=True, kw_only=True):
    """Equal machines at home."""

    count: int
    samples_s: float
    """Of each."""
    power_kw: float = 0.0
    usd_kwh: float = 0.0

    def __post_init__(self) -> None:
        positive(samples_s=self.samples_s)
        not_negative(count=self.count, power_kw=self.power_kw, usd_kwh=self.usd_kwh)


class Offer(Struct, frozen=True, kw_only=True):
    """Machines on some market."""

    name: str
    usd_hour: float
    samples_s: float
    """Of each, while it is there."""
    count_max: int
    up_fraction: float = 1.0
    """Of the time in which it is there; it is paid only then."""
    usd_gb: float = 0.0
    """For what leaves that cloud."""

    def __post_init__(self) -> None:
        positive(samples_s=self.samples_s)
        part(up_fraction=self.up_fraction)
        not_negative(usd_hour=self.usd_hour, count_max=self.count_max, usd_gb=self.usd_gb)


class Work(Struct, frozen=True, kw_only=True):
    """What is to be done."""

    samples: float
    round_samples: float
    round_bytes: float
    """Each way between two sites, once a round."""
    near_s: float = 0.0
    """What a round takes to agree within a site of several machines."""
    overlapped: bool = False
    """Whether a round's bytes travel while the next is calculated."""

    def __post_init__(self) -> None:
        positive(samples=self.samples, round_samples=self.round_samples)
        not_negative(round_bytes=self.round_bytes, near_s=self.near_s)


class Line(Struct, frozen=True, kw_only=True):
    """Between home and cloud."""

    up_bytes_s: float
    down_bytes_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        positive(up_bytes_s=self.up_bytes_s, down_bytes_s=self.down_bytes_s)
        not_negative(latency_s=self.latency_s)


class Mix(Struct, frozen=True, kw_only=True):
    """Some machines of one's own and some hired, and what the run takes with them."""

    own: int
    offer: str
    hired: int
    hours: float
    paid: Bill
    binds: Literal["compute", "line"]
    """What more of would shorten a round most."""


class Decision(Struct, frozen=True, kw_only=True):
    """What to do by a deadline."""

    best: Mix
    """The cheapest that is in time; the quickest where none is."""
    in_time: bool
    own_only: Mix | None
    cloud_only: Mix | None
    """The cheapest of those without one's own machines that is in time."""

    @property
    def hybrid_pays(self) -> bool:
        """Whether machines of both kinds together are the best there is."""
        return self.in_time and self.best.own > 0 and self.best.hired > 0


def mix(work: Work, own: Own, offer: Offer | None, hired: int, line: Line) -> Mix:
    """Return what a run takes with all of one's own machines and so many of an offer."""
    site_s = within_s(work, own, offer, hired)
    between = own.count > 0 and hired > 0
    line_s = crossing_s(work, line) if between else 0.0
    spent_s = max(site_s, line_s) if work.overlapped else site_s + line_s
    rounds = work.samples / work.round_samples
    hours = rounds * spent_s / 3600
    sent_gb = rounds * work.round_bytes / 1e9 if between else 0.0
    return Mix(
        own=own.count,
        offer=offer.name if offer is not None and hired else "",
        hired=hired,
        hours=hours,
        paid=_paid(own, offer, hired, hours, sent_gb),
        binds="line" if line_s > (site_s if work.overlapped else calculating_s(work, own, offer, hired)) else "compute",
    )


def decide(work: Work, own: Own, offers: Sequence[Offer], line: Line, deadline_h: float) -> Decision:
    """Return how many of which offer to hire beside one's own machines, if any: every number is tried."""
    alone = mix(work, own, None, 0, line) if own.count else None
    none = Own(count=0, samples_s=own.samples_s)
    away = list(_tries(work, none, offers, line))
    tried = [*([alone] if alone else []), *_tries(work, own, offers, line), *away]
    if not tried:
        raise SpecError("nobody is there to do the work", hint="say machines of one's own, or offers of one at least")
    in_time = [each for each in tried if each.hours <= deadline_h]
    best = min(in_time, key=_cheap) if in_time else min(tried, key=lambda each: (each.hours, each.paid.total_usd))
    return Decision(
        best=best,
        in_time=bool(in_time),
        own_only=alone,
        cloud_only=min((each for each in away if each.hours <= deadline_h), key=_cheap, default=None),
    )


def within_s(work: Work, own: Own, offer: Offer | None, hired: int) -> float:
    """Return how long a round takes at the sites: calculating, and agreeing where one has several machines."""
    return calculating_s(work, own, offer, hired) + (work.near_s if max(own.count, hired) > 1 else 0.0)


def calculating_s(work: Work, own: Own, offer: Offer | None, hired: int) -> float:
    """Return how long a round's samples take, shared by speed."""
    hired_s = 0.0 if offer is None else hired * offer.samples_s * offer.up_fraction
    together_s = own.count * own.samples_s + hired_s
    if together_s <= 0:
        raise SpecError("nobody is there to do the work", hint="say machines of one's own, or hire one at least")
    return work.round_samples / together_s


def crossing_s(work: Work, line: Line) -> float:
    """Return how long a round's bytes take over the line, both directions at once."""
    return work.round_bytes / min(line.up_bytes_s, line.down_bytes_s) + 2 * line.latency_s


def line_needed_bytes_s(work: Work, own: Own, offer: Offer, hired: int, latency_s: float = 0.0) -> float:
    """Return the slowest line over which hiring makes a run quicker than one's own machines alone are."""
    alone_s, both_s = within_s(work, own, None, 0), within_s(work, own, offer, hired)
    spare_s = alone_s - (0.0 if work.overlapped else both_s) - 2 * latency_s
    return work.round_bytes / spare_s if spare_s > 0 and both_s < alone_s else float("inf")


def _cheap(one: Mix) -> tuple[float, float]:
    return one.paid.total_usd, one.hours


def _tries(work: Work, own: Own, offers: Sequence[Offer], line: Line) -> Iterator[Mix]:
    for offer in offers:
        for hired in range(1, offer.count_max + 1):
            yield mix(work, own, offer, hired, line)


def _paid(own: Own, offer: Offer | None, hired: int, hours: float, sent_gb: float) -> Bill:
    fed = Owned(name=HERE, count=own.count, hours=hours, power_kw=own.power_kw, usd_kwh=own.usd_kwh)
    if offer is None or not hired:
        return bill([fed])
    there = Rented(name=AWAY, count=hired, hours=hours * offer.up_fraction, usd_hour=offer.usd_hour)
    tariffs = [Tariff(source=AWAY, usd_gb=offer.usd_gb)]
    return bill([fed, there], traffic_gb={(AWAY, HERE): sent_gb}, tariffs=tariffs)
