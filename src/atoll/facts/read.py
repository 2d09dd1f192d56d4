"""From CSV to rows, strictly: an error names file, line and column, and how to put it right.

A user's file is read over the shipped one: a row with the same name replaces what it says and leaves the rest, a new
name is a new row. Who says a number without its spread knows it exactly, so the shipped spread goes.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections.abc import Iterable, Mapping
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from atoll.errors import SpecError
from atoll.facts.rows import KINDS, Row

R = TypeVar("R", bound=Row)
Cells = dict[str, str]
_TABLES = files("atoll") / "facts" / "tables"
_AS_OF = re.compile(r"^\d{4}(-\d\d){0,2}$")
_SIGNED = ("utc_h",)
"""Columns that may be below zero."""


def plain(word: str) -> str:
    """Return a name as it is compared: small letters and digits only, so that "RTX-4090" is "rtx 4090"."""
    return re.sub(r"[^a-z0-9]", "", word.casefold())


def near(word: str, known: Iterable[str]) -> str:
    """Return the known names that are closest to a word, as a question, or nothing."""
    by_plain = {plain(name): name for name in known}
    found = [by_plain[each] for each in difflib.get_close_matches(plain(word), list(by_plain), n=3, cutoff=0.6)]
    return f"did you mean {' or '.join(map(repr, found))}? " if found else ""


@cache
def shipped(kind: type[Row]) -> tuple[Cells, ...]:
    """Return the cells of a table that ships with Atoll."""
    file = f"{kind.table}.csv"
    return tuple(cells for _, cells in _lines(kind, (_TABLES / file).read_text("utf-8"), file))


def override_files(paths: Iterable[Path]) -> list[tuple[type[Row], Path]]:
    """Return which table each of a user's files speaks for, folders opened; each is named like its table."""
    known = {f"{kind.table}.csv": kind for kind in KINDS}
    found: list[tuple[type[Row], Path]] = []
    for path in paths:
        if not path.exists():
            raise SpecError(f"{path}: no such file", hint=f"give a folder, or a file named one of {', '.join(known)}")
        for file in sorted(path.glob("*.csv")) if path.is_dir() else [path]:
            if file.name not in known:
                hint = f"{near(file.name, known)}tables are {', '.join(known)}"
                raise SpecError(f"{file}: no table is called so", hint=hint)
            found.append((known[file.name], file))
    return found


def override_lines(kind: type[Row], path: Path) -> list[tuple[str, Cells]]:
    """Return the cells of a user's file, each with its place."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}", hint="give a CSV file in UTF-8") from None
    said = {"basis": "said", "source": path.name}
    return [
        (place, said | {column: cell for column, cell in cells.items() if cell})
        for place, cells in _lines(kind, text, str(path))
    ]


def over(base: Cells, cells: Cells, keys: tuple[str, ...]) -> Cells:
    """Return a row with what a user says on top, under its own name."""
    stale = {f"{column}_{end}" for column in cells for end in ("low", "high")} | {"as_of"}
    kept = {column: cell for column, cell in base.items() if column not in stale}
    return kept | cells | {column: base[column] for column in keys}


def row(kind: type[R], cells: Mapping[str, str], place: str) -> R:
    """Return typed cells; whatever is wrong is refused with its place."""
    values: dict[str, Any] = {}
    for field in _fields(kind):
        cell = cells.get(field.name, "")
        if not cell and not field.required:
            continue
        if not cell:
            _refuse(place, field.name, "is empty", f"a new row of {kind.table} needs it")
        values[field.name] = cell if field.type is str else _number(field, cell, place)
    _check_order(values, place)
    if values.get("as_of") and not _is_date(values["as_of"]):
        _refuse(place, "as_of", f"'{values['as_of']}' is no date", "write 2026, 2026-08 or 2026-08-22")
    return kind(**values)


@cache
def _fields(kind: type[Row]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _lines(kind: type[Row], text: str, file: str) -> list[tuple[str, Cells]]:
    """Return the cells of each line; columns are known ones, and those of the key are there."""
    reader = csv.reader(io.StringIO(text))
    head = [cell.strip() for cell in next(reader, [])]
    known = [field.name for field in _fields(kind)]
    for column in head:
        if column not in known or head.count(column) > 1:
            hint = f"{near(column, known)}columns are {', '.join(known)}"
            _refuse(f"{file}: line 1", column, "is there twice" if column in known else "is unknown", hint)
    for column in kind.keys:
        if column not in head:
            _refuse(
                f"{file}: line 1", column, "is missing", f"rows of {kind.table} are named by {', '.join(kind.keys)}"
            )
    found: list[tuple[str, Cells]] = []
    for cells in reader:
        place = f"{file}: line {reader.line_num}"
        if any(cells) and len(cells) != len(head):
            raise SpecError(
                f"{place}: {len(cells)} cells", hint=f"there are {len(head)} columns; quote a cell with commas"
            )
        if any(cells):
            found.append((place, {column: cell.strip() for column, cell in zip(head, cells, strict=True)}))
    return found


def _number(field: msgspec.structs.FieldInfo, cell: str, place: str) -> float | int:
    try:
        value = float(cell)
    except ValueError:
        _refuse(
            place, field.name, f"'{cell}' is not a number", f"write a plain number; the unit is {_unit(field.name)}"
        )
    if not math.isfinite(value) or (value < 0 and field.name not in _SIGNED):
        _refuse(place, field.name, f"{cell} is out of range", "write a finite number that is not negative")
    whole = field.type is int or field.type == int | None
    if whole and value != int(value):
        _refuse(place, field.name, f"{cell} is not a whole number", "write one without a point")
    return int(value) if whole else value


def _unit(column: str) -> str:
    """Return the unit that a column's name ends with."""
    name = column.removesuffix("_low").removesuffix("_high")
    units = ("memory_bytes_s", "bytes_s", "carbon_g_kwh", "carbon_g_unit", "usd_kwh", "usd_hour", "usd_gb", "rate_hour")
    return next((unit for unit in units if name.endswith(unit)), name.rsplit("_", 1)[-1])


def _check_order(values: Mapping[str, Any], place: str) -> None:
    """Refuse a spread that does not hold its middle."""
    for column, middle in values.items():
        if isinstance(middle, str):
            continue
        low, high = values.get(f"{column}_low", middle), values.get(f"{column}_high", middle)
        if not low <= middle <= high:
            _refuse(
                place, column, f"{middle} is not between {low} and {high}", f"say {column}_low and {column}_high too"
            )


def _is_date(text: str) -> bool:
    try:
        year, month, day = (*(int(part) for part in text.split("-")), 1, 1)[:3] if _AS_OF.match(text) else (0, 0, 0)
        date(year, month, day)
    except ValueError:
        return False
    return True


def _refuse(place: str, column: str, what: str, hint: str) -> NoReturn:
    raise SpecError(f"{place}, column {column}: {what}", hint=hint)
