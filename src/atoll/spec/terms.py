"""On which terms somebody has a machine: owned, with its price and its electricity, or rented by the hour.

Only planning reads them: nothing here changes what a simulated machine does. Prices that the file does not say come
from the tables of `atoll.facts`, by provider and market, or by the name of an electricity market; a price that it does
say is the price, whoever rents the machine out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from atoll.errors import SpecError
from atoll.facts.book import Facts
from atoll.spec.axes.axis import Axis
from atoll.units import price_usd_kwh

Market = Literal["on_demand", "spot"]
YEARS = 3.0
"""A machine is written off after this, where nothing else is said."""


class Owned(Axis, frozen=True, tag="owned"):
    """It is there anyway: its owner pays for electricity, and for its wear where a price is said."""

    usd_kwh: float
    electricity: str = ""
    """The row of the electricity table that said so; empty where the file did."""
    price_usd: float = 0.0
    years: float = YEARS


class Rented(Axis, frozen=True, tag="rented"):
    """It is paid by the hour, electricity included."""

    usd_hour: float
    provider: str = ""
    """Whose list the price was looked up in; empty where the file said it."""
    market: Market = "on_demand"
    operator: str = ""
    """Who rents it out, so in whose buildings it stands, where the file says so."""


Terms = Owned | Rented


class OwnedText(Axis, frozen=True, tag="owned"):
    """Same as `Owned`, as it stands in a file."""

    electricity: str = "World residential"
    price_usd: float = 0.0
    years: float = YEARS


class RentedText(Axis, frozen=True, tag="rented"):
    """Same as `Rented`, as it stands in a file: a price, or whose, or both, and then the price is the file's."""

    usd_hour: float | None = None
    provider: str = ""
    market: Market = "on_demand"


TermsText = OwnedText | RentedText


def terms_of(text: TermsText, gpu: str, facts: Facts, read: Callable[..., Any]) -> Terms:
    """Return the terms of a machine with this GPU; `read` reports a value that is none with its place."""
    if isinstance(text, OwnedText):
        return _owned(text, facts, read)
    is_listed = text.usd_hour is None and bool(text.provider)
    usd_hour = read(lambda _: _usd_hour(text, gpu, facts), "", "terms", "provider" if is_listed else "usd_hour")
    return Rented(
        usd_hour=usd_hour,
        provider=text.provider if is_listed else "",
        market=text.market,
        operator=text.provider,
    )


def _owned(text: OwnedText, facts: Facts, read: Callable[..., Any]) -> Owned:
    read(_not_negative, text.price_usd, "terms", "price_usd")
    read(_positive, text.years, "terms", "years")
    said = text.electricity.lstrip()[:1].isdigit() or "/kwh" in text.electricity.casefold()
    usd_kwh = read(
        _usd_kwh if said else lambda name: facts.electricity(name).usd_kwh,
        text.electricity,
        "terms",
        "electricity",
    )
    return Owned(
        usd_kwh=usd_kwh, electricity="" if said else text.electricity, price_usd=text.price_usd, years=text.years
    )


def _usd_kwh(text: str) -> float:
    usd_kwh = price_usd_kwh(text)
    if not math.isfinite(usd_kwh):
        raise SpecError(f"{text!r} is out of range", hint='write for example "0.30 usd/kWh"')
    return usd_kwh


def _usd_hour(text: RentedText, gpu: str, facts: Facts) -> float:
    """Return what an hour costs: as the file says, else as the provider does."""
    if text.usd_hour is not None:
        return _not_negative(text.usd_hour)
    if not text.provider:
        raise SpecError("no price is said", hint='add usd_hour = 0.4, or provider = "aws" and market = "spot"')
    if not gpu:
        raise SpecError("the price of a machine is that of its GPU, which is not named", hint='add device.gpu = "H100"')
    return facts.price(text.provider, gpu, text.market).usd_hour


def _not_negative(number: float) -> float:
    if number < 0:
        raise SpecError(f"{number} is out of range", hint="a price is at least 0")
    return number


def _positive(number: float) -> float:
    if number <= 0:
        raise SpecError(f"{number} is out of range", hint="a number above 0")
    return number
