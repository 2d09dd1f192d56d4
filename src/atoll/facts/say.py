"""Facts as lines to print: what a plan rests on, and whole tables, each row with its source and its age."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

import msgspec

from atoll.errors import SpecError
from atoll.facts.book import Facts
from atoll.facts.read import near
from atoll.facts.rows import KINDS, Row, age_days

_ABOUT = ("basis", "source", "as_of", "also", "name")


def say_used(facts: Facts, on: date) -> list[str]:
    """Return what was asked of the tables, the oldest first, and how old it was on a day."""
    return _lines(sorted(facts.used.values(), key=lambda row: -(age_days(row, on) or 0)), on)


def say_rows(facts: Facts, table: str, on: date) -> list[str]:
    """Return a whole table."""
    by_name = {kind.table: kind for kind in KINDS}
    if table not in by_name:
        raise SpecError(f"no table is called '{table}'", hint=f"{near(table, by_name)}tables are {', '.join(by_name)}")
    return _lines(facts.rows(by_name[table]), on)


def _lines(rows: Iterable[Row], on: date) -> list[str]:
    cells = [("table", "row", "value", "age", "basis", "source")]
    cells += [(row.table, row.key, _value(row), _age(row, on), row.basis, row.source) for row in rows]
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(each, wide, strict=True)).rstrip() for each in cells]


def _value(row: Row) -> str:
    """Return what a row says, without its name; a spread as low..high behind its middle."""
    said = {
        field.name: value
        for field in msgspec.structs.fields(row)
        if field.name not in (*row.keys, *_ABOUT) and (value := getattr(row, field.name)) not in (None, "")
    }
    ends = {f"{name}_{end}" for name in said for end in ("low", "high")}
    return ", ".join(f"{name} {_number(value)}{_range(said, name)}" for name, value in said.items() if name not in ends)


def _range(said: dict[str, object], name: str) -> str:
    low, high = said.get(f"{name}_low"), said.get(f"{name}_high")
    if low is None and high is None:
        return ""
    return f" ({_number(said[name] if low is None else low)}..{_number(said[name] if high is None else high)})"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _age(row: Row, on: date) -> str:
    days = age_days(row, on)
    return "not said" if days is None else f"{days} d"
