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
_RANGES = {"utc_h": (-12.0, 14.0), "pue": (1.0, math.inf), "hour": (0.0, 23.0)}
"""What columns may say that is not just anything from 0 on."""
_POSITIVE = ("flop_s", "memory_bytes", "bytes_s", "up_s", "gpus", "nodes", "peers", "steps")
"""Columns, or how they end, that are divided by, or of which there is one at least."""
_PARTS = ("mfu", "matmul", "share", "up_part")
"""Columns that are a part of something: never more than 1."""


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
        tables = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        if not tables:
            raise SpecError(f"{path}: no table is in this folder", hint=f"tables are {', '.join(known)}")
        for file in tables:
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
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SpecError(f"{path}: cannot be read: {why}", hint="give a CSV file in UTF-8") from None
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
            refuse(place, field.name, "is empty", f"a new row of {kind.table} needs it")
        values[field.name] = cell if field.type is str else _number(field, cell, place)
    _check_order(values, place)
    if values.get("as_of") and not _is_date(values["as_of"]):
        refuse(place, "as_of", f"'{values['as_of']}' is no date", "write 2026, 2026-08 or 2026-08-22")
    return kind(**values)


@cache
def _fields(kind: type[Row]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _lines(kind: type[Row], text: str, file: str) -> list[tuple[str, Cells]]:
    """Return the cells of each line with its place."""
    reader = csv.reader(io.StringIO(text))
    try:
        head = _head(kind, next(reader, []), file)
        numbered = [(reader.line_num, cells) for cells in reader if any(cells)]
    except csv.Error:
        hint = "give a CSV file: commas between cells, and no cell of more than a few words"
        raise SpecError(f"{file}: line {reader.line_num}: cannot be read as CSV", hint=hint) from None
    for line, cells in numbered:
        if len(cells) != len(head):
            hint = f"there are {len(head)} columns; quote a cell with commas"
            raise SpecError(f"{file}: line {line}: {len(cells)} cells", hint=hint)
    return [
        (f"{file}: line {line}", {column: cell.strip() for column, cell in zip(head, cells, strict=True)})
        for line, cells in numbered
    ]


def _head(kind: type[Row], cells: list[str], file: str) -> list[str]:
    """Return the names of the columns: known ones, and those of the key are there."""
    head, known = [cell.strip() for cell in cells], [field.name for field in _fields(kind)]
    for column in head:
        if column not in known or head.count(column) > 1:
            hint = f"{near(column, known)}columns are {', '.join(known)}"
            refuse(f"{file}: line 1", column, "is there twice" if column in known else "is unknown", hint)
    for column in kind.keys:
        if column not in head:
            refuse(f"{file}: line 1", column, "is missing", f"rows of {kind.table} are named by {', '.join(kind.keys)}")
    return head


def key_cells(kind: type[Row], cells: Mapping[str, str]) -> list[str]:
    """Return the names of a row as its own columns would have them: "1.0" GPUs are 1, and none said is the default."""
    return [_key_cell(field, cells.get(field.name, "")) for field in _fields(kind) if field.name in kind.keys]


def _key_cell(field: msgspec.structs.FieldInfo, cell: str) -> str:
    if not cell and not field.required:
        return str(field.default)
    try:
        return f"{float(cell):g}" if field.type is int else cell
    except ValueError:
        return cell  # whatever it is, `row` refuses it with its place


def _number(field: msgspec.structs.FieldInfo, cell: str, place: str) -> float | int:
    try:
        value = float(cell)
    except ValueError:
        refuse(place, field.name, f"'{cell}' is not a number", f"write a plain number; the unit is {_unit(field.name)}")
    _check_range(field.name, value, cell, place)
    whole = field.type is int or field.type == int | None
    if whole and value != int(value):
        refuse(place, field.name, f"{cell} is not a whole number", "write one without a point")
    return int(value) if whole else value


def _check_range(column: str, value: float, cell: str, place: str) -> None:
    """Refuse what the column cannot mean."""
    name = _middle(column)
    least, most = _RANGES.get(name, (0.0, 1.0 if name in _PARTS else math.inf))
    above = name.endswith(_POSITIVE) or (name in _PARTS and column == name)
    if math.isfinite(value) and least <= value <= most and (value > 0 or not above):
        return
    allowed = f"{'above' if above else 'at least'} {least:g}" + ("" if math.isinf(most) else f" and at most {most:g}")
    refuse(place, column, f"{cell} is out of range", f"write a finite number {allowed}")


def _middle(column: str) -> str:
    """Return the column whose spread a column is an end of; itself if none."""
    return column.removesuffix("_low").removesuffix("_high")


def _unit(column: str) -> str:
    """Return the unit that a column's name ends with."""
    name = _middle(column)
    units = ("memory_bytes_s", "bytes_s", "carbon_g_kwh", "carbon_g_unit", "usd_kwh", "usd_hour", "usd_gb", "rate_hour")
    return next((unit for unit in units if name.endswith(unit)), name.rsplit("_", 1)[-1])


def _check_order(values: Mapping[str, Any], place: str) -> None:
    """Refuse a spread that does not hold its middle."""
    for column, middle in values.items():
        if isinstance(middle, str):
            continue
        low, high = values.get(f"{column}_low", middle), values.get(f"{column}_high", middle)
        if not low <= middle <= high:
            refuse(
                place, column, f"{middle} is not between {low} and {high}", f"say {column}_low and {column}_high too"
            )


def _is_date(text: str) -> bool:
    try:
        year, month, day = (*(int(part) for part in text.split("-")), 1, 1)[:3] if _AS_OF.match(text) else (0, 0, 0)
        date(year, month, day)
    except ValueError:
        return False
    return True


def refuse(place: str, column: str, what: str, hint: str) -> NoReturn:
    """Say what is wrong with a cell."""
    raise SpecError(f"{place}, column {column}: {what}", hint=hint)
