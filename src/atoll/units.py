"""Quantities as people write and read them: "100 Mbit", "2 GiB", "1.5 h".

Code carries plain floats and ints whose names end in the unit; this page is only the door between
those and text, so that every file and every table spells quantities the same way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from atoll.errors import SpecError

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_TIMES_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z/]*)\s*$")


def _split(text: str, want: str) -> tuple[float, str]:
    found = _QUANTITY.match(text.lower())
    if not found:
        raise SpecError(f"{text!r} is not a quantity", hint=f"write a number and a unit, for example {want!r}")
    return float(found[1]), found[2]


def rate_bytes_s(text: str) -> float:
    """Return bytes per second from text such as "100 Mbit" or "1.2 Gbit/s"."""
    number, unit = _split(text, "100 Mbit")
    unit = unit.removesuffix("/s").removesuffix("ps")
    if unit.endswith("bit") and unit.removesuffix("bit") in _SCALES:
        return number * _SCALES[unit.removesuffix("bit")] / 8
    if unit.endswith("b") and unit.removesuffix("b") in _SCALES:
        return number * _SCALES[unit.removesuffix("b")]
    raise SpecError(f"{text!r} is not a rate", hint='write for example "100 Mbit" (bits) or "12 MB" (bytes) per second')


def size_bytes(text: str) -> int:
    """Return bytes from text such as "2 GiB" or "500 MB"."""
    number, unit = _split(text, "2 GiB")
    if unit.endswith("b") and unit.removesuffix("b") in _SCALES:
        return int(number * _SCALES[unit.removesuffix("b")])
    raise SpecError(f"{text!r} is not a size", hint='write for example "2 GiB" or "500 MB"')


def time_s(text: str) -> float:
    """Return seconds from text such as "40 ms" or "1.5 h"."""
    number, unit = _split(text, "40 ms")
    if unit in _TIMES_S:
        return number * _TIMES_S[unit]
    raise SpecError(f"{text!r} is not a time", hint=f"write a number and one of {', '.join(_TIMES_S)}")


def power_w(text: str) -> float:
    """Return watts from text such as "450 W" or "1.2 kW"."""
    number, unit = _split(text, "450 W")
    if unit.endswith("w") and unit.removesuffix("w") in _SCALES:
        return number * _SCALES[unit.removesuffix("w")]
    raise SpecError(f"{text!r} is not a power", hint='write for example "450 W"')


def price_usd_kwh(text: str) -> float:
    """Return US dollars per kilowatt-hour from text such as "0.30 usd/kWh"."""
    number, unit = _split(text, "0.30 usd/kWh")
    if unit == "usd/kwh":
        return number
    raise SpecError(f"{text!r} is not a price of electricity", hint='write for example "0.30 usd/kWh"')


def say_bytes(count: float) -> str:
    """Return bytes as people read them: "12.3 MB"."""
    return _scaled(count, (" B", " kB", " MB", " GB", " TB", " PB", " EB"))


def say_count(count: float) -> str:
    """Return a large count as people read it: "1.2M"."""
    return _scaled(count, ("", "k", "M", "G", "T"))


def say_counted(count: int, one: str) -> str:
    """Return so many of something: "1 peer", "8 peers"."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def say_short(value: float) -> str:
    """Return a number of any size in a few letters: "0.02", "15", "1.5k"."""
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g}{letter}"
    return f"{value:.4g}"


def say_number(value: float) -> str:
    """Return a number to four places as people write it: "16,384", "0.3625", "1.504M"."""
    if abs(value) >= 1e6:
        return say_short(value)
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.4g}"


def _scaled(count: float, units: tuple[str, ...]) -> str:
    """Return a number in the unit that leaves it below a thousand, or in the last one."""
    power = 0
    while abs(count) >= 1000 and power + 1 < len(units):
        count, power = count / 1000, power + 1
    return f"{count:.{min(power, 1)}f}{units[power]}"


HOURS_SAID = 72
"""From so many hours on days are said."""


def say_time(seconds: float) -> str:
    """Return a duration as people read it: "2 min 05 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(int(seconds + 0.5), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < HOURS_SAID:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02d} h"


def say_usd(amount: float) -> str:
    """Return money as people read it: "$4.12", "$10,794"."""
    return f"${amount:,.2f}" if amount < 100 else f"${amount:,.0f}"


def say_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells, the head first, as lines: the first column to the left, numbers to the right."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([f"{name:<{wide[0]}}", *(f"{cell:>{w}}" for cell, w in zip(cells, wide[1:], strict=True))])
        for name, *cells in rows
    ]
