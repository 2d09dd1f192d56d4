"""Data that stay where they are: at each site functions or machines, so that the whole is quick or cheap.

Our reading of the abstract of Phalak et al. (ICPE 2024 companion), whose model of training over several clouds and
geographies chooses between serverless functions and machines; their own equations were not available. Each round every
site works through its data, then all send an update and wait for the slowest. Functions are paid while they run, by
memory and second; a machine is paid while it waits too. So a slow site makes every machine elsewhere dearer, and sites
cannot be chosen one by one. They can for a round of a given length, and only so many lengths are worth a look: those
that some choice at some site takes. That makes the answer exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import Struct

from atoll.errors import SpecError
from atoll.plan.money.check import not_negative, positive


class Functions(Struct, frozen=True, kw_only=True):
    """Serverless: so many at once, paid by memory and second of running."""

    name: str
    count: int
    memory_gb: float
    usd_gb_s: float
    samples_s: float
    """Of each."""
    start_s: float = 0.0
    """Before it works, each round; it is paid."""

    def __post_init__(self) -> None:
        positive(count=self.count, samples_s=self.samples_s)
        not_negative(memory_gb=self.memory_gb, usd_gb_s=self.usd_gb_s, start_s=self.start_s)


class Machines(Struct, frozen=True, kw_only=True):
    """Hired for the whole run, waiting included."""

    name: str
    count: int
    usd_hour: float
    samples_s: float
    """Of each."""

    def __post_init__(self) -> None:
        positive(count=self.count, samples_s=self.samples_s)
        not_negative(usd_hour=self.usd_hour)


Option = Functions | Machines


class Site(Struct, frozen=True, kw_only=True):
    """Data that do not move, and what could work on them there."""

    name: str
    samples: float
    """Each round."""
    options: tuple[Option, ...]
    up_bytes_s: float
    usd_gb: float = 0.0
    """For what leaves it."""

    def __post_init__(self) -> None:
        positive(up_bytes_s=self.up_bytes_s)
        not_negative(samples=self.samples, usd_gb=self.usd_gb)
        if not self.options:
            raise SpecError(f"nothing can work at {self.name!r}", hint="give functions or machines for every site")


class Choice(Struct, frozen=True, kw_only=True):
    """An option for every site, in their order, and what the run takes."""

    options: tuple[Option, ...]
    hours: float
    usd: float


def front(sites: Sequence[Site], rounds: int, update_bytes: float) -> list[Choice]:
    """Return the choices that no other beats in both time and money, the quickest first."""
    positive(sites=len(sites), rounds=rounds)
    not_negative(update_bytes=update_bytes)
    lengths_s = sorted({work_s(site, option) for site in sites for option in site.options})
    found = [_within(sites, rounds, update_bytes, length_s) for length_s in lengths_s]
    best: list[Choice] = []
    for one in sorted((each for each in found if each is not None), key=lambda each: (each.hours, each.usd)):
        if not best or one.usd < best[-1].usd:
            best.append(one)
    return best


def cheapest(
    sites: Sequence[Site], rounds: int, update_bytes: float, deadline_h: float = float("inf")
) -> Choice | None:
    """Return the cheapest choice that is in time; None where none is."""
    in_time = [each for each in front(sites, rounds, update_bytes) if each.hours <= deadline_h]
    return min(in_time, key=lambda each: each.usd, default=None)


def priced(sites: Sequence[Site], options: Sequence[Option], rounds: int, update_bytes: float) -> Choice:
    """Return what a choice takes and costs."""
    pairs = list(zip(sites, options, strict=True))
    length_s = max(work_s(site, option) for site, option in pairs) + exchange_s(sites, update_bytes)
    usd = rounds * sum(_usd(site, option, length_s, update_bytes) for site, option in pairs)
    return Choice(options=tuple(options), hours=rounds * length_s / 3600, usd=usd)


def work_s(site: Site, option: Option) -> float:
    """Return how long an option takes over the data of a site, once."""
    start_s = option.start_s if isinstance(option, Functions) else 0.0
    return start_s + site.samples / (option.count * option.samples_s)


def exchange_s(sites: Sequence[Site], update_bytes: float) -> float:
    """Return how long updates take: the slowest line."""
    return max(update_bytes / site.up_bytes_s for site in sites)


def _within(sites: Sequence[Site], rounds: int, update_bytes: float, work_s_max: float) -> Choice | None:
    """Return the cheapest choice of which no site works longer, as if the slowest took so long."""
    length_s = work_s_max + exchange_s(sites, update_bytes)
    chosen = [min(_in_time(site, length_s, update_bytes, work_s_max), default=None) for site in sites]
    if any(each is None for each in chosen):
        return None
    options = [site.options[each[1]] for site, each in zip(sites, chosen, strict=True) if each is not None]
    return priced(sites, options, rounds, update_bytes)


def _in_time(site: Site, length_s: float, update_bytes: float, work_s_max: float) -> Iterator[tuple[float, int]]:
    for number, option in enumerate(site.options):
        if work_s(site, option) <= work_s_max:
            yield _usd(site, option, length_s, update_bytes), number


def _usd(site: Site, option: Option, length_s: float, update_bytes: float) -> float:
    """Return what a round of a given length costs at a site."""
    sent_usd = update_bytes / 1e9 * site.usd_gb
    match option:
        case Functions(count=count, memory_gb=memory_gb, usd_gb_s=usd_gb_s):
            return count * work_s(site, option) * memory_gb * usd_gb_s + sent_usd
        case Machines(count=count, usd_hour=usd_hour):
            return count * usd_hour * length_s / 3600 + sent_usd
        case _:
            assert_never(option)
